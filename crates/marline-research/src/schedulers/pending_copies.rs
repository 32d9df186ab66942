//! Copies sent together with the original: the last segment sent is also sent on other paths chosen at that moment, and
//! on no other path later.

use marline_algos::schedulers::classes;
use marline_algos::schedulers::copies::{copying_class, first_uncarried_range};
use marline_policy::{Decision, Dsn, SchedulerContext, SubflowSet};

/// Last segment sent, and the other subflows that must carry it.
#[derive(Copy, Clone, Debug)]
struct LastSegment {
    start: Dsn,
    others: SubflowSet,
}

/// Copies that remain to be sent.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct PendingCopies(Option<LastSegment>);

impl PendingCopies {
    /// Records that the segment starting at `start` is being sent and must also be sent on these other subflows.
    pub(super) const fn record_segment(&mut self, start: Dsn, others: SubflowSet) {
        self.0 = Some(LastSegment { start, others });
    }

    /// Returns the next copy, on the fastest of these subflows. A subflow without room is not tried again.
    pub(super) fn next(&mut self, cx: &SchedulerContext<'_>) -> Option<Decision> {
        let fresh = self.0.as_mut()?;
        let class = copying_class(cx.subflows)?;
        for full in cx.subflows.iter().filter(|view| !view.is_ready()) {
            fresh.others.remove(full.id);
        }
        let copy = classes::members(cx.subflows, class)
            .filter(|view| fresh.others.contains(view.id))
            .filter_map(|view| Some((view, first_uncarried_range(view.id, fresh.start, cx)?)))
            .min_by_key(|(view, _)| classes::rank(view))
            .map(|(view, range)| Decision::Send { subflow: view.id, range });
        if copy.is_none() {
            self.0 = None;
        }
        copy
    }
}
