//! Packets for a TUN interface: segments of one connection are combined into one packet where possible.
//!
//! The kernel treats such a packet as if a network card had coalesced it (GRO): it has one header, all payloads, and
//! the segment size as metadata. Only segments that a card would coalesce are combined: they are in sequence and differ
//! only in their checksums, and only the last one may be shorter, carry PSH or end the stream. One write per segment
//! would be most of the work for a host behind a TUN interface.

use core::net::IpAddr;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use marline_wire::{Checksum, IPV4_HEADER_LEN, IPV6_HEADER_LEN, ip_header_len, tcp_pseudo_header};

use super::sending::SendError;
use crate::carrier::Outer;
use crate::edge::virtio::VirtioHeader;

/// Maximum number of segments in a packet.
const MAX_SEGMENTS: usize = 64;
/// Maximum length of a packet, in bytes.
pub(super) const MAX_PACKET_BYTES: usize = 65_535;
/// Maximum length of IP and TCP headers.
pub(super) const HEADERS: usize = IPV6_HEADER_LEN + 60;
/// Offsets in a TCP header.
const SEQUENCE: usize = 4;
const LENGTH: usize = 12;
const FLAGS: usize = 13;
pub(super) const CHECKSUM: usize = 16;
const URGENT: usize = 18;
const FIN: u8 = 0x01;
const PUSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// Parts of a packet for the kernel: at most two headers, then the payloads.
type Parts<'a> = [IoSlice<'a>; MAX_SEGMENTS + 2];

/// Segments sent as one packet.
pub(super) struct Group<'a> {
    /// Length of each IP header.
    ip_header: usize,
    /// Maximum length of the combined packet, including the headers of the first segment.
    longest: usize,
    packets: [&'a [u8]; MAX_SEGMENTS],
    count: usize,
    /// Length of the first packet's headers.
    headers: usize,
    /// Length of all payloads.
    bytes: usize,
    flags: u8,
    /// True once no further segment can be appended.
    closed: bool,
}

impl<'a> Group<'a> {
    pub(super) fn new(ip_header: usize, longest: usize) -> Group<'a> {
        Group {
            ip_header,
            longest: longest.min(MAX_PACKET_BYTES),
            packets: [&[]; MAX_SEGMENTS],
            count: 0,
            headers: 0,
            bytes: 0,
            flags: 0,
            closed: false,
        }
    }

    /// Returns the length of each IP header.
    pub(super) const fn ip_header(&self) -> usize {
        self.ip_header
    }

    /// Returns the number of segments.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Returns the first packet, with its headers.
    pub(super) const fn first(&self) -> &'a [u8] {
        self.packets[0]
    }

    /// Returns the payload length of each segment except the last.
    pub(super) const fn size(&self) -> usize {
        self.packets[0].len() - self.headers
    }

    /// Returns the length of the combined packet's headers.
    pub(super) const fn headers_len(&self) -> usize {
        self.headers
    }

    /// Returns the length of the combined packet, starting at the TCP header.
    pub(super) const fn segment_len(&self) -> usize {
        self.headers - self.ip_header + self.bytes
    }

    pub(super) const fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds a packet if it is the first one or continues the group. Returns false otherwise.
    pub(super) fn try_add(&mut self, packet: &'a [u8]) -> bool {
        if self.count == 0 {
            self.begin(packet);
            return true;
        }
        let Some(payload) = self.following(packet) else { return false };
        self.flags |= packet[self.ip_header + FLAGS];
        self.closed = payload < self.size() || ends_group(packet[self.ip_header + FLAGS]);
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
            || ends_group(flags)
            || self.headers > HEADERS
            || tcp_header < URGENT + 2;
    }

    /// Returns the payload length if the packet continues the group.
    fn following(&self, packet: &'a [u8]) -> Option<usize> {
        if self.closed || self.count == MAX_SEGMENTS || packet.len() <= self.headers {
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

    /// Writes the TCP header of the combined packet. Its checksum covers only the pseudo-header between these
    /// addresses; the receiver of the packet completes it.
    pub(super) fn write_unfinished_header(&self, local: IpAddr, remote: IpAddr, tcp: &mut [u8]) {
        self.header(tcp);
        let bare = !tcp_pseudo_header(Some((local, remote)), self.segment_len()).finish();
        tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&bare.to_be_bytes());
    }

    /// Writes the TCP header with the complete checksum, which is computed from the checksums of the segments.
    pub(super) fn write_finished_header(&self, local: IpAddr, remote: IpAddr, tcp: &mut [u8]) {
        self.header(tcp);
        tcp[CHECKSUM..CHECKSUM + 2].fill(0);
        let mut sum = tcp_pseudo_header(Some((local, remote)), self.segment_len());
        sum.add_bytes(tcp);
        let mut odd = false;
        for packet in &self.packets[..self.count] {
            // The sum over a whole segment is zero. So the checksum of its payload is the complement of the sum over
            // everything else.
            let mut rest = tcp_pseudo_header(Some((local, remote)), packet.len() - self.ip_header);
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

    /// Returns the parts of the packet, beginning with the two in `front`.
    pub(super) fn parts<'b>(&self, front: [&'b [u8]; 2]) -> (Parts<'b>, usize)
    where
        'a: 'b,
    {
        let mut parts = [IoSlice::new(&[]); MAX_SEGMENTS + 2];
        (parts[0], parts[1]) = (IoSlice::new(front[0]), IoSlice::new(front[1]));
        for (part, packet) in parts[2..].iter_mut().zip(&self.packets[..self.count]) {
            *part = IoSlice::new(&packet[self.headers..]);
        }
        (parts, self.count + 2)
    }
}

const fn ends_group(flags: u8) -> bool {
    flags & (PUSH | FIN) != 0
}

/// Writes packets one by one. Their headers are in the headroom of each segment; an IPv4 header is at its end.
pub(super) fn write_each(
    fd: BorrowedFd<'_>,
    outer: &Outer,
    stride: usize,
    bytes: &[u8],
) -> Result<(), SendError> {
    let free = IPV6_HEADER_LEN - ip_header_len(outer.local);
    let mut sent = 0;
    for datagram in bytes.chunks(if stride == 0 { bytes.len().max(1) } else { stride }) {
        let packet = datagram.get(free..).unwrap_or_default();
        if let Err(error) = rustix::io::write(fd, packet) {
            return Err(SendError { error: error.into(), sent });
        }
        sent += datagram.len();
    }
    Ok(())
}

/// Writes the packets of a batch, combined where possible. Their headers are in the headroom of each segment; an IPv4
/// header is at its end.
pub(super) fn write_batch(
    fd: BorrowedFd<'_>,
    ipv6: bool,
    stride: usize,
    bytes: &[u8],
) -> Result<(), SendError> {
    let ip_header = if ipv6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
    let free = IPV6_HEADER_LEN - ip_header;
    let stride = if stride == 0 { bytes.len().max(1) } else { stride };
    let mut packets = bytes.chunks(stride).map(|datagram| datagram.get(free..).unwrap_or_default());
    let mut group: Group<'_> = Group::new(ip_header, MAX_PACKET_BYTES);
    let mut sent = 0;
    let mut next = packets.next();
    while let Some(packet) = next {
        if group.try_add(packet) {
            next = packets.next();
            continue;
        }
        sent += flush(&mut group, fd, sent, stride)?;
    }
    flush(&mut group, fd, sent, stride)?;
    Ok(())
}

/// Writes the group. Returns the number of bytes of the batch sent so far.
fn flush(
    group: &mut Group<'_>,
    fd: BorrowedFd<'_>,
    sent: usize,
    stride: usize,
) -> Result<usize, SendError> {
    let count = group.count();
    let written = write(group, fd);
    group.clear();
    match written {
        Ok(()) => Ok(count * stride),
        Err(error) => Err(SendError { error: error.into(), sent }),
    }
}

fn write(group: &Group<'_>, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    if group.count() == 0 {
        return Ok(());
    }
    if group.count() == 1 {
        let header = VirtioHeader::default().to_bytes();
        let parts = [IoSlice::new(&header), IoSlice::new(group.first())];
        return rustix::io::writev(fd, &parts).map(drop);
    }
    let len = group.headers_len();
    let mut headers = [0; HEADERS];
    let headers = &mut headers[..len];
    let ip_header = join_headers(group, headers);
    let virtio = VirtioHeader {
        checksum: (ip_header as u16, CHECKSUM as u16),
        segments: Some((group.size() as u16, ip_header == IPV6_HEADER_LEN)),
        header_len: len as u16,
    };
    let virtio = virtio.to_bytes();
    let (parts, count) = group.parts([&virtio, headers]);
    rustix::io::writev(fd, &parts[..count]).map(drop)
}

/// Rewrites the headers for the whole group: length, flags and checksums. Returns the length of the IP header.
fn join_headers(group: &Group<'_>, headers: &mut [u8]) -> usize {
    let tcp_len = group.segment_len();
    let ip_header = group.ip_header();
    let (ip, tcp) = headers.split_at_mut(ip_header);
    ip.copy_from_slice(&group.first()[..ip_header]);
    let (local, remote) = if ip_header == IPV6_HEADER_LEN {
        ip[4..6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
        let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).unwrap_or_default();
        (IpAddr::from(address(8)), IpAddr::from(address(24)))
    } else {
        let len = ip_header + tcp_len;
        ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        ip[10..12].fill(0);
        let checksum = Checksum::of(ip).finish();
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap_or_default();
        (IpAddr::from(address(12)), IpAddr::from(address(16)))
    };
    group.write_unfinished_header(local, remote, tcp);
    ip_header
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use marline_time::{PcgRng, Rng};
    use marline_wire::{PROTOCOL_TCP, emit_ip, fill_tcp_checksum, verify_tcp_checksum};

    use super::*;
    use crate::native::parse_tcp;

    fn ends(ipv6: bool) -> (IpAddr, IpAddr) {
        match ipv6 {
            true => ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()),
            false => ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()),
        }
    }

    /// Builds `count` segments in sequence without IP headers, of `size` payload bytes each and `last` in the last
    /// one.
    fn run(rng: &mut PcgRng, ipv6: bool, count: usize, size: usize, last: usize) -> Vec<Vec<u8>> {
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

    fn join_parts(group: &Group<'_>, header: &[u8]) -> Vec<u8> {
        let (parts, count) = group.parts([&[], header]);
        parts[..count].iter().flat_map(|part| part.to_vec()).collect()
    }

    #[test]
    fn the_combined_checksum_follows_from_the_segment_checksums() {
        let mut rng = PcgRng::new(7, 1);
        for round in 0..300 {
            let ipv6 = round % 2 == 0;
            let (count, size) = (2 + rng.below(30) as usize, 1 + rng.below(1_400) as usize);
            let last = 1 + rng.below(size as u64) as usize;
            let segments = run(&mut rng, ipv6, count, size, last);
            let mut group = Group::new(0, MAX_PACKET_BYTES);
            assert!(segments.iter().all(|segment| group.try_add(segment)), "{count} of {size}");
            assert_eq!((group.count(), group.size()), (count, size));
            let mut header = vec![0; group.headers_len()];
            let (local, remote) = ends(ipv6);
            group.write_finished_header(local, remote, &mut header);
            let joined = join_parts(&group, &header);
            assert_eq!(joined.len(), group.segment_len());
            assert!(verify_tcp_checksum(Some(ends(ipv6)), &joined), "{count} of {size}, {last}");
            let payloads = segments.iter().flat_map(|s| &s[header.len()..]).copied();
            assert_eq!(joined[header.len()..], payloads.collect::<Vec<_>>());
            // The header for a network card has only the pseudo-header in its checksum.
            group.write_unfinished_header(local, remote, &mut header);
            let bare = [header[CHECKSUM], header[CHECKSUM + 1]];
            let unfinished = join_parts(&group, &header);
            let mut finished = unfinished.clone();
            fill_tcp_checksum(Some(ends(ipv6)), &mut finished);
            assert!(verify_tcp_checksum(Some(ends(ipv6)), &finished));
            let pseudo = !tcp_pseudo_header(Some(ends(ipv6)), unfinished.len()).finish();
            assert_eq!(u16::from_be_bytes(bare), pseudo);
        }
    }

    #[test]
    fn groups_respect_the_maximum_length() {
        let mut rng = PcgRng::new(7, 2);
        let segments = run(&mut rng, false, 5, 1_000, 1_000);
        let mut group = Group::new(0, 3 * segments[0].len());
        let taken = segments.iter().filter(|segment| group.try_add(segment)).count();
        assert_eq!((taken, group.count()), (3, 3));
        group.clear();
        assert!(group.try_add(&segments[3]) && group.try_add(&segments[4]));
    }

    const STRIDE: usize = IPV6_HEADER_LEN + 32 + 100;

    /// Builds a segment with the core's headroom in front.
    fn datagram(ipv6: bool, sequence: u32, payload: usize, flags: u8) -> Vec<u8> {
        let ends = if ipv6 {
            ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap())
        } else {
            ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap())
        };
        let ip_header = if ipv6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
        let mut bytes = vec![0; IPV6_HEADER_LEN + 32];
        bytes.extend((0..payload).map(|at| (sequence as usize + at) as u8));
        let free = IPV6_HEADER_LEN - ip_header;
        emit_ip(ends.0, ends.1, PROTOCOL_TCP, 0, 32 + payload, &mut bytes[free..]).unwrap();
        let tcp = &mut bytes[IPV6_HEADER_LEN..];
        tcp[..4].copy_from_slice(&[0, 80, 0x9c, 0x40]);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        (tcp[12], tcp[13]) = (8 << 4, flags);
        fill_tcp_checksum(Some(ends), tcp);
        bytes
    }

    /// Sends the datagrams and returns the packets: the segment size from the header, and the bytes.
    fn sent(ipv6: bool, datagrams: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let bytes = datagrams.concat();
        write_batch(ours.as_fd(), ipv6, STRIDE, &bytes).unwrap();
        let mut packets = Vec::new();
        let mut buffer = vec![0; 1 << 17];
        while let Ok(len) = theirs.recv(&mut buffer) {
            let size = u16::from_ne_bytes([buffer[4], buffer[5]]);
            packets.push((size, buffer[VirtioHeader::LEN..len].to_vec()));
        }
        packets
    }

    #[test]
    fn contiguous_segments_become_one_packet_up_to_a_push() {
        for ipv6 in [false, true] {
            let mut batch: Vec<_> = (0..4)
                .map(|n| datagram(ipv6, (u32::MAX - 150).wrapping_add(100 * n), 100, ACK))
                .collect();
            batch.push(datagram(ipv6, (u32::MAX - 150).wrapping_add(400), 30, ACK | PUSH));
            let packets = sent(ipv6, &batch);
            assert_eq!(packets.len(), 1);
            let (size, packet) = &packets[0];
            assert_eq!(*size, 100);
            let arrived = parse_tcp(packet).expect("TCP");
            let ends = (arrived.source.ip(), arrived.destination);
            assert_eq!(arrived.segment.len(), 32 + 430);
            assert_eq!(arrived.segment[13], ACK | PUSH);
            let bare = !tcp_pseudo_header(Some(ends), arrived.segment.len()).finish();
            assert_eq!(arrived.segment[CHECKSUM..CHECKSUM + 2], bare.to_be_bytes());
            let payload: Vec<u8> =
                batch.iter().flat_map(|d| d[IPV6_HEADER_LEN + 32..].to_vec()).collect();
            assert_eq!(arrived.segment[32..], payload);
        }
    }

    #[test]
    fn segments_a_card_would_not_join_stay_separate() {
        let plain = |sequence| datagram(false, sequence, 100, ACK);
        let mut other_window = plain(100);
        other_window[IPV6_HEADER_LEN + 15] ^= 1;
        let mut other_port = plain(100);
        other_port[IPV6_HEADER_LEN + 1] ^= 1;
        for (second, why) in [
            (plain(101), "a gap"),
            (plain(0), "again"),
            (other_window, "another window"),
            (other_port, "another connection"),
            (datagram(false, 100, 0, ACK), "an empty segment"),
            (datagram(false, 100, 100, ACK | 0x20), "urgent"),
        ] {
            let packets = sent(false, &[plain(0), second]);
            assert_eq!(packets.len(), 2, "{why}");
            for (size, packet) in packets {
                let arrived = parse_tcp(&packet).expect("TCP");
                let ends = (arrived.source.ip(), arrived.destination);
                assert_eq!(size, 0);
                assert!(
                    why.starts_with("another") || verify_tcp_checksum(Some(ends), arrived.segment)
                );
            }
        }
        let ended = sent(false, &[datagram(false, 0, 100, ACK | FIN), plain(100)]);
        assert_eq!(ended.len(), 2);
        let syn = sent(false, &[datagram(false, 0, 100, 0x02), plain(100)]);
        assert_eq!(syn.len(), 2);
    }

    #[test]
    fn packets_are_at_most_64_kilobytes_and_nothing_is_lost() {
        let batch: Vec<_> = (0..150).map(|n| datagram(true, 100 * n, 100, ACK)).collect();
        let packets = sent(true, &batch);
        assert_eq!(packets.len(), 3, "at most 64 segments");
        let bytes: usize = packets.iter().map(|(_, packet)| packet.len() - 72).sum();
        assert_eq!(bytes, 15_000);
        // Malformed packets are not combined.
        let rubbish = sent(false, &[vec![7; 25], vec![]]);
        assert_eq!(rubbish.len(), 1);
    }
}
