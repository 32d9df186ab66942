//! RAVEN: copies while it is not known which path is faster (Lee, Flinn and Tonshal, MobiCom 2018).
//!
//! *Problem.* In a car the delay of each network changes much, suddenly and not together with that of the others.
//! Lowest RTT follows an average that says little of the next request, and the tail is what users notice. But
//! copies of everything cost twice the bytes even where one network is clearly the faster one.
//!
//! *How.* Each path has an interval in which its RTT probably is. New data goes on the path of the lowest SRTT. If
//! the interval of another one reaches down to that of the first, nobody knows which of them is faster, and the
//! segment goes there as well, at once. If not, the first is faster as surely as the intervals say, and nothing is
//! copied. The interval is SRTT ± `deviations` × RTTVAR, wider by the root of 1 + age / `fresh`, the age being the
//! time since something came in on the path; after `stale` nothing is known of it, and its interval holds
//! everything. So an application that asks seldom gets copies at its first request, whose answers make the
//! intervals narrow again. What was DATA_ACKed is not sent on the slower path any more: the core cancels it.
//!
//! *Source.* The abstract: redundancy when confidence in the predictions is low, age of measurements as part of that
//! confidence, three networks and more, transparent to applications, needless copies cancelled. From a published
//! summary: that confidence intervals of RTTs which overlap are the test. Written anew; the authors' code was not
//! looked at.
//!
//! *What differs.* The default of `deviations` is the 95 % of a normal distribution, whose standard deviation is 1.25
//! mean deviations. That an interval grows with the root of its age is our choice: a delay that drifts without a
//! direction is as far away as that. How the authors tell interactive traffic from bulk was not to be had; here data
//! is copied while no more than `limit` bytes of what was written are not DATA_ACKed.
//!
//! *Extra bytes:* those of small messages, one for one where paths are alike or answers old, none where one path is
//! clearly faster. *p99 of a small message:* as `redundant` in the first case, as `lowest-rtt` in the second: a loss
//! on a path whose RTT is known to be the lowest is repaired as if there were no other.

use marline_algos::schedulers::copies::copying_class;
use marline_algos::schedulers::{MinRtt, MinRttConfig, classes};
use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent, SubflowId,
    SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

use super::at_once::AtOnce;

/// How wide intervals are, and what is copied.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct RavenConfig {
    /// Half of an interval in RTTVARs, while the last answer is new; 0 to 100.
    pub deviations: f64,
    /// At this age of the last answer an interval is 1.4 times as wide; more than zero.
    pub fresh: Duration,
    /// At this age nothing is known.
    pub stale: Duration,
    /// With more bytes than this written and not DATA_ACKed, nothing is copied.
    pub limit: u64,
}

impl Default for RavenConfig {
    fn default() -> Self {
        RavenConfig {
            deviations: 2.5,
            fresh: Duration::from_secs(1),
            stale: Duration::from_secs(10),
            limit: 100_000,
        }
    }
}

/// Lowest RTT, with copies on every path that may be as fast.
#[derive(Clone, Debug)]
pub struct Raven {
    config: RavenConfig,
    base: MinRtt,
    copies: AtOnce,
}

impl Raven {
    /// With intervals like these.
    #[must_use]
    pub fn new(config: RavenConfig) -> Self {
        Raven { config, base: MinRtt::new(MinRttConfig::BARE), copies: AtOnce::default() }
    }

    /// The least and the largest RTT that a path probably has now; `None`: any.
    fn interval(&self, view: &SubflowView, now: Instant) -> Option<[Duration; 2]> {
        let age = now.since(view.last_heard_at);
        let srtt = view.srtt.filter(|_| age <= self.config.stale)?;
        let grown = (1.0 + age.div_duration_f64(self.config.fresh)).sqrt();
        let half = view.rttvar.mul_f64(self.config.deviations * grown);
        Some([srtt.saturating_sub(half), srtt.saturating_add(half)])
    }

    /// Whether the other one may be as fast as the chosen one.
    fn may_be_as_fast(&self, other: &SubflowView, chosen: &SubflowView, now: Instant) -> bool {
        let intervals = self.interval(other, now).zip(self.interval(chosen, now));
        intervals.is_none_or(|([least, _], [_, most])| least <= most)
    }

    /// Who carries a segment beside the chosen one.
    fn others(&self, chosen: SubflowId, cx: &SchedulerContext<'_>) -> SubflowSet {
        let mut others = SubflowSet::EMPTY;
        let (Some(class), Some(chosen)) = (copying_class(cx.subflows), cx.subflow(chosen)) else {
            return others;
        };
        if cx.written.since(cx.data_una) > self.config.limit {
            return others;
        }
        classes::members(cx.subflows, class)
            .filter(|view| view.id != chosen.id && view.is_ready())
            .filter(|view| self.may_be_as_fast(view, chosen, cx.now))
            .for_each(|view| others.insert(view.id));
        others
    }
}

impl Default for Raven {
    fn default() -> Self {
        Raven::new(RavenConfig::default())
    }
}

impl Scheduler for Raven {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if let Some(copy) = self.copies.next(cx) {
            return copy;
        }
        let decision = self.base.next_send(cx);
        let Some((subflow, range)) = decision.data() else { return decision };
        let others = self.others(subflow, cx);
        if others.is_empty() {
            return decision;
        }
        self.copies.note(range.start, others);
        decision.by_segment()
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        self.base.next_reinjection(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.base.on_event(event, cx, out);
    }

    fn probe_patience(&self) -> Option<Duration> {
        self.base.probe_patience()
    }
}

#[cfg(test)]
mod tests;
