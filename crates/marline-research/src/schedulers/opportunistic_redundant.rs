//! Opportunistic redundant scheduler: a new segment goes on every path that has room at that
//! moment, and on no other later.
//!
//! *Problem.* With `redundant` a path that was full catches up later: it spends its room on copies
//! that are old by then, in front of newer data that could still profit from a copy. A copy is
//! worth most at the moment of the original.
//!
//! *How.* The fastest subflow with room (of those that `min-rtt` would use) takes the next segment.
//! The others of its class that had room at that moment take the same segment at once. Then the next
//! one. Nobody catches up.
//!
//! *Source.* The redundant scheduler of the first ReMP implementation, and the opportunistic one of
//! the ProgMP collection (Frömmgen et al., CoNEXT workshop 2015 and Middleware 2017); written anew.
//!
//! *Difference.* Those pop a segment and send clones; a subflow that is full a moment later drops its
//! clone. Here the others are asked again one by one, and one that filled up meanwhile is passed over.
//!
//! *Extra bytes:* small messages as `redundant`. In bulk the slower path copies what its window
//! allows, about as much as it could carry of new data. *p99 of a small message:* as `redundant` as
//! long as no path is full.

use marline_algos::schedulers::copies::{base, copying_class, not_on};
use marline_algos::schedulers::{MinRtt, classes};
use marline_policy::{
    Decision, Dsn, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowSet,
};

/// The segment that was given out last, and who else had room then.
#[derive(Copy, Clone, Debug)]
struct Fresh {
    start: Dsn,
    others: SubflowSet,
}

/// Sends new segments on all regular subflows that have room now.
#[derive(Clone, Debug)]
pub struct OpportunisticRedundant {
    base: MinRtt,
    fresh: Option<Fresh>,
}

impl Default for OpportunisticRedundant {
    fn default() -> Self {
        OpportunisticRedundant { base: base(), fresh: None }
    }
}

impl OpportunisticRedundant {
    fn next_copy(&mut self, cx: &SchedulerContext<'_>) -> Option<Decision> {
        let fresh = self.fresh.as_mut()?;
        let class = copying_class(cx.subflows)?;
        // Who has no room when asked is not asked again.
        for full in cx.subflows.iter().filter(|view| !view.is_ready()) {
            fresh.others.remove(full.id);
        }
        let copy = classes::members(cx.subflows, class)
            .filter(|view| fresh.others.contains(view.id))
            .filter_map(|view| Some((view, not_on(view.id, fresh.start, cx)?)))
            .min_by_key(|(view, _)| classes::rank(view))
            .map(|(view, range)| Decision::Send { subflow: view.id, range });
        if copy.is_none() {
            self.fresh = None;
        }
        copy
    }
}

impl Scheduler for OpportunisticRedundant {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if let Some(copy) = self.next_copy(cx) {
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
                // Nobody takes copies of it: it need not go by segments.
                return decision;
            }
            self.fresh = Some(Fresh { start: range.start, others });
        }
        // One segment: the copies are of what goes out now.
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
