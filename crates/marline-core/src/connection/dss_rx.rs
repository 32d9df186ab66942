//! What a segment's DSS says: DATA_ACK, mapping, DATA_FIN; the mapping that data with MP_CAPABLE has
//! without one; and what it means that there is none (RFC 8684 sections 3.1, 3.3 and 3.7).

use marline_policy::{Dsn, Ssn, SubflowId};
use marline_wire::mptcp::{CapableData, Dss, MpCapableForm, WireMapping};
use marline_wire::{Checksum, TcpFlags, TcpSegment, dss_checksum, unwrap32};

use super::Connection;
use super::handshake::mp_capable;
use super::join::reason;
use super::mapping_rx::RxMapping;
use crate::subflow::Ingress;
use crate::tables::Context;
use crate::{CloseReason, FallbackReason};

impl Connection {
    pub(super) fn on_dss(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let now = cx.now;
        if segment.options.dss.is_none() && mp_capable(segment).is_none() {
            self.on_missing_dss(cx, id, segment, ingress);
            return;
        }
        if let Some(dss) = segment.options.dss {
            if let Some(ack) = dss.data_ack {
                let before = self.acked();
                self.on_data_ack(cx, ack, ingress.window);
                let advanced = self.acked() > before;
                if let Some(leg) = self.leg_mut(id) {
                    if advanced {
                        leg.last_new_at = now;
                    }
                    let una = leg.tcp.snd_una();
                    self.sender.note_proof(id, una);
                }
            }
            self.confirm(cx);
            self.on_mapping(cx, id, (&dss, carries(segment)));
        } else if let Some(capable) = mp_capable(segment) {
            // No DATA_ACK beside the keys: who still shows them has nothing of ours. A late one must
            // not count from what was acknowledged since.
            self.sender.raise_window(Dsn(0).plus(ingress.window));
            let MpCapableForm::Ack { data: Some(data), .. } = capable.form else { return };
            self.confirm(cx);
            self.on_capable_data(cx, id, data);
            let in_order = ingress.in_order.is_some();
            self.session.note_capable_data(&self.config, in_order);
        }
    }

    /// A segment without any MPTCP option: a DSS is missing if it carries data or acknowledges some.
    /// On the first subflow, before anything passed and while it is alone, that is plain TCP; on a
    /// joined one it is a box that drops options (RFC 8684 section 3.7). Data without a mapping later
    /// on is an error of the mapping, and what it acknowledges says nothing: a box that cuts segments leaves the
    /// options on the first piece.
    fn on_missing_dss(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::SYN) || !segment.options.mptcp.is_empty() {
            return;
        }
        let Some(leg) = self.leg(id).filter(|leg| leg.up && !segment.options.mptcp.malformed)
        else {
            return;
        };
        let unmapped = carries(segment) && !self.receiver.is_mapped(id);
        let piece = !segment.payload.is_empty() && self.receiver.is_mapped(id);
        let first = self.sender.is_contiguous(id);
        let sent = self.sender.sent() > Dsn(0) || !first;
        let acks = ingress.newly_acked > 0 && sent && leg.tcp.snd_una() > Ssn(1);
        let unproven = acks && !self.sender.is_proven(id) && !piece;
        if !unmapped && !unproven {
            return;
        }
        // Both directions are contiguous from their first byte on.
        let contiguous = first && self.receiver.is_contiguous(id);
        // Joins that have not come up are nobody's way yet, if it is sure that options do not pass here.
        let joined = |leg: &super::Leg| !leg.is_initial() && (leg.was_joined() || !unproven);
        let alone = !self.legs.iter().flatten().any(|leg| joined(leg));
        if leg.is_initial() && alone && contiguous {
            self.fall_back(cx, FallbackReason::FirstDataWithoutOption);
        } else if unproven {
            self.reset_leg(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
        }
    }

    /// RFC 8684 section 3.3: a checksum that is missing, or not agreed on, ends the subflow.
    pub(super) fn checksum_is_as_agreed(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        checksum: Option<u16>,
    ) -> bool {
        let agreed = checksum.is_some() == self.session.uses_checksum();
        if !agreed {
            cx.out.counters.dss_not_matching += 1;
            self.reset_leg(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
        }
        agreed
    }

    /// MP_CAPABLE with data: an implicit mapping of the first bytes.
    fn on_capable_data(&mut self, cx: &mut Context<'_>, id: SubflowId, data: CapableData) {
        if !self.checksum_is_as_agreed(cx, id, data.checksum) {
            return;
        }
        let mapping = RxMapping {
            ssn: Ssn(1),
            len: u64::from(data.length),
            dsn: Dsn(0),
            wire_dsn: self.session.keys().remote_wire(Dsn(0)),
            wire_len: data.length,
            checksum: data.checksum,
            coded: None,
        };
        self.announce(cx, id, mapping);
    }

    /// `carries`: the segment has something of the stream, see [`carries`].
    pub(super) fn on_mapping(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (dss, carries): (&Dss, bool),
    ) {
        let Some(wire) = dss.mapping else { return };
        if !self.checksum_is_as_agreed(cx, id, wire.checksum) {
            return;
        }
        if wire.length == 0 && !carries {
            // An infinite mapping speaks of the data it comes with (RFC 8684 section 3.7). Without any it
            // says nothing.
            return;
        }
        self.session.note_dsn_size(&self.config, &wire, dss.data_fin);
        let Some(dsn) = self.session.unwrap_dsn(wire.dsn, self.receiver.next()) else {
            cx.out.counters.dss_not_matching += 1;
            return;
        };
        self.receiver.note_mapped(id);
        if wire.length == 0 {
            self.on_infinite_wire_mapping(cx, id, &wire, dsn);
            return;
        }
        let data_len = u64::from(wire.length) - u64::from(dss.data_fin);
        let wire_dsn = self.session.keys().remote_wire(dsn);
        let lone_fin = dss.data_fin && data_len == 0;
        let sum = |_| dss_checksum(wire_dsn, wire.ssn, wire.length, Checksum::new());
        if lone_fin && wire.checksum != wire.checksum.map(sum) {
            cx.out.counters.data_csum_err += 1;
            return;
        }
        if dss.data_fin && !self.receiver.set_fin(dsn.plus(data_len)) {
            cx.out.counters.dss_not_matching += 1;
        }
        if lone_fin {
            let everywhere = self.config.conduct.data_fin_acked_everywhere;
            for (slot, leg) in self.legs.iter_mut().enumerate() {
                let Some(leg) = leg.as_deref_mut() else { continue };
                if slot == usize::from(id.0) || everywhere && leg.is_usable() {
                    leg.tcp.ack_now();
                }
            }
            return;
        }
        let Some(leg) = self.leg(id) else { return };
        let Some(ssn) = unwrap32(wire.ssn, leg.tcp.rcv_nxt().0) else {
            cx.out.counters.dss_not_matching += 1;
            return;
        };
        let mapping = RxMapping {
            ssn: Ssn(ssn),
            len: data_len,
            dsn,
            wire_dsn,
            wire_len: wire.length,
            checksum: wire.checksum,
            coded: None,
        };
        self.announce(cx, id, mapping);
    }

    /// Since its first byte the peer's stream is taken for plain TCP, and this mapping says otherwise: the peer never
    /// learnt of it, and what it sends twice would be taken for more. Who never got the peer's key cannot tell.
    pub(super) fn is_beside_plain(&self, id: SubflowId, dss: &Dss) -> bool {
        let plain =
            self.session.keys().remote().is_some() && self.receiver.is_plain_from_the_start(id);
        let Some(leg) = self.leg(id).filter(|_| plain) else { return false };
        let wire = dss.mapping.filter(|wire| wire.length > u16::from(dss.data_fin));
        wire.is_some_and(|wire| {
            let ssn = unwrap32(wire.ssn, leg.tcp.rcv_nxt().0);
            let dsn = self.session.unwrap_dsn(wire.dsn, self.receiver.next());
            ssn.zip(dsn).is_none_or(|(ssn, dsn)| ssn != dsn.0 + 1)
        })
    }

    fn on_infinite_wire_mapping(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        wire: &WireMapping,
        dsn: Dsn,
    ) {
        let next = self.leg(id).map(|leg| leg.tcp.rcv_nxt().0);
        if let Some(ssn) = next.and_then(|next| unwrap32(wire.ssn, next)) {
            self.on_infinite_mapping(cx, id, (Ssn(ssn), dsn));
        }
    }

    pub(super) fn announce(&mut self, cx: &mut Context<'_>, id: SubflowId, mapping: RxMapping) {
        if let Err(error) = self.receiver.announce(id, mapping) {
            cx.out.counters.dss_not_matching += 1;
            self.on_bad_mapping(cx, id, error);
        }
    }
}

/// Whether the segment has payload, or a FIN that ends it.
pub(super) fn carries(segment: &TcpSegment<'_>) -> bool {
    !segment.payload.is_empty() || segment.header.flags.contains(TcpFlags::FIN)
}
