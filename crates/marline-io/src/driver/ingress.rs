//! Ingress of a shard, from the sockets to the core: batches of datagrams, some of them coalesced
//! by the kernel (GRO), or of IP packets.

use core::net::SocketAddr;

use marline_core::{PacketMeta, SegmentRequest};
use marline_time::Instant;

use super::carrier::Carrier;
use super::egress::on_native_error;
use super::observers::Direction;
use super::path_owners::OtherShardPackets;
use super::reception::{ReceiveBuffer, UdpBuffer, local_ip};
use super::shard::{Handover, Shard};
use super::sockets::{OpenSocket, canonical_address, ecn_of};
use super::state::State;
use crate::carrier::{Datagram, FlowEnds, Outer, ReceivedDatagram, SHORT_HEADER};
use crate::edge::raw_packet::RawMeta;
use crate::links::DataDirection;
use crate::native::{self, ReceivedSegment};

/// Origin of frames that arrived together.
#[derive(Copy, Clone, Debug)]
pub(super) struct Origin {
    pub(crate) outer: Outer,
    /// Port of the socket.
    pub(crate) local_port: u16,
    pub(crate) ecn: marline_core::Ecn,
}

/// Gives a batch to the carrier and the core. Returns the native TCP packets that may belong to other shards.
pub(super) fn on_batch<'a>(
    shard: &Shard,
    state: &mut State,
    now: Instant,
    socket: &OpenSocket,
    buffer: &'a ReceiveBuffer,
) -> OtherShardPackets<'a> {
    let mut others = OtherShardPackets::default();
    match buffer {
        ReceiveBuffer::Udp(buffer) => on_datagrams(shard, state, now, socket, buffer),
        ReceiveBuffer::Raw(buffer) => {
            for (meta, bytes) in buffer.packets() {
                on_raw_packet(state, now, meta, bytes, &mut others);
            }
        }
        ReceiveBuffer::Tun(buffer) => {
            for packet in buffer.packets() {
                on_tun_packet(state, now, packet, &mut others);
            }
        }
    }
    others
}

fn on_datagrams(
    shard: &Shard,
    state: &mut State,
    now: Instant,
    socket: &OpenSocket,
    buffer: &UdpBuffer,
) {
    for (meta, bytes) in buffer.messages() {
        let outer = Outer {
            socket: socket.index,
            local: local_ip(meta.dst_ip, socket.local),
            remote: canonical_address(meta.addr),
        };
        state.routing().routes().on_udp_received(now, FlowEnds::new(outer.local, outer.remote));
        let run = bytes.get(..meta.len).unwrap_or_default();
        let origin = Origin { outer, local_port: socket.local.port(), ecn: ecn_of(meta.ecn) };
        on_frames(shard, state, now, &origin, run.chunks(meta.stride.max(1)));
    }
}

/// Gives frames that arrived together to the carrier and the core.
pub(super) fn on_frames<'a>(
    shard: &Shard,
    state: &mut State,
    now: Instant,
    origin: &Origin,
    frames: impl Iterator<Item = &'a [u8]>,
) {
    let Origin { outer, local_port, ecn } = *origin;
    let mut segments = SegmentRun::default();
    for bytes in frames {
        let requires_cookie = state.endpoint().is_under_pressure();
        let handed_over = false;
        let datagram = Datagram { outer, local_port, ecn, handed_over, requires_cookie, bytes };
        let Carrier::Udp(carrier) = state.carrier() else { return };
        match carrier.receive(now, &datagram) {
            ReceivedDatagram::Segment(meta, segment) => {
                state.observe_arrival(now, &meta, segment);
                segments.add(state, now, &meta, segment);
            }
            other => {
                segments.hand_over(state, now);
                on_received(shard, state, now, &datagram, other);
            }
        }
    }
    segments.hand_over(state, now);
}

/// Gives one datagram to the carrier and the core.
fn on_datagram(shard: &Shard, state: &mut State, now: Instant, datagram: &Datagram<'_>) {
    let Carrier::Udp(carrier) = state.carrier() else { return };
    let received = carrier.receive(now, datagram);
    on_received(shard, state, now, datagram, received);
}

/// Handles a datagram according to the carrier's result.
fn on_received(
    shard: &Shard,
    state: &mut State,
    now: Instant,
    datagram: &Datagram<'_>,
    received: ReceivedDatagram<'_>,
) {
    if !matches!(received, ReceivedDatagram::Segment(..)) {
        state.observers().frames(Direction::Received, &datagram.outer, datagram.bytes.len(), 0);
    }
    match received {
        ReceivedDatagram::Segment(meta, segment) => {
            state.observe_arrival(now, &meta, segment);
            state.endpoint().handle_packet(now, &meta, segment);
        }
        ReceivedDatagram::OtherShard(owner) => hand_over(shard, usize::from(owner), datagram),
        ReceivedDatagram::UnknownShard => {
            for other in 0..shard.peers().len() {
                hand_over(shard, other, datagram);
            }
        }
        ReceivedDatagram::Reset(flow) => state.endpoint().flow_reset(now, flow),
        ReceivedDatagram::Moved { flow, new_host } => {
            state.endpoint().path_moved(now, flow, new_host)
        }
        ReceivedDatagram::Lane(lane) => state.on_lane_frame(lane, now, datagram),
        ReceivedDatagram::Repeat(flow) => state.endpoint().repeat_syn(now, flow),
        ReceivedDatagram::UnknownFlow(id) => {
            let ends = FlowEnds::new(datagram.outer.local, datagram.outer.remote);
            if !datagram.outer.is_link() {
                state.routing().routes().on_link_answer(now, ends, id);
            }
        }
        ReceivedDatagram::Nothing => {}
    }
}

/// Hands a datagram to another shard. Needed only for the first SYNs of joins, or for all datagrams if the kernel does
/// not steer them by flow id.
fn hand_over(shard: &Shard, to: usize, datagram: &Datagram<'_>) {
    let Some(peer) = shard.peers().get(to) else { return };
    let bytes = datagram.bytes.to_vec();
    // A full queue drops it, as a full socket buffer would; TCP retransmits it.
    let _ = peer.try_send(Handover { outer: datagram.outer, ecn: datagram.ecn, bytes });
}

/// Handles a datagram that another shard received.
pub(super) fn on_handover(shard: &Shard, state: &mut State, now: Instant, handover: &Handover) {
    let outer = &handover.outer;
    let port = if outer.is_link() {
        state.routing().links().at(outer).map(|link| link.port())
    } else {
        let socket = state.sockets().at(usize::from(outer.socket));
        socket.map(|socket| socket.local.port())
    };
    let Some(local_port) = port else { return };
    debug_assert!(handover.bytes.len() >= SHORT_HEADER);
    let requires_cookie = state.endpoint().is_under_pressure();
    on_datagram(
        shard,
        state,
        now,
        &Datagram {
            outer: handover.outer,
            local_port,
            ecn: handover.ecn,
            handed_over: true,
            requires_cookie,
            bytes: &handover.bytes,
        },
    );
}

/// Segments of one received message with equal metadata, given to the core in one call.
#[derive(Default)]
struct SegmentRun<'a> {
    meta: Option<PacketMeta>,
    segments: Vec<&'a [u8]>,
}

impl<'a> SegmentRun<'a> {
    /// Adds a segment. If its metadata differs, the earlier segments are given to the core first.
    fn add(&mut self, state: &mut State, now: Instant, meta: &PacketMeta, segment: &'a [u8]) {
        if self.meta.is_some_and(|known| known != *meta) {
            self.hand_over(state, now);
        }
        self.meta = Some(*meta);
        self.segments.push(segment);
    }

    /// Gives the segments to the core and clears the run.
    fn hand_over(&mut self, state: &mut State, now: Instant) {
        if let Some(meta) = self.meta.take() {
            let routes = state.routing().routes();
            if routes.compares() {
                let ends = FlowEnds::new(meta.path.local.ip(), meta.path.remote);
                let segments = self.segments.iter().copied();
                routes.on_segments(now, ends, meta.flow, DataDirection::Down, segments);
            }
            state.endpoint().handle_packets(now, &meta, self.segments.drain(..));
        }
    }
}

/// Handles a packet from a raw socket.
fn on_raw_packet<'a>(
    state: &mut State,
    now: Instant,
    meta: &RawMeta,
    bytes: &'a [u8],
    others: &mut OtherShardPackets<'a>,
) {
    let Carrier::Native(carrier) = state.carrier() else { return };
    let arrived = match meta.source {
        _ if meta.truncated => None,
        SocketAddr::V4(_) => native::parse_tcp(bytes).filter(|arrived| {
            // For a broadcast, the kernel reports a local address that differs from the packet's destination.
            meta.delivered_to.is_none_or(|taken_for| taken_for == arrived.destination)
        }),
        SocketAddr::V6(_) => meta.destination.map(|destination| ReceivedSegment {
            source: canonical_address(meta.source),
            destination,
            ecn: native::ecn_of_bits(meta.class),
            segment: bytes,
        }),
    };
    let Some(arrived) = arrived else {
        carrier.count_malformed();
        return;
    };
    on_arrived(state, now, &arrived, others);
}

/// Handles a packet from a TUN interface: a segment or an ICMP error.
fn on_tun_packet<'a>(
    state: &mut State,
    now: Instant,
    packet: &'a [u8],
    others: &mut OtherShardPackets<'a>,
) {
    if let Some(arrived) = native::parse_tcp(packet) {
        on_arrived(state, now, &arrived, others);
    } else if state.streams().sink_packet(packet) {
        // The packet was passed to the sink.
    } else if let Some(error) = native::parse_icmp_error(packet) {
        on_native_error(state, now, &error);
        others.errors.push(error);
    } else if let Carrier::Native(carrier) = state.carrier() {
        carrier.count_malformed();
    }
}

/// Gives a segment from an IP packet to the core if this shard may handle it.
pub(super) fn on_arrived<'a>(
    state: &mut State,
    now: Instant,
    arrived: &ReceivedSegment<'a>,
    others: &mut OtherShardPackets<'a>,
) {
    let Carrier::Native(carrier) = state.carrier() else { return };
    let (shard, ignores_unknown) = (carrier.shard(), carrier.ignores_unknown());
    let Some((meta, segment)) = carrier.receive(arrived) else { return };
    let may_be_others = shard.count > 1
        || ignores_unknown
        || state.routing().links().connected_older_processes().is_some();
    if !may_be_others || state.endpoint().owns_segment(now, &meta, segment) {
        take_segment(state, now, &meta, segment);
        return;
    }
    match state.path_owners().first_candidate(now, shard, meta, segment) {
        Some(stray) => {
            if stray.asks != SegmentRequest::Nothing {
                state.endpoint().release_address_pair(&meta.path);
            }
            others.unowned.push(stray);
        }
        None => on_unclaimed_segment(state, now, &meta, segment),
    }
}

/// Handles a segment that no shard of this process claims, unless another process may own it.
pub(super) fn on_unclaimed_segment(
    state: &mut State,
    now: Instant,
    meta: &PacketMeta,
    segment: &[u8],
) {
    if matches!(state.carrier(), Carrier::Native(carrier) if carrier.ignores_unknown()) {
        return;
    }
    if let Some(older) = state.routing().links().connected_older_processes()
        && older.ask_path_owner(&meta.path, meta.ecn, segment)
    {
        return;
    }
    take_segment(state, now, meta, segment);
}

/// Gives a segment of native TCP to the core.
pub(super) fn take_segment(state: &mut State, now: Instant, meta: &PacketMeta, segment: &[u8]) {
    state.observe_arrival(now, meta, segment);
    state.endpoint().handle_packet(now, meta, segment);
}
