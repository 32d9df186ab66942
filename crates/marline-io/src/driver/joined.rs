//! Segments of one connection that a TUN interface takes as a single packet.
//!
//! A write per segment is most of the work for a host behind the interface. The kernel takes what belongs together
//! at once, as if a network card had joined it (GRO): one header, all payloads, and in front the size of the
//! segments. Only what a card would join is joined: segments in sequence that differ in nothing but their checksum,
//! and of which none but the last is shorter, or pushes, or ends the stream.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use marline_wire::{Checksum, IPV4_HEADER_LEN, IPV6_HEADER_LEN, tcp_pseudo_header};

use super::socket::SendError;
use crate::sys::tun::VirtioHeader;

/// Segments of a packet: it has at most 64 kB.
const MOST: usize = 64;
const LONGEST: usize = 65_535;
/// Bytes of IP and TCP headers at most.
const HEADERS: usize = IPV6_HEADER_LEN + 60;
/// Offsets in a TCP header.
const SEQUENCE: usize = 4;
const LENGTH: usize = 12;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
const URGENT: usize = 18;
const FIN: u8 = 0x01;
const PUSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// Writes the packets of a batch. Headers have been written into the room in front of each segment, of which an IPv4
/// header uses the end.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    ipv6: bool,
    stride: usize,
    bytes: &[u8],
) -> Result<(), SendError> {
    let ip_header = if ipv6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
    let free = IPV6_HEADER_LEN - ip_header;
    let stride = if stride == 0 { bytes.len().max(1) } else { stride };
    let mut packets = bytes.chunks(stride).map(|datagram| datagram.get(free..).unwrap_or_default());
    let mut group: Group<'_> = Group::new(ip_header);
    let mut sent = 0;
    let mut next = packets.next();
    while let Some(packet) = next {
        if group.takes(packet) {
            next = packets.next();
            continue;
        }
        sent += flush(&mut group, fd, sent, stride)?;
    }
    flush(&mut group, fd, sent, stride)?;
    Ok(())
}

/// Writes what was joined; the bytes of the batch that it stood for.
fn flush(
    group: &mut Group<'_>,
    fd: BorrowedFd<'_>,
    sent: usize,
    stride: usize,
) -> Result<usize, SendError> {
    let count = group.count;
    match group.write(fd) {
        Ok(()) => Ok(count * stride),
        Err(error) => Err(SendError { error: error.into(), sent }),
    }
}

/// Packets that go as one.
struct Group<'a> {
    ip_header: usize,
    first: &'a [u8],
    payloads: [&'a [u8]; MOST],
    count: usize,
    /// Bytes of headers of the first.
    headers: usize,
    /// Bytes of payload of all.
    bytes: usize,
    flags: u8,
    /// None can follow.
    closed: bool,
}

impl<'a> Group<'a> {
    fn new(ip_header: usize) -> Group<'a> {
        Group {
            ip_header,
            first: &[],
            payloads: [&[]; MOST],
            count: 0,
            headers: 0,
            bytes: 0,
            flags: 0,
            closed: false,
        }
    }

    /// Takes a packet, if it is the first or follows those that are there.
    fn takes(&mut self, packet: &'a [u8]) -> bool {
        if self.count == 0 {
            self.begin(packet);
            return true;
        }
        let Some(payload) = self.following(packet) else { return false };
        self.flags |= packet[self.ip_header + FLAGS];
        self.payloads[self.count] = payload;
        self.count += 1;
        self.bytes += payload.len();
        self.closed =
            payload.len() < self.payloads[0].len() || ends(packet[self.ip_header + FLAGS]);
        true
    }

    fn begin(&mut self, packet: &'a [u8]) {
        let tcp = packet.get(self.ip_header..).unwrap_or_default();
        let tcp_header = tcp.get(LENGTH).map_or(usize::MAX, |byte| usize::from(byte >> 4) * 4);
        let payload = tcp.get(tcp_header..).unwrap_or_default();
        let flags = tcp.get(FLAGS).copied().unwrap_or_default();
        self.first = packet;
        self.headers = packet.len() - payload.len();
        self.payloads[0] = payload;
        (self.count, self.bytes, self.flags) = (1, payload.len(), flags);
        // Whatever is no plain data stands for itself.
        self.closed = payload.is_empty() || flags & !PUSH != ACK || ends(flags);
    }

    /// The payload of a packet that follows.
    fn following(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        if self.closed || self.count == MOST || packet.len() <= self.headers {
            return None;
        }
        let (ours, theirs) = (&self.first[self.ip_header..self.headers], &packet[self.ip_header..]);
        let (payload, header) = (&packet[self.headers..], &theirs[..ours.len()]);
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
        let fits = payload.len() <= self.payloads[0].len()
            && self.headers + self.bytes + payload.len() <= LONGEST;
        (same && in_sequence && fits).then_some(payload)
    }

    /// Writes it, and is empty again.
    fn write(&mut self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let count = core::mem::take(&mut self.count);
        if count == 0 {
            return Ok(());
        }
        if count == 1 || self.headers > HEADERS {
            let header = VirtioHeader::default().to_bytes();
            let parts = [IoSlice::new(&header), IoSlice::new(self.first)];
            return rustix::io::writev(fd, &parts).map(drop);
        }
        let mut headers = [0; HEADERS];
        let headers = &mut headers[..self.headers];
        headers.copy_from_slice(&self.first[..self.headers]);
        self.join_headers(headers);
        let ipv6 = self.ip_header == IPV6_HEADER_LEN;
        let virtio = VirtioHeader {
            checksum: (self.ip_header as u16, CHECKSUM as u16),
            segments: Some((self.payloads[0].len() as u16, ipv6)),
            header_len: self.headers as u16,
        };
        let virtio = virtio.to_bytes();
        let mut parts = [IoSlice::new(&[]); MOST + 2];
        (parts[0], parts[1]) = (IoSlice::new(&virtio), IoSlice::new(headers));
        for (part, payload) in parts[2..].iter_mut().zip(&self.payloads[..count]) {
            *part = IoSlice::new(payload);
        }
        rustix::io::writev(fd, &parts[..count + 2]).map(drop)
    }

    /// Makes the headers those of all: length, flags, and the checksums.
    fn join_headers(&self, headers: &mut [u8]) {
        let (ip, tcp) = headers.split_at_mut(self.ip_header);
        let tcp_len = tcp.len() + self.bytes;
        let ends = if self.ip_header == IPV6_HEADER_LEN {
            ip[4..6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
            let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).unwrap_or_default();
            (address(8).into(), address(24).into())
        } else {
            let len = self.ip_header + tcp_len;
            ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            ip[10..12].fill(0);
            let checksum = Checksum::of(ip).finish();
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap_or_default();
            (address(12).into(), address(16).into())
        };
        tcp[FLAGS] = self.flags;
        // The sum of the pseudo-header alone: the rest is whose card this is pretended to be.
        let bare = !tcp_pseudo_header(Some(ends), tcp_len).finish();
        tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&bare.to_be_bytes());
    }
}

const fn ends(flags: u8) -> bool {
    flags & (PUSH | FIN) != 0
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use marline_wire::{PROTOCOL_TCP, emit_ip, fill_tcp_checksum, verify_tcp_checksum};

    use super::*;
    use crate::native::tcp_of;

    const STRIDE: usize = IPV6_HEADER_LEN + 32 + 100;

    /// A segment in the room that the core leaves for it.
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
        emit_ip(ends, PROTOCOL_TCP, 0, 32 + payload, &mut bytes[free..]).unwrap();
        let tcp = &mut bytes[IPV6_HEADER_LEN..];
        tcp[..4].copy_from_slice(&[0, 80, 0x9c, 0x40]);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        (tcp[12], tcp[13]) = (8 << 4, flags);
        fill_tcp_checksum(Some(ends), tcp);
        bytes
    }

    /// What comes out for these: size of segments in the header, and the packet.
    fn sent(ipv6: bool, datagrams: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let bytes = datagrams.concat();
        send(ours.as_fd(), ipv6, STRIDE, &bytes).unwrap();
        let mut packets = Vec::new();
        let mut buffer = vec![0; 1 << 17];
        while let Ok(len) = theirs.recv(&mut buffer) {
            let size = u16::from_ne_bytes([buffer[4], buffer[5]]);
            packets.push((size, buffer[VirtioHeader::LEN..len].to_vec()));
        }
        packets
    }

    #[test]
    fn what_follows_is_one_packet_and_ends_with_what_pushes() {
        for ipv6 in [false, true] {
            let mut batch: Vec<_> = (0..4)
                .map(|n| datagram(ipv6, (u32::MAX - 150).wrapping_add(100 * n), 100, ACK))
                .collect();
            batch.push(datagram(ipv6, (u32::MAX - 150).wrapping_add(400), 30, ACK | PUSH));
            let packets = sent(ipv6, &batch);
            assert_eq!(packets.len(), 1);
            let (size, packet) = &packets[0];
            assert_eq!(*size, 100);
            let arrived = tcp_of(packet).expect("TCP");
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
    fn what_a_card_would_not_join_stands_for_itself() {
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
            (datagram(false, 100, 0, ACK), "nothing in it"),
            (datagram(false, 100, 100, ACK | 0x20), "urgent"),
        ] {
            let packets = sent(false, &[plain(0), second]);
            assert_eq!(packets.len(), 2, "{why}");
            for (size, packet) in packets {
                let arrived = tcp_of(&packet).expect("TCP");
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
    fn a_packet_has_64_kilobytes_at_most_and_nothing_is_lost() {
        let batch: Vec<_> = (0..150).map(|n| datagram(true, 100 * n, 100, ACK)).collect();
        let packets = sent(true, &batch);
        assert_eq!(packets.len(), 3, "of 64 segments");
        let bytes: usize = packets.iter().map(|(_, packet)| packet.len() - 72).sum();
        assert_eq!(bytes, 15_000);
        // Nor is anything made of what is no packet.
        let rubbish = sent(false, &[vec![7; 25], vec![]]);
        assert_eq!(rubbish.len(), 1);
    }
}
