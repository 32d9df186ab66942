//! Packet properties that a link model depends on.

/// A packet as a link sees it: a number of bytes that can be damaged.
pub trait Packet: Clone {
    /// Bytes the packet takes on the link, lower headers included.
    fn wire_len(&self) -> usize;

    /// The bytes that corruption may hit; may be fewer than `wire_len`, may be none.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// The TCP segment in it, header and payload; `None` if it is none or a part of one.
    fn tcp_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    /// The same packet with another TCP segment in it; `None` where none can be put in.
    fn with_tcp(&self, segment: &[u8]) -> Option<Self> {
        let _ = segment;
        None
    }

    /// A packet with this TCP segment back to where this one came from; `None` as above.
    fn answer(&self, segment: &[u8]) -> Option<Self> {
        let _ = segment;
        None
    }
}

/// An IP packet like `packet` with another TCP segment in it, its lengths and checksum put right; with
/// the addresses exchanged if it goes `back`. `None` for what is no IP packet, or would be too long.
#[must_use]
pub fn ip_with_tcp(packet: &[u8], segment: &[u8], back: bool) -> Option<Vec<u8>> {
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
        let words = made[..header].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        made[V4_CHECKSUM].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    Some(made)
}

/// The TCP segment in an IP packet; `None` if it holds something else, or a fragment. Extension
/// headers of IPv6 are not looked behind.
#[must_use]
pub fn tcp_of_ip(packet: &mut [u8]) -> Option<&mut [u8]> {
    const TCP: u8 = 6;
    const IPV6_HEADER: usize = 40;
    // More fragments, or not the first.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_found_behind_both_headers() {
        let mut v4 = vec![0; 30];
        (v4[0], v4[9], v4[24]) = (0x46, 6, 77);
        assert_eq!(tcp_of_ip(&mut v4).expect("TCP"), [77, 0, 0, 0, 0, 0]);
        v4[7] = 1;
        assert!(tcp_of_ip(&mut v4).is_none(), "a fragment");
        v4[6..8].copy_from_slice(&[0x40, 0]);
        assert!(tcp_of_ip(&mut v4).is_some(), "may not be fragmented");
        v4[9] = 17;
        assert!(tcp_of_ip(&mut v4).is_none(), "UDP");
        let mut v6 = vec![0; 42];
        (v6[0], v6[6], v6[41]) = (0x60, 6, 5);
        assert_eq!(tcp_of_ip(&mut v6).expect("TCP"), [0, 5]);
        for length in 0..42 {
            let _ = tcp_of_ip(&mut v6[..length]);
        }
    }
}
