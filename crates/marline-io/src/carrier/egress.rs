//! Egress of the UDP carrier: destination and headers of the core's batches, and the amplification limit (spec
//! section 3).

use core::cmp::Reverse;
use core::net::SocketAddr;
use std::collections::BinaryHeap;

use marline_core::{FourTuple, Source, Transmit};
use marline_time::Instant;

use super::flow::{Flow, OpeningState, shrink_table};
use super::frame::{self, ControlFrame, HandshakeBody, HandshakeHeader};
use super::{CONTROL_CAPACITY, FlowEnds, FramedBatch, Outer, SHORT_HEADER, UdpCarrier};

impl UdpCarrier {
    /// Writes the headers of a batch into its headroom and returns its destination. Returns `None` if the batch must
    /// not or cannot be sent.
    pub fn frame(
        &mut self,
        now: Instant,
        batch: &Transmit,
        bytes: &mut [u8],
    ) -> Option<FramedBatch> {
        let id = batch.local_flow;
        if id != 0 && !self.flows.contains_key(&id) && batch.handshake && !self.open(now, batch) {
            return None;
        }
        self.learn_peer(id, batch.peer_flow);
        let header = if batch.handshake { self.handshake_header(id) } else { None };
        let Some(flow) = self.flows.get_mut(&id) else {
            return self.frame_unbound(batch, bytes);
        };
        let extra = header.as_ref().map_or(0, HandshakeHeader::extra_header_bytes);
        let total = bytes.len() + extra * batch.datagrams;
        if !flow.validated && !flow.allowance.try_take(total) {
            self.counters.withheld += 1;
            return None;
        }
        flow.sent_at = now;
        let outer = flow.outer;
        if let Some(header) = header {
            return Some(FramedBatch::Handshake { outer, header });
        }
        fill(bytes, batch.stride, &frame::data_header(flow.peer_flow));
        Some(FramedBatch::Ready(outer))
    }

    /// Records the peer's id and public key from its handshake, which the core has accepted.
    fn learn_peer(&mut self, id: u64, peer_flow: u64) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if peer_flow == 0 || flow.peer_flow == peer_flow {
            return;
        }
        self.changes += 1;
        self.by_peer.remove(&flow.peer_flow);
        self.by_peer.insert(peer_flow, id);
        flow.peer_flow = peer_flow;
        let Some(opening) = flow.opening.take() else { return };
        let said = opening.answer.filter(|(peer, _)| *peer == peer_flow);
        if let Some((_, introduction)) = said {
            flow.bond.peer = Some(introduction);
        }
    }

    /// Builds the header for a SYN or SYN/ACK of the flow.
    fn handshake_header(&self, id: u64) -> Option<HandshakeHeader> {
        let flow = self.flows.get(&id)?;
        let local = SocketAddr::new(flow.outer.local, self.token_port(id));
        let introduction = self.keys.introduction(&flow.bond, id, local);
        let cookie = flow.opening.as_ref().and_then(|opening| opening.cookie);
        Some(HandshakeHeader::new(flow.peer_flow, id, &HandshakeBody { introduction, cookie }))
    }

    /// Frames a batch that belongs to no flow: a RST to an unknown peer.
    fn frame_unbound(&mut self, batch: &Transmit, bytes: &mut [u8]) -> Option<FramedBatch> {
        if batch.peer_flow != 0 {
            let ip = batch.path.remote.ip();
            if let Some(entry) = self.pending.get_mut(batch.peer_flow, ip) {
                if !entry.allowance.try_take(bytes.len()) {
                    self.counters.withheld += 1;
                    return None;
                }
                let outer = entry.outer;
                fill(bytes, batch.stride, &frame::data_header(batch.peer_flow));
                return Some(FramedBatch::Ready(outer));
            }
        }
        self.counters.unroutable += 1;
        None
    }

    /// Creates the flow for a SYN or SYN/ACK from the core.
    fn open(&mut self, now: Instant, batch: &Transmit) -> bool {
        if !self.make_room(now, Source::of(batch.path.remote.ip())) {
            return false;
        }
        let id = batch.local_flow;
        let answered = self.pending.get_mut(batch.peer_flow, batch.path.remote.ip());
        let flow = match answered {
            Some(entry) if batch.peer_flow != 0 => {
                entry.flow = Some(id);
                let bond = self.keys.bind_flow(now, Some(entry.introduction));
                let allowance = entry.allowance;
                Flow { allowance, ..Flow::new(now, entry.path, entry.outer, bond) }
            }
            _ if batch.peer_flow == 0 && !self.config.accept => {
                let Some(outer) = self.outer_from(batch.path) else {
                    self.counters.unroutable += 1;
                    return false;
                };
                self.opening(now, batch.path, outer)
            }
            _ => {
                self.counters.unroutable += 1;
                return false;
            }
        };
        if flow.kept_open {
            self.kept_open += 1;
            self.alarms.push(Reverse((flow.alarm_at, id)));
        } else {
            self.unproven += 1;
            self.arm_sweep(now);
            self.by_peer.insert(batch.peer_flow, id);
        }
        let pending = (!flow.is_opener).then(|| self.unvalidated.admit(flow.source(), id).0);
        let is_stranger = pending.is_some();
        let flow = Flow { peer_flow: batch.peer_flow, pending, is_evictable: is_stranger, ..flow };
        self.flows.insert(id, flow);
        self.record_carrier(id);
        true
    }

    /// Creates a flow that sends a SYN.
    fn opening(&mut self, now: Instant, path: FourTuple, outer: Outer) -> Flow {
        let flow = Flow::new(now, path, outer, self.keys.bind_flow(now, None));
        let opening =
            OpeningState { cookie: self.cookies.get(now, &outer), ..OpeningState::default() };
        let (opening, alarm_at) = (Some(Box::new(opening)), now + self.config.keepalive);
        Flow { is_opener: true, kept_open: true, validated: true, opening, alarm_at, ..flow }
    }

    fn outer_from(&self, path: FourTuple) -> Option<Outer> {
        let (local, remote) = (path.local.ip(), path.remote);
        let link = self.preferred.get(&FlowEnds::new(local, remote)).copied();
        let socket = link.or_else(|| self.datagram_socket(local))?;
        Some(Outer { socket, local, remote })
    }

    /// Marks the subflow of a flow as ended. The core still answers late segments, but no keepalives keep its NAT
    /// mapping open.
    pub fn retire(&mut self, id: u64) {
        self.changes += 1;
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.has_ended = true;
        if flow.kept_open {
            flow.kept_open = false;
            flow.alarm_at = Instant::FAR_FUTURE;
            self.reduce_kept_open(1);
        }
    }

    /// Removes a flow that the core no longer needs.
    pub fn forget(&mut self, id: u64) {
        let Some(flow) = self.flows.remove(&id) else { return };
        self.changes += 1;
        self.reduce_kept_open(usize::from(flow.kept_open));
        self.unproven -= usize::from(!flow.validated);
        if let Some(pending) = flow.pending.filter(|_| flow.is_evictable) {
            self.unvalidated.remove(flow.source(), pending);
        }
        if self.by_peer.get(&flow.peer_flow) == Some(&id) {
            self.by_peer.remove(&flow.peer_flow);
        }
        shrink_table(&mut self.flows);
        shrink_table(&mut self.by_peer);
    }

    fn reduce_kept_open(&mut self, flows: usize) {
        self.kept_open -= flows;
        if self.kept_open == 0 {
            self.alarms = BinaryHeap::new();
        }
    }

    /// Finds the flow whose datagram to `remote` began with the quoted bytes. Returns our flow id and the ends of the
    /// flow.
    pub fn find_quoted_flow(&self, remote: SocketAddr, quoted: &[u8]) -> Option<(u64, FourTuple)> {
        let id = match frame::parse_ids(quoted)? {
            (0, sender) => sender,
            (receiver, _) => *self.by_peer.get(&receiver)?,
        };
        let flow = self.flows.get(&id).filter(|flow| flow.outer.remote == remote)?;
        Some((id, flow.path))
    }

    /// Takes the next frame that the carrier itself sends.
    pub fn poll_control(&mut self) -> Option<(Outer, ControlFrame)> {
        self.control.pop_front()
    }

    pub(super) fn push_control(&mut self, outer: Outer, frame: ControlFrame) {
        if self.control.len() >= CONTROL_CAPACITY {
            self.counters.control_dropped += 1;
            return;
        }
        self.control.push_back((outer, frame));
    }
}

/// Writes `header` in front of each segment of a batch.
fn fill(bytes: &mut [u8], stride: usize, header: &[u8; SHORT_HEADER]) {
    for datagram in bytes.chunks_mut(stride.max(SHORT_HEADER)) {
        if let Some(room) = datagram.get_mut(..SHORT_HEADER) {
            room.copy_from_slice(header);
        }
    }
}
