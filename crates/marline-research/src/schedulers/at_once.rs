//! Copies at the moment of the original: the segment that was given out last goes also on those paths that were
//! chosen with it, and on no other later.

use marline_algos::schedulers::classes;
use marline_algos::schedulers::copies::{copying_class, not_on};
use marline_policy::{Decision, Dsn, SchedulerContext, SubflowSet};

/// The segment that was given out last, and who else is to carry it.
#[derive(Copy, Clone, Debug)]
struct Fresh {
    start: Dsn,
    others: SubflowSet,
}

/// The copies that are still to be sent.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct AtOnce(Option<Fresh>);

impl AtOnce {
    /// The segment from `start` on is given out now, and goes on these others as well.
    pub(super) const fn note(&mut self, start: Dsn, others: SubflowSet) {
        self.0 = Some(Fresh { start, others });
    }

    /// The next copy, on the fastest of the others. Who has no room when asked is not asked again.
    pub(super) fn next(&mut self, cx: &SchedulerContext<'_>) -> Option<Decision> {
        let fresh = self.0.as_mut()?;
        let class = copying_class(cx.subflows)?;
        for full in cx.subflows.iter().filter(|view| !view.is_ready()) {
            fresh.others.remove(full.id);
        }
        let copy = classes::members(cx.subflows, class)
            .filter(|view| fresh.others.contains(view.id))
            .filter_map(|view| Some((view, not_on(view.id, fresh.start, cx)?)))
            .min_by_key(|(view, _)| classes::rank(view))
            .map(|(view, range)| Decision::Send { subflow: view.id, range });
        if copy.is_none() {
            self.0 = None;
        }
        copy
    }
}
