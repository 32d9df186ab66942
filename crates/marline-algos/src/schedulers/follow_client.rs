//! Follow-client scheduler (MultiMob): the server sends on the subflow that the client last used.
//!
//! *Problem.* Only the phone knows which of its networks works, what it costs, and when it will soon be out of reach. A
//! server that compares RTTs on its own continues to send to a WiFi network that the client has given up until its own
//! timers expire, or it wakes the cellular radio for a segment that could have waited.
//!
//! *How.* The core stamps a subflow whenever it advances the connection: new data, a DATA_ACK that advanced, or the
//! client's join (`SubflowView::last_new_at`). New data is sent on the regular subflow with the newest stamp, or on a
//! backup if its stamp is strictly newer than those of all regular ones, because the client is then using its backup.
//! Subflows that are potentially failed, or whose address pair is degraded, come after all others. Among these, the one
//! that most recently received a segment is chosen. This rule also applies to retransmitted data.
//!
//! *Source.* De Coninck and Bonaventure's MultiMob, as decided by its kernel module, reimplemented. A client requests
//! this scheduler from a Marline server with HELLO (docs/spec/experimental.md).
//!
//! *Differences.*
//! - If the followed subflow's window is full, the scheduler waits for it. In this case, the module uses any subflow
//!   with room, regardless of its stamp. Just after a handover, when the new path is in slow start, that is the
//!   abandoned path, on which the answer waits for a timeout. `spill=on` selects the module's behavior. Even then no
//!   data moves to a backup whose stamp is not the newest.
//! - The module sends nothing while all subflows are silent. Here data is still sent, as with plain TCP, because the
//!   suspicion may be wrong.
//! - Data of a subflow with an unanswered probe is immediately sent on another subflow. `reinject=rto` waits for the
//!   retransmission timeout, as the module does.
//! - The module flags subflows with an RTO of 1.5 s permanently. Here the path health monitor sets and clears that flag
//!   (`bad_netpath`).
//! - The wrapper `+orp` determines whether a window-limited server repeats the oldest data on the faster path.
//!
//! *p99 of a small message:* that of the path that the client has chosen, even if another path is faster.

use core::cmp::Reverse;

use marline_policy::{
    Decision, Reinjection, ReinjectionCause, Scheduler, SchedulerContext, SubflowView,
};
use marline_time::{Duration, Instant};

use super::classes;

/// Configuration of a [`FollowClient`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FollowClientConfig {
    /// True if other subflows with room take the data while the followed subflow is full, newest stamp first.
    pub uses_other_subflows: bool,
    /// True to send data on another subflow after an unanswered probe, instead of after a retransmission timeout.
    pub reinjects_on_probe: bool,
}

impl FollowClientConfig {
    /// Settings that reproduce MultiMob's kernel module.
    pub const MULTIMOB: Self =
        FollowClientConfig { uses_other_subflows: true, reinjects_on_probe: false };
}

impl Default for FollowClientConfig {
    fn default() -> Self {
        FollowClientConfig { uses_other_subflows: false, reinjects_on_probe: true }
    }
}

/// Scheduler that sends on the subflow on which the peer most recently sent new data.
#[derive(Copy, Clone, Debug, Default)]
pub struct FollowClient {
    config: FollowClientConfig,
}

impl FollowClient {
    /// Creates a scheduler with these settings.
    #[must_use]
    pub const fn new(config: FollowClientConfig) -> Self {
        FollowClient { config }
    }

    fn choose<'a>(&self, subflows: &'a [SubflowView]) -> ClientPath<'a> {
        let Some(followed) = usable_client_path(subflows.iter()) else { return ClientPath::None };
        if followed.is_ready() {
            return ClientPath::Send(followed);
        }
        let spilled =
            if self.config.uses_other_subflows { path_for_overflow(subflows) } else { None };
        spilled.map_or(ClientPath::WaitFor(followed), ClientPath::Send)
    }
}

enum ClientPath<'a> {
    Send(&'a SubflowView),
    WaitFor(&'a SubflowView),
    None,
}

/// Returns the subflow that the client uses, full or not, if any is usable.
fn usable_client_path<'a>(
    subflows: impl Iterator<Item = &'a SubflowView> + Clone,
) -> Option<&'a SubflowView> {
    let usable = subflows.filter(|view| view.is_active());
    let healthy = || usable.clone().filter(|view| view.health.is_usable());
    let regular = newest(healthy().filter(|view| !view.backup));
    let backup = newest(healthy().filter(|view| view.backup));
    let healthy = match (regular, backup) {
        (Some(regular), Some(backup)) if backup.last_new_at > regular.last_new_at => Some(backup),
        (regular, backup) => regular.or(backup),
    };
    // A degraded address pair that still receives may deliver a segment, unlike one that has timed out.
    healthy.or_else(|| {
        usable.min_by_key(|v| (v.health.is_unreachable(), Reverse(v.last_rx_at), v.backup))
    })
}

/// Returns the subflow with the newest stamp; among equal ones, the lowest slot.
fn newest<'a>(views: impl Iterator<Item = &'a SubflowView>) -> Option<&'a SubflowView> {
    views.min_by_key(|view| (Reverse(view.last_new_at), view.id))
}

/// Returns the module's choice when the followed subflow is full: the regular subflow with room and the newest stamp. A
/// backup is chosen only if its stamp is newer than those of all regular subflows, including full ones.
fn path_for_overflow(subflows: &[SubflowView]) -> Option<&SubflowView> {
    let healthy = || subflows.iter().filter(|view| view.is_active() && view.health.is_usable());
    let regular = || healthy().filter(|view| !view.backup);
    let bar = regular().map(|view| view.last_new_at).max().unwrap_or(Instant::ZERO);
    let backup = healthy().filter(|v| v.backup && v.is_ready() && v.last_new_at > bar);
    newest(backup).or_else(|| newest(regular().filter(|view| view.is_ready())))
}

impl Scheduler for FollowClient {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        match self.choose(cx.subflows) {
            ClientPath::Send(view) => Decision::Send { subflow: view.id, range: cx.unsent },
            ClientPath::WaitFor(view) => classes::wait(core::iter::once(view)),
            ClientPath::None => Decision::Wait,
        }
    }

    /// Uses the followed subflow, unless it is healthy and already carries the data, which is then in flight. If no
    /// subflow is healthy, uses the best one that did not carry it.
    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        let again = item.cause == ReinjectionCause::DataRto;
        let Some(best) = usable_client_path(cx.subflows.iter()) else { return Decision::Wait };
        let carried = |view: &SubflowView| item.carried_by.contains(view.id) && !again;
        let to = match (best.health.is_usable(), carried(best)) {
            (_, false) => Some(best),
            (true, true) => None,
            (false, true) => usable_client_path(cx.subflows.iter().filter(|view| !carried(view))),
        };
        match to {
            Some(view) if view.is_ready() => Decision::Send { subflow: view.id, range: item.range },
            Some(view) => classes::wait(core::iter::once(view)),
            None => Decision::Wait,
        }
    }

    fn probe_patience(&self) -> Option<Duration> {
        self.config.reinjects_on_probe.then_some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests;
