//! The ways a connection or a subflow ends: DATA_FIN, MP_FASTCLOSE, RST, death (RFC 8684 sections
//! 3.3.3, 3.5 and 3.6).
//!
//! A DATA_FIN occupies one DSN behind the data. It goes out in a DSS of its own as soon as all data
//! was handed to subflows, on the best of them, and is repeated by timer on all, since a segment
//! without payload has nobody else to repeat it. When both sides' DATA_FINs are acknowledged the
//! subflows close as TCP does; their FINs carry the last DATA_ACK.

use marline_policy::{
    DataRange, Dsn, PathEvent, ReinjectionCause, SchedulerEvent, Ssn, SubflowId, SubflowSet,
};
use marline_time::Instant;
use marline_wire::mptcp::{Dss, MpFastclose, MpTcpRst, MptcpOption};
use marline_wire::{TcpFlags, TcpOptions, TcpSegment};

use super::leg::{Farewell, Leg};
use super::{Connection, Mode};
use crate::subflow::{Egress, HeaderFor};
use crate::tables::Context;
use crate::tables::time_wait::{Answer, Ended, RESET_MEMORY};
use crate::{CloseReason, Event, MonitorKind, SubflowState};

/// Last subflows that we reset one after the other, without progress in between, before the connection
/// ends.
const MAX_FUTILE_RESETS: u32 = 5;

/// How far the connection is on its way out.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Closing {
    /// The application writes no more.
    pub(super) shutdown: bool,
    /// Our DATA_FIN was sent.
    pub(super) fin_sent: bool,
    /// And acknowledged.
    pub(super) fin_acked: bool,
    /// The application let go.
    pub(super) released: bool,
    /// Data came that nobody will read.
    pub(super) came_late: bool,
    /// It is over, and why.
    pub(super) closed: Option<CloseReason>,
    /// When it was over, or when the application let go of it.
    pub(super) leaving_since: Option<Instant>,
    /// What the peer had then.
    pub(super) leaving_una: Dsn,
    /// The application knows of the connection.
    pub(super) announced_to_application: bool,
}

impl Closing {
    /// Over, or to be over: no new subflows.
    pub(super) const fn is_closing(&self) -> bool {
        self.closed.is_some()
    }
}

impl Connection {
    /// The application writes no more.
    pub(crate) fn shutdown(&mut self, cx: &mut Context<'_>) {
        self.closing.shutdown = true;
        self.advance_closing(cx);
    }

    /// The application lets go of the connection.
    pub(crate) fn release(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let unread = self.receiver.readable() > 0;
        self.closing.released = true;
        self.closing.leaving_since = Some(now);
        self.closing.leaving_una = self.sender.una();
        if self.closing.closed.is_some() {
            return;
        }
        if unread {
            self.abort(cx);
            return;
        }
        self.shutdown(cx);
    }

    /// Ends it now: MP_FASTCLOSE with a RST on every subflow.
    pub(crate) fn abort(&mut self, cx: &mut Context<'_>) {
        self.abort_because(cx, CloseReason::Aborted);
    }

    pub(super) fn abort_because(&mut self, cx: &mut Context<'_>, why: CloseReason) {
        if self.closing.closed.is_some() {
            return;
        }
        if self.session.is_multipath() {
            cx.out.counters.mp_fastclose_tx += 1;
        }
        let farewell =
            if self.session.is_multipath() { Farewell::Fastclose } else { Farewell::None };
        self.reset_all(farewell);
        self.finish(cx, why);
    }

    /// Nobody is left to read what came: the peer learns it by a RST, as from a host that knows of no
    /// connection.
    pub(super) fn refuse_late_data(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        if let Some(leg) = self.leg_mut(id) {
            leg.shut = true;
            leg.tcp.reset_like_a_stranger(segment.header.ack);
        }
        self.finish(cx, CloseReason::Aborted);
    }

    fn reset_all(&mut self, farewell: Farewell) {
        self.next_leg = 0;
        for leg in self.legs.iter_mut().flatten() {
            leg.farewell = farewell;
            leg.shut = true;
            leg.tcp.reset();
        }
    }

    /// Moves the orderly close on as far as it can go now.
    pub(super) fn advance_closing(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        if self.closing.closed.is_some() {
            return;
        }
        if self.closing.shutdown && self.sender.sent_all() {
            if self.session.is_plain() {
                self.close_plain_subflow();
                self.drop_unanswered(cx);
                if self.legs_count() == 0 {
                    // Let go of before the peer answered, with nothing to be said.
                    self.finish(cx, CloseReason::Finished);
                    return;
                }
            } else if !self.closing.fin_sent && self.usable_legs() > 0 {
                self.closing.fin_sent = true;
                self.timers.fin_at = Some(now);
            }
        }
        let sent_all = match self.session.mode() {
            Mode::Plain { .. } => self.closing.shutdown && self.plain_fin_acked(),
            _ => self.closing.fin_acked,
        };
        if sent_all && self.closing.came_late {
            // RFC 9293 section 3.6.1: the peer learns that data was lost, once it has all that it was to get.
            self.abort(cx);
            return;
        }
        if sent_all && self.receiver.fin_reached() {
            self.close_subflows();
            self.finish(cx, CloseReason::Finished);
            self.drop_unanswered(cx);
        }
    }

    /// A subflow came up. A DATA_FIN that was lost with another, and backs off, goes again at once, and there: the
    /// others may let no options pass, or nothing.
    pub(super) fn resume_closing(&mut self, now: Instant, id: SubflowId) {
        if self.closing.fin_sent && !self.closing.fin_acked {
            self.timers.fin_count = 0;
            self.timers.fin_on = SubflowSet::of(id);
            self.timers.fin_at = Some(now);
        }
    }

    /// The peer has all data. A DATA_FIN that went out a round trip ago or more would have come by now.
    pub(super) fn hasten_fin(&mut self, now: Instant) {
        let waits = self.closing.fin_sent && !self.closing.fin_acked;
        let Some(sent_at) = self.timers.fin.at().filter(|_| waits) else { return };
        let on = self.timers.fin_went_on.iter().filter_map(|id| self.leg(id));
        let round_trip = on.filter(|leg| leg.is_usable()).filter_map(|leg| leg.tcp.srtt()).max();
        // What the same packets carry is answered by the next segment, not by this one.
        if round_trip.is_some_and(|round_trip| now.since(sent_at) >= round_trip * 5 / 4) {
            self.timers.fin_at = Some(now);
        }
    }

    fn close_plain_subflow(&mut self) {
        for leg in self.legs.iter_mut().flatten() {
            leg.tcp.close();
        }
    }

    /// Plain TCP: our FIN is acknowledged, or the subflow is already gone with it.
    fn plain_fin_acked(&self) -> bool {
        let done = |state| {
            matches!(state, SubflowState::FinWait2 | SubflowState::TimeWait | SubflowState::Closed)
        };
        self.legs.iter().flatten().all(|leg| done(leg.tcp.state()))
    }

    fn close_subflows(&mut self) {
        for leg in self.legs.iter_mut().flatten() {
            leg.shut = true;
            leg.tcp.close();
        }
    }

    /// Joins whose SYN nobody has answered were closed without a word: there is nothing to wait for.
    pub(super) fn drop_unanswered(&mut self, cx: &mut Context<'_>) {
        let silent = |leg: &Leg| leg.tcp.state() == SubflowState::Closed && !leg.up && !leg.was_up;
        let ids: Vec<SubflowId> =
            self.leg_ids().filter(|id| self.leg(*id).is_some_and(silent)).collect();
        for id in ids {
            self.drop_leg(cx, id, CloseReason::Finished);
        }
    }

    /// MP_FASTCLOSE and MP_TCPRST of an acceptable segment.
    pub(super) fn on_closing_options(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        let now = cx.now;
        for option in segment.options.mptcp.iter() {
            match option {
                MptcpOption::Fastclose(f) if f.receiver_key == self.session.keys().local().0 => {
                    cx.out.counters.mp_fastclose_rx += 1;
                    if let Some(leg) = self.leg_mut(id) {
                        leg.shut = true;
                    }
                    let reason = super::rst_reason::UNSPECIFIED;
                    self.reset_all(Farewell::Reason(MpTcpRst { transient: false, reason }));
                    self.finish(cx, CloseReason::PeerReset);
                    return;
                }
                MptcpOption::TcpRst(word) => {
                    cx.out.counters.mp_rst_rx += 1;
                    if let Some(leg) = self.leg_mut(id) {
                        leg.reset_word = Some(word);
                    }
                }
                MptcpOption::Fail(fail) if segment.header.flags.contains(TcpFlags::RST) => {
                    cx.out.counters.mp_fail_rx += 1;
                    self.on_failed_reset(now, id, fail);
                }
                _ => {}
            }
        }
    }

    /// Resets one subflow; its data goes elsewhere. The connection ends with its last one only if it
    /// cannot get another.
    pub(super) fn reset_leg(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        reason: u8,
        why: CloseReason,
    ) {
        let now = cx.now;
        let multipath = self.session.is_multipath();
        // One reset is one, however much comes to light of what the subflow had queued.
        let Some(leg) = self.leg_mut(id).filter(|leg| !leg.tcp.is_over()) else { return };
        if multipath {
            cx.out.counters.mp_rst_tx += 1;
            // The first reason is the cause of the next.
            if matches!(leg.farewell, Farewell::None) {
                leg.farewell = Farewell::Reason(MpTcpRst { transient: false, reason });
            }
        }
        leg.shut = true;
        leg.tcp.reset();
        self.leg_stops_carrying(now, id);
        if self.legs.iter().flatten().any(|leg| !leg.shut) {
            return;
        }
        self.futile_resets += 1;
        if !self.may_come_back() {
            self.finish(cx, why);
        } else if self.futile_resets > MAX_FUTILE_RESETS {
            // Each subflow can be opened and none can be used: no other will fare better, and both
            // applications wait.
            self.abort_because(cx, CloseReason::PeerMisbehaved);
        }
    }

    /// All retries went unanswered. The last subflow of a connection that cannot get another ends it.
    pub(super) fn on_leg_dead(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        // The peer may still be there, and hold the subflow for good: one direction is enough for a RST.
        if let Some(leg) = self.leg_mut(id).filter(|leg| leg.was_joined()) {
            leg.reset_sent = true;
            leg.gave_up = true;
        }
        self.on_leg_lost(cx, id, CloseReason::TimedOut);
    }

    /// Both FINs are through: what is left is TIME-WAIT.
    pub(super) fn on_leg_finished(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        if self.session.is_plain() {
            self.advance_closing(cx);
        }
        self.leg_stops_carrying(now, id);
        self.drop_leg(cx, id, CloseReason::Finished);
        if self.legs_count() == 0 && self.closing.closed.is_none() {
            if self.session.is_plain() {
                self.finish(cx, CloseReason::Finished);
            } else {
                self.wait.begin_without_subflows(now, CloseReason::Finished);
            }
        }
    }

    /// No more data on this subflow: what it has not delivered goes to others.
    pub(super) fn leg_stops_carrying(&mut self, now: Instant, id: SubflowId) {
        let Some(leg) = self.leg_mut(id) else { return };
        leg.shut = true;
        if !core::mem::take(&mut leg.up) {
            return;
        }
        leg.was_up = true;
        self.reinject_from(now, id, ReinjectionCause::SubflowClosed);
        self.sender.stop_carrying(id);
        self.scheduling.void(id);
        self.scheduler_event(now, SchedulerEvent::SubflowDown(id));
    }

    /// Takes a subflow out of its slot; TIME-WAIT and answers to stragglers go to the endpoint.
    pub(super) fn drop_leg(&mut self, cx: &mut Context<'_>, id: SubflowId, reason: CloseReason) {
        let now = cx.now;
        let Some(mut leg) = self.legs.get_mut(usize::from(id.0)).and_then(Option::take) else {
            return;
        };
        self.receiver.remove_subflow(id);
        for range in leg.tcp.released().drain(..) {
            self.sender.unpin(range);
        }
        for segment in leg.tcp.unacked().filter(|s| s.payload_len() > 0) {
            let end = segment.dsn.plus(segment.payload_len());
            self.sender.unpin(DataRange::new(segment.dsn, end));
        }
        let again = self.on_fast_join_failed(cx, &mut leg, (id, reason));
        self.forget_slot(id);
        self.remember_ended(cx, &mut leg);
        self.remember_totals(&leg, id);
        let path = leg.key.path;
        if leg.was_up && !self.session.is_plain() {
            cx.out.monitor(now, self.id, MonitorKind::SubflowClosed { id, path, reason });
        }
        let (local, remote, was_established) = (leg.local_id, leg.remote_id, leg.was_up);
        let event = PathEvent::SubflowDown { id, local, remote, was_established };
        self.path_event(cx, event);
        if let Some((pair, backup)) = again {
            self.join_as_usual(cx, pair, backup);
        }
    }

    /// The slot may go to another subflow: nothing that speaks of it means the one that was there.
    fn forget_slot(&mut self, id: SubflowId) {
        self.sender.remove_subflow(id);
        self.scheduling.forget_subflow(id);
        self.addresses.forget_subflow(id);
        self.silence.forget_subflow(id);
    }

    /// Hands what is left of a subflow to the endpoint. An ACK that it still owes goes out from there.
    fn remember_ended(&self, cx: &mut Context<'_>, leg: &mut Leg) {
        let now = cx.now;
        let (answer, until) = match leg.tcp.state() {
            SubflowState::TimeWait => (Answer::Ack, now + self.config.time_wait),
            _ if leg.reset_sent => (Answer::Rst, now + RESET_MEMORY),
            _ => {
                cx.flows.remove(&leg.key);
                let (local_flow, path) = (leg.key.local_flow, leg.key.path);
                cx.out.event(Event::FlowGone { local_flow, path });
                return;
            }
        };
        let owes_word = leg.gave_up || answer == Answer::Ack && leg.tcp.owes_ack();
        let fastclosed = answer == Answer::Rst && matches!(leg.farewell, Farewell::Fastclose);
        let mut options = TcpOptions::default();
        let what = match answer {
            Answer::Ack => Egress::Ack,
            Answer::Rst => Egress::Rst,
        };
        let (header, _) = leg.tcp.fill_header(now, HeaderFor::Egress(&what), 0, &mut options);
        let dss = Dss {
            data_ack: Some(self.session.data_ack(self.receiver.data_ack())),
            mapping: None,
            data_fin: false,
        };
        let tells_dss = self.session.is_multipath() && !self.config.conduct.lone_last_data_ack;
        let ended = Ended {
            key: leg.key,
            answer,
            peer_isn: leg.tcp.peer_to_wire(Ssn(0)),
            header,
            timestamps: options.timestamps,
            dss: (answer == Answer::Ack && tells_dss).then_some(dss),
            fastclose: self
                .session
                .keys()
                .remote()
                .filter(|_| fastclosed)
                .map(|key| MpFastclose { receiver_key: key.0 }),
            until,
        };
        if owes_word {
            cx.out.reply(ended.last_word());
        }
        cx.flows.retire(ended, cx.out);
    }
}
