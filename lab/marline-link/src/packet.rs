//! Packet properties that a link model depends on.

/// A packet from the link's point of view: a number of bytes that can be damaged.
pub trait Packet: Clone {
    /// Size of the packet on the link in bytes, including lower headers.
    fn wire_len(&self) -> usize;

    /// Bytes that corruption may change, possibly fewer than `wire_len` or none.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// The TCP segment (header and payload) in the packet. `None` if there is none or only a fragment.
    fn tcp_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    /// True for competing traffic of other hosts, which does not wake the host's radio.
    fn is_foreign(&self) -> bool {
        false
    }

    /// Returns the same packet with another TCP segment. `None` if that is not possible.
    fn with_tcp(&self, segment: &[u8]) -> Option<Self> {
        let _ = segment;
        None
    }

    /// Returns a packet with this TCP segment, addressed to the sender of this packet. `None` if that is not possible.
    fn answer(&self, segment: &[u8]) -> Option<Self> {
        let _ = segment;
        None
    }

    /// Creates a router's notice to the sender of this packet that a link accepts IP packets of at most `mtu_bytes`.
    /// `None` if routers send none.
    fn too_big(&self, mtu_bytes: u32) -> Option<Self> {
        let _ = mtu_bytes;
        None
    }
}

/// Creates an IP packet like `packet` with another TCP segment, and with corrected lengths and checksum. If `back`,
/// the addresses are exchanged. `None` if `packet` is not an IP packet, or the result would be too long.
#[must_use]
pub fn replace_tcp(packet: &[u8], segment: &[u8], back: bool) -> Option<Vec<u8>> {
    const V4_CHECKSUM: core::ops::Range<usize> = 10..12;
    let version = packet.first()? >> 4;
    let header = match version {
        4 => usize::from(packet[0] & 15) * 4,
        _ => 40,
    };
    let mut made = packet.get(..header)?.to_vec();
    made.extend_from_slice(segment);
    let addresses = match version {
        4 if header >= 20 => {
            let total = u16::try_from(made.len()).ok()?;
            made[2..4].copy_from_slice(&total.to_be_bytes());
            12
        }
        6 => {
            let payload = u16::try_from(segment.len()).ok()?;
            made[4..6].copy_from_slice(&payload.to_be_bytes());
            8
        }
        _ => return None,
    };
    if back {
        let length = if version == 4 { 4 } else { 16 };
        let (from, to) = made[addresses..addresses + 2 * length].split_at_mut(length);
        from.swap_with_slice(to);
    }
    if version == 4 {
        made[V4_CHECKSUM].fill(0);
        let checksum = checksum(&[&made[..header]]);
        made[V4_CHECKSUM].copy_from_slice(&checksum);
    }
    Some(made)
}

/// The Internet checksum over these pieces, all of even length except possibly the last.
fn checksum(pieces: &[&[u8]]) -> [u8; 2] {
    let words = pieces.iter().flat_map(|piece| piece.chunks(2));
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Creates a router's answer to an IP packet that is too large for a link with this MTU: ICMP "fragmentation needed"
/// (RFC 1191), or ICMPv6 "packet too big" (RFC 4443 section 3.2). Its source is the packet's destination, because
/// routers have no addresses here. `None` if the bytes are not an IP packet, for an IPv4 packet that may be
/// fragmented, and for ICMP, because errors are not answered with errors.
#[must_use]
pub fn make_packet_too_big(packet: &[u8], mtu_bytes: u32) -> Option<Vec<u8>> {
    const DONT_FRAGMENT: u8 = 0x40;
    const TTL: u8 = 64;
    /// IPv4: header and 64 bits (RFC 792). IPv6: as much as fits into its minimum MTU.
    const QUOTED_V4: usize = 8;
    const MIN_MTU_V6: usize = 1_280;
    let (first, mtu) = (packet.first()?, mtu_bytes.min(65_535).to_be_bytes());
    match first >> 4 {
        4 if packet.len() >= 20 && packet[6] & DONT_FRAGMENT != 0 && packet[9] != ICMP => {
            let header = usize::from(first & 15) * 4;
            let quoted = packet.get(..header + QUOTED_V4)?;
            let mut made = vec![0x45, 0, 0, 0, 0, 0, 0, 0, TTL, ICMP, 0, 0];
            made.extend_from_slice(&packet[16..20]);
            made.extend_from_slice(&packet[12..16]);
            made.extend_from_slice(&[3, 4, 0, 0, 0, 0, mtu[2], mtu[3]]);
            made.extend_from_slice(quoted);
            let length = (made.len() as u16).to_be_bytes();
            made[2..4].copy_from_slice(&length);
            let (ip, icmp) = (checksum(&[&made[..20]]), checksum(&[&made[20..]]));
            made[10..12].copy_from_slice(&ip);
            made[22..24].copy_from_slice(&icmp);
            Some(made)
        }
        6 if packet.len() >= 40 && packet[6] != ICMP_V6 => {
            let quoted = &packet[..packet.len().min(MIN_MTU_V6 - 48)];
            let length = (quoted.len() as u16 + 8).to_be_bytes();
            let mut made = vec![0x60, 0, 0, 0, length[0], length[1], ICMP_V6, TTL];
            made.extend_from_slice(&packet[24..40]);
            made.extend_from_slice(&packet[8..24]);
            made.extend_from_slice(&[2, 0, 0, 0]);
            made.extend_from_slice(&mtu);
            made.extend_from_slice(quoted);
            let pseudo_header = [0, 0, length[0], length[1], 0, 0, 0, ICMP_V6];
            let icmp = checksum(&[&made[8..40], &pseudo_header, &made[40..]]);
            made[42..44].copy_from_slice(&icmp);
            Some(made)
        }
        _ => None,
    }
}

/// Protocol numbers.
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;

/// The TCP segment in an IP packet. `None` if it contains something else or a fragment. IPv6 extension headers are not
/// skipped.
#[must_use]
pub fn find_tcp(packet: &mut [u8]) -> Option<&mut [u8]> {
    const TCP: u8 = 6;
    const IPV6_HEADER: usize = 40;
    // More fragments follow, or this is not the first.
    const FRAGMENT: u16 = 0x3fff;
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => {
            let fragment = u16::from_be_bytes([packet[6], packet[7]]) & FRAGMENT != 0;
            let header = usize::from(packet[0] & 15) * 4;
            if fragment || packet[9] != TCP || header < 20 {
                None
            } else {
                packet.get_mut(header..)
            }
        }
        6 if packet.get(6) == Some(&TCP) => packet.get_mut(IPV6_HEADER..),
        _ => None,
    }
}

impl Packet for Vec<u8> {
    fn wire_len(&self) -> usize {
        self.len()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl<P: Packet> Packet for Box<P> {
    fn wire_len(&self) -> usize {
        (**self).wire_len()
    }

    fn is_foreign(&self) -> bool {
        (**self).is_foreign()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        (**self).bytes_mut()
    }

    fn tcp_mut(&mut self) -> Option<&mut [u8]> {
        (**self).tcp_mut()
    }

    fn with_tcp(&self, segment: &[u8]) -> Option<Self> {
        (**self).with_tcp(segment).map(Box::new)
    }

    fn answer(&self, segment: &[u8]) -> Option<Self> {
        (**self).answer(segment).map(Box::new)
    }

    fn too_big(&self, mtu_bytes: u32) -> Option<Self> {
        (**self).too_big(mtu_bytes).map(Box::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_found_after_both_headers() {
        let mut v4 = vec![0; 30];
        (v4[0], v4[9], v4[24]) = (0x46, 6, 77);
        assert_eq!(find_tcp(&mut v4).expect("TCP"), [77, 0, 0, 0, 0, 0]);
        v4[7] = 1;
        assert!(find_tcp(&mut v4).is_none(), "a fragment");
        v4[6..8].copy_from_slice(&[0x40, 0]);
        assert!(find_tcp(&mut v4).is_some(), "may not be fragmented");
        v4[9] = 17;
        assert!(find_tcp(&mut v4).is_none(), "UDP");
        let mut v6 = vec![0; 42];
        (v6[0], v6[6], v6[41]) = (0x60, 6, 5);
        assert_eq!(find_tcp(&mut v6).expect("TCP"), [0, 5]);
        for length in 0..42 {
            let _ = find_tcp(&mut v6[..length]);
        }
    }

    #[test]
    fn a_router_answers_oversized_packets_with_icmp() {
        let mut v4 = vec![7; 1_500];
        (v4[0], v4[6], v4[9]) = (0x45, 0x40, 6);
        v4[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let said = make_packet_too_big(&v4, 1_280).expect("a message");
        assert_eq!((said.len(), &said[2..4], said[9]), (56, &[0, 56][..], ICMP));
        assert_eq!(said[12..20], [10, 0, 0, 2, 10, 0, 0, 1], "back to the sender");
        assert_eq!(said[20..22], [3, 4], "fragmentation needed");
        assert_eq!(said[26..28], 1_280_u16.to_be_bytes());
        assert_eq!(said[28..56], v4[..28], "header and eight bytes of TCP");
        assert_eq!((checksum(&[&said[..20]]), checksum(&[&said[20..]])), ([0; 2], [0; 2]));
        v4[6] = 0;
        assert_eq!(make_packet_too_big(&v4, 1_280), None, "it may be fragmented");
        assert_eq!(make_packet_too_big(&said, 40), None, "no error about an error");
        let mut v6 = vec![9; 1_500];
        (v6[0], v6[6], v6[23], v6[39]) = (0x60, 6, 1, 2);
        let said = make_packet_too_big(&v6, 1_400).expect("a message");
        assert_eq!((said.len(), said[6], said[40]), (1_280, ICMP_V6, 2));
        assert_eq!((said[23], said[39]), (2, 1), "back to the sender");
        assert_eq!(said[44..48], 1_400_u32.to_be_bytes());
        let pseudo_header = [0, 0, said[4], said[5], 0, 0, 0, ICMP_V6];
        assert_eq!(checksum(&[&said[8..40], &pseudo_header, &said[40..]]), [0; 2]);
        for length in 0..60 {
            let _ =
                (make_packet_too_big(&v4[..length], 576), make_packet_too_big(&v6[..length], 576));
        }
    }
}
