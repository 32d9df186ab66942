//! Segments of one connection that are combined into a single packet.
//!
//! The kernel takes such a packet as if a network card had coalesced it (GRO): one header, all payloads, and the
//! segment size beside it. Only segments that a card would coalesce are combined: they are in sequence and differ
//! only in their checksums, and only the last one may be shorter, carry PSH or end the stream.

use core::net::IpAddr;
use std::io::IoSlice;

use marline_wire::{IPV6_HEADER_LEN, tcp_pseudo_header};

/// Maximum number of segments in a packet.
const MOST: usize = 64;
/// Maximum length of a packet, in bytes.
pub(super) const LONGEST: usize = 65_535;
/// Maximum length of IP and TCP headers.
pub(super) const HEADERS: usize = IPV6_HEADER_LEN + 60;
/// Offsets in a TCP header.
const SEQUENCE: usize = 4;
const LENGTH: usize = 12;
const FLAGS: usize = 13;
pub(super) const CHECKSUM: usize = 16;
const URGENT: usize = 18;
pub(super) const FIN: u8 = 0x01;
pub(super) const PUSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

/// Parts of a packet for the kernel: at most two in front, then the payloads.
pub(super) type Parts<'a> = [IoSlice<'a>; MOST + 2];

/// Segments that are sent as one packet.
pub(super) struct Group<'a> {
    /// Length of each IP header.
    ip_header: usize,
    /// Maximum length of the combined packet, including the headers of the first.
    longest: usize,
    packets: [&'a [u8]; MOST],
    count: usize,
    /// Length of the first packet's headers.
    headers: usize,
    /// Length of all payloads.
    bytes: usize,
    flags: u8,
    /// Set when nothing can be appended.
    closed: bool,
}

impl<'a> Group<'a> {
    pub(super) fn new(ip_header: usize, longest: usize) -> Group<'a> {
        Group {
            ip_header,
            longest: longest.min(LONGEST),
            packets: [&[]; MOST],
            count: 0,
            headers: 0,
            bytes: 0,
            flags: 0,
            closed: false,
        }
    }

    /// Length of each IP header.
    pub(super) const fn ip_header(&self) -> usize {
        self.ip_header
    }

    /// Number of segments.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// First packet, with its headers.
    pub(super) const fn first(&self) -> &'a [u8] {
        self.packets[0]
    }

    /// Payload length of each segment except the last.
    pub(super) const fn size(&self) -> usize {
        self.packets[0].len() - self.headers
    }

    /// Length of the combined packet's headers.
    pub(super) const fn headers_len(&self) -> usize {
        self.headers
    }

    /// Length of the combined packet from the TCP header on.
    pub(super) const fn segment_len(&self) -> usize {
        self.headers - self.ip_header + self.bytes
    }

    pub(super) const fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds a packet if it is the first one or continues the group. Returns false otherwise.
    pub(super) fn takes(&mut self, packet: &'a [u8]) -> bool {
        if self.count == 0 {
            self.begin(packet);
            return true;
        }
        let Some(payload) = self.following(packet) else { return false };
        self.flags |= packet[self.ip_header + FLAGS];
        self.closed = payload < self.size() || ends(packet[self.ip_header + FLAGS]);
        self.packets[self.count] = packet;
        self.count += 1;
        self.bytes += payload;
        true
    }

    fn begin(&mut self, packet: &'a [u8]) {
        let tcp = packet.get(self.ip_header..).unwrap_or_default();
        let tcp_header = tcp.get(LENGTH).map_or(usize::MAX, |byte| usize::from(byte >> 4) * 4);
        let payload = tcp.get(tcp_header..).unwrap_or_default();
        let flags = tcp.get(FLAGS).copied().unwrap_or_default();
        self.packets[0] = packet;
        self.headers = packet.len() - payload.len();
        (self.count, self.bytes, self.flags) = (1, payload.len(), flags);
        // Anything but plain data is sent alone.
        self.closed = payload.is_empty()
            || flags & !PUSH != ACK
            || ends(flags)
            || self.headers > HEADERS
            || tcp_header < URGENT + 2;
    }

    /// Returns the payload length of a packet that continues the group.
    fn following(&self, packet: &'a [u8]) -> Option<usize> {
        if self.closed || self.count == MOST || packet.len() <= self.headers {
            return None;
        }
        let tcp = self.ip_header..self.headers;
        let (ours, header) = (&self.packets[0][tcp.clone()], &packet[tcp]);
        let payload = packet.len() - self.headers;
        let sequence = |tcp: &[u8]| {
            u32::from_be_bytes([
                tcp[SEQUENCE],
                tcp[SEQUENCE + 1],
                tcp[SEQUENCE + 2],
                tcp[SEQUENCE + 3],
            ])
        };
        let same = header[..SEQUENCE] == ours[..SEQUENCE]
            && header[SEQUENCE + 4..FLAGS] == ours[SEQUENCE + 4..FLAGS]
            && header[FLAGS] & !(PUSH | FIN) == ours[FLAGS] & !PUSH
            && header[FLAGS + 1..CHECKSUM] == ours[FLAGS + 1..CHECKSUM]
            && header[URGENT..] == ours[URGENT..];
        let in_sequence = sequence(header) == sequence(ours).wrapping_add(self.bytes as u32);
        let fits = payload <= self.size() && self.headers + self.bytes + payload <= self.longest;
        (same && in_sequence && fits).then_some(payload)
    }

    /// Writes the TCP header of the combined packet. Its checksum covers only the pseudo-header between `ends`; the
    /// receiver of the packet completes it.
    pub(super) fn unfinished_header(&self, ends: (IpAddr, IpAddr), tcp: &mut [u8]) {
        self.header(tcp);
        let bare = !tcp_pseudo_header(Some(ends), self.segment_len()).finish();
        tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&bare.to_be_bytes());
    }

    /// Writes the TCP header with the complete checksum, which is computed from the checksums of the segments.
    pub(super) fn finished_header(&self, ends: (IpAddr, IpAddr), tcp: &mut [u8]) {
        self.header(tcp);
        tcp[CHECKSUM..CHECKSUM + 2].fill(0);
        let mut sum = tcp_pseudo_header(Some(ends), self.segment_len());
        sum.add_bytes(tcp);
        let mut odd = false;
        for packet in &self.packets[..self.count] {
            // The sum over a whole segment is zero. So the checksum of its payload is the complement of the sum over
            // the rest.
            let mut rest = tcp_pseudo_header(Some(ends), packet.len() - self.ip_header);
            rest.add_bytes(&packet[self.ip_header..self.headers]);
            let payload = rest.finish();
            sum.add_u16(if odd { payload.swap_bytes() } else { payload });
            odd ^= !(packet.len() - self.headers).is_multiple_of(2);
        }
        tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.finish().to_be_bytes());
    }

    fn header(&self, tcp: &mut [u8]) {
        tcp.copy_from_slice(&self.packets[0][self.ip_header..self.headers]);
        tcp[FLAGS] = self.flags;
    }

    /// Returns the parts of the packet, with these two in front.
    pub(super) fn parts<'b>(&self, front: [&'b [u8]; 2]) -> (Parts<'b>, usize)
    where
        'a: 'b,
    {
        let mut parts = [IoSlice::new(&[]); MOST + 2];
        (parts[0], parts[1]) = (IoSlice::new(front[0]), IoSlice::new(front[1]));
        for (part, packet) in parts[2..].iter_mut().zip(&self.packets[..self.count]) {
            *part = IoSlice::new(&packet[self.headers..]);
        }
        (parts, self.count + 2)
    }
}

const fn ends(flags: u8) -> bool {
    flags & (PUSH | FIN) != 0
}

#[cfg(test)]
mod tests {
    use marline_time::{PcgRng, Rng};
    use marline_wire::{fill_tcp_checksum, verify_tcp_checksum};

    use super::*;

    fn ends(ipv6: bool) -> (IpAddr, IpAddr) {
        match ipv6 {
            true => ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()),
            false => ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()),
        }
    }

    /// Builds `count` segments in sequence without IP headers, of `size` payload bytes each and `last` in the last
    /// one.
    fn run(
        rng: &mut PcgRng,
        ipv6: bool,
        count: usize,
        (size, last): (usize, usize),
    ) -> Vec<Vec<u8>> {
        let (options, begin) = (4 * rng.below(11) as usize, rng.next_u32());
        let mut random = |len: usize| (0..len).map(|_| rng.next_u32() as u8).collect::<Vec<u8>>();
        let mut header = random(20 + options);
        (header[LENGTH], header[FLAGS]) = (((20 + options) as u8 / 4) << 4, ACK);
        let mut segment = |number: usize| {
            let mut segment = header.clone();
            let sequence = begin.wrapping_add((number * size) as u32);
            segment[SEQUENCE..SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
            segment.extend(random(if number + 1 == count { last } else { size }));
            fill_tcp_checksum(Some(ends(ipv6)), &mut segment);
            segment
        };
        (0..count).map(&mut segment).collect()
    }

    fn whole(group: &Group<'_>, header: &[u8]) -> Vec<u8> {
        let (parts, count) = group.parts([&[], header]);
        parts[..count].iter().flat_map(|part| part.to_vec()).collect()
    }

    #[test]
    fn the_checksum_of_all_follows_from_theirs() {
        let mut rng = PcgRng::new(7, 1);
        for round in 0..300 {
            let ipv6 = round % 2 == 0;
            let (count, size) = (2 + rng.below(30) as usize, 1 + rng.below(1_400) as usize);
            let last = 1 + rng.below(size as u64) as usize;
            let segments = run(&mut rng, ipv6, count, (size, last));
            let mut group = Group::new(0, LONGEST);
            assert!(segments.iter().all(|segment| group.takes(segment)), "{count} of {size}");
            assert_eq!((group.count(), group.size()), (count, size));
            let mut header = vec![0; group.headers_len()];
            group.finished_header(ends(ipv6), &mut header);
            let joined = whole(&group, &header);
            assert_eq!(joined.len(), group.segment_len());
            assert!(verify_tcp_checksum(Some(ends(ipv6)), &joined), "{count} of {size}, {last}");
            let payloads = segments.iter().flat_map(|s| &s[header.len()..]).copied();
            assert_eq!(joined[header.len()..], payloads.collect::<Vec<_>>());
            // The header for a network card has only the pseudo-header in its checksum.
            group.unfinished_header(ends(ipv6), &mut header);
            let bare = [header[CHECKSUM], header[CHECKSUM + 1]];
            let unfinished = whole(&group, &header);
            let mut finished = unfinished.clone();
            fill_tcp_checksum(Some(ends(ipv6)), &mut finished);
            assert!(verify_tcp_checksum(Some(ends(ipv6)), &finished));
            let pseudo = !tcp_pseudo_header(Some(ends(ipv6)), unfinished.len()).finish();
            assert_eq!(u16::from_be_bytes(bare), pseudo);
        }
    }

    #[test]
    fn a_group_is_no_longer_than_it_may_be() {
        let mut rng = PcgRng::new(7, 2);
        let segments = run(&mut rng, false, 5, (1_000, 1_000));
        let mut group = Group::new(0, 3 * segments[0].len());
        let taken = segments.iter().filter(|segment| group.takes(segment)).count();
        assert_eq!((taken, group.count()), (3, 3));
        group.clear();
        assert!(group.takes(&segments[3]) && group.takes(&segments[4]));
    }
}
