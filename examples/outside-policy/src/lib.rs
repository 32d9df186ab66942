//! A scheduler outside of Marline's tree, which keeps all data on one path while that path is healthy.
//!
//! *Problem.* Min-RTT fills the second path as soon as the first one's window is full. For a remote desktop this is
//! wrong: the delay jumps between two values, and a metered path is used without need. Here the second path carries
//! data only when the first one fails.
//!
//! *Method.* Stay on the current path. Leave it when it is gone or not healthy, or when another path of its class has
//! less than half its RTT. The same rule applies to returning, so the scheduler does not alternate between two similar
//! paths.

#![forbid(unsafe_code)]

use marline_algos::schedulers::classes;
use marline_algos::{RegisterError, Registry};
use marline_policy::{Decision, Reinjection, Scheduler, SchedulerContext, SubflowId, SubflowView};

/// Name in the registry.
pub const NAME: &str = "sticky";

/// Adds the scheduler to a registry.
///
/// # Errors
/// The registry has another scheduler of this name.
pub fn register(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_scheduler_with(NAME, |parameters| {
        let worth_moving = parameters.count("worth-moving", 2, 1..=100) as u32;
        move || Box::new(Sticky { worth_moving, current: None })
    })
}

/// Keeps all data on one path.
#[derive(Debug)]
pub struct Sticky {
    /// Another path must be better by this factor before data moves there.
    worth_moving: u32,
    current: Option<SubflowId>,
}

impl Sticky {
    /// Chooses the path to use now, from the best class (regular before backup, usable before degraded and
    /// unreachable).
    fn choose<'a>(&self, cx: &SchedulerContext<'a>) -> Option<&'a SubflowView> {
        let class = classes::best_class(cx.subflows)?;
        let best = classes::members(cx.subflows, class).min_by_key(|view| classes::rank(view))?;
        let current = classes::members(cx.subflows, class).find(|v| Some(v.id) == self.current);
        Some(match current {
            Some(current) if !self.is_worth_moving(current, best) => current,
            _ => best,
        })
    }

    fn is_worth_moving(&self, from: &SubflowView, to: &SubflowView) -> bool {
        match (from.srtt, to.srtt) {
            (Some(from), Some(to)) => to * self.worth_moving < from,
            _ => false,
        }
    }
}

impl Scheduler for Sticky {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        let Some(path) = self.choose(cx) else { return Decision::Wait };
        self.current = Some(path.id);
        if path.is_ready() {
            // The core cuts the range to a segment and calls again.
            Decision::Send { subflow: path.id, range: cx.unsent }
        } else {
            // Do not leave a full path: wait for its window or its pacer.
            classes::wait(core::iter::once(path))
        }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        // Data of a failing path is sent where the built-in schedulers would send it.
        classes::reinject(item, cx)
    }
}
