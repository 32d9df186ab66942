//! When a subflow goes silent: suspicion, reinjection, and taking it back.
//!
//! A probe timeout means that nothing was heard for two round trips although something is owed. For
//! interactive traffic that is late enough: the data goes out on another subflow at once (RFC 8684
//! section 3.3.6 leaves the moment to the sender; kernels wait for the RTO). If the silence was only
//! jitter, the first segment heard takes back what was not yet sent twice.

use marline_policy::{
    DataRange, Dsn, PathEvent, ReinjectionCause, SchedulerEvent, Ssn, SubflowId, SubflowSet,
};
use marline_time::{Duration, Instant};

use super::Connection;
use crate::tables::Context;
use crate::{CloseReason, MonitorKind, SubflowState};

/// Timeouts in a row on the only subflow after which its path is tried from other ports.
const STUCK_AFTER: u32 = 2;

impl Connection {
    pub(super) fn on_probe_timeout(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        self.report_timeout(cx, id);
        let patience = self.scheduling.probe_patience();
        // Who leaves reinjection to the retransmission timer leaves suspicion to it, too.
        if let Some(leg) = self.leg_mut(id).filter(|_| patience.is_some()) {
            leg.tcp.suspect();
        }
        self.scheduler_event(now, SchedulerEvent::ProbeTimeout(id));
        match patience {
            None => {}
            Some(Duration::ZERO) => self.suspect(cx, id, ReinjectionCause::UnansweredProbe),
            Some(patience) => {
                if let Some(leg) = self.leg_mut(id) {
                    leg.patience_until.get_or_insert(now + patience);
                }
            }
        }
    }

    pub(super) fn on_subflow_rto(&mut self, cx: &mut Context<'_>, id: SubflowId, count: u32) {
        let now = cx.now;
        if self.is_unanswered(id) && count >= self.config.mptcp_syn_retries.max(1) {
            // A box that drops what carries options lets nothing pass that RFC 8684 has.
            self.give_options_up(cx);
        }
        self.report_timeout(cx, id);
        self.scheduler_event(now, SchedulerEvent::SubflowRto(id));
        if self.leg(id).is_some_and(|leg| leg.up) {
            self.suspect(cx, id, ReinjectionCause::SubflowRto);
        }
        if count > 1 && self.usable_legs() == 1 && self.session.is_confirmed() {
            self.wait.begin(now);
            if count == STUCK_AFTER {
                self.path_event(cx, PathEvent::Stuck(id));
            }
        }
    }

    /// The peer has not shown yet that it speaks Multipath TCP, or that it has anything of ours, and there
    /// is no other subflow: a copy on the same one would be in the way of falling back.
    pub(super) fn may_still_fall_back(&self) -> bool {
        let unheard = !self.session.is_confirmed() || self.sender.una() == Dsn(0);
        // Only the first subflow can, and not once it is lost.
        let mut legs = self.legs.iter().flatten();
        let first = legs.next().is_some_and(|leg| leg.is_initial() && !leg.shut);
        unheard && first && legs.next().is_none()
    }

    /// The client's first data was not acknowledged, nor did anything else come since the handshake.
    fn is_unanswered(&self, id: SubflowId) -> bool {
        let silent = |leg: &super::Leg| {
            leg.is_initial() && leg.tcp.snd_una() == Ssn(1) && self.receiver.delivered(id) == Ssn(1)
        };
        let unconfirmed = self.session.is_unconfirmed();
        unconfirmed && self.session.is_client() && self.leg(id).is_some_and(silent)
    }

    /// The patience with an unanswered probe is over.
    pub(super) fn on_patience_over(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        if let Some(leg) = self.leg_mut(id)
            && leg.patience_until.is_some_and(|at| at <= now)
        {
            leg.patience_until = None;
            self.suspect(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// The carrier says that nothing gets through there.
    pub(crate) fn on_unreachable(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(leg) = self.leg_mut(id) else { return };
        if leg.is_usable() {
            // What takes the suspicion back is a segment that the subflow hears: it must know of it.
            leg.tcp.suspect();
            self.suspect(cx, id, ReinjectionCause::UnansweredProbe);
        } else if leg.tcp.state() == SubflowState::SynSent && !self.session.is_confirmed() {
            // RFC 9293 section 3.9.2.2 leaves it to us; Linux gives up a first SYN as well, and an
            // application that tries several paths or servers wants to know at once.
            self.on_leg_lost(cx, id, CloseReason::Unreachable);
        }
    }

    /// Subflows that the scheduler holds to be dead.
    pub(super) fn suspect_accused(&mut self, cx: &mut Context<'_>) {
        for id in self.scheduling.take_accused().iter() {
            self.suspect_silent(cx, id);
        }
    }

    /// Something is due on it and does not come.
    pub(super) fn suspect_silent(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(leg) = self.leg_mut(id).filter(|leg| leg.is_usable()) {
            leg.tcp.suspect();
            self.suspect(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    pub(super) fn suspect(&mut self, cx: &mut Context<'_>, id: SubflowId, cause: ReinjectionCause) {
        let now = cx.now;
        let Some(leg) = self.leg_mut(id) else { return };
        let first = !core::mem::replace(&mut leg.suspected, true);
        self.scheduling.void(id);
        self.reinject_from(now, id, cause);
        if first {
            cx.out.monitor(now, self.id, MonitorKind::SubflowSuspected { id, suspected: true });
            self.path_event(cx, PathEvent::Suspected(id));
        }
    }

    pub(super) fn on_heard_again(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        // Who leaves suspicion to the retransmission timer leaves it its pace, too.
        let prompt = self.scheduling.probe_patience().is_some();
        let Some(leg) = self.leg_mut(id) else { return };
        leg.patience_until = None;
        let bad = leg.netpath_fault.is_some();
        if prompt {
            leg.tcp.retry_soon(now);
        }
        if core::mem::take(&mut leg.suspected) {
            // What a bad netpath holds stays in doubt although something was heard there.
            if !bad {
                self.sender.absolve(id);
            }
            cx.out.monitor(now, self.id, MonitorKind::SubflowSuspected { id, suspected: false });
            self.rescue(now, |leg| leg.netpath_fault.is_some());
            self.path_event(cx, PathEvent::HeardAgain(id));
        }
    }

    /// Somebody healthy is there: what silent subflows hold, or such on bad netpaths, even if heard,
    /// also what they were given since they fell silent, as there was nobody else, need not wait for
    /// their timers.
    pub(super) fn rescue(&mut self, now: Instant, of: impl Fn(&super::Leg) -> bool) {
        for id in self.leg_ids() {
            let doubted = |leg: &super::Leg| leg.suspected || leg.netpath_fault.is_some();
            if self.leg(id).is_some_and(|leg| doubted(leg) && of(leg)) {
                self.reinject_from(now, id, ReinjectionCause::UnansweredProbe);
            }
        }
    }

    /// Queues what this subflow holds and no other healthy subflow carries.
    pub(super) fn reinject_from(&mut self, now: Instant, id: SubflowId, cause: ReinjectionCause) {
        // Who closes does not fall back any more.
        let waits = cause != ReinjectionCause::SubflowClosed && self.may_still_fall_back();
        if self.session.is_plain() || self.closing.closed.is_some() || waits {
            return;
        }
        let healthy = self.healthy();
        let una = self.sender.una();
        let Some(leg) = self.leg(id) else { return };
        let mut held: Option<DataRange> = None;
        let mut ranges = Vec::new();
        for segment in leg.tcp.unacked() {
            let start = segment.dsn.max(una);
            let range = DataRange::new(start, segment.dsn.plus(segment.payload_len()));
            if range.is_empty() {
                continue;
            }
            match &mut held {
                Some(whole) if whole.end == range.start => whole.end = range.end,
                _ => ranges.extend(held.replace(range)),
            }
        }
        ranges.extend(held);
        for range in ranges {
            self.sender.reinject_lonely(now, range, (id, cause), healthy);
        }
    }

    /// Subflows that carry data and are not suspected.
    pub(super) fn healthy(&self) -> SubflowSet {
        let mut set = SubflowSet::EMPTY;
        for id in self.leg_ids() {
            let healthy = |leg: &super::Leg| {
                let suspect =
                    leg.suspected || leg.tcp.potentially_failed() || leg.netpath_fault.is_some();
                leg.is_usable() && !suspect
            };
            if self.leg(id).is_some_and(healthy) {
                set.insert(id);
            }
        }
        set
    }
}
