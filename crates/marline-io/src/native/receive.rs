//! Conversion of a received packet to a segment for the core.
//!
//! A segment from a network with a wrong checksum is dropped. A segment from this machine, over veth or loopback, or
//! from a network card that merged segments (GRO), may have an unfinished checksum: the field then contains only the
//! sum of the pseudo-header, and hardware would add the rest. Such a segment has not crossed a network, or hardware has
//! verified it, so it is accepted. A damaged packet from outside looks like this with a probability of 1 in 65,536, as
//! for any undetected damage.

use core::net::{IpAddr, SocketAddr};

use marline_core::{FourTuple, PacketMeta};
use marline_wire::{TCP_HEADER_LEN, tcp_pseudo_header, verify_tcp_checksum};

use super::NativeCarrier;
use super::received_segment::ReceivedSegment;

impl NativeCarrier {
    /// Counts a packet that is not valid TCP.
    pub(crate) fn count_malformed(&mut self) {
        self.counters.malformed += 1;
    }

    /// Returns false for SYNs to ports without a listener, if all ports are ours but only some accept connections.
    fn accepts_segment(&self, local: SocketAddr, flags: u8) -> bool {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        let opens = flags & (SYN | ACK) == SYN;
        !opens || self.listening.as_ref().is_none_or(|listening| listening.has(local))
    }

    /// Checks a segment. Returns `None` if the core must not see it.
    pub(crate) fn receive<'a>(
        &mut self,
        arrived: &ReceivedSegment<'a>,
    ) -> Option<(PacketMeta, &'a [u8])> {
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
        if !self.accepts_segment(local, segment[13]) {
            self.counters.syns_refused += 1;
            return None;
        }
        let ends = (arrived.source.ip(), arrived.destination);
        if is_unfinished(arrived.source.ip(), arrived.destination, segment) {
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

/// Returns true if the checksum field contains only the sum of the pseudo-header.
fn is_unfinished(source: IpAddr, destination: IpAddr, segment: &[u8]) -> bool {
    const CHECKSUM_AT: usize = 16;
    let Some(&[high, low]) = segment.get(CHECKSUM_AT..CHECKSUM_AT + 2) else { return false };
    let bare = !tcp_pseudo_header(Some((source, destination)), segment.len()).finish();
    u16::from_be_bytes([high, low]) == bare
}

/// Returns true for addresses of a single host. TCP ignores packets from and to others (RFC 9293 section 3.9.2.3).
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_broadcast() && !v4.is_multicast() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_multicast() && !v6.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use marline_core::Ecn;
    use marline_wire::{Ipv4Header, PROTOCOL_TCP, emit_ip, fill_tcp_checksum};

    use super::*;
    use crate::native::parse_tcp;

    const US: &str = "192.0.2.1:80";
    const THEM: &str = "198.51.100.7:40000";

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Creates a carrier without sockets that owns port 80 on all addresses.
    fn carrier() -> NativeCarrier {
        let mut carrier = NativeCarrier::raw(marline_core::Shard::SINGLE);
        carrier.ports.add(at("0.0.0.0:80"));
        carrier.ports.add(at("[::]:80"));
        carrier
    }

    fn segment(from: SocketAddr, to: SocketAddr, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0; 20 + payload];
        bytes[..2].copy_from_slice(&from.port().to_be_bytes());
        bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
        bytes[12] = 5 << 4;
        for (at, byte) in bytes[20..].iter_mut().enumerate() {
            *byte = (at * 31) as u8;
        }
        fill_tcp_checksum(Some((from.ip(), to.ip())), &mut bytes);
        bytes
    }

    fn receive(carrier: &mut NativeCarrier, from: &str, to: &str, segment: &[u8]) -> bool {
        let (source, destination) = (at(from), at(to).ip());
        let arrived = ReceivedSegment { source, destination, ecn: Ecn::NotEct, segment };
        let received = carrier.receive(&arrived);
        if let Some((meta, bytes)) = received {
            assert_eq!((meta.path.local, meta.path.remote), (at(to), at(from)));
            assert!(meta.checksum_verified && bytes == segment);
        }
        received.is_some()
    }

    #[test]
    fn checksums_are_right_or_unfinished_or_the_segment_is_dropped() {
        for (us, them) in [(US, THEM), ("[2001:db8::1]:80", "[2001:db8::2]:5")] {
            let mut carrier = carrier();
            // A coalesced segment of nearly 64 kB is handled like any other.
            for payload in [0, 1, 1_448, 65_000] {
                let whole = segment(at(them), at(us), payload);
                assert!(receive(&mut carrier, them, us, &whole));
                let mut unfinished = whole.clone();
                let bare = tcp_pseudo_header(Some((at(them).ip(), at(us).ip())), whole.len());
                unfinished[16..18].copy_from_slice(&(!bare.finish()).to_be_bytes());
                assert!(receive(&mut carrier, them, us, &unfinished));
                let mut damaged = whole;
                damaged[4] ^= 1;
                assert!(!receive(&mut carrier, them, us, &damaged));
            }
            let counters = carrier.counters();
            assert_eq!((counters.unfinished_checksums, counters.bad_checksums), (4, 4));
        }
    }

    #[test]
    fn foreign_and_non_unicast_packets_are_dropped() {
        let mut carrier = carrier();
        for (them, us) in [
            (THEM, "192.0.2.1:81"),
            ("224.0.0.1:9", US),
            ("255.255.255.255:9", US),
            ("0.0.0.0:9", US),
            (THEM, "239.1.1.1:80"),
            ("[ff02::1]:9", "[2001:db8::1]:80"),
        ] {
            let bytes = segment(at(them), at(us), 10);
            assert!(!receive(&mut carrier, them, us, &bytes), "{them} to {us}");
        }
        assert!(!receive(&mut carrier, THEM, US, &[0; 19]), "too short for a header");
        let counters = carrier.counters();
        assert_eq!((counters.unknown, counters.malformed), (6, 1));
    }

    #[test]
    fn syns_are_accepted_only_on_listening_ports() {
        let mut carrier = NativeCarrier::tun(true, marline_core::Shard::SINGLE);
        carrier.own_address(at(US).ip());
        carrier.guard(at("0.0.0.0:80"), None).unwrap();
        for (port, flags, taken) in
            [(80, 0x02, true), (81, 0x02, false), (81, 0x12, true), (81, 0x10, true)]
        {
            let us = format!("192.0.2.1:{port}");
            let mut bytes = segment(at(THEM), at(&us), 0);
            bytes[13] = flags;
            fill_tcp_checksum(Some((at(THEM).ip(), at(&us).ip())), &mut bytes);
            assert_eq!(receive(&mut carrier, THEM, &us, &bytes), taken, "{us}, flags {flags:#x}");
        }
        assert_eq!(carrier.counters().syns_refused, 1);
    }

    #[test]
    fn ip_options_are_skipped_and_fragments_ignored() {
        let (us, them) = (at(US), at(THEM));
        let segment = segment(them, us, 100);
        let mut packet = vec![0; 20];
        emit_ip(them.ip(), us.ip(), PROTOCOL_TCP, 2, segment.len(), &mut packet).unwrap();
        packet.extend(&segment);
        let arrived = parse_tcp(&packet).unwrap();
        assert_eq!((arrived.segment, arrived.ecn), (&segment[..], Ecn::Ect0));

        // Four bytes of options: the header is longer, and so is the packet.
        let mut optioned = packet.clone();
        optioned.splice(20..20, [1, 1, 1, 0]);
        optioned[0] = 0x46;
        let len = optioned.len() as u16;
        optioned[2..4].copy_from_slice(&len.to_be_bytes());
        optioned[10..12].fill(0);
        let sum = marline_wire::Checksum::of(&optioned[..24]).finish();
        optioned[10..12].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(parse_tcp(&optioned).unwrap().segment, &segment[..]);

        let (IpAddr::V4(src), IpAddr::V4(dst)) = (them.ip(), us.ip()) else { unreachable!() };
        let whole = Ipv4Header::new(src, dst, PROTOCOL_TCP);
        for part in [
            Ipv4Header { more_fragments: true, ..whole },
            Ipv4Header { fragment_offset: 5, ..whole },
            Ipv4Header { protocol: 17, ..whole },
        ] {
            part.emit(segment.len(), &mut packet).unwrap();
            assert!(parse_tcp(&packet).is_none(), "{part:?}");
        }
    }
}
