//! Ingress of the UDP carrier: extraction of segments, and the carrier's own replies (spec sections 1, 3 and 6).

use core::cmp::Reverse;
use core::net::SocketAddr;

use marline_core::{FourTuple, PacketMeta, Shard};
use marline_time::{Duration, Instant};

use super::flow::{Allowance, FIRST_QUIET};
use super::frame::{ControlFrame, Cookie, Frame, HandshakeBody, Proof};
use super::keys::{compute_commitment, equals_in_constant_time};
use super::{Datagram, MAX_RETRIES, RESETS_PER_S, ReceivedDatagram, UdpCarrier};

impl UdpCarrier {
    /// Processes a datagram.
    pub fn receive<'a>(&mut self, now: Instant, datagram: &Datagram<'a>) -> ReceivedDatagram<'a> {
        let Some(frame) = Frame::parse(datagram.bytes) else {
            self.counters.malformed += 1;
            return ReceivedDatagram::Nothing;
        };
        match frame {
            Frame::Data { flow, segment } => self.receive_segment(now, datagram, flow, 0, segment),
            Frame::Handshake { flow: 0, sender, more, segment } => {
                self.receive_syn(now, datagram, sender, more, segment)
            }
            Frame::Handshake { flow, sender, more, segment } => {
                self.record_answer(flow, sender, more);
                self.receive_segment(now, datagram, flow, sender, segment)
            }
            Frame::Challenge { flow, nonce } => self.on_challenge(datagram, flow, &nonce),
            Frame::Response { flow, proof } => self.on_response(now, datagram, flow, &proof),
            Frame::Keepalive { flow } => self.on_keepalive(now, datagram, flow),
            Frame::Reset { unknown, token } => self.on_reset(datagram, unknown, &token),
            Frame::Retry { flow, cookie } => self.on_retry(now, datagram, flow, cookie),
            Frame::Lane { lane } => {
                self.owner_of_foreign_frame(datagram, lane).unwrap_or(ReceivedDatagram::Lane(lane))
            }
            Frame::UnsupportedVersion { sender } => {
                if self.config.accept {
                    self.push_control(datagram.outer, ControlFrame::versions(sender));
                }
                ReceivedDatagram::Nothing
            }
        }
    }

    fn receive_segment<'a>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'a>,
        flow: u64,
        peer_flow: u64,
        segment: &'a [u8],
    ) -> ReceivedDatagram<'a> {
        if let Some(known) = self.flows.get_mut(&flow) {
            let path = known.path;
            known.heard_at = now;
            if known.kept_open {
                known.idle_checks = 0;
                let due = now + FIRST_QUIET;
                if due < known.alarm_at {
                    known.alarm_at = due;
                    self.alarms.push(Reverse((due, flow)));
                }
            }
            if known.outer != datagram.outer || !known.validated {
                self.check_address(now, flow, datagram);
            }
            let meta = meta(datagram, path, flow, peer_flow);
            return ReceivedDatagram::Segment(meta, segment);
        }
        if let Some(elsewhere) = self.owner_of_foreign_frame(datagram, flow) {
            return elsewhere;
        }
        self.counters.unknown += 1;
        if flow != 0 && !self.may_be_other_process(flow) {
            self.reset_unknown_flow(now, datagram, flow);
        }
        ReceivedDatagram::Nothing
    }

    /// Records the server's id and sender information from the first answer to our SYN with this id. The core decides
    /// whether the answer is valid.
    fn record_answer(&mut self, flow: u64, sender: u64, more: HandshakeBody) {
        let Some(opening) = self.flows.get_mut(&flow).and_then(|flow| flow.opening.as_mut()) else {
            return;
        };
        if opening.answer.is_none_or(|(peer, _)| peer != sender) {
            opening.answer = Some((sender, more.introduction));
        }
    }

    fn on_keepalive<'a>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'a>,
        flow: u64,
    ) -> ReceivedDatagram<'a> {
        if self.flows.contains_key(&flow) {
            self.check_address(now, flow, datagram);
            return ReceivedDatagram::Nothing;
        }
        if let Some(elsewhere) = self.owner_of_foreign_frame(datagram, flow) {
            return elsewhere;
        }
        if flow != 0 && !self.may_be_other_process(flow) {
            self.counters.unknown += 1;
            self.reset_unknown_flow(now, datagram, flow);
        }
        ReceivedDatagram::Nothing
    }

    /// Answers a datagram with an unknown id with a RESET no longer than the datagram.
    fn reset_unknown_flow(&mut self, now: Instant, datagram: &Datagram<'_>, flow: u64) {
        if now.since(self.resets.1) >= Duration::from_secs(1) {
            self.resets = (RESETS_PER_S, now);
        }
        if self.resets.0 == 0 {
            return;
        }
        self.resets.0 -= 1;
        self.counters.resets += 1;
        let local = SocketAddr::new(datagram.outer.local, datagram.local_port);
        let token = self.keys.reset_token(flow, local);
        self.push_control(datagram.outer, ControlFrame::reset(flow, &token));
    }

    /// Returns the owner of a flow id that another shard may have generated.
    pub(super) fn owner_of_foreign_frame(
        &self,
        datagram: &Datagram<'_>,
        flow: u64,
    ) -> Option<ReceivedDatagram<'static>> {
        let owner = Shard::of_flow(flow, self.config.shard.count);
        let foreign = flow != 0 && owner != self.config.shard.index && !datagram.handed_over;
        foreign.then_some(ReceivedDatagram::OtherShard(owner))
    }

    fn receive_syn<'a>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'a>,
        sender: u64,
        more: HandshakeBody,
        segment: &'a [u8],
    ) -> ReceivedDatagram<'a> {
        if !self.config.accept || sender == 0 || !is_first_syn(segment) {
            self.counters.syns_refused += 1;
            return ReceivedDatagram::Nothing;
        }
        let owner = join_owner(segment, self.config.shard.count);
        if owner.is_some_and(|owner| owner != self.config.shard.index) {
            if let Some(owner) = owner.filter(|_| !datagram.handed_over) {
                return ReceivedDatagram::OtherShard(owner);
            }
            self.counters.syns_refused += 1;
            return ReceivedDatagram::Nothing;
        }
        // A join has a token and creates no connection.
        if owner.is_none() && !self.admits(now, datagram, sender, &more) {
            return ReceivedDatagram::Nothing;
        }
        self.counters.syns += 1;
        let path = subflow_path(datagram, segment);
        // The entry was evicted and has returned; the flow that was created from it still counts.
        let flow = self.find_flow_of_syn(sender, datagram);
        self.arm_sweep(now);
        let entry = self.pending.record_syn(now, sender, datagram.outer, path, more.introduction);
        entry.allowance.on_received(datagram.bytes.len());
        if let Some((id, path)) = flow
            && entry.flow.is_none()
        {
            (entry.flow, entry.path) = (Some(id), path);
        }
        let (path, flow) = (entry.path, entry.flow);
        if let Some(flow) = flow.and_then(|id| self.flows.get_mut(&id))
            && !flow.validated
        {
            if flow.outer != datagram.outer {
                flow.outer = datagram.outer;
                flow.allowance = Allowance::default();
            }
            flow.allowance.on_received(datagram.bytes.len());
        }
        ReceivedDatagram::Segment(meta(datagram, path, 0, sender), segment)
    }

    /// Returns true if a SYN may create a half-open connection. If there are many already, the sender needs a cookie
    /// for its address, which costs us no memory but costs the sender a round trip.
    fn admits(
        &mut self,
        now: Instant,
        datagram: &Datagram<'_>,
        sender: u64,
        more: &HandshakeBody,
    ) -> bool {
        let outer = &datagram.outer;
        let known = self.pending.contains(sender, outer.remote.ip());
        if !datagram.requires_cookie || known {
            return true;
        }
        let ours = |cookie: &Cookie| self.keys.is_ours(now, cookie, outer);
        if more.cookie.as_ref().is_some_and(ours) {
            return true;
        }
        self.counters.retries += 1;
        let cookie = self.keys.cookie(now, outer);
        self.push_control(*outer, ControlFrame::retry(sender, &cookie));
        false
    }

    /// Finds the flow that was created from the SYN with this id, if it came from the same host.
    fn find_flow_of_syn(&self, sender: u64, datagram: &Datagram<'_>) -> Option<(u64, FourTuple)> {
        let id = *self.by_peer.get(&sender)?;
        let flow = self.flows.get(&id)?;
        let same = flow.outer.remote.ip() == datagram.outer.remote.ip();
        same.then_some((id, flow.path))
    }

    /// Handles the peer's RESET for an id that it no longer knows.
    fn on_reset<'a>(
        &mut self,
        datagram: &Datagram<'a>,
        unknown: u64,
        token: &Proof,
    ) -> ReceivedDatagram<'a> {
        let Some(&id) = self.by_peer.get(&unknown) else {
            return match self.owner_of_peer(datagram) {
                ReceivedDatagram::Nothing => ReceivedDatagram::UnknownFlow(unknown),
                elsewhere => elsewhere,
            };
        };
        let Some(flow) = self.flows.get(&id) else { return ReceivedDatagram::Nothing };
        let promised = flow.bond.peer;
        let shown = compute_commitment(token);
        let proven = promised.is_some_and(|p| equals_in_constant_time(&p.commitment, &shown));
        if !proven {
            self.counters.bad_resets += 1;
            return ReceivedDatagram::Nothing;
        }
        ReceivedDatagram::Reset(id)
    }

    /// Returns `UnknownShard` if other shards may have the flow, because the peer's id does not identify the shard.
    fn owner_of_peer(&self, datagram: &Datagram<'_>) -> ReceivedDatagram<'static> {
        let many = self.config.shard.count > 1 && !datagram.handed_over;
        if many { ReceivedDatagram::UnknownShard } else { ReceivedDatagram::Nothing }
    }

    /// Handles a RETRY from a busy server: our SYN is repeated with the cookie.
    fn on_retry<'a>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'a>,
        id: u64,
        cookie: Cookie,
    ) -> ReceivedDatagram<'a> {
        let Some(flow) = self.flows.get_mut(&id) else { return ReceivedDatagram::Nothing };
        let from_server = flow.outer.remote == datagram.outer.remote;
        let Some(opening) = flow.opening.as_mut().filter(|_| from_server) else {
            return ReceivedDatagram::Nothing;
        };
        if opening.retries >= MAX_RETRIES || opening.cookie == Some(cookie) {
            return ReceivedDatagram::Nothing;
        }
        opening.retries += 1;
        opening.cookie = Some(cookie);
        self.cookies.store(now, &flow.outer, cookie);
        ReceivedDatagram::Repeat(id)
    }
}

fn meta(datagram: &Datagram<'_>, path: FourTuple, flow: u64, peer_flow: u64) -> PacketMeta {
    PacketMeta { path, ecn: datagram.ecn, flow, peer_flow, checksum_verified: false }
}

/// Returns the ends of the subflow as the core sees them: outer IP addresses, the peer's inner port, and our UDP port.
fn subflow_path(datagram: &Datagram<'_>, segment: &[u8]) -> FourTuple {
    let source_port = u16::from_be_bytes([segment[0], segment[1]]);
    FourTuple {
        local: SocketAddr::new(datagram.outer.local, datagram.local_port),
        remote: SocketAddr::new(datagram.outer.remote.ip(), source_port),
    }
}

/// Returns true for a SYN without ACK (RFC 9293 section 3.1: the control bits are in byte 13).
fn is_first_syn(segment: &[u8]) -> bool {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    segment[13] & (SYN | ACK) == SYN
}

/// Returns the shard in the token of a joining SYN.
fn join_owner(segment: &[u8], shards: u8) -> Option<u8> {
    join_token(segment).map(|token| Shard::index_for_token(token, shards))
}

/// Returns the token of a SYN with MP_JOIN (RFC 8684 section 3.2: kind 30, length 12, subtype 1, token in bytes 4..8 of
/// the option), or with Fast JOIN (docs/spec/experimental.md: length 20, subtype 0xf, messages 4 to 7, token in the
/// same bytes).
pub(super) fn join_token(segment: &[u8]) -> Option<u32> {
    const MP_JOIN_SYN_LEN: usize = 12;
    const FAST_JOIN_SYN_LEN: usize = 20;
    let header_len = usize::from(segment[12] >> 4) * 4;
    let mut options = segment.get(20..header_len)?;
    while let [kind, rest @ ..] = options {
        match kind {
            0 => return None,
            1 => options = rest,
            _ => {
                let len = usize::from(*rest.first()?);
                let option = options.get(..len).filter(|_| len >= 2)?;
                let joins = len == MP_JOIN_SYN_LEN && option[2] >> 4 == 1;
                let joins_fast = len == FAST_JOIN_SYN_LEN && option[2] & 0xfc == 0xf4;
                if *kind == 30 && (joins || joins_fast) {
                    return Some(u32::from_be_bytes(option[4..8].try_into().ok()?));
                }
                options = &options[len..];
            }
        }
    }
    None
}
