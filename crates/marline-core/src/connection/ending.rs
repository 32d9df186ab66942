//! End of a connection or a subflow (RFC 8684 sections 3.3.3, 3.5 and 3.6): the tasks of each component.

use marline_policy::{DataRange, LocalAddress, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::TcpOptions;
use marline_wire::mptcp::{Dss, MpFastclose};

use super::attempts::Attempts;
use super::closing::Closing;
use super::liveness::Liveness;
use super::path_set::PathSet;
use super::receiver::Receiver;
use super::scheduling::Scheduling;
use super::sender::Sender;
use super::session::Session;
use super::subflow_context::{ClosingOption, FinalSegment, SubflowContext};
use crate::on_demand::OnDemand;
use crate::subflow::{Egress, HeaderFor};
use crate::tables::Context;
use crate::tables::time_wait::{Answer, EndedSubflow, RESET_MEMORY};
use crate::{CloseReason, ConnectionConfig, ConnectionId, Event, MonitorKind, SubflowState};

/// Parts of a connection that refer to its subflows.
pub(super) struct Ending<'a> {
    pub(super) id: ConnectionId,
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a Session,
    pub(super) paths: &'a mut PathSet,
    pub(super) attempts: &'a mut OnDemand<Attempts>,
    pub(super) sender: &'a mut Sender,
    pub(super) receiver: &'a mut Receiver,
    pub(super) closing: &'a mut Closing,
    pub(super) scheduling: &'a mut Scheduling,
    pub(super) liveness: &'a mut OnDemand<Liveness>,
}

impl Ending<'_> {
    /// Ends the connection for the application; subflows may linger.
    pub(super) fn finish(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        if !self.closing.close(cx.now, reason) {
            return;
        }
        self.sender.clear_reinjections();
        cx.out.monitor(cx.now, self.id, MonitorKind::Closed(reason));
        // An application that admitted a request knows the connection before it is established.
        let admitted = self.session.is_server() && self.config.withhold_syn_ack;
        if self.closing.is_announced() || admitted {
            cx.out.event(Event::Closed { connection: self.id, reason });
        }
    }

    pub(super) fn abort_with_reason(&mut self, cx: &mut Context<'_>, why: CloseReason) {
        if self.closing.is_closed() {
            return;
        }
        let multipath = self.session.is_multipath();
        cx.out.counters.mp_fastclose_tx += u64::from(multipath);
        self.paths.reset_all(if multipath {
            ClosingOption::Fastclose
        } else {
            ClosingOption::None
        });
        self.finish(cx, why);
    }

    /// True if the peer has acknowledged all written data.
    pub(super) fn peer_has_all_data(&self) -> bool {
        self.sender.una() >= self.sender.written_end()
    }

    /// Repeats the DATA_FIN early if the peer has all data, and a DATA_FIN sent more than a round trip ago should
    /// have been acknowledged.
    pub(super) fn expedite_data_fin(&mut self, now: Instant) {
        let Some((sent_at, on)) = self.closing.data_fin_in_flight() else { return };
        let usable = on.iter().filter_map(|id| self.paths.get(id)).filter(|s| s.is_active());
        let round_trip = usable.filter_map(|subflow| subflow.tcp().srtt()).max();
        // The factor leaves time for the answer: the current segment may be too early to acknowledge the DATA_FIN.
        if round_trip.is_some_and(|round_trip| now.since(sent_at) >= round_trip * 5 / 4) {
            self.closing.expedite_data_fin(now);
        }
    }

    /// Restarts the timer after the DATA_FIN was sent on all its subflows.
    pub(super) fn rearm_fin(&mut self, now: Instant) {
        let silent = self.closing.rearm_fin(now, self.paths.last_rx_at());
        self.closing.on_unanswered_probes(now, silent);
    }

    /// Removes all references to a subflow, because its slot may be reused.
    pub(super) fn forget_subflow(&mut self, id: SubflowId) {
        self.receiver.remove_subflow(id);
        self.sender.remove_subflow(id);
        self.scheduling.discard_for(id);
        self.paths.addresses_mut().forget_subflow(id);
        if let Some(attempts) = self.attempts.if_used() {
            attempts.forget_subflow(id);
        }
        if let Some(liveness) = self.liveness.if_used() {
            liveness.forget_subflow(id);
        }
    }

    /// Hands the remaining state of a subflow to the endpoint. A pending ACK is sent from there.
    pub(super) fn remember_ended(&self, cx: &mut Context<'_>, subflow: &mut SubflowContext) {
        let now = cx.now;
        let final_segment = subflow.final_segment();
        let (answer, until) = match subflow.tcp().state() {
            SubflowState::TimeWait => (Answer::Ack, now + self.config.time_wait),
            _ if final_segment != FinalSegment::None => (Answer::Rst, now + RESET_MEMORY),
            _ => {
                let key = subflow.key();
                cx.flows.remove(&key);
                let (local_flow, path) = (key.local_flow, key.path);
                cx.out.event(Event::FlowGone { local_flow, path });
                return;
            }
        };
        let has_pending_ack = answer == Answer::Ack && subflow.tcp().has_pending_ack();
        let has_final_segment = final_segment == FinalSegment::ResetPending || has_pending_ack;
        let is_gone = |local: LocalAddress| !local.up;
        let local = self.paths.addresses().find_local(subflow.local_id());
        let unsent = answer == Answer::Rst && local.is_some_and(is_gone);
        let until = if unsent { until.max(now + self.config.time_wait) } else { until };
        let fastclosed =
            answer == Answer::Rst && matches!(subflow.closing_option(), ClosingOption::Fastclose);
        let mut options = TcpOptions::default();
        let what = match answer {
            Answer::Ack => Egress::Ack,
            Answer::Rst => Egress::Rst,
        };
        let what = HeaderFor::Egress(&what);
        let (header, _) = subflow.tcp_mut().fill_header(now, what, 0, &mut options);
        let data_ack = Some(self.session.data_ack(self.receiver.data_ack()));
        let dss = Dss { data_ack, mapping: None, data_fin: false };
        let multipath = self.session.is_multipath();
        let key = self.session.keys().remote().filter(|_| fastclosed);
        let ended = EndedSubflow {
            key: subflow.key(),
            answer,
            peer_isn: subflow.tcp().peer_to_wire(Ssn(0)),
            header,
            timestamps: options.timestamps,
            dss: (answer == Answer::Ack && multipath).then_some(dss),
            fastclose: key.map(|key| MpFastclose { receiver_key: key.0 }),
            unsent,
            until,
        };
        if has_final_segment && !unsent {
            cx.out.reply(ended.final_segment());
        }
        cx.flows.keep_ended(ended, cx.out);
    }

    /// Records that the peer acknowledged the FIN with which we closed our half of a subflow.
    #[inline]
    pub(super) fn record_half_closed(&mut self, now: Instant, id: SubflowId) {
        if let Some(subflow) = self.paths.get_mut(id).filter(|_| !self.session.is_plain()) {
            subflow.record_half_closed(now);
        }
    }

    /// Removes a subflow from its slot. It no longer needs any bytes.
    pub(super) fn take_subflow(&mut self, id: SubflowId) -> Option<Box<SubflowContext>> {
        let mut subflow = self.paths.take(id)?;
        for range in subflow.tcp_mut().released().drain(..) {
            self.sender.unpin(range);
        }
        for segment in subflow.tcp().unacked().filter(|s| s.payload_len() > 0) {
            let end = segment.dsn.plus(segment.payload_len());
            self.sender.unpin(DataRange::new(segment.dsn, end));
        }
        Some(subflow)
    }
}
