//! The path manager's judgements, applied.

use core::net::SocketAddr;

use marline_policy::{
    AddressId, LocalAddress, PathAction, PathEvent, PathManagerFactory, ReinjectionCause,
    SchedulerFactory, SubflowId,
};
use marline_time::Instant;
use marline_wire::mptcp::{MpPrio, MptcpOption};

use super::Connection;
use super::addresses::Signal;
use crate::tables::Context;
use crate::{CloseReason, FourTuple, MonitorKind};

/// Actions applied in one go: a path manager that never stops asking is cut off.
const MAX_ACTIONS: usize = 64;

/// Two addresses between which a subflow is to be opened.
#[derive(Copy, Clone, Debug)]
pub(crate) struct SubflowPathPair {
    pub(crate) local: LocalAddress,
    pub(crate) remote: SocketAddr,
}

impl Connection {
    /// Tells the path manager, and does what it asks for.
    pub(super) fn path_event(&mut self, cx: &mut Context<'_>, event: PathEvent) {
        if self.closing.closed.is_some() || self.session.is_plain() {
            return;
        }
        if let PathEvent::Silent { id, .. } = event {
            self.report_silence(cx, id);
        }
        self.with_path_context(cx, |manager, cx| manager.on_event(&event, cx));
        self.apply_path_actions(cx);
    }

    pub(super) fn path_manager_accepts(&mut self, cx: &Context<'_>, path: FourTuple) -> bool {
        self.with_path_context(cx, |manager, cx| manager.accepts_join(path.remote, cx))
    }

    pub(super) fn apply_path_actions(&mut self, cx: &mut Context<'_>) {
        for _ in 0..MAX_ACTIONS {
            let Some(action) = self.path_manager.poll_action() else { return };
            self.path_action(cx, action);
        }
    }

    /// One action, asked for by the path manager or by hand.
    pub(crate) fn path_action(&mut self, cx: &mut Context<'_>, action: PathAction) {
        match action {
            PathAction::OpenSubflow { local, remote, backup, fast } => {
                let local = self.addresses.find_local(local).filter(|l| l.up);
                // A path pinned to one remote address goes there, whatever the peer announced.
                let pinned = local.and_then(|l| l.remote).filter(|_| remote == AddressId(0));
                let remote = pinned.or_else(|| self.addresses.find_remote(remote));
                if let (Some(local), Some(remote)) = (local, remote) {
                    let pair = SubflowPathPair { local, remote };
                    self.open_join(cx, pair, (backup, fast));
                }
            }
            PathAction::Probe(id) => {
                if let Some(leg) = self.leg_mut(id).filter(|leg| leg.is_usable()) {
                    leg.tcp.request_probe();
                }
            }
            PathAction::CloseSubflow(id) => self.close_subflow(cx, id),
            PathAction::Announce(id) => self.announce_address(cx, id),
            PathAction::Withdraw(id) => self.withdraw_address(cx, id),
            PathAction::SetBackup { id, backup } => self.set_priority(cx, id, backup),
        }
    }

    fn close_subflow(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(leg) = self.leg_mut(id) else { return };
        leg.shut = true;
        leg.tcp.close();
        self.leg_stops_carrying(now, id);
        // One whose SYN has no answer yet says no word, and nobody else will say that it is gone.
        self.drop_unanswered(cx);
    }

    fn set_priority(&mut self, cx: &mut Context<'_>, id: SubflowId, backup: bool) {
        let now = cx.now;
        let Some(leg) = self.leg_mut(id).filter(|leg| leg.backup_here != backup) else { return };
        leg.backup_here = backup;
        cx.out.counters.mp_prio_tx += 1;
        let option = MptcpOption::Prio(MpPrio { backup });
        self.addresses.signal(Signal { on: Some(id), option });
        cx.out.monitor(now, self.id, MonitorKind::SubflowPriority { id, backup });
        self.path_event(cx, PathEvent::Priority { id, backup });
    }

    /// Changes the backup flag of all subflows from a local address.
    pub(crate) fn set_backup(&mut self, cx: &mut Context<'_>, local: AddressId, backup: bool) {
        self.addresses.set_backup(local, backup);
        for id in self.leg_ids() {
            if self.leg(id).is_some_and(|leg| leg.local_id == local) {
                self.set_priority(cx, id, backup);
            }
        }
    }

    /// A local address appeared, changed or went away.
    pub(crate) fn set_local_address(&mut self, cx: &mut Context<'_>, new: LocalAddress) {
        let now = cx.now;
        let old = self.addresses.set_local(new);
        let moved = old.is_some_and(|o| o.address.ip() != new.address.ip());
        if old.is_some_and(|o| o.up) && (!new.up || moved) {
            self.lose_local(cx, new.id);
        }
        if let Some(old) = old.filter(|o| o.backup != new.backup && new.up) {
            self.set_backup(cx, old.id, new.backup);
        }
        if new.up && (moved || old.is_none_or(|o| !o.up)) {
            self.keep_address(new.id);
            for leg in self.legs.iter_mut().flatten().filter(|leg| leg.local_id == new.id) {
                leg.tcp.retry_now(now);
            }
            self.path_event(cx, PathEvent::LocalUp(new.id));
        }
    }

    /// Nothing can leave from this address any more.
    fn lose_local(&mut self, cx: &mut Context<'_>, id: AddressId) {
        let now = cx.now;
        let lost: Vec<SubflowId> =
            self.leg_ids().filter(|l| self.leg(*l).is_some_and(|leg| leg.local_id == id)).collect();
        let multipath = self.session.is_multipath();
        for leg in &lost {
            if multipath && self.session.is_confirmed() {
                self.leg_stops_carrying(now, *leg);
                self.drop_leg(cx, *leg, CloseReason::TimedOut);
            } else {
                self.reinject_from(now, *leg, ReinjectionCause::SubflowClosed);
            }
        }
        if self.legs_count() == 0 && !lost.is_empty() {
            self.wait.begin_without_subflows(now, CloseReason::TimedOut);
        }
        if self.session.is_confirmed() {
            self.withdraw_address(cx, id);
        }
        self.path_event(cx, PathEvent::LocalDown(id));
    }

    pub(crate) fn set_scheduler(&mut self, now: Instant, factory: &dyn SchedulerFactory) {
        self.scheduling.replace(factory);
        self.refresh_views(now);
        let up: Vec<SubflowId> = self.scheduling.views().iter().map(|v| v.id).collect();
        for id in up {
            self.scheduler_event(now, marline_policy::SchedulerEvent::SubflowUp(id));
        }
    }

    pub(crate) fn set_path_manager(
        &mut self,
        cx: &mut Context<'_>,
        factory: &dyn PathManagerFactory,
    ) {
        self.path_manager = factory.build();
        self.path_manager_name = factory.name().to_owned();
        if self.session.is_confirmed() {
            self.path_event(cx, PathEvent::Established);
        }
    }
}
