//! RAVEN: copies data while it is unclear which path is faster (Lee, Flinn and Tonshal, MobiCom 2018).
//!
//! *Problem.* In a car, the delay of each network changes greatly, suddenly, and independently of the others. Lowest
//! RTT follows an average that says little about the next request, and users notice the tail. But copying everything
//! costs twice the bytes, even if one network is clearly faster.
//!
//! *How.* Each path has a confidence interval for its RTT. New data is sent on the path with the lowest SRTT. If the
//! interval of another path overlaps that of the first, it is unclear which of them is faster, and the segment is
//! immediately also sent on the other path. Otherwise, the first is faster with the confidence of the intervals, and
//! nothing is copied. The interval is SRTT ± `deviations` × RTTVAR, widened by the square root of 1 + age / `fresh`,
//! where age is the time since a segment was last received on the path. After `stale`, nothing is known about the path,
//! and its interval is unlimited. So an application that rarely sends requests gets copies of its first one, and the
//! answers make the intervals narrow again. Data that was DATA_ACKed is no longer sent on the slower path: the core
//! cancels it.
//!
//! *Source.* The abstract: redundancy when confidence in the predictions is low, the age of measurements as part of
//! that confidence, three or more networks, transparency to applications, and cancellation of unnecessary copies. A
//! published summary: the test is whether confidence intervals of RTTs overlap. Reimplemented without looking at the
//! authors' code.
//!
//! *What differs.* The default of `deviations` is the 95 % interval of a normal distribution, whose standard deviation
//! is 1.25 mean deviations. The growth of an interval with the square root of its age is our choice, because a delay
//! that drifts randomly moves that far. How the authors distinguish interactive traffic from bulk was not available.
//! Here data is copied while at most `limit` bytes of the written data are not DATA_ACKed.
//!
//! *Extra bytes:* those of small messages: all of them if paths are alike or answers are old, none if one path is
//! clearly faster. *p99 of a small message:* as with `redundant` in the first case, as with `lowest-rtt` in the second,
//! because a loss on a path known to have the lowest RTT is repaired as if there were no other.

use marline_algos::schedulers::copies::copying_class;
use marline_algos::schedulers::{MinRtt, MinRttConfig, classes};
use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent, SubflowId,
    SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

use super::pending_copies::PendingCopies;

/// Settings for the width of the intervals and for the data that is copied.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct RavenConfig {
    /// Half width of an interval, in RTTVARs, while the last answer is new; 0 to 100.
    pub deviations: f64,
    /// Age of the last answer at which an interval is 1.4 times as wide as for a new one; more than zero.
    pub fresh: Duration,
    /// Age after which nothing is known about a path.
    pub stale: Duration,
    /// Number of written bytes that are not DATA_ACKed above which nothing is copied.
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

/// Lowest-RTT scheduler with copies on every path that may be equally fast.
#[derive(Clone, Debug)]
pub struct Raven {
    config: RavenConfig,
    base: MinRtt,
    copies: PendingCopies,
}

impl Raven {
    /// Creates a scheduler with these settings.
    #[must_use]
    pub fn new(config: RavenConfig) -> Self {
        Raven {
            config,
            base: MinRtt::new(MinRttConfig::LOWEST_RTT),
            copies: PendingCopies::default(),
        }
    }

    /// Returns the lower and upper limit of the confidence interval of a path's RTT; `None` if it is unlimited.
    fn interval(&self, view: &SubflowView, now: Instant) -> Option<[Duration; 2]> {
        let age = now.since(view.last_rx_at);
        let srtt = view.srtt.filter(|_| age <= self.config.stale)?;
        let grown = (1.0 + age.div_duration_f64(self.config.fresh)).sqrt();
        let half = view.rttvar.mul_f64(self.config.deviations * grown);
        Some([srtt.saturating_sub(half), srtt.saturating_add(half)])
    }

    /// Returns true if another path may be as fast as the chosen one.
    fn may_be_as_fast(&self, other: &SubflowView, chosen: &SubflowView, now: Instant) -> bool {
        let intervals = self.interval(other, now).zip(self.interval(chosen, now));
        intervals.is_none_or(|([least, _], [_, most])| least <= most)
    }

    /// Returns the subflows that carry copies in addition to the chosen one.
    fn copy_paths(&self, chosen: SubflowId, cx: &SchedulerContext<'_>) -> SubflowSet {
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
        let others = self.copy_paths(subflow, cx);
        if others.is_empty() {
            return decision;
        }
        self.copies.record_segment(range.start, others);
        decision.limited_to_segment()
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
