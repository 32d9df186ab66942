//! Resolvers of an interface's own network, as recorded on this machine.
//!
//! The program that configured an interface knows the resolvers of its network. systemd-resolved stores them per link
//! and gets them from networkd, NetworkManager or dhcpcd. Other systems have one list for all networks, and only
//! queries show which resolver answers.

use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;

use super::resolv_conf;

const DNS_PORT: u16 = 53;
/// Maximum number of resolvers per network.
const MAX_RESOLVERS: usize = 4;
/// Files with the resolvers of each link: first of systemd-resolved, then of systemd-networkd.
const LINK_RESOLVER_FILES: [(&str, &str); 2] =
    [("/run/systemd/resolve/netif", "SERVERS="), ("/run/systemd/netif/links", "DNS=")];
/// Files with the resolvers of all networks.
const SHARED_RESOLVER_FILES: [&str; 3] =
    ["/run/systemd/resolve/resolv.conf", "/run/NetworkManager/resolv.conf", "/etc/resolv.conf"];

/// Returns the resolvers to query over an interface (name and index), most likely first, at most four: those of its
/// link, or else all that this machine knows. Resolvers on loopback are excluded, because they choose their own
/// routes.
#[must_use]
pub fn interface_resolvers(name: &str, index: u32) -> Vec<SocketAddr> {
    resolvers_below(Path::new("/"), name, index)
}

fn resolvers_below(root: &Path, name: &str, index: u32) -> Vec<SocketAddr> {
    let read = |path: &str| {
        std::fs::read_to_string(root.join(path.trim_start_matches('/'))).unwrap_or_default()
    };
    let mut found = Vec::new();
    for (directory, key) in LINK_RESOLVER_FILES {
        let text = read(&format!("{directory}/{index}"));
        let words = text.lines().filter_map(|line| line.strip_prefix(key));
        found.extend(
            words.flat_map(str::split_ascii_whitespace).filter_map(|w| resolver(w, name, index)),
        );
    }
    if found.is_empty() {
        for path in SHARED_RESOLVER_FILES {
            let text = read(path);
            let text = resolv_conf::network_text(&text);
            let words = resolv_conf::resolvers(&text);
            found.extend(words.filter_map(|word| resolver(word, name, index)));
        }
    }
    let mut distinct: Vec<SocketAddr> = Vec::new();
    for resolver in found {
        if !distinct.contains(&resolver) {
            distinct.push(resolver);
        }
    }
    distinct.truncate(MAX_RESOLVERS);
    distinct
}

/// Parses one resolver: `ADDRESS`, optionally with `%INTERFACE`, `#NAME` or a port, as systemd writes them.
fn resolver(word: &str, name: &str, index: u32) -> Option<SocketAddr> {
    let word = word.split('#').next().unwrap_or_default();
    if let Ok(address) = word.parse::<SocketAddr>() {
        return Some(address).filter(|address| !address.ip().is_loopback());
    }
    let (bare, zone) = word.split_once('%').map_or((word, None), |(a, zone)| (a, Some(zone)));
    let address: IpAddr = bare.parse().ok().filter(|ip: &IpAddr| !ip.is_loopback())?;
    let here = |zone: &str| zone == name || zone.parse() == Ok(index);
    if zone.is_some_and(|zone| !here(zone)) {
        return None;
    }
    Some(match address {
        IpAddr::V6(ip) if is_of_link(ip) => SocketAddrV6::new(ip, DNS_PORT, 0, index).into(),
        ip => SocketAddr::new(ip, DNS_PORT),
    })
}

fn is_of_link(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn a_links_own_resolvers_come_before_those_of_all() {
        let root = tempfile::tempdir().unwrap();
        let of = |name, index| {
            resolvers_below(root.path(), name, index)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert!(of("wwan0", 7).is_empty());
        let all = "# none\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver fe80::1%wwan0\n\
                   nameserver fe80::2%wlan0\nnameservers 192.0.2.9\nnameserver nonsense\n";
        write(root.path(), "etc/resolv.conf", all);
        assert_eq!(of("wwan0", 7), ["192.0.2.1:53", "[fe80::1%7]:53"]);
        write(
            root.path(),
            "run/systemd/resolve/netif/7",
            "# This is private data.\nLLMNR=yes\nSERVERS=2001:db8::53#dns.example fe80::3 192.0.2.5:5353\n",
        );
        assert_eq!(of("wwan0", 7), ["[2001:db8::53]:53", "[fe80::3%7]:53", "192.0.2.5:5353"]);
        assert_eq!(of("wlan0", 3), ["192.0.2.1:53", "[fe80::2%3]:53"]);
    }

    #[test]
    fn few_of_many_listed_resolvers_are_asked() {
        let root = tempfile::tempdir().unwrap();
        let many: String = (0..200).map(|n| format!("nameserver 192.0.2.{n}\n")).collect();
        write(root.path(), "etc/resolv.conf", &many);
        assert_eq!(resolvers_below(root.path(), "eth0", 2).len(), MAX_RESOLVERS);
    }
}
