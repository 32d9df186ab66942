//! Opportunistic redundant scheduler: a new segment is sent on every path that has room at that moment, and on no other
//! path later.
//!
//! *Problem.* With `redundant`, a path that was full catches up later. It spends its room on copies that have become
//! old before it copies newer data, which could still benefit. A copy is most useful when sent together with the
//! original.
//!
//! *How.* The fastest subflow with room (of those that `min-rtt` would use) takes the next segment. The others of its
//! class that have room at that moment take copies of it. Then comes the next segment. No subflow catches up.
//!
//! *Source.* The redundant scheduler of the first ReMP implementation, and the opportunistic one of the ProgMP
//! collection (Frömmgen et al., CoNEXT workshop 2015 and Middleware 2017); reimplemented.
//!
//! *Difference.* Those schedulers take a segment and send clones, and a subflow that has meanwhile become full drops
//! its clone. Here the other subflows are consulted one by one, and a full one is skipped.
//!
//! *Extra bytes:* for small messages, as with `redundant`. In bulk transfers, the slower path copies what its window
//! allows, about as much as it could carry of new data. *p99 of a small message:* as with `redundant` while no path is
//! full.

use marline_algos::schedulers::copies::{copying_class, default_base};
use marline_algos::schedulers::{MinRtt, classes};
use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent, SubflowSet,
};

use super::pending_copies::PendingCopies;

/// Scheduler that sends new segments on all regular subflows that currently have room.
#[derive(Clone, Debug)]
pub struct OpportunisticRedundant {
    base: MinRtt,
    copies: PendingCopies,
}

impl Default for OpportunisticRedundant {
    fn default() -> Self {
        OpportunisticRedundant { base: default_base(), copies: PendingCopies::default() }
    }
}

impl Scheduler for OpportunisticRedundant {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if let Some(copy) = self.copies.next(cx) {
            return copy;
        }
        let decision = self.base.next_send(cx);
        let Some((subflow, range)) = decision.data() else { return decision };
        let Some(mss) = cx.subflow(subflow).map(|view| u64::from(view.mss)) else {
            return decision;
        };
        if let Some(class) = copying_class(cx.subflows) {
            let mut others = SubflowSet::EMPTY;
            classes::members(cx.subflows, class)
                .filter(|view| view.id != subflow && view.is_ready())
                .for_each(|view| others.insert(view.id));
            if others.is_empty() {
                // There are no copies, so the data need not be sent segment by segment.
                return decision;
            }
            self.copies.record_segment(range.start, others);
        }
        // One segment at a time, because the copies must match what is sent now.
        Decision::Send { subflow, range: range.prefix(mss) }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.base.on_event(event, cx, out);
    }
}

#[cfg(test)]
mod tests;
