//! Gateway's responses to packets other than TCP, computed without I/O.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use marline_wire::{
    IpPacket, PROTOCOL_TCP, PROTOCOL_UDP, UDP_HEADER_LEN, UdpDatagram, ip_header_len,
    verify_udp_checksum,
};

use crate::addresses::{Addresses, GatewayQueries};
use crate::datagram::{Datagram, Echo};
use crate::icmp::{self, PROTOCOL_ICMP, PROTOCOL_ICMPV6, Unreachable};

/// Numbers of packets other than TCP, by outcome.
#[derive(Debug, Default)]
pub struct PacketCounters {
    /// Echo requests to the gateway, which it answered.
    pub echoes: AtomicU64,
    /// Echo requests to other hosts, which were passed on.
    pub pings: AtomicU64,
    /// DNS queries to the gateway.
    pub queries: AtomicU64,
    /// Datagrams passed on.
    pub datagrams: AtomicU64,
    /// Packets answered with an unreachable message.
    pub refused: AtomicU64,
    /// Fragments that did not result in a packet, because they were too long or contradictory.
    pub fragments: AtomicU64,
    /// Datagrams that exceed the limit of their path.
    pub too_big: AtomicU64,
    /// Packets that are not IP, truncated, or have a wrong checksum.
    pub malformed: AtomicU64,
    /// Packets without a receiver here: multicast, other protocols, errors about errors.
    pub ignored: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Result of processing a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum PacketResult<'a> {
    /// The answer to the packet was written.
    Answered,
    /// A query to the gateway's DNS service.
    Query(Datagram<'a>),
    /// A datagram to another host.
    Datagram(Datagram<'a>),
    /// An echo request to another host.
    Echo(Echo<'a>),
    /// Nothing to do.
    Dropped,
}

/// Responder for the gateway's end of the interface.
#[derive(Debug)]
pub struct Responder {
    addresses: Addresses,
    queries: GatewayQueries,
    counters: Arc<PacketCounters>,
}

impl Responder {
    /// Creates a responder for a gateway with these addresses, which answers these DNS queries.
    #[must_use]
    pub fn new(addresses: Addresses, queries: GatewayQueries) -> Responder {
        Responder { addresses, queries, counters: Arc::default() }
    }

    /// Returns the packet counters.
    #[must_use]
    pub fn counters(&self) -> Arc<PacketCounters> {
        Arc::clone(&self.counters)
    }

    /// Processes a packet, which may contain any bytes. If the result is [`PacketResult::Answered`], `answer` is a
    /// packet to send back.
    pub fn process_packet<'a>(&self, packet: &'a [u8], answer: &mut Vec<u8>) -> PacketResult<'a> {
        let counters = &self.counters;
        let Ok(ip) = IpPacket::parse(packet) else {
            count(&counters.malformed);
            return PacketResult::Dropped;
        };
        if ip.fragment.is_some() {
            count(&counters.fragments);
            return PacketResult::Dropped;
        }
        if !is_host(ip.src) || !is_host(ip.dst) {
            count(&counters.ignored);
            return PacketResult::Dropped;
        }
        match (ip.protocol, ip.src.is_ipv6()) {
            (PROTOCOL_UDP, _) => self.take_udp(&ip),
            (PROTOCOL_ICMP, false) | (PROTOCOL_ICMPV6, true) => self.take_icmp(&ip, packet, answer),
            (PROTOCOL_TCP, _) => {
                count(&counters.malformed);
                PacketResult::Dropped
            }
            _ => {
                count(&counters.ignored);
                PacketResult::Dropped
            }
        }
    }

    /// Counts an unusable fragment.
    pub(crate) fn on_refused_fragment(&self) {
        count(&self.counters.fragments);
    }

    fn take_udp<'a>(&self, ip: &IpPacket<'a>) -> PacketResult<'a> {
        let Ok(udp) = UdpDatagram::parse(ip.payload) else {
            count(&self.counters.malformed);
            return PacketResult::Dropped;
        };
        let len = UDP_HEADER_LEN + udp.payload.len();
        if !verify_udp_checksum(ip.src, ip.dst, &ip.payload[..len]) {
            count(&self.counters.malformed);
            return PacketResult::Dropped;
        }
        let datagram = Datagram {
            source: SocketAddr::new(ip.src, udp.src_port),
            destination: SocketAddr::new(ip.dst, udp.dst_port),
            payload: udp.payload,
        };
        if self.addresses.is_resolver(datagram.destination, self.queries) {
            count(&self.counters.queries);
            return PacketResult::Query(datagram);
        }
        count(&self.counters.datagrams);
        PacketResult::Datagram(datagram)
    }

    fn take_icmp<'a>(
        &self,
        ip: &IpPacket<'a>,
        packet: &[u8],
        answer: &mut Vec<u8>,
    ) -> PacketResult<'a> {
        let ipv6 = ip.src.is_ipv6();
        if !icmp::is_intact(ip) {
            count(&self.counters.malformed);
            return PacketResult::Dropped;
        }
        let fields = icmp::echo_fields(ip.payload);
        let fields = fields.filter(|_| icmp::is_echo_request(ipv6, ip.payload));
        let Some((identifier, sequence, payload)) = fields else {
            count(&self.counters.ignored);
            return PacketResult::Dropped;
        };
        if self.addresses.is_gateway(ip.dst) {
            count(&self.counters.echoes);
            icmp::write_echo_reply(ip.dst, ip.src, ip.payload, answer);
            return PacketResult::Answered;
        }
        count(&self.counters.pings);
        // The gateway is a router, so traceroute should show it.
        let hops = hop_limit(packet);
        if hops <= 1 {
            let from = self.addresses.gateway_for(ip.src);
            icmp::write_time_exceeded(from, ip.src, packet, answer);
            return PacketResult::Answered;
        }
        let (source, destination) = (ip.src, ip.dst);
        PacketResult::Echo(Echo {
            source,
            destination,
            identifier,
            sequence,
            hops: hops - 1,
            payload,
        })
    }

    /// Reports to a sender that requested such reports that a datagram's payload may have at most `most` bytes. Also
    /// for an echo request's data, whose header has the same length.
    pub fn too_big<'a>(
        &self,
        packet: &[u8],
        most: usize,
        answer: &mut Vec<u8>,
    ) -> PacketResult<'a> {
        count(&self.counters.too_big);
        let Ok(ip) = IpPacket::parse(packet) else { return PacketResult::Dropped };
        if !wants_path_mtu(packet) || !is_host(ip.src) {
            return PacketResult::Dropped;
        }
        let from = self.addresses.gateway_for(ip.src);
        let mtu = ip_header_len(ip.src) + UDP_HEADER_LEN + most;
        icmp::write_too_big(from, ip.src, mtu, packet, answer);
        PacketResult::Answered
    }

    /// Reports that a packet cannot be delivered.
    pub fn refuse<'a>(
        &self,
        packet: &[u8],
        why: Unreachable,
        answer: &mut Vec<u8>,
    ) -> PacketResult<'a> {
        let Ok(ip) = IpPacket::parse(packet) else { return PacketResult::Dropped };
        let ipv6 = ip.src.is_ipv6();
        let is_icmp = matches!(ip.protocol, PROTOCOL_ICMP | PROTOCOL_ICMPV6);
        if ip.fragment.is_some() || is_icmp && icmp::is_error(ipv6, ip.payload) || !is_host(ip.src)
        {
            count(&self.counters.ignored);
            return PacketResult::Dropped;
        }
        count(&self.counters.refused);
        let from = self.addresses.gateway_for(ip.src);
        icmp::write_unreachable(from, ip.src, why, packet, answer);
        PacketResult::Answered
    }
}

/// Returns true if the sender requests reports about the path MTU: always for IPv6, and for IPv4 if the packet must not
/// be fragmented.
fn wants_path_mtu(packet: &[u8]) -> bool {
    const DONT_FRAGMENT: u8 = 0x40;
    packet.first().is_some_and(|first| first >> 4 == 6)
        || packet.get(6).is_some_and(|flags| flags & DONT_FRAGMENT != 0)
}

/// Returns the hop limit of a packet that was parsed.
fn hop_limit(packet: &[u8]) -> u8 {
    let at = if packet.first().is_some_and(|first| first >> 4 == 6) { 7 } else { 8 };
    packet.get(at).copied().unwrap_or_default()
}

/// Returns true for an address of a single host. Errors are only sent to these.
fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_broadcast() && !v4.is_multicast() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_multicast() && !v6.is_unspecified(),
    }
}
