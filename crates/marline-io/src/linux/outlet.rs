//! Outlets: the next hop and interface for packets to a peer according to the kernel's tables, for callers that build
//! Ethernet frames.
//!
//! Three rtnetlink requests: the route of a packet of this flow (including rules, marks and multipath), its interface,
//! and the link-layer address of the next hop. If anything is unknown or not plain Ethernet, there is no outlet, and
//! the caller leaves the packet to the kernel.

use core::net::{IpAddr, SocketAddr};
use std::io;

use super::message::{self, attributes, ip, push_attribute, push_ip, u16_at, u32_at};
use super::netlink::Netlink;
use crate::edge::outlet::{ETHERNET_HEADER_LEN, Outlet};

/// Length of an Ethernet address.
const ADDRESS: usize = 6;
/// Length of `ndmsg`: family, three padding bytes, interface (i32), state (u16), flags, type.
const NEIGHBOR_LEN: usize = 12;
/// Lengths of `rtmsg` and `ifinfomsg`.
const ROUTE_LEN: usize = 12;
const LINK_LEN: usize = 16;
/// Attributes that libc does not define for all targets (linux/rtnetlink.h, linux/neighbour.h).
const RTA_VIA: u16 = 18;
const RTA_ENCAP: u16 = 22;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
const RTAX_MTU: u16 = 2;
const RTAX_HOPLIMIT: u16 = 10;
/// RTEXT_FILTER_SKIP_STATS.
const SKIP_STATISTICS: u32 = 8;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// States in which the kernel itself sends to a neighbor: reachable, stale, delay, probe, permanent.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x80;

/// Relevant fields of a route.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Route {
    local: bool,
    interface: u32,
    gateway: Option<IpAddr>,
    mtu: Option<u32>,
    hop_limit: Option<u8>,
}

/// Relevant fields of an interface.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Link {
    kind: u16,
    up: bool,
    mtu: u32,
    address: Option<[u8; ADDRESS]>,
}

/// Finder of outlets, which keeps its netlink socket between requests.
#[derive(Debug, Default)]
pub(crate) struct OutletFinder {
    netlink: Option<Netlink>,
}

impl OutletFinder {
    /// Finds the outlet of TCP segments from `local` to `remote`, through the interface with this index (0 for any).
    /// Returns `None` if a packet socket cannot use the route.
    ///
    /// # Errors
    /// Fails if the kernel's answer is invalid or there is no route.
    pub(crate) fn find(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        interface: u32,
    ) -> io::Result<Option<Outlet>> {
        // The scope of a link-local address identifies the interface.
        let interface = match (interface, remote) {
            (0, SocketAddr::V6(remote)) => remote.scope_id(),
            _ => interface,
        };
        let netlink = match self.netlink.take() {
            Some(netlink) => netlink,
            None => Netlink::open(0)?,
        };
        let found = find_by(&netlink, local, remote, interface);
        // After an error, an answer may still be pending, so the next request uses a new socket.
        if found.is_ok() {
            self.netlink = Some(netlink);
        }
        found
    }
}

fn find_by(
    netlink: &Netlink,
    local: SocketAddr,
    remote: SocketAddr,
    interface: u32,
) -> io::Result<Option<Outlet>> {
    let route = netlink.query(&route_request(local, remote, interface), libc::RTM_NEWROUTE)?;
    let Some(route) = parse_route(&route) else { return Ok(None) };
    let link = netlink.query(&link_request(route.interface), libc::RTM_NEWLINK)?;
    let Some(link) = parse_link(&link).filter(|link| link.up) else { return Ok(None) };
    let mtu = route.mtu.unwrap_or(link.mtu).min(link.mtu);
    match (route.local, link.kind, link.address) {
        (true, libc::ARPHRD_LOOPBACK, _) => Ok(Some(Outlet::Loopback { mtu })),
        (false, libc::ARPHRD_ETHER, Some(ours)) => {
            let hop = route.gateway.unwrap_or(remote.ip());
            let request = neighbor_request(hop, route.interface);
            let neighbor = netlink.query(&request, libc::RTM_NEWNEIGH)?;
            let Some(theirs) = parse_neighbor(&neighbor) else { return Ok(None) };
            let (interface, hop_limit) = (route.interface, route.hop_limit);
            let header = ethernet_header(theirs, ours, remote.is_ipv6());
            Ok(Some(Outlet::Ethernet { interface, mtu, header, hop_limit }))
        }
        _ => Ok(None),
    }
}

fn ethernet_header(
    destination: [u8; ADDRESS],
    source: [u8; ADDRESS],
    ipv6: bool,
) -> [u8; ETHERNET_HEADER_LEN] {
    let kind = if ipv6 { libc::ETH_P_IPV6 } else { libc::ETH_P_IP } as u16;
    let mut header = [0; ETHERNET_HEADER_LEN];
    header[..ADDRESS].copy_from_slice(&destination);
    header[ADDRESS..2 * ADDRESS].copy_from_slice(&source);
    header[2 * ADDRESS..].copy_from_slice(&kind.to_be_bytes());
    header
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv6() { libc::AF_INET6 as u8 } else { libc::AF_INET as u8 }
}

/// Builds a request for the route of a TCP segment. The answer is the kernel's decision, not a table entry.
fn route_request(local: SocketAddr, remote: SocketAddr, interface: u32) -> Vec<u8> {
    let bits = if remote.is_ipv6() { 128 } else { 32 };
    let mut body = vec![0; ROUTE_LEN];
    (body[0], body[1], body[2]) = (family(remote.ip()), bits, bits);
    push_ip(&mut body, libc::RTA_DST, remote.ip());
    push_ip(&mut body, libc::RTA_SRC, local.ip());
    push_attribute(&mut body, RTA_IP_PROTO, &[libc::IPPROTO_TCP as u8]);
    push_attribute(&mut body, RTA_SPORT, &local.port().to_be_bytes());
    push_attribute(&mut body, RTA_DPORT, &remote.port().to_be_bytes());
    if interface != 0 {
        push_attribute(&mut body, libc::RTA_OIF, &interface.to_ne_bytes());
    }
    message::request(libc::RTM_GETROUTE, 0, 1, &body)
}

fn link_request(index: u32) -> Vec<u8> {
    let mut body = vec![0; LINK_LEN];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    push_attribute(&mut body, libc::IFLA_EXT_MASK, &SKIP_STATISTICS.to_ne_bytes());
    message::request(libc::RTM_GETLINK, 0, 1, &body)
}

fn neighbor_request(hop: IpAddr, interface: u32) -> Vec<u8> {
    let mut body = vec![0; NEIGHBOR_LEN];
    body[0] = family(hop);
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    push_ip(&mut body, NDA_DST, hop);
    message::request(libc::RTM_GETNEIGH, 0, 1, &body)
}

fn parse_route(body: &[u8]) -> Option<Route> {
    let (family, kind) = (i32::from(*body.first()?), *body.get(7)?);
    if !matches!(kind, libc::RTN_LOCAL | libc::RTN_UNICAST) {
        return None;
    }
    let local = kind == libc::RTN_LOCAL;
    let mut route = Route { local, interface: 0, gateway: None, mtu: None, hop_limit: None };
    for (kind, value) in attributes(body.get(ROUTE_LEN..)?) {
        match kind {
            libc::RTA_OIF => route.interface = u32_at(value, 0)?,
            libc::RTA_GATEWAY => route.gateway = Some(ip(family, value)?),
            RTA_VIA => {
                let family = i32::from(u16_at(value, 0)?);
                route.gateway = Some(ip(family, value.get(2..)?)?);
            }
            libc::RTA_METRICS => {
                for (metric, value) in attributes(value) {
                    match metric {
                        RTAX_MTU => route.mtu = Some(u32_at(value, 0)?),
                        RTAX_HOPLIMIT => route.hop_limit = u8::try_from(u32_at(value, 0)?).ok(),
                        _ => {}
                    }
                }
            }
            // The packets are encapsulated, or the answer has several next hops.
            RTA_ENCAP | libc::RTA_MULTIPATH => return None,
            _ => {}
        }
    }
    route.hop_limit = route.hop_limit.filter(|limit| *limit > 0);
    route.mtu = route.mtu.filter(|mtu| *mtu > 0);
    (route.interface != 0).then_some(route)
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let (kind, flags) = (u16_at(body, 2)?, u32_at(body, 8)?);
    let needed = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
    let up = flags & needed == needed && flags & libc::IFF_NOARP as u32 == 0
        || kind == libc::ARPHRD_LOOPBACK && flags & libc::IFF_UP as u32 != 0;
    let (mut mtu, mut address) = (None, None);
    for (kind, value) in attributes(body.get(LINK_LEN..)?) {
        match kind {
            libc::IFLA_MTU => mtu = u32_at(value, 0),
            libc::IFLA_ADDRESS => address = <[u8; ADDRESS]>::try_from(value).ok(),
            _ => {}
        }
    }
    Some(Link { kind, up, mtu: mtu?, address })
}

/// Returns the link-layer address of a neighbor, if the kernel would use it.
fn parse_neighbor(body: &[u8]) -> Option<[u8; ADDRESS]> {
    let state = u16_at(body, 8)?;
    let address = attributes(body.get(NEIGHBOR_LEN..)?)
        .find(|(kind, _)| *kind == NDA_LLADDR)
        .and_then(|(_, value)| <[u8; ADDRESS]>::try_from(value).ok())?;
    // A multicast address does not belong to a single host.
    (state & NUD_VALID != 0 && address[0] & 1 == 0).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(len: usize, set: &[(usize, &[u8])], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; len];
        for (at, bytes) in set {
            body[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        for (kind, value) in attributes {
            push_attribute(&mut body, *kind, value);
        }
        body
    }

    fn route(kind: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        answer(ROUTE_LEN, &[(0, &[libc::AF_INET as u8]), (7, &[kind])], attributes)
    }

    const OIF: (u16, &[u8]) = (libc::RTA_OIF, &[3, 0, 0, 0]);

    #[test]
    fn a_route_is_read_with_its_gateway_and_metrics() {
        let mut metrics = Vec::new();
        push_attribute(&mut metrics, RTAX_MTU, &1_400_u32.to_ne_bytes());
        push_attribute(&mut metrics, RTAX_HOPLIMIT, &9_u32.to_ne_bytes());
        let gateway = (libc::RTA_GATEWAY, &[192, 0, 2, 1][..]);
        let parsed =
            parse_route(&route(libc::RTN_UNICAST, &[OIF, gateway, (libc::RTA_METRICS, &metrics)]));
        let wanted = Route {
            local: false,
            interface: 3,
            gateway: Some("192.0.2.1".parse().unwrap()),
            mtu: Some(1_400),
            hop_limit: Some(9),
        };
        assert_eq!(parsed, Some(wanted));
        let mut via = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        via.extend("fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        let parsed = parse_route(&route(libc::RTN_UNICAST, &[OIF, (RTA_VIA, &via)])).unwrap();
        assert_eq!(parsed.gateway, Some("fe80::1".parse().unwrap()));
    }

    #[test]
    fn only_a_plain_unicast_route_has_an_outlet() {
        for (body, why) in [
            (route(libc::RTN_UNICAST, &[]), "no interface"),
            (route(libc::RTN_UNREACHABLE, &[OIF]), "unreachable"),
            (route(libc::RTN_BROADCAST, &[OIF]), "broadcast"),
            (route(libc::RTN_UNICAST, &[OIF, (RTA_ENCAP, &[])]), "a tunnel"),
        ] {
            assert_eq!(parse_route(&body), None, "{why}");
        }
    }

    #[test]
    fn a_neighbor_counts_while_the_kernel_would_use_it() {
        let neighbor = |state: u16, address: &[u8]| {
            let state = state.to_ne_bytes();
            parse_neighbor(&answer(NEIGHBOR_LEN, &[(8, &state)], &[(NDA_LLADDR, address)]))
        };
        let address = [2, 0, 0, 0, 0, 9];
        for state in [0x02, 0x04, 0x08, 0x10, 0x80] {
            assert_eq!(neighbor(state, &address), Some(address));
        }
        for state in [0, 0x01, 0x20, 0x40] {
            assert_eq!(neighbor(state, &address), None, "incomplete, failed or without ARP");
        }
        assert_eq!(neighbor(2, &address[..4]), None);
        assert_eq!(neighbor(2, &[3, 0, 0, 0, 0, 9]), None, "a group");
    }

    #[test]
    fn this_machines_own_addresses_are_behind_loopback() {
        for (local, remote) in [("127.0.0.1:1", "127.0.0.1:2"), ("[::1]:1", "[::1]:2")] {
            let ends = (local.parse().unwrap(), remote.parse().unwrap());
            match OutletFinder::default().find(ends.0, ends.1, 0) {
                Ok(Some(Outlet::Loopback { mtu })) => assert!(mtu >= 1_500),
                other => assert!(ends.0.is_ipv6(), "{other:?}"),
            }
        }
    }

    #[test]
    fn mutated_answers_do_not_panic() {
        use marline_time::Rng as _;

        use crate::mutation::mutate;
        let whole =
            route(libc::RTN_UNICAST, &[OIF, (libc::RTA_METRICS, &[8; 24]), (RTA_VIA, &[2; 6])]);
        let mut rng = marline_time::PcgRng::new(3, 1);
        for _ in 0..20_000 {
            let mut bytes = mutate(&mut rng, &whole);
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            let _ = (parse_route(&bytes), parse_link(&bytes), parse_neighbor(&bytes));
        }
    }
}
