//! Choice of the resolver for programs' queries, and the resolver configuration that they see.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::bail;
use marline_io::resolv_conf::{self, entries};
use marline_proxy::target::Target;
use marline_proxy::udp::DNS_PORT;
use rustix::net::{AddressFamily, SocketType};

pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// File in which systemd-resolved, the local resolver of many machines, lists the network's resolvers.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// Text that is not a resolver's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a resolver: expected ADDRESS or ADDRESS:PORT (IPv6 in brackets)")]
pub struct BadResolver(String);

/// Parses a resolver's address: `ADDRESS` or `ADDRESS:PORT`, with IPv6 in brackets if there is a port.
///
/// # Errors
/// The text is not an address.
pub fn parse(text: &str) -> Result<SocketAddr, BadResolver> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, DNS_PORT));
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Ok(address),
        _ => Err(BadResolver(text.to_owned())),
    }
}

/// Available resolvers in order of preference, with the current one.
#[derive(Debug)]
pub struct Resolvers {
    list: Vec<Target>,
    current: AtomicUsize,
}

impl Resolvers {
    /// Creates the list, with at least one resolver.
    #[must_use]
    pub fn new(first: Target, others: impl IntoIterator<Item = Target>) -> Resolvers {
        let list = std::iter::once(first).chain(others).collect();
        Resolvers { list, current: AtomicUsize::new(0) }
    }

    /// Returns the current resolver.
    pub(crate) fn current(&self) -> Target {
        self.list[self.current.load(Ordering::Relaxed)].clone()
    }

    /// Switches to the next resolver, because `failed` was not reached. Returns `None` after the last one, and then
    /// starts again with the first.
    pub(crate) fn switch_after(&self, failed: &Target) -> Option<Target> {
        let at = self.list.iter().position(|target| target == failed)?;
        let next = (at + 1) % self.list.len();
        self.current.store(next, Ordering::Relaxed);
        (next != 0).then(|| self.list[next].clone())
    }
}

/// Returns all resolvers of this machine on the network, except the gateway's own.
pub(crate) fn host_resolvers(gateway: IpAddr) -> Vec<SocketAddr> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let usable = |text: &str| -> Vec<SocketAddr> {
        let network = resolv_conf::network_text(text);
        resolv_conf::resolvers(&network)
            .filter_map(on_network)
            .filter(|resolver| resolver.ip() != gateway)
            .collect()
    };
    let found = usable(&read(RESOLV_CONF));
    if found.is_empty() { usable(&read(RESOLVED)) } else { found }
}

/// Parses a resolver on the network as in `resolv.conf`: `ADDRESS`, or `ADDRESS%INTERFACE` if it is link-local.
fn on_network(word: &str) -> Option<SocketAddr> {
    let (address, zone) = word.split_once('%').map_or((word, None), |(a, zone)| (a, Some(zone)));
    match (address.parse::<IpAddr>().ok()?, zone) {
        (address, _) if address.is_loopback() => None,
        (IpAddr::V6(address), Some(zone)) => {
            let index = zone.parse().ok().or_else(|| interface_index(zone))?;
            Some(SocketAddrV6::new(address, DNS_PORT, 0, index).into())
        }
        (address, _) => Some(SocketAddr::new(address, DNS_PORT)),
    }
}

fn interface_index(name: &str) -> Option<u32> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    rustix::net::netdevice::name_to_index(socket, name).ok()
}

/// Returns the first resolver of this machine.
///
/// # Errors
/// There is none, or only this machine can reach it: the error describes what to do.
pub fn first_of_host() -> anyhow::Result<SocketAddr> {
    let first = host_resolver(&resolv_conf::network_text(&crate::inside::read_host_resolv_conf()?));
    // A local resolver that lists its upstream resolvers.
    let behind = || host_resolver(&std::fs::read_to_string(RESOLVED).ok()?).ok();
    first.or_else(|error| behind().ok_or(error))
}

/// Returns the first resolver of a `resolv.conf`.
///
/// # Errors
/// There is none, or only this machine can reach it.
fn host_resolver(text: &str) -> anyhow::Result<SocketAddr> {
    let Some(word) = resolv_conf::resolvers(text).next() else {
        bail!("no resolver in /etc/resolv.conf: give one with --dns ADDRESS");
    };
    let link_local = |address: &IpAddr| match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match word.parse::<IpAddr>() {
        Ok(address) if !address.is_loopback() && !link_local(&address) => {
            Ok(SocketAddr::new(address, DNS_PORT))
        }
        _ => bail!(
            "this machine's resolver is {word}, which the server cannot reach: give another with --dns \
             ADDRESS (the network's own, as `resolvectl dns` shows it, or a public one)"
        ),
    }
}

/// Creates the `resolv.conf` for programs in the namespace: `nameserver`, and the host's search list and options.
#[must_use]
pub(crate) fn resolv_conf_for(host: &str, nameserver: IpAddr) -> String {
    let mut text = format!("nameserver {nameserver}\n");
    for keyword in ["search", "domain"] {
        if let Some(rest) = entries(host, keyword).last() {
            text.push_str(&format!("{keyword} {rest}\n"));
        }
    }
    // The host's trust in authenticated data applies only to its own resolver.
    let options: Vec<&str> = entries(host, "options")
        .flat_map(str::split_ascii_whitespace)
        .filter(|option| *option != "trust-ad")
        .collect();
    if !options.is_empty() {
        text.push_str(&format!("options {}\n", options.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_is_an_address_with_an_optional_port() {
        for (text, address) in [
            ("192.0.2.1", "192.0.2.1:53"),
            ("192.0.2.1:5353", "192.0.2.1:5353"),
            ("2001:db8::1", "[2001:db8::1]:53"),
            ("[2001:db8::1]", "[2001:db8::1]:53"),
            ("[2001:db8::1]:54", "[2001:db8::1]:54"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), address, "{text}");
        }
        for wrong in ["", "resolver.example", "192.0.2.1:0", "192.0.2.1:", "[192.0.2.1", "1.2.3"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn resolvers_are_tried_in_turn_until_one_is_reached() {
        let target = |text: &str| text.parse::<Target>().unwrap();
        let (first, second) = (target("192.0.2.1:53"), target("192.0.2.2:53"));
        let resolvers = Resolvers::new(first.clone(), [second.clone()]);
        assert_eq!(resolvers.current(), first);
        assert_eq!(resolvers.switch_after(&first), Some(second.clone()));
        assert_eq!(resolvers.current(), second);
        assert_eq!(resolvers.switch_after(&second), None);
        assert_eq!(resolvers.current(), first);
        assert_eq!(resolvers.switch_after(&target("192.0.2.3:53")), None);
    }

    #[test]
    fn the_first_resolver_is_used_unless_it_is_local() {
        let text = "# comment\n; another\nnameserverx 9.9.9.9\n nameserver\t192.0.2.1 # first\nnameserver 192.0.2.2";
        assert_eq!(host_resolver(text).unwrap().to_string(), "192.0.2.1:53");
        for local in ["127.0.0.53", "::1", "169.254.1.1", "fe80::1", "fe80::1%eth0"] {
            let error = host_resolver(&format!("nameserver {local}")).unwrap_err().to_string();
            assert!(error.contains("--dns") && error.contains(local), "{error}");
        }
        assert!(host_resolver("search example.org").unwrap_err().to_string().contains("--dns"));
    }

    #[test]
    fn the_search_list_is_copied_without_the_resolvers() {
        let host = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch a.example b.example\noptions ndots:2";
        let text = resolv_conf_for(host, "198.18.0.1".parse().unwrap());
        assert_eq!(
            text,
            "nameserver 198.18.0.1\nsearch a.example b.example\noptions edns0 ndots:2\n"
        );
    }
}
