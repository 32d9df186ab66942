//! Round robin: the subflows take turns, one segment each.
//!
//! *Problem.* None of its own: it is the yardstick against which a scheduler shows that knowing the
//! paths is worth something, and the quickest way to see that all paths work.
//!
//! *How.* Among the subflows of the best class (`classes.rs`) that have room, the next one after
//! the last used, in slot order, takes one full segment. Subflows without room are passed over, so
//! under load the turns follow the ACKs and each path carries what it can (the behaviour of the
//! out-of-tree Linux round robin with its `cwnd_limited` switch on; off, it would wait for the full
//! one, which helps nobody).
//!
//! *Difference.* The Linux one knew no backups; this one keeps them for need, as RFC 8684 asks.
//!
//! *p99 of a small message:* bad by design: every other segment takes the slow path.

use marline_policy::{Decision, Reinjection, Scheduler, SchedulerContext, SubflowId, SubflowView};

use super::classes;

/// Gives each subflow with room one segment in turn.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    last: Option<SubflowId>,
}

impl Scheduler for RoundRobin {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        let candidates = || classes::members(cx.subflows, class);
        let Some(next) = next_in_turn(candidates().filter(|v| v.is_ready()), self.last) else {
            return classes::wait(candidates());
        };
        self.last = Some(next.id);
        Decision::Send { subflow: next.id, range: cx.unsent.prefix(u64::from(next.mss)) }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }
}

/// The first subflow after `last` in slot order, or the first of all.
pub(super) fn next_in_turn<'a>(
    subflows: impl Iterator<Item = &'a SubflowView>,
    last: Option<SubflowId>,
) -> Option<&'a SubflowView> {
    subflows.min_by_key(|view| (last.is_some_and(|last| view.id <= last), view.id))
}

#[cfg(test)]
mod tests;
