//! Interfaces of this machine, and a watcher that reports their changes.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::message::{Link, Message};
use super::netlink::Netlink;

/// Delay after the first change: changes come in bursts (link, address, route).
const SETTLE: Duration = Duration::from_millis(50);
/// RT_SCOPE_LINK and beyond: addresses that are not valid outside the link, or the host.
const SCOPE_LINK: u8 = 253;

/// Name of the interface through which Marline provides the network of the machine or of a program. It is never a
/// path, although it has a default route.
pub const GATEWAY_INTERFACE: &str = "marline0";

/// Drivers whose interfaces encapsulate packets and send them over another interface: those of VPNs, and IP in IP.
const TUNNELS: [&str; 21] = [
    "amneziawg",
    "bareudp",
    "erspan",
    "fou",
    "geneve",
    "gre",
    "gretap",
    "ip6erspan",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "ipip",
    "ovpn",
    "ovpn-dco",
    "sit",
    "tun",
    "vti",
    "vti6",
    "vxlan",
    "wireguard",
    "xfrm",
];

/// Drivers whose interfaces use the wire of a lower interface.
const STACKED: [&str; 7] = ["ipvlan", "ipvtap", "macsec", "macvlan", "macvtap", "rmnet", "vlan"];
/// Stacked driver whose interfaces may lead to different providers although they share a wire, as with a switch
/// between two modems.
const VLAN: &str = "vlan";
/// Maximum depth of stacked interfaces.
const MAX_STACK_DEPTH: usize = 8;

/// Network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// True if the interface is up and its link has a carrier.
    pub up: bool,
    /// True for the loopback interface.
    pub loopback: bool,
    /// True for a tunnel: this machine encapsulates its packets and sends them over another interface.
    pub tunnel: bool,
    /// Lower interface whose wire it uses; 0 if it has its own.
    lower: u32,
    /// True for a VLAN on that wire.
    vlan: bool,
    /// Bridge or bond that it is a port of; 0 for none.
    master: u32,
    /// Usable addresses, IPv4 first, in the kernel's order.
    pub addresses: Vec<IpAddr>,
    /// Best metric of the default routes, IPv4 and IPv6; `None` without a default route.
    pub default_metric: [Option<u32>; 2],
}

impl Interface {
    /// Iterates over the addresses with a default route of their family.
    pub fn default_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let metric = self.default_metric;
        let routed = move |ip: &IpAddr| metric[usize::from(ip.is_ipv6())].is_some();
        self.addresses.iter().copied().filter(routed)
    }

    /// Selects the first address of each family: one path each.
    pub fn first_of_each_family(
        addresses: impl Iterator<Item = IpAddr>,
    ) -> impl Iterator<Item = IpAddr> {
        let mut seen = [false; 2];
        addresses.filter(move |ip| !core::mem::replace(&mut seen[usize::from(ip.is_ipv6())], true))
    }
}

/// Snapshot of all interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    list: Vec<Interface>,
}

impl Interfaces {
    /// Queries the kernel.
    ///
    /// # Errors
    /// Netlink is not available.
    pub fn now() -> io::Result<Self> {
        let netlink = Netlink::open(0)?;
        let mut messages = netlink.dump(libc::RTM_GETLINK)?;
        messages.extend(netlink.dump(libc::RTM_GETADDR)?);
        messages.extend(netlink.dump(libc::RTM_GETROUTE)?);
        Ok(Interfaces::from_messages(&messages))
    }

    fn from_messages(messages: &[Message]) -> Self {
        let mut list: BTreeMap<u32, Interface> = BTreeMap::new();
        for message in messages {
            match message {
                Message::Link(Link { index, flags, name, kind, lower, master }) => {
                    let running = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;
                    let interface = list.entry(*index).or_default();
                    interface.index = *index;
                    interface.name.clone_from(name);
                    interface.up = flags & running == running;
                    interface.loopback = flags & libc::IFF_LOOPBACK as u32 != 0;
                    interface.tunnel = TUNNELS.contains(&kind.as_str());
                    interface.lower = if STACKED.contains(&kind.as_str()) { *lower } else { 0 };
                    interface.vlan = kind == VLAN;
                    interface.master = *master;
                }
                Message::Address { index, address, scope, flags } => {
                    if let Some(interface) = list.get_mut(index)
                        && usable(interface, *scope, *flags)
                    {
                        interface.addresses.push(*address);
                    }
                }
                Message::Route { dst_len: 0, table, kind, metric, ipv6, interfaces }
                    if *kind == libc::RTN_UNICAST && *table != u32::from(libc::RT_TABLE_LOCAL) =>
                {
                    for index in interfaces {
                        if let Some(interface) = list.get_mut(index) {
                            let best = &mut interface.default_metric[usize::from(*ipv6)];
                            *best = Some(best.map_or(*metric, |known| known.min(*metric)));
                        }
                    }
                }
                _ => {}
            }
        }
        let mut list: Vec<Interface> = list.into_values().collect();
        for interface in &mut list {
            interface.addresses.sort_by_key(IpAddr::is_ipv6);
        }
        Interfaces { list }
    }

    /// All interfaces, by index.
    #[must_use]
    pub fn list(&self) -> &[Interface] {
        &self.list
    }

    /// Finds an interface by name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Interface> {
        self.list.iter().find(|interface| interface.name == name)
    }

    /// Finds the interface that has this address. All of 127.0.0.0/8 belongs to loopback.
    #[must_use]
    pub fn by_address(&self, address: IpAddr) -> Option<&Interface> {
        self.list.iter().find(|interface| {
            interface.addresses.contains(&address)
                || (interface.loopback && address.is_loopback() && address.is_ipv4())
        })
    }

    /// Interfaces with a default route, best metric first. Marline's own interface is left out. Of interfaces that
    /// share a wire only the first is included. Tunnels are included only if there is nothing else: beside another
    /// interface a tunnel is not a further path, because its packets use that interface.
    #[must_use]
    pub fn with_default_route(&self) -> Vec<&Interface> {
        let mut found = self.candidates();
        if found.iter().any(|interface| !interface.tunnel) {
            found.retain(|interface| !interface.tunnel);
        }
        // Packets that arrive on a port belong to its bridge.
        let found: Vec<&Interface> = found
            .iter()
            .filter(|port| found.iter().all(|bridge| bridge.index != port.master))
            .copied()
            .collect();
        let mut paths: Vec<&Interface> = Vec::new();
        for interface in found {
            if !paths.iter().any(|path| self.share_network(path, interface)) {
                paths.push(interface);
            }
        }
        paths
    }

    /// Returns true if this interface has a default route but is not a path, because its packets use the wire of
    /// another one.
    #[must_use]
    pub fn uses_shared_network(&self, interface: &Interface) -> bool {
        if interface.default_addresses().next().is_none() {
            return false;
        }
        let mut others =
            self.candidates().into_iter().filter(|other| other.index != interface.index);
        others.any(|other| self.share_network(other, interface))
    }

    /// Interfaces that may be a path, best metric first.
    fn candidates(&self) -> Vec<&Interface> {
        let best = |interface: &Interface| {
            let metric = |ip: IpAddr| interface.default_metric[usize::from(ip.is_ipv6())];
            interface.default_addresses().filter_map(metric).min()
        };
        let mut found: Vec<&Interface> = self
            .list
            .iter()
            .filter(|i| i.up && !i.loopback && i.name != GATEWAY_INTERFACE)
            .filter(|i| i.default_addresses().next().is_some())
            .collect();
        found.sort_by_key(|interface| (best(interface), interface.index));
        found
    }

    /// Returns true if one interface is on top of the other, or if both are on the same one, as different hosts of
    /// its network.
    fn share_network(&self, one: &Interface, other: &Interface) -> bool {
        let beside = one.lower != 0 && one.lower == other.lower && !one.vlan && !other.vlan;
        let above = |one: &Interface, other: &Interface| {
            let mut ports = self.list.iter().filter(|port| port.master == one.index);
            self.is_stacked_on(one, other.index)
                || ports.any(|port| self.is_stacked_on(port, other.index))
        };
        beside || above(one, other) || above(other, one)
    }

    /// Returns true if packets of the interface use the interface with this index, or are sent by it as a port of
    /// that one.
    fn is_stacked_on(&self, interface: &Interface, index: u32) -> bool {
        let by_index = |index: u32| self.list.iter().find(|interface| interface.index == index);
        let mut at = Some(interface);
        for _ in 0..MAX_STACK_DEPTH {
            let Some(here) = at else { return false };
            if here.lower == index || here.master == index {
                return true;
            }
            at = by_index(here.lower).or_else(|| by_index(here.master));
        }
        false
    }
}

/// Returns true for usable addresses: all on loopback; elsewhere those that are not link-local, tentative or
/// deprecated.
fn usable(interface: &Interface, scope: u8, flags: u32) -> bool {
    let not_ready = libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED | libc::IFA_F_DEPRECATED;
    interface.loopback || (scope < SCOPE_LINK && flags & not_ready == 0)
}

/// Watcher of changes of interfaces, addresses and routes.
#[derive(Debug)]
pub struct Watcher {
    netlink: AsyncFd<Netlink>,
}

impl Watcher {
    /// Starts the watcher. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Netlink is not available.
    pub fn start() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        let netlink = Netlink::open(groups as u32)?;
        Ok(Watcher { netlink: crate::sys::watch(netlink, Interest::READABLE)? })
    }

    /// Waits until a change has settled, then returns the new state.
    ///
    /// # Errors
    /// Netlink failed.
    pub async fn changed(&mut self) -> io::Result<Interfaces> {
        let mut guard = self.netlink.readable().await?;
        guard.retain_ready();
        drop(guard);
        tokio::time::sleep(SETTLE).await;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let mut guard = self.netlink.readable().await?;
            match guard.try_io(|inner| inner.get_ref().read(&mut buffer)) {
                // The kind of change and lost messages do not matter: the whole state is read again.
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => return Interfaces::now(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driven_link(index: u32, name: &str, flags: libc::c_int, kind: &str) -> Message {
        let (flags, name) = (flags as u32, name.to_owned());
        Message::Link(Link { index, flags, name, kind: kind.to_owned(), ..Link::default() })
    }

    fn link(index: u32, name: &str, flags: libc::c_int) -> Message {
        driven_link(index, name, flags, "")
    }

    fn address(index: u32, text: &str, scope: u8, flags: u32) -> Message {
        Message::Address { index, address: text.parse().unwrap(), scope, flags }
    }

    fn default_route(index: u32, metric: u32, ipv6: bool) -> Message {
        let (table, kind) = (254, libc::RTN_UNICAST);
        Message::Route { dst_len: 0, table, kind, metric, ipv6, interfaces: vec![index] }
    }

    #[test]
    fn paths_are_the_interfaces_with_a_default_route_by_metric() {
        let up = libc::IFF_UP | libc::IFF_LOWER_UP;
        let interfaces = Interfaces::from_messages(&[
            link(1, "lo", up | libc::IFF_LOOPBACK),
            link(2, "wlan0", up),
            link(3, "wwan0", up),
            link(4, "eth0", libc::IFF_UP),
            link(5, "docker0", up),
            address(1, "127.0.0.1", 254, 0),
            address(2, "2001:db8::9", 0, libc::IFA_F_DEPRECATED),
            address(2, "2001:db8::2", 0, 0),
            address(2, "fe80::2", 253, 0),
            address(2, "192.0.2.2", 0, 0),
            address(3, "198.51.100.3", 0, 0),
            address(4, "203.0.113.4", 0, 0),
            address(5, "172.17.0.1", 0, 0),
            default_route(3, 700, false),
            default_route(2, 600, false),
            default_route(4, 100, false),
        ]);
        let names: Vec<_> =
            interfaces.with_default_route().iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["wlan0", "wwan0"], "eth0 has no carrier, docker0 no default route");
        let wlan = interfaces.by_name("wlan0").unwrap();
        let addresses: Vec<_> = wlan.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.2", "2001:db8::2"]);
        let routed: Vec<_> = wlan.default_addresses().map(|ip| ip.to_string()).collect();
        assert_eq!(routed, ["192.0.2.2"], "no default route for IPv6");
        let by_address =
            |text: &str| interfaces.by_address(text.parse().unwrap()).map(|i| i.name.as_str());
        assert_eq!(by_address("127.0.0.77"), Some("lo"));
        assert_eq!(by_address("198.51.100.3"), Some("wwan0"));
        assert_eq!(by_address("8.8.8.8"), None);
    }

    #[test]
    fn a_tunnel_is_a_path_only_where_there_is_nothing_below_it() {
        let up = libc::IFF_UP | libc::IFF_LOWER_UP;
        let mut messages = vec![
            driven_link(2, "wg0", up, "wireguard"),
            driven_link(3, "tun0", up, "tun"),
            address(2, "10.9.0.2", 0, 0),
            address(3, "10.8.0.2", 0, 0),
            default_route(2, 0, false),
            default_route(3, 50, false),
        ];
        let names = |messages: &[Message]| -> Vec<String> {
            let interfaces = Interfaces::from_messages(messages);
            interfaces.with_default_route().iter().map(|i| i.name.clone()).collect()
        };
        assert_eq!(names(&messages), ["wg0", "tun0"], "a machine behind tunnels alone");
        messages.extend([
            driven_link(4, "veth0", up, "veth"),
            link(5, "wlan0", up),
            address(4, "192.0.2.4", 0, 0),
            address(5, "198.51.100.5", 0, 0),
            default_route(4, 100, false),
            default_route(5, 600, false),
        ]);
        assert_eq!(names(&messages), ["veth0", "wlan0"]);
    }

    /// Builds an interface with an address and a default route of this metric.
    fn stacked(
        index: u32,
        (name, kind): (&str, &str),
        (lower, master): (u32, u32),
        metric: u32,
    ) -> Vec<Message> {
        let flags = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;
        let (name, kind) = (name.to_owned(), kind.to_owned());
        let link = Message::Link(Link { index, flags, name, kind, lower, master });
        if metric == 0 {
            return vec![link];
        }
        let address = address(index, &format!("198.51.100.{index}"), 0, 0);
        vec![link, address, default_route(index, metric, false)]
    }

    #[test]
    fn only_one_of_the_interfaces_sharing_a_wire_is_a_path() {
        let names = |messages: &[Vec<Message>]| -> Vec<String> {
            let interfaces = Interfaces::from_messages(&messages.concat());
            interfaces.with_default_route().iter().map(|i| i.name.clone()).collect()
        };
        let eth0 = |metric| stacked(2, ("eth0", ""), (0, 0), metric);
        let vlan = |index, name, metric| stacked(index, (name, "vlan"), (2, 0), metric);
        assert_eq!(names(&[eth0(100), vlan(3, "eth0.7", 200)]), ["eth0"]);
        assert_eq!(names(&[eth0(200), vlan(3, "eth0.7", 100)]), ["eth0.7"], "the better metric");
        let two_modems = [eth0(0), vlan(3, "eth0.7", 100), vlan(4, "eth0.8", 200)];
        assert_eq!(names(&two_modems), ["eth0.7", "eth0.8"]);
        let macvlan = |index, name, metric| stacked(index, (name, "macvlan"), (2, 0), metric);
        assert_eq!(names(&[eth0(0), macvlan(3, "mac0", 100), macvlan(4, "mac1", 200)]), ["mac0"]);
        let bridge = stacked(5, ("br0", "bridge"), (0, 0), 100);
        for metric in [50, 200] {
            let port = stacked(2, ("eth0", ""), (0, 5), metric);
            assert_eq!(names(&[bridge.clone(), port]), ["br0"]);
        }
        // A VLAN on a port of a bridge, as in some routers.
        let silent_port = stacked(2, ("eth0", ""), (0, 5), 0);
        assert_eq!(names(&[bridge.clone(), silent_port, vlan(3, "eth0.7", 200)]), ["br0"]);
        let port = stacked(3, ("eth0.7", "vlan"), (2, 5), 0);
        assert_eq!(names(&[eth0(50), bridge, port]), ["eth0"]);
        // The peer of a veth pair is not a lower interface, and a VRF is not a path.
        let pair = [("veth0", 3), ("veth1", 2)]
            .map(|(name, peer)| stacked(5 - peer, (name, "veth"), (peer, 9), 100));
        let domain = stacked(9, ("vrf0", "vrf"), (0, 0), 0);
        assert_eq!(names(&[pair.concat(), domain]), ["veth0", "veth1"]);
    }

    #[test]
    fn the_kernel_answers_and_knows_loopback() {
        let interfaces = Interfaces::now().unwrap();
        let lo = interfaces.by_name("lo").expect("every machine has it");
        assert!(lo.loopback);
        assert_eq!(interfaces.by_address("127.0.0.1".parse().unwrap()).unwrap().index, lo.index);
    }
}
