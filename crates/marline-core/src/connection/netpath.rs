//! What the oracle says of the netpaths of this connection's subflows.

use marline_policy::{Netpath, PathEvent, ReinjectionCause, SubflowId};

use super::Connection;
use crate::oracle::{NetpathFault, Trouble};
use crate::subflow::Subflow;
use crate::tables::Context;
use crate::{FourTuple, MonitorKind};

impl Connection {
    /// Shows its members of netpaths: subflows that are established, plain TCP included.
    pub(crate) fn members(&mut self, mut see: impl FnMut(FourTuple, &mut Subflow)) {
        for leg in self.legs.iter_mut().flatten().filter(|leg| leg.is_usable()) {
            see(leg.key.path, &mut leg.tcp);
        }
    }

    /// A timer fired on a subflow.
    pub(super) fn report_timeout(&self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(leg) = self.leg(id).filter(|leg| leg.is_usable()) {
            let trouble = Trouble::TimedOut { wait: leg.tcp.answer_takes() };
            cx.faults.report(leg.key.path, trouble);
        }
    }

    /// A subflow was asked for a sign of life, and nothing came.
    pub(super) fn report_silence(&self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(leg) = self.leg(id) {
            let trouble = Trouble::Silent { wait: leg.tcp.answer_takes() };
            cx.faults.report(leg.key.path, trouble);
        }
    }

    /// Verdicts changed: takes them over, subflow by subflow.
    pub(crate) fn adopt_verdicts(&mut self, cx: &mut Context<'_>) {
        let mut changed = Vec::new();
        for id in self.leg_ids() {
            let Some(leg) = self.leg_mut(id) else { continue };
            let fault = cx.faults.fault(&leg.key.path);
            let before = core::mem::replace(&mut leg.netpath_fault, fault);
            if before != fault {
                changed.push((id, before, fault));
            }
        }
        for (id, before, fault) in changed {
            self.on_verdict(cx, id, before, fault);
        }
    }

    fn on_verdict(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        before: Option<NetpathFault>,
        fault: Option<NetpathFault>,
    ) {
        let now = cx.now;
        let usable = self.leg(id).is_some_and(super::Leg::is_usable);
        if before.is_some() != fault.is_some() {
            cx.out.monitor(now, self.id, MonitorKind::Netpath { id, fault });
        }
        // A long timeout of somebody keeps new data away; anything else moves what is outstanding, too.
        let moves = fault.is_some_and(|fault| fault != NetpathFault::Rto);
        if usable && moves && !self.session.is_plain() {
            if let Some(leg) = self.leg_mut(id) {
                leg.tcp.suspect();
            }
            self.suspect(cx, id, ReinjectionCause::UnansweredProbe);
        }
        // A join that waits between two SYNs need not wait for the end of an outage's backoff.
        if let Some(leg) = self.leg_mut(id).filter(|leg| fault.is_none() && !leg.is_usable()) {
            leg.tcp.retry_soon(now);
        }
        self.path_event(cx, PathEvent::Netpath { id, bad: fault.is_some() });
    }

    /// Asks the peer for a sign of life, on the first subflow of the netpath.
    pub(crate) fn ask_netpath(&mut self, netpath: &Netpath) {
        let on = |path: &FourTuple| {
            (path.local.ip(), path.remote.ip()) == (netpath.local, netpath.remote)
        };
        let member = self.legs.iter_mut().flatten().find(|l| l.is_usable() && on(&l.key.path));
        if let Some(leg) = member {
            leg.tcp.request_probe();
        }
    }
}
