//! Reception of mapped data: DSS mapping and DATA_FIN, the implicit mapping of data with MP_CAPABLE, mappings of
//! repairs (RFC 8684 sections 3.1 and 3.3), and the positions of in-order bytes in the stream.

use marline_policy::{Dsn, Ssn, SubflowId};
use marline_wire::mptcp::{
    CapableData, Dss, ExperimentalMessage, Extensions, MpRepair, WireMapping,
};
use marline_wire::{Checksum, TcpSegment, dss_checksum};

use super::data_segments::MAX_MAPPING_BYTES;
use super::fallback::Point;
use super::handshake::reason;
use super::mapping_rx::{MappingError, RepairFields, RxMapping};
use super::path_set::PathSet;
use super::receiver::{DeliveryOutcome, Receiver};
use super::session::Session;
use crate::ConnectionConfig;
use crate::subflow::Ingress;
use crate::tables::Context;

/// Parts of a connection that handle received data.
pub(super) struct Reception<'a> {
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a mut Session,
    pub(super) paths: &'a mut PathSet,
    pub(super) receiver: &'a mut Receiver,
}

/// Consequence of a mapping.
#[derive(Copy, Clone, Debug)]
pub(super) enum MappingOutcome {
    /// The mapping was recorded or has no effect.
    Done,
    /// From this point, the peer continues as plain TCP.
    Infinite(Point),
    /// The subflow is reset for this reason.
    Reset(u8),
}

/// Reason code of the RST after contradicting mappings, too many mappings, or bytes without a mapping (options were
/// removed on the path).
pub(super) const fn reset_reason_for(error: MappingError) -> u8 {
    match error {
        MappingError::Unmapped => reason::MIDDLEBOX,
        _ => reason::MPTCP_ERROR,
    }
}

impl Reception<'_> {
    /// Handles the mapping of a DSS. `carries` is true if the segment has payload or a FIN.
    pub(super) fn take_mapping(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        dss: &Dss,
        carries: bool,
    ) -> MappingOutcome {
        let Some(wire) = dss.mapping else { return MappingOutcome::Done };
        if !self.is_checksum_as_agreed(cx, wire.checksum) {
            return MappingOutcome::Reset(reason::MPTCP_ERROR);
        }
        if wire.length == 0 && !carries {
            // An infinite mapping applies to the data in its segment (RFC 8684 section 3.7). Without data it has no
            // meaning.
            return MappingOutcome::Done;
        }
        self.session.record_dsn_size(&wire);
        let Some(dsn) = self.session.unwrap_dsn(wire.dsn, self.receiver.next()) else {
            cx.out.counters.dss_not_matching += 1;
            return MappingOutcome::Done;
        };
        let ssn = self.position_of(id, wire.ssn);
        if wire.length == 0 {
            return ssn
                .map_or(MappingOutcome::Done, |ssn| MappingOutcome::Infinite(Point { ssn, dsn }));
        }
        let data_len = u64::from(wire.length) - u64::from(dss.data_fin);
        let wire_dsn = self.session.keys().remote_wire(dsn);
        if dss.data_fin && !self.on_data_fin(cx, id, &wire, dsn, data_len) {
            return MappingOutcome::Done;
        }
        if self.paths.get(id).is_none() {
            return MappingOutcome::Done;
        }
        let Some(ssn) = ssn else {
            cx.out.counters.dss_not_matching += 1;
            return MappingOutcome::Done;
        };
        let (wire_len, checksum) = (wire.length, wire.checksum);
        let (len, unmapped) = (data_len, (ssn.0 as u32).wrapping_sub(wire.ssn) as u16);
        let mapping =
            RxMapping { ssn, len, dsn, wire_dsn, unmapped, wire_len, checksum, coded: None };
        self.announce_mapping(cx, id, mapping)
    }

    /// Handles MP_CAPABLE with data: an implicit mapping of the first bytes.
    pub(super) fn on_capable_data(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        data: CapableData,
    ) -> MappingOutcome {
        if !self.is_checksum_as_agreed(cx, data.checksum) {
            return MappingOutcome::Reset(reason::MPTCP_ERROR);
        }
        let dsn = self.session.first_mapped_by_peer();
        let mapping = RxMapping {
            ssn: Ssn(dsn.0 + 1),
            len: u64::from(data.length),
            dsn,
            wire_dsn: self.session.keys().remote_wire(dsn),
            unmapped: dsn.0 as u16,
            wire_len: data.length,
            checksum: data.checksum,
            coded: None,
        };
        self.announce_mapping(cx, id, mapping)
    }

    /// Handles the DATA_FIN of a DSS. Returns true if data is mapped with it.
    fn on_data_fin(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        wire: &WireMapping,
        dsn: Dsn,
        data_len: u64,
    ) -> bool {
        let lone = data_len == 0;
        let wire_dsn = self.session.keys().remote_wire(dsn);
        let sum = |_| dss_checksum(wire_dsn, wire.ssn, wire.length, Checksum::new());
        if lone && wire.checksum != wire.checksum.map(sum) {
            cx.out.counters.data_csum_err += 1;
            return false;
        }
        if !self.receiver.set_fin(dsn.plus(data_len)) {
            cx.out.counters.dss_not_matching += 1;
        }
        if lone && let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().ack_now();
        }
        !lone
    }

    /// Handles the mapping of a repair.
    pub(super) fn on_repair(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        repair: &MpRepair,
        ingress: &Ingress,
    ) -> MappingOutcome {
        cx.out.counters.repair_rx += 1;
        if !self.is_checksum_as_agreed(cx, repair.checksum) {
            return MappingOutcome::Reset(reason::MPTCP_ERROR);
        }
        let dsn = self.session.unwrap_short_dsn(repair.dsn, self.receiver.next());
        let ssn = ingress.start.and_then(|start| unwrap16(repair.ssn, start.0));
        let (Some(dsn), Some(ssn)) = (dsn, ssn) else {
            cx.out.counters.dss_not_matching += 1;
            return MappingOutcome::Done;
        };
        let mapping = RxMapping {
            ssn: Ssn(ssn),
            len: u64::from(repair.length),
            dsn,
            wire_dsn: self.session.keys().remote_wire(dsn),
            unmapped: 0,
            wire_len: repair.length,
            checksum: repair.checksum,
            coded: Some(RepairFields { span: repair.span, row: repair.row }),
        };
        self.announce_mapping(cx, id, mapping)
    }

    fn announce_mapping(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        mapping: RxMapping,
    ) -> MappingOutcome {
        let Err(error) = self.receiver.announce(id, mapping) else { return MappingOutcome::Done };
        cx.out.counters.dss_not_matching += 1;
        MappingOutcome::Reset(reset_reason_for(error))
    }

    /// Checks that a checksum is present if and only if it was negotiated. Otherwise the subflow ends (RFC 8684 section
    /// 3.3).
    fn is_checksum_as_agreed(&self, cx: &mut Context<'_>, checksum: Option<u16>) -> bool {
        let agreed = checksum.is_some() == self.session.uses_checksum();
        cx.out.counters.dss_not_matching += u64::from(!agreed);
        agreed
    }

    /// Position on a subflow to which a subflow sequence number of the peer refers.
    fn position_of(&self, id: SubflowId, ssn: u32) -> Option<Ssn> {
        let subflow = self.paths.get(id)?;
        self.session.unwrap_ssn(subflow.is_initial(), ssn, subflow.tcp().rcv_nxt())
    }

    /// True if this mapping shows that the peer is unaware of a fallback at the first byte. Its retransmissions would
    /// be taken for new data. This cannot be detected without the peer's key.
    pub(super) fn contradicts_plain_stream(&self, id: SubflowId, dss: &Dss) -> bool {
        let plain = self.session.keys().remote().is_some() && self.receiver.is_plain_from_start(id);
        if !plain || self.paths.get(id).is_none() {
            return false;
        }
        let wire = dss.mapping.filter(|wire| wire.length > u16::from(dss.data_fin));
        wire.is_some_and(|wire| {
            let ssn = self.position_of(id, wire.ssn);
            let dsn = self.session.unwrap_dsn(wire.dsn, self.receiver.next());
            ssn.zip(dsn).is_none_or(|(ssn, dsn)| ssn.0 != dsn.0 + 1)
        })
    }

    /// True if the segment's payload is next on its subflow and maps near the first missing byte of the stream.
    pub(super) fn continues_stream(&self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        let Some(subflow) = self.paths.get(id) else { return true };
        let (next, missing) = (subflow.tcp().rcv_nxt(), self.receiver.next());
        if segment.header.seq != subflow.tcp().peer_to_wire(next) {
            return false;
        }
        let mapping = segment.options.dss.and_then(|dss| dss.mapping);
        let place = match mapping {
            Some(wire) => self.session.unwrap_dsn(wire.dsn, missing),
            None => {
                let places = self.receiver.stream_ranges(id, next, segment.payload.len() as u64);
                places.first().map(|range| range.start)
            }
        };
        place.is_some_and(|place| place <= missing.plus(MAX_MAPPING_BYTES))
    }

    /// Records segment boundaries to detect a middlebox that merged segments and kept the options of only one.
    /// Such a middlebox lets options pass.
    pub(super) fn record_torn(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let Some(start) = ingress.start else { return };
        let mapped = segment.options.dss.is_some_and(|dss| dss.mapping.is_some());
        let end = start.plus(segment.payload.len() as u64);
        if self.receiver.record_segment_bounds(id, start, end, mapped) {
            cx.out.counters.dss_not_matching += 1;
        }
    }

    /// Inserts bytes at their stream positions.
    pub(super) fn translate(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        ssn: Ssn,
        bytes: &[u8],
    ) -> Result<(), MappingError> {
        let Some(subflow) = self.paths.get_mut(id) else { return Ok(()) };
        let DeliveryOutcome { result, duplicate, has_new_bytes: news } =
            self.receiver.deliver(id, ssn, bytes);
        subflow.tcp_mut().stats_mut().count_duplicate(duplicate);
        if news {
            subflow.record_new_data(cx.now);
        }
        cx.out.counters.duplicate_data += u64::from(duplicate > 0);
        result
    }

    /// True for a repair that arrives before the answer that agrees to repairs (reordered or lost). The server may send
    /// repairs once it has answered, so a repair implies the answer.
    #[inline]
    pub(super) fn is_early_repair(&self, segment: &TcpSegment<'_>) -> bool {
        if !self.session.awaits_extension_answer(self.config, Extensions::REPAIR) {
            return false;
        }
        let mut messages = segment.options.mptcp.experimental();
        messages.any(|message| matches!(message, ExperimentalMessage::Repair(_)))
    }

    /// Reconstructs missing data from the segments received so far.
    pub(super) fn repair_missing(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let new = self.receiver.repair_missing(id);
        cx.out.counters.repaired_bytes += new;
        if let Some(subflow) = self.paths.get_mut(id).filter(|_| new > 0) {
            subflow.record_new_data(cx.now);
            subflow.tcp_mut().ack_now();
        }
    }
}

/// Position with these low 16 bits that is nearest to `near`; `None` if it would be negative.
const fn unwrap16(low: u16, near: u64) -> Option<u64> {
    let delta = low.wrapping_sub(near as u16) as i16;
    near.checked_add_signed(delta as i64)
}
