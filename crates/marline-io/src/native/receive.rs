//! From a packet to a segment that the core may see.
//!
//! What came over a network has a checksum that is right, or is dropped. What came from this
//! machine, over veth or loopback, or through a card that joined segments (GRO), may have one that
//! nobody finished: the field then holds the bare sum of the pseudo-header, for hardware to add the
//! rest. Nothing was on a wire since it was written, or hardware has verified it; it is accepted. A
//! packet from outside that looks like that by chance has one chance in 65,536, as has any damage.

use core::net::{IpAddr, SocketAddr};

use marline_core::{Ecn, FourTuple, PacketMeta};
use marline_wire::{PROTOCOL_TCP, TCP_HEADER_LEN, tcp_pseudo_header, verify_tcp_checksum};

use super::NativeCarrier;

/// A TCP segment as it arrived, with what its IP header said.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Arrived<'a> {
    /// Where from; the port is not used.
    pub(crate) source: SocketAddr,
    /// Where to.
    pub(crate) destination: IpAddr,
    pub(crate) ecn: Ecn,
    pub(crate) segment: &'a [u8],
}

impl NativeCarrier {
    /// Counts what is no TCP packet at all.
    pub(crate) fn malformed(&mut self) {
        self.counters.malformed += 1;
    }

    /// Where all ports are ours but connections are taken on some only, SYNs to others are ignored.
    fn takes(&self, local: SocketAddr, flags: u8) -> bool {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        let opens = flags & (SYN | ACK) == SYN;
        !opens || self.listening.as_ref().is_none_or(|listening| listening.has(local))
    }

    /// Checks a segment; `None` if the core must not see it.
    pub(crate) fn receive<'a>(&mut self, arrived: &Arrived<'a>) -> Option<(PacketMeta, &'a [u8])> {
        let segment = arrived.segment;
        if segment.len() < TCP_HEADER_LEN {
            self.counters.malformed += 1;
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
        let local = SocketAddr::new(arrived.destination, port(2));
        if !is_unicast(arrived.source.ip()) || !is_unicast(local.ip()) || !self.ports.has(local) {
            self.counters.unknown += 1;
            return None;
        }
        if !self.takes(local, segment[13]) {
            self.counters.syns_refused += 1;
            return None;
        }
        let ends = (arrived.source.ip(), arrived.destination);
        if is_unfinished(ends, segment) {
            self.counters.unfinished_checksums += 1;
        } else if !verify_tcp_checksum(Some(ends), segment) {
            self.counters.bad_checksums += 1;
            return None;
        }
        let mut remote = arrived.source;
        remote.set_port(port(0));
        let path = FourTuple { local, remote };
        let (ecn, flow, peer_flow, checksum_verified) = (arrived.ecn, 0, 0, true);
        Some((PacketMeta { path, ecn, flow, peer_flow, checksum_verified }, segment))
    }
}

/// The checksum field holds the sum of the pseudo-header and no more.
pub(crate) fn is_unfinished(ends: (IpAddr, IpAddr), segment: &[u8]) -> bool {
    const CHECKSUM_AT: usize = 16;
    let Some(&[high, low]) = segment.get(CHECKSUM_AT..CHECKSUM_AT + 2) else { return false };
    let bare = !tcp_pseudo_header(Some(ends), segment.len()).finish();
    u16::from_be_bytes([high, low]) == bare
}

/// An address that one host has: TCP has no business with any other (RFC 9293 section 3.9.2.3).
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_broadcast() && !v4.is_multicast() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_multicast() && !v6.is_unspecified(),
    }
}

/// The TCP segment of an IP packet, as raw IPv4 sockets and TUN devices hand it over. Options and
/// extension headers are skipped; fragments are nothing to us.
pub(crate) fn tcp_of(packet: &[u8]) -> Option<Arrived<'_>> {
    let ip = marline_wire::IpPacket::parse(packet).ok()?;
    if ip.fragment || ip.protocol != PROTOCOL_TCP {
        return None;
    }
    let source = SocketAddr::new(ip.src, 0);
    let ecn = super::ecn_of_bits(ip.ecn);
    Some(Arrived { source, destination: ip.dst, ecn, segment: ip.payload })
}
