//! Ingress of a shard, from the sockets to the core: batches of datagrams, some of them coalesced
//! by the kernel (GRO), or of IP packets.

use core::net::{IpAddr, SocketAddr};
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;

use quinn_udp::{RecvMeta, UdpSockRef};

use super::carrier::Carrier;
use super::elders::Elders;
use super::native_shards::ForOthers;
use super::observer::{Direction, ObservedSegments};
use super::shard::Shard;
use super::socket::{Kind, Sock, UdpKind, ecn_of};
use super::state::{CarrierKind, Handover, State};
use crate::carrier::{Datagram, Outer, Received, SHORT_HEADER};
use crate::native::{self, Arrived};
use crate::succession::Passed;
use crate::sys::raw::{self, RawBuffer, RawMeta};
use crate::sys::tun::VirtioHeader;
use marline_core::PacketMeta;
use marline_time::Instant;
use marline_wire::Checksum;

/// Messages of one system call.
const MESSAGES: usize = 8;
/// Bytes of each: the most that the kernel coalesces.
const MESSAGE_BYTES: usize = 64 << 10;

/// Where packets are received into, by the kind of sockets that the shard has.
pub(super) enum ReceiveBuffer {
    Udp(Box<UdpBuffer>),
    Raw(RawBuffer),
    Tun(TunBuffer),
}

/// Where frames came from.
#[derive(Copy, Clone, Debug)]
pub(super) struct Origin {
    pub(super) outer: Outer,
    /// The port of the socket.
    pub(super) local_port: u16,
    pub(super) ecn: marline_core::Ecn,
}

/// Where packets of a TUN interface are received into.
pub(super) struct TunBuffer {
    bytes: Box<[u8]>,
    lengths: Vec<usize>,
    /// Packets have a header in front.
    offloads: bool,
}

/// Bytes of a packet of 64 kB and its header.
const TUN_PACKET_BYTES: usize = MESSAGE_BYTES + VirtioHeader::LEN;

/// Where datagrams are received into.
pub(super) struct UdpBuffer {
    bytes: Box<[u8]>,
    metas: [RecvMeta; MESSAGES],
    messages: usize,
}

impl ReceiveBuffer {
    pub(super) fn new(kind: CarrierKind) -> Self {
        match kind {
            CarrierKind::Udp { .. } => ReceiveBuffer::udp(),
            CarrierKind::Raw => ReceiveBuffer::Raw(RawBuffer::new()),
            CarrierKind::Tun | CarrierKind::Gateway => ReceiveBuffer::Tun(TunBuffer {
                bytes: vec![0; MESSAGES * TUN_PACKET_BYTES].into_boxed_slice(),
                lengths: Vec::with_capacity(MESSAGES),
                offloads: false,
            }),
        }
    }

    fn udp() -> Self {
        ReceiveBuffer::Udp(Box::new(UdpBuffer {
            bytes: vec![0; MESSAGES * MESSAGE_BYTES].into_boxed_slice(),
            metas: [RecvMeta::default(); MESSAGES],
            messages: 0,
        }))
    }

    /// Passes on what is for other processes that share the socket.
    pub(super) fn sift(&mut self, elders: &Elders, bound: SocketAddr) {
        if let ReceiveBuffer::Udp(buffer) = self {
            buffer.sift(elders, bound);
        }
    }

    /// Receives what is there. `true`: the socket is empty now.
    pub(super) fn receive(&mut self, socket: &Sock) -> io::Result<bool> {
        match (self, &socket.kind) {
            (ReceiveBuffer::Udp(buffer), Kind::Udp(udp)) => {
                buffer.receive(UdpSockRef::from(&socket.as_fd()), udp)
            }
            (ReceiveBuffer::Raw(buffer), Kind::Raw(_)) => {
                Ok(buffer.receive(socket.as_fd())? < raw::MESSAGES)
            }
            (ReceiveBuffer::Tun(buffer), Kind::Tun) => buffer.receive(socket.as_fd(), false),
            (ReceiveBuffer::Tun(buffer), Kind::Gateway { offloads }) => {
                buffer.receive(socket.as_fd(), *offloads)
            }
            _ => unreachable!("a shard has sockets of one kind"),
        }
    }
}

impl TunBuffer {
    fn receive(&mut self, tun: BorrowedFd<'_>, offloads: bool) -> io::Result<bool> {
        self.lengths.clear();
        self.offloads = offloads;
        for chunk in self.bytes.chunks_mut(TUN_PACKET_BYTES) {
            match rustix::io::read(tun, &mut *chunk) {
                Ok(len) if offloads => {
                    finish_checksum(&mut chunk[..len]);
                    self.lengths.push(len);
                }
                Ok(len) => self.lengths.push(len),
                // What has come so far is looked at first.
                Err(_) if !self.lengths.is_empty() => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let header = if self.offloads { VirtioHeader::LEN } else { 0 };
        let chunks = self.bytes.chunks(TUN_PACKET_BYTES);
        let packets = self.lengths.iter().zip(chunks).map(|(len, bytes)| &bytes[..*len]);
        // What has not even a header is no packet.
        packets.map(move |packet| packet.get(header..).unwrap_or_default())
    }
}

/// Finishes the checksum of a packet that the kernel has left to us. TCP's is taken as it is: the packet was on no
/// wire, and may be 64 kB.
fn finish_checksum(bytes: &mut [u8]) {
    let Some((header, packet)) = bytes.split_first_chunk_mut::<{ VirtioHeader::LEN }>() else {
        return;
    };
    let Some((start, field)) = VirtioHeader::unfinished(header) else { return };
    if native::tcp_of(packet).is_some() {
        return;
    }
    let Some(covered) = packet.get(start..) else { return };
    let checksum = match Checksum::of(covered).finish() {
        // UDP's 0 says that there is none.
        0 => u16::MAX,
        sum => sum,
    };
    if let Some(place) = packet.get_mut(field..field + 2) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
}

impl UdpBuffer {
    fn receive(&mut self, socket: UdpSockRef<'_>, udp: &UdpKind) -> io::Result<bool> {
        let mut chunks = self.bytes.chunks_mut(MESSAGE_BYTES);
        let mut slices: [IoSliceMut<'_>; MESSAGES] =
            core::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        self.messages = 0;
        self.messages = udp.state.recv(socket, &mut slices, &mut self.metas)?;
        Ok(self.messages < MESSAGES)
    }

    /// Passes on what is for other processes, and keeps the rest.
    fn sift(&mut self, elders: &Elders, bound: SocketAddr) {
        let messages = self.metas.iter_mut().zip(self.bytes.chunks_mut(MESSAGE_BYTES));
        for (meta, bytes) in messages.take(self.messages) {
            let stride = meta.stride.clamp(1, usize::from(u16::MAX));
            let from = Passed {
                bound,
                local: local_ip(meta.dst_ip, bound),
                remote: plain(meta.addr),
                ecn: ecn_of(meta.ecn),
                stride: stride as u16,
            };
            let run = bytes.get(..meta.len).unwrap_or_default();
            if let Some(ours) = elders.sift(&from, run) {
                meta.len = ours.len();
                bytes[..ours.len()].copy_from_slice(&ours);
            }
        }
    }

    /// The messages of a batch: what is known of each, and its bytes.
    fn messages(&self) -> impl Iterator<Item = (&RecvMeta, &[u8])> {
        self.metas.iter().zip(self.bytes.chunks(MESSAGE_BYTES)).take(self.messages)
    }
}

impl Shard {
    /// Gives a batch to carrier and core. Returns what of native TCP may be other shards'.
    pub(super) fn on_batch<'a>(
        &self,
        state: &mut State,
        now: Instant,
        (index, local): (u16, SocketAddr),
        buffer: &'a ReceiveBuffer,
    ) -> ForOthers<'a> {
        let mut others = ForOthers::default();
        match buffer {
            ReceiveBuffer::Udp(buffer) => self.on_datagrams(state, now, (index, local), buffer),
            ReceiveBuffer::Raw(buffer) => {
                for (meta, bytes) in buffer.packets() {
                    state.on_raw_packet(now, meta, bytes, &mut others);
                }
            }
            ReceiveBuffer::Tun(buffer) => {
                for packet in buffer.packets() {
                    state.on_tun_packet(now, packet, &mut others);
                }
            }
        }
        others
    }

    fn on_datagrams(
        &self,
        state: &mut State,
        now: Instant,
        (index, local): (u16, SocketAddr),
        buffer: &UdpBuffer,
    ) {
        for (meta, bytes) in buffer.messages() {
            let outer = Outer {
                socket: index,
                local: local_ip(meta.dst_ip, local),
                remote: plain(meta.addr),
            };
            state.rerouting.routes.heard((outer.local, outer.remote));
            let run = bytes.get(..meta.len).unwrap_or_default();
            let origin = Origin { outer, local_port: local.port(), ecn: ecn_of(meta.ecn) };
            self.on_frames(state, now, &origin, run.chunks(meta.stride.max(1)));
        }
    }

    /// Gives frames that came together to carrier and core.
    pub(super) fn on_frames<'a>(
        &self,
        state: &mut State,
        now: Instant,
        origin: &Origin,
        frames: impl Iterator<Item = &'a [u8]>,
    ) {
        let Origin { outer, local_port, ecn } = *origin;
        let mut segments = SegmentRun::default();
        for bytes in frames {
            let pressed = state.endpoint.is_pressed();
            let handed_over = false;
            let datagram = Datagram { outer, local_port, ecn, handed_over, pressed, bytes };
            let Carrier::Udp(carrier) = &mut state.carrier else { return };
            match carrier.receive(now, &datagram) {
                Received::Segment(meta, segment) => {
                    state.observe_arrival(now, &meta, segment);
                    segments.add(state, now, &meta, segment);
                }
                other => {
                    segments.hand_over(state, now);
                    self.on_received(state, now, &datagram, other);
                }
            }
        }
        segments.hand_over(state, now);
    }

    /// Gives one datagram to carrier and core.
    pub(super) fn on_datagram(&self, state: &mut State, now: Instant, datagram: &Datagram<'_>) {
        let Carrier::Udp(carrier) = &mut state.carrier else { return };
        let received = carrier.receive(now, datagram);
        self.on_received(state, now, datagram, received);
    }

    /// Does what the carrier found a datagram to be.
    fn on_received(
        &self,
        state: &mut State,
        now: Instant,
        datagram: &Datagram<'_>,
        received: Received<'_>,
    ) {
        if !matches!(received, Received::Segment(..)) {
            state.observers.frames(Direction::In, &datagram.outer, (datagram.bytes.len(), 0));
        }
        match received {
            Received::Segment(meta, segment) => {
                state.observe_arrival(now, &meta, segment);
                state.endpoint.handle_packet(now, &meta, segment);
            }
            Received::Elsewhere(owner) => self.hand_over(usize::from(owner), datagram),
            Received::Anywhere => {
                let shards = self.peers.get().map_or(0, Vec::len);
                for shard in 0..shards {
                    self.hand_over(shard, datagram);
                }
            }
            Received::Reset(flow) => state.endpoint.flow_reset(now, flow),
            Received::Moved { flow, new_host } => state.endpoint.path_moved(now, flow, new_host),
            Received::Lane(lane) => state.on_lane_frame(lane, now, datagram),
            Received::Repeat(flow) => state.endpoint.repeat_syn(now, flow),
            Received::Disowned(id) => {
                let ends = (datagram.outer.local, datagram.outer.remote);
                if !datagram.outer.is_link() {
                    state.rerouting.routes.answered(now, ends, id);
                }
            }
            Received::Nothing => {}
        }
    }

    /// Rare: first SYNs of joins, or all if the kernel does not spread by flow id.
    fn hand_over(&self, shard: usize, datagram: &Datagram<'_>) {
        let Some(peer) = self.peers.get().and_then(|peers| peers.get(shard)) else { return };
        let bytes = datagram.bytes.to_vec();
        // A full queue drops it, as a full socket buffer would; TCP repeats it.
        let _ = peer.try_send(Handover { outer: datagram.outer, ecn: datagram.ecn, bytes });
    }

    /// Takes a datagram that another shard received.
    pub(super) fn on_handover(&self, state: &mut State, now: Instant, handover: &Handover) {
        let outer = &handover.outer;
        let port = if outer.is_link() {
            state.links.at(outer).map(|link| link.port)
        } else {
            let entry = state.sockets.get(usize::from(outer.socket)).and_then(Option::as_ref);
            entry.map(|entry| entry.socket.local.port())
        };
        let Some(local_port) = port else { return };
        debug_assert!(handover.bytes.len() >= SHORT_HEADER);
        let pressed = state.endpoint.is_pressed();
        self.on_datagram(
            state,
            now,
            &Datagram {
                outer: handover.outer,
                local_port,
                ecn: handover.ecn,
                handed_over: true,
                pressed,
                bytes: &handover.bytes,
            },
        );
    }
}

/// Segments that the kernel received as one message and of which the same is known: the core gets them in one
/// call.
#[derive(Default)]
struct SegmentRun<'a> {
    meta: Option<PacketMeta>,
    segments: Vec<&'a [u8]>,
}

impl<'a> SegmentRun<'a> {
    /// Adds a segment. Those of which something else is known are given to the core before.
    fn add(&mut self, state: &mut State, now: Instant, meta: &PacketMeta, segment: &'a [u8]) {
        if self.meta.is_some_and(|known| known != *meta) {
            self.hand_over(state, now);
        }
        self.meta = Some(*meta);
        self.segments.push(segment);
    }

    /// Gives them to the core, and is empty again.
    fn hand_over(&mut self, state: &mut State, now: Instant) {
        if let Some(meta) = self.meta.take() {
            state.endpoint.handle_packets(now, &meta, self.segments.drain(..));
        }
    }
}

impl State {
    /// Shows a segment that came to whoever watches.
    fn observe_arrival(&mut self, now: Instant, meta: &PacketMeta, segment: &[u8]) {
        let header = self.carrier.header();
        self.observers.observe(&ObservedSegments::came(now, meta, segment, header));
    }

    /// Gives a packet from a raw socket to the core.
    fn on_raw_packet<'a>(
        &mut self,
        now: Instant,
        meta: &RawMeta,
        bytes: &'a [u8],
        others: &mut ForOthers<'a>,
    ) {
        let Carrier::Native(carrier) = &mut self.carrier else { return };
        let arrived = match meta.source {
            _ if meta.truncated => None,
            SocketAddr::V4(_) => native::tcp_of(bytes).filter(|arrived| {
                // The kernel takes broadcasts for another of our addresses than they name.
                meta.taken_for.is_none_or(|taken_for| taken_for == arrived.destination)
            }),
            SocketAddr::V6(_) => meta.destination.map(|destination| Arrived {
                source: plain(meta.source),
                destination,
                ecn: native::ecn_of_bits(meta.class),
                segment: bytes,
            }),
        };
        let Some(arrived) = arrived else {
            carrier.malformed();
            return;
        };
        self.on_arrived(now, &arrived, others);
    }

    /// Gives a packet from a TUN interface to the core, or what ICMP says in it.
    fn on_tun_packet<'a>(&mut self, now: Instant, packet: &'a [u8], others: &mut ForOthers<'a>) {
        if let Some(arrived) = native::tcp_of(packet) {
            self.on_arrived(now, &arrived, others);
        } else if let Some(sink) = &mut self.sink {
            sink.on_packet(packet);
        } else if let Some(error) = native::error_of(packet) {
            self.on_native_error(now, &error);
            others.errors.push(error);
        } else if let Carrier::Native(carrier) = &mut self.carrier {
            carrier.malformed();
        }
    }

    /// Gives a segment in an IP packet to the core, if it may see it.
    pub(super) fn on_arrived<'a>(
        &mut self,
        now: Instant,
        arrived: &Arrived<'a>,
        others: &mut ForOthers<'a>,
    ) {
        let Carrier::Native(carrier) = &mut self.carrier else { return };
        let (shard, keeps_to_own) = (carrier.shard(), carrier.keeps_to_own());
        let Some((meta, segment)) = carrier.receive(arrived) else { return };
        let may_be_others = shard.count > 1 || keeps_to_own || self.links.living_elders().is_some();
        if !may_be_others || self.endpoint.claims(now, &meta, segment) {
            self.take_segment(now, &meta, segment);
            return;
        }
        match self.first_asked(now, shard, meta, segment) {
            Some(stray) => others.strays.push(stray),
            None => self.take_unclaimed(now, &meta, segment),
        }
    }

    /// Takes a segment that no shard of this process claims, unless it may be another process's.
    pub(super) fn take_unclaimed(&mut self, now: Instant, meta: &PacketMeta, segment: &[u8]) {
        if matches!(&self.carrier, Carrier::Native(carrier) if carrier.keeps_to_own()) {
            return;
        }
        if let Some(elders) = self.links.living_elders()
            && elders.ask_for(&meta.path, meta.ecn, segment)
        {
            return;
        }
        self.take_segment(now, meta, segment);
    }

    /// Gives a segment of native TCP to the core.
    pub(super) fn take_segment(&mut self, now: Instant, meta: &PacketMeta, segment: &[u8]) {
        self.observe_arrival(now, meta, segment);
        self.endpoint.handle_packet(now, meta, segment);
    }
}

fn local_ip(destination: Option<IpAddr>, bound: SocketAddr) -> IpAddr {
    if bound.ip().is_unspecified() { destination.unwrap_or(bound.ip()) } else { bound.ip() }
}

/// Without flow label and scope, which may differ between datagrams of one peer. The scope of a
/// link-local address is kept: without it no answer can be sent.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.flowinfo() != 0 => {
            core::net::SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        other => other,
    }
}
