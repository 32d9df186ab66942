//! Receive buffer of a shard: datagrams, some of them coalesced by the kernel (GRO), or IP packets of one system
//! call.

use core::net::{IpAddr, SocketAddr};
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;

use quinn_udp::{RecvMeta, UdpSockRef};

use super::elders::OlderProcesses;
use super::socket::{Kind, Sock, UdpKind, ecn_of};
use super::state::CarrierKind;
use crate::edge::raw_packet;
use crate::edge::virtio::VirtioHeader;
use crate::native;
use crate::succession::Passed;
use crate::sys::raw::RawBuffer;
use marline_wire::Checksum;

/// Messages per system call.
const MESSAGES: usize = 8;
/// Maximum length of a message that the kernel coalesces, in bytes.
const MESSAGE_BYTES: usize = 64 << 10;

/// Receive buffer for the shard's kind of sockets.
pub(super) enum ReceiveBuffer {
    Udp(Box<UdpBuffer>),
    Raw(RawBuffer),
    Tun(TunBuffer),
}

/// Receive buffer for packets of a TUN interface.
pub(super) struct TunBuffer {
    bytes: Box<[u8]>,
    lengths: Vec<usize>,
    /// Set if packets have a virtio header in front.
    offloads: bool,
}

/// Maximum length of a packet with its virtio header.
const TUN_PACKET_BYTES: usize = MESSAGE_BYTES + VirtioHeader::LEN;

/// Receive buffer for UDP datagrams.
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

    /// Passes on datagrams of other processes that share the socket.
    pub(super) fn sift(&mut self, elders: &OlderProcesses, bound: SocketAddr) {
        if let ReceiveBuffer::Udp(buffer) = self {
            buffer.sift(elders, bound);
        }
    }

    /// Receives available packets. Returns true if the socket is empty now.
    pub(super) fn receive(&mut self, socket: &Sock) -> io::Result<bool> {
        match (self, &socket.kind) {
            (ReceiveBuffer::Udp(buffer), Kind::Udp(udp)) => {
                buffer.receive(UdpSockRef::from(&socket.as_fd()), udp)
            }
            (ReceiveBuffer::Raw(buffer), Kind::Raw(_)) => {
                Ok(buffer.receive(socket.as_fd())? < raw_packet::MESSAGES)
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
                // Packets that have already arrived are processed first.
                Err(_) if !self.lengths.is_empty() => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    pub(super) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let header = if self.offloads { VirtioHeader::LEN } else { 0 };
        let chunks = self.bytes.chunks(TUN_PACKET_BYTES);
        let packets = self.lengths.iter().zip(chunks).map(|(len, bytes)| &bytes[..*len]);
        // A read that is shorter than the header contains no packet.
        packets.map(move |packet| packet.get(header..).unwrap_or_default())
    }
}

/// Completes a checksum that the kernel has left open. A TCP checksum remains as it is: the packet has not crossed a
/// network and may be 64 kB long.
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
        // A UDP checksum of 0 means that there is none.
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

    /// Passes on datagrams of other processes and keeps the rest.
    fn sift(&mut self, elders: &OlderProcesses, bound: SocketAddr) {
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

    /// Messages of a batch: metadata and bytes.
    pub(super) fn messages(&self) -> impl Iterator<Item = (&RecvMeta, &[u8])> {
        self.metas.iter().zip(self.bytes.chunks(MESSAGE_BYTES)).take(self.messages)
    }
}

pub(super) fn local_ip(destination: Option<IpAddr>, bound: SocketAddr) -> IpAddr {
    if bound.ip().is_unspecified() { destination.unwrap_or(bound.ip()) } else { bound.ip() }
}

/// Removes the flow label, which may differ between datagrams of one peer. The scope of a link-local address is
/// kept: without it no answer can be sent.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.flowinfo() != 0 => {
            core::net::SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        other => other,
    }
}
