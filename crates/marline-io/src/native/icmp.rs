//! ICMP errors behind a TUN interface: "destination unreachable" and "packet too big" (RFC 792, RFC 1191, RFC 4443), if
//! they quote one of our TCP segments.

use core::net::{IpAddr, SocketAddr};

use marline_wire::{Checksum, IpPacket, PROTOCOL_TCP};

use crate::edge::network_error::{NetworkError, QUOTED_LEN};

const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
/// Minimum length of the quoted segment (RFC 792): ports and sequence number.
const MIN_QUOTED_BYTES: usize = 8;
/// Length of the header before the quoted packet.
const HEADER_LEN: usize = 8;

/// Parses an ICMP error about a TCP segment; `None` for any other packet.
pub(crate) fn parse_icmp_error(packet: &[u8]) -> Option<NetworkError> {
    let ip = IpPacket::parse(packet).ok()?;
    let (header, quoted) = ip.payload.split_at_checked(HEADER_LEN)?;
    let mut sum = Checksum::new();
    if ip.protocol == PROTOCOL_ICMPV6 {
        sum.add_pseudo_header(ip.src, ip.dst, PROTOCOL_ICMPV6, ip.payload.len() as u32);
    }
    sum.add_bytes(ip.payload);
    if ip.fragment.is_some() || !sum.is_valid() {
        return None;
    }
    let [kind, code, _, _, mtu @ ..] = header else { return None };
    let mtu = u32::from_be_bytes(mtu.try_into().ok()?);
    let (errno, mtu) = match (ip.protocol, kind, code) {
        // "Fragmentation needed": only the lower half is the MTU.
        (PROTOCOL_ICMP, 3, 4) => (libc::EMSGSIZE, Some(mtu & 0xffff)),
        (PROTOCOL_ICMPV6, 2, _) => (libc::EMSGSIZE, Some(mtu)),
        (PROTOCOL_ICMP, 3, _) | (PROTOCOL_ICMPV6, 1, _) => (libc::EHOSTUNREACH, None),
        _ => return None,
    };
    let (local, remote, segment) = quoted_segment(quoted)?;
    // Both the quoted source and the destination of the message must be this host.
    if local != ip.dst {
        return None;
    }
    let quoted =
        segment.get(..segment.len().min(QUOTED_LEN)).filter(|q| q.len() >= MIN_QUOTED_BYTES)?;
    let mut beginning = [0; QUOTED_LEN];
    beginning[..quoted.len()].copy_from_slice(quoted);
    Some(NetworkError {
        remote: SocketAddr::new(remote, 0),
        local: Some(local),
        is_local: false,
        quoted: beginning,
        errno,
        mtu: mtu.filter(|mtu| *mtu > 0),
        icmp: Some((*kind, *code)),
        offender: Some(ip.src),
    })
}

/// Returns the source, destination and beginning of the segment in a truncated packet.
fn quoted_segment(quoted: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    match quoted.first()? >> 4 {
        4 => {
            let header_len = usize::from(quoted[0] & 15) * 4;
            let (src, dst) = (quoted.get(12..16)?, quoted.get(16..20)?);
            let ip = |bytes: &[u8]| Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?));
            let tcp = *quoted.get(9)? == PROTOCOL_TCP && header_len >= 20;
            Some((ip(src)?, ip(dst)?, quoted.get(header_len..).filter(|_| tcp)?))
        }
        6 => {
            let (src, dst) = (quoted.get(8..24)?, quoted.get(24..40)?);
            let ip = |bytes: &[u8]| Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?));
            // We send no extension headers.
            let tcp = quoted[6] == PROTOCOL_TCP;
            Some((ip(src)?, ip(dst)?, quoted.get(40..).filter(|_| tcp)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use marline_wire::emit_ip;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Builds an ICMP message about a segment from `us` to `them`.
    fn message(us: &str, them: &str, kind: u8, code: u8, mtu: u32) -> Vec<u8> {
        let (us, them) = (ip(us), ip(them));
        let protocol = if us.is_ipv4() { PROTOCOL_ICMP } else { PROTOCOL_ICMPV6 };
        let mut quoted = vec![0; 40];
        let len = emit_ip(us, them, PROTOCOL_TCP, 0, 1_000, &mut quoted).unwrap();
        quoted.truncate(len);
        quoted.extend([0x12, 0x34, 0, 80, 1, 2, 3, 4]);
        let mut body = vec![kind, code, 0, 0];
        body.extend(mtu.to_be_bytes());
        body.extend(&quoted);
        let mut sum = Checksum::new();
        if us.is_ipv6() {
            sum.add_pseudo_header(them, us, protocol, body.len() as u32);
        }
        sum.add_bytes(&body);
        let sum = sum.finish().to_be_bytes();
        body[2..4].copy_from_slice(&sum);
        let mut packet = vec![0; 40];
        let len = emit_ip(them, us, protocol, 0, body.len(), &mut packet).unwrap();
        packet.truncate(len);
        packet.extend(body);
        packet
    }

    #[test]
    fn messages_about_our_segments_are_read_in_both_families() {
        for (us, them, too_big, unreachable) in [
            ("192.0.2.1", "198.51.100.1", (3, 4), (3, 1)),
            ("2001:db8::1", "2001:db8::2", (2, 0), (1, 3)),
        ] {
            let error = parse_icmp_error(&message(us, them, too_big.0, too_big.1, 1_300)).unwrap();
            assert_eq!((error.errno, error.mtu), (libc::EMSGSIZE, Some(1_300)));
            assert_eq!((error.local, error.remote.ip()), (Some(ip(us)), ip(them)));
            assert_eq!(error.quoted[..8], [0x12, 0x34, 0, 80, 1, 2, 3, 4]);
            let error =
                parse_icmp_error(&message(us, them, unreachable.0, unreachable.1, 0)).unwrap();
            assert_eq!((error.errno, error.mtu), (libc::EHOSTUNREACH, None));
            assert!(parse_icmp_error(&message(us, them, 128, 0, 0)).is_none(), "not an ICMP error");
        }
    }

    #[test]
    fn damaged_and_short_icmp_messages_are_ignored() {
        let whole = message("192.0.2.1", "198.51.100.1", 3, 4, 1_300);
        for len in 0..whole.len() {
            assert!(parse_icmp_error(&whole[..len]).is_none(), "{len} bytes");
        }
        for at in 20..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(parse_icmp_error(&damaged).is_none(), "byte {at}");
        }
    }
}
