//! Segments that belong to no subflow: SYNs that open a subflow, late segments, and unsolicited segments.

use core::net::IpAddr;
use std::sync::Arc;

use marline_policy::Token;
use marline_time::{Instant, Rng};
use marline_wire::mptcp::{MpJoin, MpTcpRst, MptcpOption};
use marline_wire::{SeqNum, TcpFlags, TcpHeader, TcpOptions, TcpSegment, fill_tcp_checksum};

use super::Endpoint;
use crate::connection::{
    AcceptedSyn, Connection, FastOpenVerdict, Origin, fast_join_token, mp_join, rst_reason,
};
use crate::crypto::Key;
use crate::tables::demux::FlowKey;
use crate::tables::stateless_reply::StatelessReply;
use crate::tables::time_wait::Answer;
use crate::transmit::TransmitBuf;
use crate::{
    ChecksumScope, ConnectionConfig, ConnectionId, Ecn, FourTuple, PacketMeta, Shard, Transmit,
};

/// Maximum number of queued replies.
pub(super) const MAX_REPLIES: usize = 256;

impl Endpoint {
    /// Handles a SYN that belongs to no subflow.
    pub(super) fn on_syn(&mut self, now: Instant, meta: &PacketMeta, segment: &TcpSegment<'_>) {
        self.on_syn_after(now, meta, segment, None);
    }

    /// Like `on_syn`, for a connection that may replace an earlier one between these endpoints.
    fn on_syn_after(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
        after: Option<SeqNum>,
    ) {
        let mut syn = AcceptedSyn {
            segment,
            ecn: meta.ecn,
            peer_flow: meta.peer_flow,
            after,
            isn: None,
            fast_open: FastOpenVerdict::default(),
        };
        if let Some(MpJoin::Syn { token, .. }) = mp_join(segment) {
            self.out.counters.mp_join_syn_rx += 1;
            self.on_join_syn(now, meta, &syn, Token(token));
            return;
        }
        if let Some(token) = fast_join_token(segment) {
            self.out.counters.fast_join_syn_rx += 1;
            self.on_join_syn(now, meta, &syn, Token(token));
            return;
        }
        let Some(config) = self.accept.clone() else {
            self.out.counters.connections_refused += 1;
            self.answer_with_reset(now, meta, segment);
            return;
        };
        if config.withhold_syn_ack {
            self.queue_request(meta, &syn);
            return;
        }
        if self.slots.count() >= self.config.limits.connections {
            self.out.counters.connections_refused += 1;
            return;
        }
        // With flow ids, the carrier has already required its own cookie.
        if self.is_under_pressure() && !self.config.capabilities.flow_ids {
            self.answer_with_cookie(now, meta, segment, &config);
            return;
        }
        syn.fast_open = self.judge_fast_open(meta, segment, &config);
        self.open_passively(now, meta.path, config, &syn);
    }

    /// Creates a connection that answers a SYN.
    pub(super) fn open_passively(
        &mut self,
        now: Instant,
        path: FourTuple,
        config: Arc<ConnectionConfig>,
        syn: &AcceptedSyn<'_>,
    ) -> ConnectionId {
        self.make_room_for_syn(now, path.remote.ip());
        let key = self.draw_key();
        let (id, slot) = self.insert(now, |cx, id, slot| {
            let origin = Origin { id, slot, path, key };
            Connection::accept(cx, config, &origin, syn)
        });
        if self.slots.record_half_open(slot) == Some(true) {
            self.half_open.add(slot, id, path.remote.ip());
        }
        if syn.fast_open.opens && self.slots.record_fast_pending(slot) == Some(true) {
            self.fast_pending += 1;
        }
        self.update_after_call(now, slot);
        id
    }

    fn on_join_syn(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        syn: &AcceptedSyn<'_>,
        token: Token,
    ) {
        let slot = self.flows.token(token);
        let (slots, mut cx) = self.split_context(now);
        let connection = slot.and_then(|slot| slots.get_mut(slot));
        let known = connection.filter(|connection| connection.has_valid_token());
        let Some((connection, slot)) = known.zip(slot) else {
            self.out.counters.mp_join_no_token += 1;
            self.answer_with_reset_because(now, meta, syn.segment, Some(rst_reason::MPTCP_ERROR));
            return;
        };
        let answer = connection.answer_join(&mut cx, meta.path, syn);
        if let Err(reason) = answer {
            self.answer_with_reset_because(now, meta, syn.segment, Some(reason));
        }
        self.update_after_call(now, slot);
    }

    /// Returns true if so many connections are half-open that new clients must first prove their addresses.
    #[must_use]
    pub const fn is_under_pressure(&self) -> bool {
        self.half_open.count() >= self.config.limits.syn_queue.div_ceil(2)
    }

    /// If the limit is reached, evicts the oldest half-open connection of the source with the most half-open
    /// connections.
    fn make_room_for_syn(&mut self, now: Instant, newcomer: IpAddr) {
        while self.half_open.count() >= self.config.limits.syn_queue {
            let Some(evicted) = self.half_open.make_room(newcomer) else { return };
            let dropped = self.with_connection(now, evicted, |c, cx| c.drop_if_half_open(cx));
            if dropped == Some(true) {
                self.out.counters.syn_queue_overflow += 1;
                self.settle_idle(evicted.0 as u32);
            }
        }
    }

    /// Draws a key whose token is unused and belongs to this shard.
    pub(super) fn draw_key(&mut self) -> Key {
        loop {
            let key = Key(self.rng.next_u64());
            let (token, _) = key.derive();
            let Shard { index, count, .. } = self.config.shard;
            if Shard::index_for_token(token.0, count) == index && self.flows.token(token).is_none()
            {
                return key;
            }
        }
    }

    /// Handles a late segment of a subflow that is in TIME-WAIT or was reset.
    pub(super) fn on_late_segment(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
        slot: u32,
    ) {
        let Some(ended) = self.flows.ended_subflow(slot) else { return };
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::RST) {
            return;
        }
        let is_syn = flags.contains(TcpFlags::SYN);
        if is_syn && !flags.contains(TcpFlags::ACK) && ended.may_be_replaced_by(segment) {
            self.flows.forget_ended(slot, &mut self.out);
            self.on_syn_after(now, meta, segment, Some(ended.header.seq));
            return;
        }
        let bare_ack = segment.payload.is_empty() && !flags.contains(TcpFlags::FIN) && !is_syn;
        if ended.answer == Answer::Ack && bare_ack {
            return;
        }
        let mut reply = ended.answer_to(&segment.header);
        if reply.key.peer_flow == 0 {
            // If our SYN was never answered, only this late reply contains the peer's flow id.
            reply.key.peer_flow = meta.peer_flow;
        }
        self.push_reply(now, reply);
    }

    pub(super) fn answer_with_reset(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
    ) {
        self.answer_with_reset_because(now, meta, segment, None);
    }

    /// Answers a segment without a connection with RST (RFC 9293 section 3.10.7.1).
    fn answer_with_reset_because(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
        reason: Option<u8>,
    ) {
        let header = &segment.header;
        let octets = segment.payload.len() as u32
            + u32::from(header.flags.contains(TcpFlags::SYN))
            + u32::from(header.flags.contains(TcpFlags::FIN));
        let with_ack = header.flags.contains(TcpFlags::ACK);
        let mut options = TcpOptions::default();
        if let Some(reason) = reason {
            let transient = false;
            options.mptcp.push(MptcpOption::TcpRst(MpTcpRst { transient, reason }));
        }
        let key = FlowKey { path: meta.path, local_flow: meta.flow, peer_flow: meta.peer_flow };
        let header = TcpHeader {
            src_port: header.dst_port,
            dst_port: header.src_port,
            seq: if with_ack { header.ack } else { SeqNum(0) },
            ack: if with_ack { SeqNum(0) } else { header.seq.add(octets) },
            flags: if with_ack { TcpFlags::RST } else { TcpFlags::RST.with(TcpFlags::ACK) },
            window: 0,
            urgent: 0,
        };
        self.push_reply(now, StatelessReply { header, options, key });
    }

    fn push_reply(&mut self, now: Instant, reply: StatelessReply) {
        if self.out.replies() < MAX_REPLIES && self.replies.take(now, self.rng.as_mut()) {
            self.out.counters.resets_out += 1;
            self.out.reply(reply);
        }
    }

    pub(super) fn emit_reply(&mut self, buf: &mut TransmitBuf) -> Option<Transmit> {
        let StatelessReply { header, options, key } = self.out.next_reply()?;
        let start = buf.headroom();
        let segment = buf.append_datagram(marline_wire::TCP_HEADER_LEN + options.encoded_len());
        header.emit(&options, segment).ok()?;
        let addresses = match self.config.capabilities.checksum {
            ChecksumScope::WithAddresses => Some((key.path.local.ip(), key.path.remote.ip())),
            ChecksumScope::WithoutAddresses => None,
        };
        fill_tcp_checksum(addresses, &mut buf.bytes_mut()[start..]);
        self.out.counters.segments_out += 1;
        Some(Transmit {
            path: key.path,
            ecn: Ecn::NotEct,
            local_flow: key.local_flow,
            peer_flow: key.peer_flow,
            handshake: false,
            datagrams: 1,
            stride: buf.bytes().len(),
        })
    }
}
