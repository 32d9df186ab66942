//! Receiving repairs: what is lost is computed from what came.
//!
//! *Mapping.* A REPAIR option maps payload of a subflow as a DSS does, only not onto the stream: when all of
//! it is there (and its checksum right, if checksums are on), it goes to the decoder. The rules are
//! those of mappings: it never changes, is bounded in number, and payload without any ends the subflow.
//! A repair with a wrong checksum is dropped; unlike data, nothing depends on it.
//!
//! *Behind holes.* A lost segment is computed from those after it, which wait on the subflow for just
//! that segment. So data behind a hole of its subflow is taken at once where a mapping covers it (the
//! subflow acknowledges and repairs as ever, and what it brings later is dropped as known). This alone
//! lets any copy of a lost segment that comes by another path release what waits behind it.
//!
//! *Memory.* The receive buffer keeps the last 64 KiB that were read, the decoder at most 96 KiB of repairs,
//! both only if REPAIR was agreed on.
//!
//! *Trust.* What is computed fills holes, never what was received, and counts as received: it moves the
//! DATA_ACK, and the window applies to it. A peer that sends wrong sums damages its own data, as it
//! could by sending wrong data. `repair/decoder.rs` says what it can cost.

use marline_policy::{DataRange, Dsn, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::TcpSegment;
use marline_wire::mptcp::{DataAck, ExperimentalMessage, Extensions, MpRepair};

use super::Connection;
use super::mapping_rx::{Coded, RxMapping};
use super::repair_tx::RepairTx;
use crate::repair::Decoder;
use crate::subflow::Ingress;
use crate::tables::Context;

/// Bytes that were read and are kept: as far back as a repair of a missing byte can reach.
const HISTORY: u64 = u16::MAX as u64;

/// What a connection needs for repairs, once they are agreed on.
#[derive(Debug, Default)]
pub(super) struct Coding {
    pub(super) tx: RepairTx,
    decoder: Decoder,
}

impl Coding {
    /// Bytes of memory held.
    pub(super) const fn memory(&self) -> usize {
        self.decoder.memory()
    }
}

impl Connection {
    /// Both sides agreed on REPAIR.
    pub(super) fn start_coding(&mut self) {
        if self.coding.is_none() {
            self.coding = Some(Box::default());
            self.receive.keep_history(HISTORY);
        }
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
        if self.coding.take().is_some() {
            self.receive.keep_history(0);
        }
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
        let dsn = self.session.unwrap_short_dsn(repair.dsn, self.receive.next());
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
        let Some(leg) = self.legs.get_mut(usize::from(id.0)).and_then(Option::as_deref_mut) else {
            return;
        };
        let receive = &mut self.receive;
        let mut early = 0;
        leg.mappings.peek(ssn, payload, &mut |dsn, bytes| {
            early += receive.insert(dsn, bytes).new;
        });
        leg.early += early;
        if early > 0 {
            leg.last_new_at = now;
        }
    }

    /// After a segment was taken: what can be computed now?
    pub(super) fn repair_missing(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(coding) = self.coding.as_mut() else { return };
        let leg = self.legs.get_mut(usize::from(id.0)).and_then(Option::as_deref_mut);
        for (repair, sum) in leg.into_iter().flat_map(|leg| leg.mappings.take_repairs()) {
            coding.decoder.add(repair, &sum, &self.receive);
        }
        if coding.decoder.is_empty() {
            return;
        }
        let found = coding.decoder.solve(&self.receive);
        let mut new = 0;
        for (dsn, bytes) in found {
            new += self.receive.insert(dsn, &bytes).new;
        }
        cx.out.counters.repaired_bytes += new;
        if let Some(leg) = self.leg_mut(id).filter(|_| new > 0) {
            leg.last_new_at = now;
            leg.tcp.ack_now();
        }
    }
}

impl crate::repair::Known for super::ReceiveBuffer {
    fn oldest(&self) -> Dsn {
        self.oldest_kept()
    }

    fn next(&self) -> Dsn {
        super::ReceiveBuffer::next(self)
    }

    fn missing(&self, range: DataRange, holes: &mut Vec<DataRange>) {
        self.holes(range, holes);
    }

    fn read(&self, at: Dsn, out: &mut [u8]) -> bool {
        self.copy_kept(at, out)
    }
}

/// The position with these low 16 bits that lies nearest to `near`; `None` below zero.
const fn unwrap16(low: u16, near: u64) -> Option<u64> {
    let delta = low.wrapping_sub(near as u16) as i16;
    near.checked_add_signed(delta as i64)
}
