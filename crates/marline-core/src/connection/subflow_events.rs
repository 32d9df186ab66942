//! What TCP on a subflow has to tell the connection: it stands, it ended, it was reset, its timers fired,
//! its bytes are acknowledged.

use marline_policy::{SchedulerEvent, SubflowId};
use marline_time::Instant;

use super::leg::Farewell;
use super::{Connection, Leg};
use crate::subflow::SubflowEvent;
use crate::tables::Context;
use crate::{CloseReason, MonitorKind};

impl Connection {
    /// What TCP has to say, in order.
    pub(super) fn drain_subflow_events(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        while let Some(event) = self.leg_mut(id).and_then(|leg| leg.tcp.poll_event()) {
            self.on_subflow_event(cx, id, event);
        }
    }

    pub(super) fn on_subflow_event(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        event: SubflowEvent,
    ) {
        let now = cx.now;
        let is_initial = self.leg(id).is_some_and(Leg::is_initial);
        match event {
            SubflowEvent::Established if is_initial => self.on_initial_established(cx, id),
            SubflowEvent::Established => self.on_join_established(cx, id),
            SubflowEvent::Refused => self.on_leg_lost(cx, id, CloseReason::Refused),
            SubflowEvent::Reset => self.on_reset(cx, id),
            SubflowEvent::ConnectTimeout => self.on_leg_lost(cx, id, CloseReason::TimedOut),
            SubflowEvent::Dead => self.on_leg_dead(cx, id),
            SubflowEvent::PeerFin => self.on_peer_fin(cx, id),
            SubflowEvent::Finished => self.on_leg_finished(cx, id),
            SubflowEvent::ProbeTimeout => self.on_probe_timeout(cx, id),
            SubflowEvent::ProbeRepeated { range } if !range.is_empty() => {
                self.scheduler_event(now, SchedulerEvent::ProbeRepeated { on: id, range });
            }
            SubflowEvent::ProbeRepeated { .. } => {}
            SubflowEvent::Rto { count } => self.on_subflow_rto(cx, id, count),
            SubflowEvent::HeardAgain => self.on_heard_again(cx, id),
            SubflowEvent::MtuFound(_) => {}
        }
    }

    pub(super) fn subflow_is_up(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(leg) = self.leg_mut(id) else { return };
        leg.last_new_at = now;
        let (path, backup, initial) = (leg.key.path, leg.is_backup(), leg.is_initial());
        self.wait.heard(now);
        self.resume_closing(now, id);
        if !initial {
            cx.out.monitor(now, self.id, MonitorKind::SubflowEstablished { id, path, backup });
        }
        self.rescue(now, |_| true);
        self.scheduler_event(now, SchedulerEvent::SubflowUp(id));
        self.path_event(cx, marline_policy::PathEvent::SubflowUp(id));
    }

    /// The subflow's own sequence space ended in order.
    fn on_peer_fin(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        // Only plain TCP ends like this while we wait for an answer to MP_FAIL.
        if let Some(dsn) = self.receiver.failed_at(id) {
            let at = (self.receiver.delivered(id), dsn);
            self.on_infinite_mapping(cx, id, at);
        }
        if self.session.is_plain() {
            let end = self.receiver.next();
            self.receiver.set_fin(end);
            self.tell_readable(cx);
            return;
        }
        // A peer that has said all it had to say may close its half at once. The other half is as good
        // as before, and ours may be the only way to what we have still to say.
        if self.receiver.fin_reached() && !self.closing.fin_acked {
            return;
        }
        let Some(leg) = self.leg_mut(id) else { return };
        leg.shut = true;
        leg.tcp.close();
        self.leg_stops_carrying(now, id);
    }

    /// RST from the peer: MP_FASTCLOSE was looked at before.
    fn on_reset(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(leg) = self.leg_mut(id) {
            leg.farewell = Farewell::None;
        }
        self.sender.note_reset(id);
        self.on_leg_lost(cx, id, CloseReason::PeerReset);
    }

    /// Bytes that a subflow no longer needs to repeat.
    pub(super) fn drain_released(&mut self, now: Instant, id: SubflowId) {
        let Some(leg) = self.legs.get_mut(usize::from(id.0)).and_then(Option::as_deref_mut) else {
            return;
        };
        let una = leg.tcp.snd_una();
        self.sender.release_repairs(id, una);
        if leg.tcp.released().is_empty() {
            return;
        }
        let mut released = core::mem::take(leg.tcp.released());
        for range in &released {
            self.sender.unpin(*range);
        }
        if self.scheduling.watches_acks() {
            for range in &released {
                self.scheduler_event(now, SchedulerEvent::Acked { on: id, range: *range });
            }
        }
        released.clear();
        if let Some(leg) = self.leg_mut(id) {
            *leg.tcp.released() = released;
        }
    }
}
