//! Resolution of the server's name outside the tunnel. The system's resolver sends without a mark, so its queries do
//! not leave while a kill switch is active.

use std::net::IpAddr;

use marline_io::dns_query;
use marline_wire::{DNS_A, DNS_AAAA};
use tokio::sync::mpsc;

use super::routing::MARK;
use crate::addresses::Addresses;
use crate::dns::{DirectNames, message};

const HOSTS: &str = "/etc/hosts";

/// Resolves a host with the machine's hosts file or the network's resolvers. Empty if they do not know it, or only
/// resolvers on this machine exist.
pub async fn resolve_server(host: &str) -> Vec<IpAddr> {
    let listed = parse_hosts(&std::fs::read_to_string(HOSTS).unwrap_or_default(), host);
    if !listed.is_empty() {
        return listed;
    }
    // No routes are needed: the mark is sufficient.
    let (routes, _) = mpsc::channel(1);
    let names = DirectNames::new(MARK, Addresses::default().gateway_v4.into(), routes);
    // Connected sockets with their own ports send each query once, so the message number need not be secret.
    let query = |kind: u16| dns_query([0x4d, kind as u8], host, kind);
    let (Ok(v4), Ok(v6)) = (query(DNS_A), query(DNS_AAAA)) else { return Vec::new() };
    let (v4, v6) = tokio::join!(names.answer(&v4), names.answer(&v6));
    [v4, v6].into_iter().flatten().flat_map(|answer| message::addresses(&answer)).collect()
}

/// Returns the addresses of a host in the text of a hosts file.
fn parse_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let host = host.trim_end_matches('.');
    let address = |line: &str| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
    };
    text.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_file_entries_are_read_without_comments() {
        let text = "192.0.2.1 a.example b # c\n2001:db8::1\tA.example\n# 192.0.2.9 a.example\nnonsense a.example";
        let found =
            |host| parse_hosts(text, host).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("a.example."), ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(found("B"), ["192.0.2.1"]);
        assert!(found("c").is_empty() && found("example").is_empty());
    }
}
