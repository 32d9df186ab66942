//! Scheduler controlled step by step: shares of new data by path, and paths for copies.
//!
//! New data is sent on the paths with a weight, in proportion to their weights within the step: among paths with room,
//! on the one that is furthest behind its share. If only one path has a weight, data waits for it. If no path with a
//! weight is usable, all usable paths count equally, so that a wrong action is slow but does not block. Outstanding
//! data is copied to the paths for copies while they have room, oldest first.

use std::sync::{Arc, Mutex, PoisonError};

use marline::algos::schedulers::classes;
use marline::policy::{Decision, Reinjection, Scheduler, SchedulerContext, SubflowView};

/// If several paths share the data, each gets this many segments at a time, because consecutive segments are processed
/// faster.
const SEGMENTS_PER_TURN: u64 = 8;

/// Current action for all schedulers of a run.
#[derive(Debug, Default)]
pub(super) struct SteeringAction {
    /// Weight of each path. Negative and missing values count as 0.
    pub(super) weights: Vec<f32>,
    /// For each path, true if copies are allowed. Missing values count as false.
    pub(super) copies_on: Vec<bool>,
    /// Sequence number of the action, by which schedulers notice new ones.
    pub(super) number: u64,
}

/// Scheduler that follows [`SteeringAction`].
#[derive(Debug)]
pub(super) struct SteeredScheduler {
    orders: Arc<Mutex<SteeringAction>>,
    /// Bytes assigned to each path under the action with this number.
    given: Vec<u64>,
    number: u64,
}

impl SteeredScheduler {
    pub(super) fn new(orders: Arc<Mutex<SteeringAction>>) -> SteeredScheduler {
        SteeredScheduler { orders, given: Vec::new(), number: 0 }
    }
}

/// Index of the path that a subflow uses: the client's address ids are the path numbers, and the server has one
/// address.
pub(super) fn path_of(view: &SubflowView) -> usize {
    usize::from(view.local_id.0.max(view.remote_id.0))
}

fn weight(orders: &SteeringAction, view: &SubflowView) -> f32 {
    orders.weights.get(path_of(view)).copied().unwrap_or(0.0).max(0.0)
}

impl Scheduler for SteeredScheduler {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if self.number != orders.number {
            self.number = orders.number;
            self.given.fill(0);
        }
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        let works =
            |view: &&SubflowView| class.is_usable() && view.is_active() && view.health.is_usable();
        let weighted =
            || cx.subflows.iter().filter(works).filter(|view| weight(&orders, view) > 0.0);
        let all_alike = weighted().next().is_none();
        let candidates = || {
            let of_class = classes::members(cx.subflows, class).filter(move |_| all_alike);
            weighted().chain(of_class)
        };
        if !cx.unsent.is_empty() {
            let behind = |view: &&SubflowView| {
                let given = self.given.get(path_of(view)).copied().unwrap_or(0) as f32;
                given / if all_alike { 1.0 } else { weight(&orders, view) }
            };
            let ready = candidates().filter(|view| view.is_ready());
            if let Some(view) = ready.min_by(|a, b| behind(a).total_cmp(&behind(b))) {
                let (path, mss) = (path_of(view), u64::from(view.mss));
                if self.given.len() <= path {
                    self.given.resize(path + 1, 0);
                }
                let alone = candidates().nth(1).is_none();
                let bytes = if alone { u64::MAX } else { SEGMENTS_PER_TURN * mss };
                let range = cx.unsent.prefix(bytes);
                self.given[path] += range.len();
                return Decision::SendRun { subflow: view.id, range };
            }
        }
        let chosen = |view: &&SubflowView| orders.copies_on.get(path_of(view)) == Some(&true);
        let copies_on = || cx.subflows.iter().filter(chosen);
        for view in copies_on().filter(|view| view.is_ready()) {
            if let Some(mapping) = cx.mappings.next_not_on(view.id, cx.data_una) {
                return Decision::Send { subflow: view.id, range: mapping.range };
            }
        }
        classes::wait(candidates().chain(copies_on()))
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }
}
