//! Round-robin scheduler: the subflows take turns of a few segments each.
//!
//! *Purpose.* A baseline that shows the benefit of path-aware schedulers, and a quick test that all
//! paths work.
//!
//! *How.* Among the subflows of the best class (`classes.rs`) that have room, the one after the last used one, in slot
//! order, takes the configured number of full segments. Subflows without room are skipped, so under load the turns
//! follow the ACKs and each path carries what it can. With `skip-full=off`, the scheduler waits for the subflow whose
//! turn it is (the out-of-tree Linux round robin also has both modes, selected by `cwnd_limited`). Then all paths run
//! at the speed of the slowest.
//!
//! *Differences.* The Linux scheduler ignored backup flags. This one uses backups only when needed, as RFC 8684
//! requires. A turn was one segment (`num_segments`); here it is sixteen, because a segment sent alone costs twice as
//! much work as one in a run. `segments=1` reproduces the turns of Linux.
//!
//! *p99 of a small message:* poor by design: every other turn uses the slow path.

use marline_policy::{
    Decision, Eligibility, Reinjection, Scheduler, SchedulerContext, SubflowId, SubflowView,
};

use super::classes;

/// Default number of segments per turn.
const DEFAULT_TURN_SEGMENTS: u32 = 16;

/// Settings for the length and conditions of a turn.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RoundRobinConfig {
    /// Number of segments per turn, at least one.
    pub segments: u32,
    /// True if a subflow without room loses its turn. Otherwise the scheduler waits for it.
    pub skips_full: bool,
}

impl Default for RoundRobinConfig {
    fn default() -> Self {
        RoundRobinConfig { segments: DEFAULT_TURN_SEGMENTS, skips_full: true }
    }
}

/// Scheduler that sends a few segments on each subflow with room, in turn.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    config: RoundRobinConfig,
    last: Option<SubflowId>,
    /// Number of segments left in the current turn.
    left: u32,
}

impl RoundRobin {
    /// Creates a scheduler with these settings.
    #[must_use]
    pub const fn new(config: RoundRobinConfig) -> Self {
        RoundRobin { config, last: None, left: 0 }
    }
}

impl Scheduler for RoundRobin {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        let candidates = || classes::members(cx.subflows, class);
        let may = |view: &&SubflowView| view.is_ready() || !self.config.skips_full;
        let goes_on = |view: &&SubflowView| self.left > 0 && Some(view.id) == self.last;
        let same = candidates().filter(may).find(goes_on);
        let next = same.or_else(|| next_in_turn(candidates().filter(may), self.last));
        let Some(next) = next else { return classes::wait(candidates()) };
        let room = match next.eligibility {
            Eligibility::Ready { room } if room > 0 => room,
            _ => return classes::wait(core::iter::once(next)),
        };
        let turn = if same.is_some() { self.left } else { self.config.segments.max(1) };
        let mss = u64::from(next.mss.max(1));
        let possible = room.min(cx.unsent.len()).div_ceil(mss);
        let now = turn.min(u32::try_from(possible).unwrap_or(u32::MAX)).max(1);
        self.left = turn - now;
        self.last = Some(next.id);
        Decision::SendRun { subflow: next.id, range: cx.unsent.prefix(u64::from(now) * mss) }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }
}

/// Returns the first subflow after `last` in slot order, or else the first of all.
pub(super) fn next_in_turn<'a>(
    subflows: impl Iterator<Item = &'a SubflowView>,
    last: Option<SubflowId>,
) -> Option<&'a SubflowView> {
    subflows.min_by_key(|view| (last.is_some_and(|last| view.id <= last), view.id))
}

#[cfg(test)]
mod tests;
