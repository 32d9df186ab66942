//! Name resolution over one interface, with the resolvers of that interface's network.
//!
//! The system's own resolution asks one resolver at a time, over any route to it. If that route has failed, the answer
//! takes many seconds, although another network would provide it immediately.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io;

use marline_time::Rng as _;
use marline_wire::{DNS_A, DNS_AAAA, DNS_HEADER_LEN, dns_answers};
use socket2::Domain;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use super::interface_resolvers;
use crate::LocalEnd;
use crate::random::SecretRng;
use crate::sys::socket;

/// Maximum length in bytes of a name (RFC 1035), and of one of its labels.
const MAX_NAME_LEN: usize = 253;
const MAX_LABEL: usize = 63;
/// Maximum number of records read from an answer, including aliases.
const MAX_RECORDS: usize = 32;
/// Maximum number of addresses used from an answer.
const ADDRESS_LIMIT: usize = 16;
/// Maximum answer length in bytes.
pub(super) const MAX_ANSWER_BYTES: usize = 1_500;
/// Number of attempts with all resolvers, and the time to wait after each attempt.
pub(super) const ATTEMPTS: u32 = 3;
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Response code for a name that does not exist.
pub(super) const NXDOMAIN: u8 = 3;
/// Pause after a socket error, so that a failing socket does not cause a busy loop.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// Looks up the IPv4 and IPv6 addresses of a host with the resolvers of an interface's network. Queries them over that
/// interface for at most three seconds. The result is empty if no resolver is known, none answers, or the name has no
/// address.
///
/// # Errors
/// Fails if the name is not valid or no socket can be opened on the interface.
pub async fn lookup_over(end: &LocalEnd, host: &str) -> io::Result<Vec<IpAddr>> {
    let resolvers = interface_resolvers(&end.interface.0, end.interface.1);
    let reachable = |to: &&SocketAddr| to.is_ipv4() == end.bound.is_ipv4();
    let resolvers: Vec<SocketAddr> = resolvers.iter().filter(reachable).copied().collect();
    let [a, b, c, d, ..] = SecretRng::from_os()?.next_u32().to_ne_bytes();
    let mut questions =
        [NameQuery::new([a, b], host, DNS_A)?, NameQuery::new([c, d], host, DNS_AAAA)?];
    if resolvers.is_empty() {
        return Ok(Vec::new());
    }
    let socket = open_socket(end)?;
    for _ in 0..ATTEMPTS {
        for question in questions.iter().filter(|question| question.addresses.is_none()) {
            for resolver in &resolvers {
                // A resolver that is unreachable over this interface does not answer.
                let _ = socket.send_to(&question.bytes, resolver).await;
            }
        }
        read_answers(&socket, &resolvers, &mut questions).await;
        if questions.iter().any(|question| question.addresses.is_some()) {
            break;
        }
    }
    Ok(questions.into_iter().filter_map(|question| question.addresses).flatten().collect())
}

/// Query, and the addresses in its answer.
struct NameQuery {
    bytes: Vec<u8>,
    kind: u16,
    addresses: Option<Vec<IpAddr>>,
}

impl NameQuery {
    fn new(id: [u8; 2], host: &str, kind: u16) -> io::Result<NameQuery> {
        Ok(NameQuery { bytes: dns_query(id, host, kind)?, kind, addresses: None })
    }

    /// Processes an answer to this query. Error codes of a resolver are ignored.
    fn process_answer(&mut self, answer: &[u8]) {
        if matches!(response_code(&self.bytes, answer), Some(0 | NXDOMAIN)) {
            let records = dns_answers(answer).take(MAX_RECORDS).map_while(|record| record);
            let of_kind = records.filter(|record| record.kind == self.kind);
            let found = of_kind.filter_map(|record| record.address());
            self.addresses = Some(found.take(ADDRESS_LIMIT).collect());
        }
    }
}

/// Reads until all queries are answered or the time has expired.
async fn read_answers(socket: &UdpSocket, resolvers: &[SocketAddr], questions: &mut [NameQuery]) {
    let until = Instant::now() + ANSWER_TIMEOUT;
    let mut buffer = [0; MAX_ANSWER_BYTES];
    while questions.iter().any(|question| question.addresses.is_none()) {
        let Some(len) = receive_from(socket, resolvers, until, &mut buffer).await else { return };
        for question in questions.iter_mut() {
            question.process_answer(&buffer[..len]);
        }
    }
}

/// Receives the next datagram from one of these resolvers and returns its length. Returns `None` if the time has
/// expired.
pub(super) async fn receive_from(
    socket: &UdpSocket,
    resolvers: &[SocketAddr],
    until: Instant,
    buffer: &mut [u8],
) -> Option<usize> {
    loop {
        match timeout_at(until, socket.recv_from(buffer)).await.ok()? {
            Ok((len, from)) => {
                if resolvers.iter().any(|r| (r.ip(), r.port()) == (from.ip(), from.port())) {
                    return Some(len);
                }
            }
            // An ICMP error about one resolver; each error is reported once.
            Err(_) => tokio::time::sleep(ERROR_PAUSE).await,
        }
    }
}

/// Returns the response code of an answer, or `None` if it does not answer this query.
pub(super) fn response_code(query: &[u8], answer: &[u8]) -> Option<u8> {
    let asked = answer.get(DNS_HEADER_LEN..query.len())?;
    let is_answer = answer[..2] == query[..2] && answer[2] & 0x80 != 0 && answer[4..6] == [0, 1];
    let is_to_this = asked.eq_ignore_ascii_case(&query[DNS_HEADER_LEN..]);
    (is_answer && is_to_this).then_some(answer[3] & 0x0f)
}

/// Builds a query for records of this type (RFC 1035, 4.1), with recursion desired.
///
/// # Errors
/// Fails if the name is not valid.
pub fn dns_query(id: [u8; 2], host: &str, kind: u16) -> io::Result<Vec<u8>> {
    let host = host.trim_end_matches('.');
    let labels = host.split('.');
    let fits = |label: &str| (1..=MAX_LABEL).contains(&label.len()) && label.is_ascii();
    if host.len() > MAX_NAME_LEN || !labels.clone().all(fits) {
        let text = format!("{host:?} is not a valid host name");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    // One question, no records.
    let mut query = [&id[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in labels {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    Ok(query)
}

/// Opens a UDP socket whose packets use the interface of `end`.
pub(super) fn open_socket(end: &LocalEnd) -> io::Result<UdpSocket> {
    let options = end.socket_options();
    let socket = socket::udp_socket(Domain::for_address(options.local))?;
    if let Some((name, index)) = &options.interface {
        socket::bind_to_interface(&socket, name, *index, options.local.is_ipv6())?;
    }
    socket::set_mark(&socket, options.mark)?;
    socket.bind(&options.local.into())?;
    UdpSocket::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(question: &NameQuery, code: u8, records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = question.bytes.clone();
        bytes[2] |= 0x80;
        bytes[3] = code;
        bytes[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        for (kind, data) in records {
            bytes.extend([0xc0, 12]);
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1, 0, 0, 0, 60]);
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(*data);
        }
        bytes
    }

    fn question(kind: u16) -> NameQuery {
        NameQuery::new([7, 9], "Server.example.", kind).unwrap()
    }

    #[test]
    fn addresses_behind_an_alias_are_read_and_other_families_are_not() {
        let mut asked = question(DNS_A);
        let ipv6 = [0x20; 16];
        let records = [(5, &b"\x00"[..]), (DNS_A, &[192, 0, 2, 1]), (DNS_AAAA, &ipv6)];
        asked.process_answer(&answer(&question(DNS_A), 0, &records));
        assert_eq!(asked.addresses, Some(vec!["192.0.2.1".parse().unwrap()]));
        let mut asked = question(DNS_AAAA);
        asked.process_answer(&answer(&question(DNS_AAAA), 3, &[]));
        assert_eq!(asked.addresses, Some(Vec::new()), "there is no such name");
    }

    #[test]
    fn only_an_answer_to_this_question_counts() {
        let good = answer(&question(DNS_A), 0, &[(DNS_A, &[192, 0, 2, 1])]);
        for (at, byte) in [(0, 1), (2, 0), (3, 2), (5, 2), (13, b'x')] {
            let (mut bad, mut asked) = (good.clone(), question(DNS_A));
            bad[at] = byte;
            asked.process_answer(&bad);
            assert_eq!(asked.addresses, None, "byte {at}");
        }
        for len in 0..good.len() {
            let mut asked = question(DNS_A);
            asked.process_answer(&good[..len]);
            assert!(asked.addresses.is_none_or(|found| found.is_empty()), "{len} bytes");
        }
    }

    #[test]
    fn names_are_encoded_or_refused() {
        let query = dns_query([7, 9], "a.bc", DNS_AAAA).unwrap();
        assert_eq!(query[..4], [7, 9, 1, 0]);
        assert_eq!(&query[DNS_HEADER_LEN..], b"\x01a\x02bc\x00\x00\x1c\x00\x01");
        for bad in ["", "a..b", "\u{e4}.example", &"x".repeat(64), &"a.".repeat(200)] {
            assert!(dns_query([7, 9], bad, DNS_A).is_err(), "{bad}");
        }
    }

    #[test]
    fn mutated_answers_do_not_panic() {
        let good = answer(&question(DNS_A), 0, &[(5, &[3; 40]), (DNS_A, &[1, 2, 3, 4])]);
        let mut rng = marline_time::PcgRng::new(13, 1);
        for _ in 0..20_000 {
            let bytes = crate::mutation::mutate(&mut rng, &good);
            question(DNS_A).process_answer(&bytes);
        }
    }
}
