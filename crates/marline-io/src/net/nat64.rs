//! Discovery of a network's NAT64 prefix with its resolver (RFC 7050): `ipv4only.arpa` has only IPv4 addresses, so if
//! the resolver returns an IPv6 address, the network has synthesized it with its prefix.

use core::net::{Ipv6Addr, SocketAddr};
use std::io;

use marline_time::Rng as _;
use marline_wire::{DNS_AAAA, DnsRecord, Prefix64, dns_answers};
use tokio::time::Instant;

use super::interface_resolvers;
use super::lookup::{
    ANSWER_TIMEOUT, ATTEMPTS, MAX_ANSWER_BYTES, NXDOMAIN, dns_query, open_socket, receive_from,
    response_code,
};
use crate::LocalEnd;
use crate::random::SecretRng;

/// Name that has only IPv4 addresses.
const WELL_KNOWN: &str = "ipv4only.arpa";
/// Maximum number of records read from an answer; normally there are two.
const MAX_RECORDS: usize = 16;
/// Limits for the lifetime of an answer, in seconds.
const TTL_S: core::ops::RangeInclusive<u32> = 60..=86_400;

/// Answer from a network's resolvers about its NAT64 prefix.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PrefixAnswer {
    /// The network translates with this prefix.
    Prefix {
        /// NAT64 prefix of the network.
        prefix: Prefix64,
        /// Lifetime of the answer, in seconds.
        ttl_s: u32,
    },
    /// The network does not translate.
    None,
    /// No resolver is known, or none answered.
    Silence,
}

/// Queries the resolvers of an interface's network over that interface, for at most three seconds.
///
/// # Errors
/// Fails if no socket can be opened on the interface.
pub async fn discover_nat64(end: &LocalEnd) -> io::Result<PrefixAnswer> {
    let resolvers = interface_resolvers(&end.interface.0, end.interface.1);
    let reachable = |to: &&SocketAddr| to.is_ipv6() && end.address.is_ipv6();
    let resolvers: Vec<SocketAddr> = resolvers.iter().filter(reachable).copied().collect();
    if resolvers.is_empty() {
        return Ok(PrefixAnswer::Silence);
    }
    let socket = open_socket(end)?;
    let [first, second, ..] = SecretRng::from_os()?.next_u32().to_ne_bytes();
    let query = dns_query([first, second], WELL_KNOWN, DNS_AAAA)?;
    let mut negative = false;
    for _ in 0..ATTEMPTS {
        for resolver in &resolvers {
            // A resolver that is unreachable over this interface does not answer.
            let _ = socket.send_to(&query, resolver).await;
        }
        let until = Instant::now() + ANSWER_TIMEOUT;
        let mut buffer = [0; MAX_ANSWER_BYTES];
        while let Some(len) = receive_from(&socket, &resolvers, until, &mut buffer).await {
            match read_answer(&query, &buffer[..len]) {
                Some(found @ PrefixAnswer::Prefix { .. }) => return Ok(found),
                Some(_) => negative = true,
                None => {}
            }
        }
        if negative {
            return Ok(PrefixAnswer::None);
        }
    }
    Ok(PrefixAnswer::Silence)
}

/// Parses an answer to this query. Returns `None` if it is not a valid answer.
fn read_answer(query: &[u8], answer: &[u8]) -> Option<PrefixAnswer> {
    match response_code(query, answer)? {
        0 => {}
        NXDOMAIN => return Some(PrefixAnswer::None),
        // The resolver failed.
        _ => return None,
    }
    for record in dns_answers(answer).take(MAX_RECORDS) {
        let DnsRecord { kind, ttl_s, data, .. } = record?;
        let address = data.try_into().ok().filter(|_| kind == DNS_AAAA);
        let address = address.map(|ip: [u8; 16]| Ipv6Addr::from(ip));
        if let Some(prefix) = address.and_then(Prefix64::from_well_known_name) {
            let ttl_s = ttl_s.clamp(*TTL_S.start(), *TTL_S.end());
            return Some(PrefixAnswer::Prefix { prefix, ttl_s });
        }
    }
    Some(PrefixAnswer::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query() -> Vec<u8> {
        dns_query([7, 9], WELL_KNOWN, DNS_AAAA).unwrap()
    }

    /// Builds an answer with these records: type, TTL in seconds, data.
    fn answer(code: u8, records: &[(u16, u32, &[u8])]) -> Vec<u8> {
        let mut bytes = query();
        bytes[2] |= 0x80;
        bytes[3] = code;
        bytes[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        for (kind, ttl_s, data) in records {
            bytes.extend([0xc0, 12]);
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1]);
            bytes.extend(ttl_s.to_be_bytes());
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(*data);
        }
        bytes
    }

    #[test]
    fn an_answer_has_a_prefix_and_a_bounded_lifetime() {
        let prefix: Prefix64 = "2001:db8:64::/96".parse().unwrap();
        let made = prefix.embed([192, 0, 0, 171].into()).octets();
        let read = |ttl_s| {
            let bytes = answer(0, &[(5, 9, b"\x00"), (DNS_AAAA, ttl_s, &made)]);
            read_answer(&query(), &bytes)
        };
        assert_eq!(read(600), Some(PrefixAnswer::Prefix { prefix, ttl_s: 600 }));
        assert_eq!(read(0), Some(PrefixAnswer::Prefix { prefix, ttl_s: 60 }));
        assert_eq!(read(u32::MAX), Some(PrefixAnswer::Prefix { prefix, ttl_s: 86_400 }));
    }

    #[test]
    fn no_nat64_and_no_answer_are_distinguished() {
        let read = |bytes: &[u8]| read_answer(&query(), bytes);
        assert_eq!(read(&answer(0, &[])), Some(PrefixAnswer::None));
        assert_eq!(read(&answer(NXDOMAIN, &[])), Some(PrefixAnswer::None));
        assert_eq!(read(&answer(2, &[])), None, "SERVFAIL");
        let native: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let other = answer(0, &[(DNS_AAAA, 60, &native.octets())]);
        assert_eq!(read(&other), Some(PrefixAnswer::None), "a resolver that redirects all names");
    }

    #[test]
    fn a_foreign_or_truncated_dns_answer_is_ignored() {
        let made = Prefix64::WELL_KNOWN.embed([192, 0, 0, 170].into()).octets();
        let good = answer(0, &[(DNS_AAAA, 60, &made)]);
        assert!(matches!(read_answer(&query(), &good), Some(PrefixAnswer::Prefix { .. })));
        for (at, byte) in [(0, 1), (2, 0), (13, b'x'), (5, 2)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(read_answer(&query(), &bad), None, "byte {at}");
        }
        for len in 0..good.len() {
            let cut = read_answer(&query(), &good[..len]);
            assert!(!matches!(cut, Some(PrefixAnswer::Prefix { .. })), "{len} bytes");
        }
    }

    #[test]
    fn mutated_answers_do_not_panic() {
        let made = Prefix64::WELL_KNOWN.embed([192, 0, 0, 170].into()).octets();
        let good = answer(0, &[(5, 1, &[3; 40]), (DNS_AAAA, 60, &made), (DNS_AAAA, 60, &made)]);
        let mut rng = marline_time::PcgRng::new(11, 1);
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..4 {
                let at = 2 + rng.below(bytes.len() as u64 - 2) as usize;
                bytes[at] = rng.next_u32() as u8;
            }
            let _ = read_answer(&query(), &bytes);
        }
    }
}
