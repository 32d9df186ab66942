//! Reassembly of IP fragments from the interface, so that packets of programs and of devices behind this machine are
//! carried as a whole.
//!
//! *Bounds.* At most [`MAX_INCOMPLETE`] packets at a time with [`MAX_PAYLOAD_LEN`] bytes each. A new packet evicts the
//! oldest, and each expires after [`MAX_FRAGMENT_WAIT`]. Packets with overlapping or contradictory fragments are
//! dropped, as RFC 8200 section 4.5 requires for IPv6 and as is safe for IPv4.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use marline_proxy::udp::MAX_APPLICATION_DATAGRAM;
use marline_wire::{Assembly, IpPacket, PROTOCOL_UDP, UDP_HEADER_LEN, emit_ip, ip_header_len};

use crate::icmp::PROTOCOL_ICMPV6;

/// Maximum number of incomplete packets.
const MAX_INCOMPLETE: usize = 64;
/// Maximum length of a packet's payload, in bytes.
const MAX_PAYLOAD_LEN: usize = UDP_HEADER_LEN + MAX_APPLICATION_DATAGRAM;
/// Maximum time to wait for the other fragments. Linux waits 30 s, but fragments that far apart are of no use.
const MAX_FRAGMENT_WAIT: Duration = Duration::from_secs(5);

/// Source, destination, protocol and identification, which are common to all fragments of a packet.
type Key = (IpAddr, IpAddr, u8, u32);

/// Incomplete packets.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    packets: HashMap<Key, FragmentParts>,
}

#[derive(Debug)]
struct FragmentParts {
    assembly: Assembly,
    began_at: Instant,
}

/// Returns false if a packet's first header shows that it cannot be a fragment, so that it need not be parsed.
pub(crate) fn may_be_fragment(packet: &[u8]) -> bool {
    match *packet {
        [version, _, _, _, _, _, high, low, ..] if version >> 4 == 4 => {
            u16::from_be_bytes([high, low]) & 0x3fff != 0
        }
        [_, _, _, _, _, _, next_header, ..] => {
            !matches!(next_header, PROTOCOL_UDP | PROTOCOL_ICMPV6)
        }
        _ => false,
    }
}

/// Result of adding a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FragmentOutcome {
    /// Stored, because others are missing.
    Kept,
    /// The last missing fragment: contains the whole packet.
    Completed(Vec<u8>),
    /// Unusable. The stored fragments of its packet are dropped too.
    Refused,
}

impl Fragments {
    /// Adds a packet. Returns `None` if it is not a fragment.
    pub(crate) fn add_packet(&mut self, packet: &[u8], now: Instant) -> Option<FragmentOutcome> {
        let ip = IpPacket::parse(packet).ok()?;
        let fragment = ip.fragment?;
        let key = (ip.src, ip.dst, ip.protocol, fragment.identification);
        self.packets.retain(|_, parts| now.duration_since(parts.began_at) < MAX_FRAGMENT_WAIT);
        if !self.packets.contains_key(&key) && self.packets.len() >= MAX_INCOMPLETE {
            self.drop_oldest();
        }
        let new = || FragmentParts { assembly: Assembly::default(), began_at: now };
        let parts = self.packets.entry(key).or_insert_with(new);
        let too_long = fragment.offset + ip.payload.len() > MAX_PAYLOAD_LEN;
        let taken = parts.assembly.add_piece(fragment.offset, ip.payload, !fragment.more_fragments);
        if too_long || taken.is_err() {
            self.packets.remove(&key);
            return Some(FragmentOutcome::Refused);
        }
        let Some(payload) = parts.assembly.complete_bytes() else {
            return Some(FragmentOutcome::Kept);
        };
        let whole = write_packet(&ip, payload);
        self.packets.remove(&key);
        Some(whole.map_or(FragmentOutcome::Refused, FragmentOutcome::Completed))
    }

    fn drop_oldest(&mut self) {
        let oldest = self.packets.iter().min_by_key(|(_, parts)| parts.began_at);
        if let Some(key) = oldest.map(|(key, _)| *key) {
            self.packets.remove(&key);
        }
    }
}

/// Creates a packet with this payload and the addresses and protocol of one of its fragments.
fn write_packet(ip: &IpPacket<'_>, payload: &[u8]) -> Option<Vec<u8>> {
    let header = ip_header_len(ip.src);
    let mut packet = vec![0; header];
    packet.extend_from_slice(payload);
    emit_ip(ip.src, ip.dst, ip.protocol, ip.ecn, payload.len(), &mut packet[..header]).ok()?;
    Some(packet)
}

#[cfg(test)]
mod tests {
    use marline_wire::Ipv4Header;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn part(identification: u16, offset: usize, payload: &[u8], more: bool) -> Vec<u8> {
        let ends = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let header = Ipv4Header {
            identification,
            dont_fragment: false,
            more_fragments: more,
            fragment_offset: (offset / 8) as u16,
            ..Ipv4Header::new(ends.0, ends.1, PROTOCOL_UDP)
        };
        let mut packet = vec![0; 20];
        packet.extend_from_slice(payload);
        header.emit(payload.len(), &mut packet[..20]).unwrap();
        assert_eq!(may_be_fragment(&packet), offset > 0 || more);
        packet
    }

    #[test]
    fn fragments_in_any_order_are_reassembled() {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        assert_eq!(fragments.add_packet(&part(0, 0, b"whole", false), now), None);
        assert!(!may_be_fragment(&part(0, 0, b"whole", false)) && !may_be_fragment(b""));
        assert_eq!(fragments.add_packet(b"no packet", now), None);
        let payload: Vec<u8> = (0..4_000u32).map(|at| at as u8).collect();
        assert_eq!(
            fragments.add_packet(&part(7, 2_960, &payload[2_960..], false), now),
            Some(FragmentOutcome::Kept)
        );
        assert_eq!(
            fragments.add_packet(&part(7, 0, &payload[..1_480], true), now),
            Some(FragmentOutcome::Kept)
        );
        let last = fragments.add_packet(&part(7, 1_480, &payload[1_480..2_960], true), now);
        let Some(FragmentOutcome::Completed(packet)) = last else { panic!("{last:?}") };
        let ip = IpPacket::parse(&packet).unwrap();
        assert_eq!((ip.payload, ip.fragment, ip.protocol), (&payload[..], None, PROTOCOL_UDP));
        assert!(fragments.packets.is_empty());
    }

    #[test]
    fn overlong_or_contradictory_fragments_are_dropped_whole() {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        assert_eq!(
            fragments.add_packet(&part(1, 0, &[1; 800], true), now),
            Some(FragmentOutcome::Kept)
        );
        assert_eq!(
            fragments.add_packet(&part(1, MAX_PAYLOAD_LEN / 8 * 8, &[1; 80], false), now),
            Some(FragmentOutcome::Refused)
        );
        assert_eq!(
            fragments.add_packet(&part(2, 800, &[1; 8], false), now),
            Some(FragmentOutcome::Kept)
        );
        assert_eq!(
            fragments.add_packet(&part(2, 1_600, &[1; 8], true), now),
            Some(FragmentOutcome::Refused)
        );
        assert!(fragments.packets.is_empty());
    }

    #[test]
    fn a_flood_of_first_fragments_uses_bounded_memory() {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        for identification in 0..5_000 {
            fragments.add_packet(&part(identification, 0, &[1; 1_480], true), now);
        }
        assert_eq!(fragments.packets.len(), MAX_INCOMPLETE);
        let later = now + SECOND;
        assert_eq!(
            fragments.add_packet(&part(9_999, 0, &[1; 8], true), later),
            Some(FragmentOutcome::Kept)
        );
        let last = fragments.add_packet(&part(9_999, 8, &[1; 8], false), later);
        assert!(matches!(last, Some(FragmentOutcome::Completed(_))));
        fragments.add_packet(&part(1, 0, &[1; 8], true), now + MAX_FRAGMENT_WAIT + SECOND);
        assert_eq!(fragments.packets.len(), 1);
    }
}
