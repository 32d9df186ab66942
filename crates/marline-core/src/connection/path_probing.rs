//! Probes of silent paths on behalf of all connections of an endpoint, and reports to the path health monitor.

use core::net::IpAddr;

use marline_policy::{AddressId, SubflowId};
use marline_time::{Duration, Instant};

use super::closing::Closing;
use super::memory_trim::MemoryTrim;
use super::path_set::PathSet;
use super::scheduling::Scheduling;
use super::sender::Sender;
use super::session::Session;
use super::subflow_context::SubflowContext;
use crate::ConnectionId;
use crate::PathAddresses;
use crate::path_health::PathTrouble;
use crate::tables::Context;
use crate::tables::silent_paths::Prober;

/// Time after the last data transfer during which a connection counts as in use.
const IN_USE_TIME: Duration = Duration::from_secs(5);

/// Parts of a connection that show whether it is waiting for a path.
#[derive(Copy, Clone)]
pub(super) struct PathProbing<'a> {
    pub(super) id: ConnectionId,
    pub(super) session: &'a Session,
    pub(super) paths: &'a PathSet,
    pub(super) sender: &'a Sender,
    pub(super) closing: &'a Closing,
    pub(super) scheduling: &'a Scheduling,
    pub(super) trim: &'a MemoryTrim,
}

impl PathProbing<'_> {
    /// True if silent paths are probed for this connection. A scheduler that waits for retransmission timeouts,
    /// like the kernel's, disables probing.
    pub(super) fn probes_silent_paths(&self) -> bool {
        let may = self.session.is_confirmed() && !self.session.is_plain();
        may && !self.closing.is_closed() && self.scheduling.probe_patience().is_some()
    }

    /// Starts probing this subflow's path until there is an answer. Returns true if the path is probed.
    pub(super) fn wait_for_answer(&self, cx: &mut Context<'_>, id: SubflowId) -> bool {
        let subflow = self.paths.get(id).filter(|subflow| subflow.is_active());
        let Some(subflow) = subflow.filter(|_| self.probes_silent_paths()) else { return false };
        cx.silent_paths.on_silent(cx.now, &subflow.path(), self.id)
    }

    /// Selects how this connection probes a silent path. `None` if it does not wait for that path.
    pub(super) fn select_prober(&self, now: Instant, path: PathAddresses) -> Option<Prober> {
        if !self.probes_silent_paths() {
            return None;
        }
        let on = |s: &&SubflowContext| s.path().addresses() == path;
        let waits =
            |s: &SubflowContext| !s.was_joined() || s.is_active() && s.health().is_unreachable();
        let mut there = self.paths.iter().filter(on);
        let may = match there.next() {
            None => self.unopened_address_at(path.local).is_some(),
            Some(first) => waits(first) || there.any(waits),
        };
        let unanswered = self.sender.una() < self.sender.written_end();
        let is_busy = self.trim.was_busy_within(now, IN_USE_TIME) || unanswered;
        let is_reserve = |s: &SubflowContext| self.paths.is_reserve(s) || s.cost().has_radio();
        let spared =
            self.paths.iter().filter(on).any(is_reserve) && !self.paths.healthy().is_empty();
        may.then(|| Prober {
            connection: self.id,
            is_client: self.session.is_client(),
            in_use: is_busy && !spared,
        })
    }

    /// Id of the local address with this IP address, if a client may open a subflow from it.
    pub(super) fn unopened_address_at(&self, local: IpAddr) -> Option<AddressId> {
        let locals = self.paths.addresses().local();
        let up = locals.iter().find(|l| l.address.ip() == local && l.up && l.subflow);
        up.filter(|_| self.session.is_client()).map(|local| local.id)
    }

    /// Reports a timer expiry on a subflow to the path health monitor.
    pub(super) fn report_timeout(&self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(subflow) = self.paths.get(id).filter(|subflow| subflow.is_active()) {
            let trouble = PathTrouble::TimedOut { wait: subflow.tcp().max_answer_time() };
            cx.faults.report(subflow.path(), trouble);
        }
    }

    /// Reports an unanswered probe on a subflow to the path health monitor.
    pub(super) fn report_silence(&self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(subflow) = self.paths.get(id) {
            let trouble = PathTrouble::Silent { wait: subflow.tcp().max_answer_time() };
            cx.faults.report(subflow.path(), trouble);
        }
    }
}
