//! Order of attempts among the addresses of servers.

use core::net::SocketAddr;

use marline_io::Prefix64;

/// Returns the addresses in the order of attempts, without translation: with DNS64, a resolver synthesizes addresses
/// with one of these prefixes, which are valid only in its own network.
pub(super) fn in_order(servers: &[SocketAddr], prefixes: &[Prefix64]) -> Vec<SocketAddr> {
    let mut plain: Vec<SocketAddr> = Vec::with_capacity(servers.len());
    for server in servers {
        let mut back = prefixes.iter().map(|prefix| prefix.translate_back(*server));
        let server = back.find(SocketAddr::is_ipv4).unwrap_or(*server);
        if !plain.contains(&server) {
            plain.push(server);
        }
    }
    interleave_families(&plain)
}

/// Orders the servers as in RFC 8305 section 4: the families take turns, beginning with that of the first server.
fn interleave_families(servers: &[SocketAddr]) -> Vec<SocketAddr> {
    let first = servers.first().is_some_and(SocketAddr::is_ipv4);
    let (some, others): (Vec<_>, Vec<_>) =
        servers.iter().copied().partition(|server| server.is_ipv4() == first);
    let (mut some, mut others) = (some.into_iter(), others.into_iter());
    let mut mixed = Vec::with_capacity(servers.len());
    while mixed.len() < servers.len() {
        mixed.extend(some.next());
        mixed.extend(others.next());
    }
    mixed
}
