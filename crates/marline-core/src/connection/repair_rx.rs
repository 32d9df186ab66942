//! Repairs that come in, and the agreement on them.

use marline_policy::{Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::TcpSegment;
use marline_wire::mptcp::{DataAck, ExperimentalMessage, Extensions, MpRepair};

use super::Connection;
use super::mapping_rx::{Coded, RxMapping};
use crate::subflow::Ingress;
use crate::tables::Context;

impl Connection {
    /// Both sides agreed on REPAIR.
    pub(super) fn start_coding(&mut self) {
        self.receiver.start_coding();
        self.sender.start_coding();
    }

    /// A repair overtook the answer that agrees to repairs, or that answer was lost: the server may use them
    /// from its answer on, and whoever sends one has answered.
    pub(super) fn is_early_repair(&mut self, segment: &TcpSegment<'_>) -> bool {
        if !self.session.awaits_word_on(&self.config, Extensions::REPAIR) {
            return false;
        }
        let mut messages = segment.options.mptcp.experimental();
        let early = messages.any(|message| matches!(message, ExperimentalMessage::Repair(_)));
        if early {
            self.start_coding();
        }
        early
    }

    /// Plain TCP has no place for repairs, and a connection that is over no use.
    pub(super) fn stop_coding(&mut self) {
        self.receiver.stop_coding();
        self.sender.stop_coding();
    }

    /// The REPAIR option of a segment, and payload that its subflow cannot deliver yet.
    pub(super) fn on_coded(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let now = cx.now;
        let repair = segment.options.mptcp.experimental().find_map(|message| match message {
            ExperimentalMessage::Repair(repair) => Some(repair),
            _ => None,
        });
        if let Some(repair) = repair {
            self.on_data_ack(cx, DataAck::Short(repair.data_ack), ingress.window);
            self.on_repair(cx, id, &repair, ingress);
        }
        if let Some(start) = ingress.start.filter(|_| ingress.in_order.is_none()) {
            self.take_early(now, id, start, segment.payload);
        }
    }

    /// The mapping of a repair.
    fn on_repair(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        repair: &MpRepair,
        ingress: &Ingress,
    ) {
        cx.out.counters.repair_rx += 1;
        if !self.checksum_is_as_agreed(cx, id, repair.checksum) {
            return;
        }
        let dsn = self.session.unwrap_short_dsn(repair.dsn, self.receiver.next());
        let ssn = ingress.start.and_then(|start| unwrap16(repair.ssn, start.0));
        let (Some(dsn), Some(ssn)) = (dsn, ssn) else {
            cx.out.counters.dss_not_matching += 1;
            return;
        };
        let mapping = RxMapping {
            ssn: Ssn(ssn),
            len: u64::from(repair.length),
            dsn,
            wire_dsn: self.session.keys().remote_wire(dsn),
            wire_len: repair.length,
            checksum: repair.checksum,
            coded: Some(Coded { span: repair.span, row: repair.row }),
        };
        self.announce(cx, id, mapping);
    }

    /// Payload behind a hole of its subflow.
    fn take_early(&mut self, now: Instant, id: SubflowId, ssn: Ssn, payload: &[u8]) {
        let early = self.receiver.take_early(id, ssn, payload);
        if let Some(leg) = self.leg_mut(id).filter(|_| early > 0) {
            leg.last_new_at = now;
        }
    }

    /// After a segment was taken: what can be computed now?
    pub(super) fn repair_missing(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let new = self.receiver.repair_missing(id);
        cx.out.counters.repaired_bytes += new;
        if let Some(leg) = self.leg_mut(id).filter(|_| new > 0) {
            leg.last_new_at = cx.now;
            leg.tcp.ack_now();
        }
    }
}

/// The position with these low 16 bits that lies nearest to `near`; `None` below zero.
const fn unwrap16(low: u16, near: u64) -> Option<u64> {
    let delta = low.wrapping_sub(near as u16) as i16;
    near.checked_add_signed(delta as i64)
}
