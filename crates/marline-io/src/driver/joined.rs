//! Segments of one connection that are written to a TUN interface as a single packet.
//!
//! One write per segment is most of the work for a host behind the interface. The kernel takes a whole
//! [group](super::joining) at once.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use marline_wire::{Checksum, IPV4_HEADER_LEN, IPV6_HEADER_LEN};

use super::joining::{CHECKSUM, Group, HEADERS, LONGEST};
use super::send_error::SendError;
use crate::edge::virtio::VirtioHeader;

/// Writes the packets of a batch. Their headers are in the room in front of each segment; an IPv4 header is at the
/// end of that room.
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
    let mut group: Group<'_> = Group::new(ip_header, LONGEST);
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

/// Writes the group and returns how many bytes of the batch have been sent with it.
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
    let ends = if ip_header == IPV6_HEADER_LEN {
        ip[4..6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
        let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).unwrap_or_default();
        (address(8).into(), address(24).into())
    } else {
        let len = ip_header + tcp_len;
        ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        ip[10..12].fill(0);
        let checksum = Checksum::of(ip).finish();
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap_or_default();
        (address(12).into(), address(16).into())
    };
    group.unfinished_header(ends, tcp);
    ip_header
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use marline_wire::{
        PROTOCOL_TCP, emit_ip, fill_tcp_checksum, tcp_pseudo_header, verify_tcp_checksum,
    };

    use super::*;
    use crate::driver::joining::{ACK, FIN, PUSH};
    use crate::native::tcp_of;

    const STRIDE: usize = IPV6_HEADER_LEN + 32 + 100;

    /// Builds a segment with the headroom that the core leaves.
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

    /// Sends the datagrams and returns the packets: segment size in the header, and bytes.
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
        // Malformed packets are not combined.
        let rubbish = sent(false, &[vec![7; 25], vec![]]);
        assert_eq!(rubbish.len(), 1);
    }
}
