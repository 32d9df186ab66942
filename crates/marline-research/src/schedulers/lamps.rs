//! LAMPS: a scheduler that takes losses on paths into account (Dong, Xu, Fu and Cao, LCN 2017 and Computer Networks
//! 2019).
//!
//! *Problem.* On trains, or over satellites or balloons, paths lose much data, in bursts. Lowest RTT prefers a path for
//! its delay, even if half of its data must be retransmitted. Copying everything solves this at twice the bytes, even
//! while nothing is lost.
//!
//! *How.* For each path, the scheduler estimates the probability p that a segment is lost: one divided by the number of
//! segments between two losses, using the average interval or the current one, whichever is longer. While the path is
//! in recovery, p is at least `burst`, because data sent at that time is probably also lost. This determines two
//! choices.
//! - The path: the lowest expected delay, SRTT + p / (1 - p) × (SRTT + 4 RTTVAR). The last factor is about the time
//!   until a loss is detected and retransmitted, and p / (1 - p) is the expected number of such losses.
//! - The copies: the segment is also sent immediately on the next paths in this order that have room, until the
//!   probability that all of them lose it is at most 1 - `sure`.
//!
//! *Source.* The abstracts: loss and delay select the subflow, and the states of subflows select the segments; steady
//! performance at constant rates and in bulk; fewer extra bytes than with redundancy, especially when losses come in
//! bursts. A published summary: segments are copied until delivery is likely enough. Reimplemented.
//!
//! *What differs.* The formulas are ours, because those of the papers were not available. A burst counts as one loss,
//! because the intervals that subflows report begin with an episode of recovery. Outside of bursts, p is the
//! probability of the next burst; within one, it is `burst`. Before a path's first loss, its p is zero.
//!
//! *Extra bytes:* none if losses are rarer than 1 - `sure`, except shortly after each loss; everything, including bulk
//! data, if they are more frequent. *p99 of a small message:* the second path's delay once the first has lost a packet.

use marline_algos::schedulers::classes::{self, Class};
use marline_algos::schedulers::copies::copying_class;
use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowSet, SubflowView,
};
use marline_time::Duration;

use super::losses::{BURST, Losses, expected_delay};
use super::pending_copies::PendingCopies;

/// Settings for the required certainty of delivery.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct LampsConfig {
    /// Copies are made until a segment arrives with this probability, 0 to 1.
    pub sure: f64,
    /// Probability of losing a segment that is sent while its path is in recovery, 0 to 0.9.
    pub burst: f64,
}

impl Default for LampsConfig {
    fn default() -> Self {
        LampsConfig { sure: 0.99, burst: BURST }
    }
}

/// Path and its expected outcome for a segment.
#[derive(Copy, Clone, Debug)]
struct ExpectedOutcome<'a> {
    view: &'a SubflowView,
    loss: f64,
    /// Expected delay; `None` if the RTT is unknown.
    delay: Option<Duration>,
}

/// Scheduler that selects paths by delay and loss, and adds copies until delivery is certain enough.
#[derive(Clone, Debug)]
pub struct Lamps {
    config: LampsConfig,
    losses: Losses,
    copies: PendingCopies,
}

impl Lamps {
    /// Creates a scheduler with these settings.
    #[must_use]
    pub fn new(config: LampsConfig) -> Self {
        Lamps { config, losses: Losses::default(), copies: PendingCopies::default() }
    }

    fn expected_outcome<'a>(&self, view: &'a SubflowView) -> ExpectedOutcome<'a> {
        let loss = self.losses.chance(view, self.config.burst);
        ExpectedOutcome { view, loss, delay: expected_delay(view, loss) }
    }

    /// Returns the paths of this class with room, best first.
    fn ready_paths<'a>(&self, class: Class, cx: &SchedulerContext<'a>) -> Vec<ExpectedOutcome<'a>> {
        let members = classes::members(cx.subflows, class).filter(|view| view.is_ready());
        let mut ready: Vec<ExpectedOutcome<'a>> =
            members.map(|view| self.expected_outcome(view)).collect();
        ready.sort_by_key(|prospect| (prospect.delay.is_none(), prospect.delay));
        ready
    }

    /// Returns the additional paths, in order, that are needed for certain enough delivery.
    fn extra_paths(&self, ready: &[ExpectedOutcome<'_>]) -> SubflowSet {
        let mut others = SubflowSet::EMPTY;
        let mut loss = 1.0;
        for prospect in ready {
            others.insert(prospect.view.id);
            loss *= prospect.loss;
            if loss <= 1.0 - self.config.sure {
                break;
            }
        }
        others
    }
}

impl Default for Lamps {
    fn default() -> Self {
        Lamps::new(LampsConfig::default())
    }
}

impl Scheduler for Lamps {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.losses.update(cx.subflows);
        if let Some(copy) = self.copies.next(cx) {
            if let Some((id, _)) = copy.data() {
                self.losses.record_sent_segment(id);
            }
            return copy;
        }
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        if !class.is_usable() {
            return classes::choose_last_receiver(class, cx);
        }
        let ready = self.ready_paths(class, cx);
        let Some(first) = ready.first() else {
            return classes::wait(classes::members(cx.subflows, class));
        };
        if copying_class(cx.subflows).is_some() {
            let mut others = self.extra_paths(&ready);
            others.remove(first.view.id);
            if !others.is_empty() {
                self.copies.record_segment(cx.unsent.start, others);
            }
        }
        self.losses.record_sent_segment(first.view.id);
        Decision::Send { subflow: first.view.id, range: cx.unsent }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        _cx: &SchedulerContext<'_>,
        _out: &mut Vec<SchedulerAction>,
    ) {
        if let SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id) = event {
            self.losses.remove_path(id);
        }
    }
}

#[cfg(test)]
mod tests;
