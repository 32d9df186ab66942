//! Datagrams of a UDP association (RFC 1928 section 7), each with a header in front.
//!
//! ```text
//! reserved u16 | fragment u8 | kind u8 | address | port u16 | payload
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::target::{Host, Target};

/// Longest header in bytes: the one with the longest name.
pub const MAX_HEADER_LEN: usize = 4 + 1 + 255 + 2;

/// Reason for dropping a datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDatagram {
    /// The datagram is a fragment. Fragments would have to be reassembled, and applications do not send them.
    #[error("fragments are not supported")]
    Fragment,
    /// The header is missing, or its address is invalid.
    #[error("the SOCKS header is missing")]
    Header,
}

/// Returns the destination and payload of a datagram.
///
/// # Errors
/// The datagram has to be dropped.
pub fn parse(datagram: &[u8]) -> Result<(Target, &[u8]), BadDatagram> {
    let [_, _, fragment, kind, rest @ ..] = datagram else { return Err(BadDatagram::Header) };
    if *fragment != 0 {
        return Err(BadDatagram::Fragment);
    }
    let bad = || BadDatagram::Header;
    let (host, rest) = match kind {
        1 => {
            let (octets, rest) = rest.split_first_chunk::<4>().ok_or_else(bad)?;
            (Host::V4(Ipv4Addr::from(*octets)), rest)
        }
        3 => {
            let (length, rest) = rest.split_first().ok_or_else(bad)?;
            let (name, rest) = rest.split_at_checked(usize::from(*length)).ok_or_else(bad)?;
            let name = std::str::from_utf8(name).map_err(|_| bad())?;
            (Host::parse(name).map_err(|_| bad())?, rest)
        }
        4 => {
            let (octets, rest) = rest.split_first_chunk::<16>().ok_or_else(bad)?;
            (Host::V6(Ipv6Addr::from(*octets)), rest)
        }
        _ => return Err(bad()),
    };
    let (port, payload) = rest.split_first_chunk().ok_or_else(bad)?;
    let target = Target::new(host, u16::from_be_bytes(*port)).map_err(|_| bad())?;
    Ok((target, payload))
}

/// Writes a datagram from a peer to `out`, replacing its contents.
pub fn write(from: &Target, payload: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0, 0, 0]);
    from.host.encode(out);
    out.extend_from_slice(&from.port.to_be_bytes());
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_kind_of_address_is_read_back() {
        let mut datagram = Vec::new();
        for peer in ["192.0.2.1:53", "[2001:db8::1]:443", "example.org:3478"] {
            let peer: Target = peer.parse().unwrap();
            write(&peer, b"x", &mut datagram);
            assert!(datagram.len() <= MAX_HEADER_LEN + 1);
            assert_eq!(parse(&datagram), Ok((peer, &b"x"[..])));
        }
    }

    #[test]
    fn fragments_and_datagrams_without_a_header_are_dropped() {
        let mut datagram = Vec::new();
        write(&"192.0.2.1:53".parse().unwrap(), b"", &mut datagram);
        for len in 0..datagram.len() {
            assert_eq!(parse(&datagram[..len]), Err(BadDatagram::Header), "{len} bytes");
        }
        for fragment in [1, 0x80] {
            datagram[2] = fragment;
            assert_eq!(parse(&datagram), Err(BadDatagram::Fragment));
        }
        for bad in [
            &[0, 0, 0, 1, 192, 0, 2, 1, 0, 0][..],
            &[0, 0, 0, 2, 192, 0, 2, 1, 0, 53],
            &[0, 0, 0, 3, 0, 0, 53],
            &[0, 0, 0, 3, 1, b' ', 0, 53],
        ] {
            assert_eq!(parse(bad), Err(BadDatagram::Header), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }
    }
}
