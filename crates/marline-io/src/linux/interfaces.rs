//! Interfaces of this machine from rtnetlink, and a watcher that reports their changes.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::message::{Link, Message};
use super::netlink::Netlink;
use crate::edge::descriptor::watch;
use crate::edge::interface::Interface;

/// Delay after the first change, because changes come in bursts (link, address, route).
const SETTLE_DELAY: Duration = Duration::from_millis(50);
/// RT_SCOPE_LINK: addresses with this or a higher scope are not valid beyond the link or the host.
const SCOPE_LINK: u8 = 253;

/// Drivers whose interfaces encapsulate packets and send them over another interface: VPNs and IP-in-IP tunnels.
const TUNNEL_DRIVERS: [&str; 21] = [
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
const STACKED_DRIVERS: [&str; 7] =
    ["ipvlan", "ipvtap", "macsec", "macvlan", "macvtap", "rmnet", "vlan"];
/// Stacked driver whose interfaces may lead to different providers over one wire, as with a switch between two modems.
const VLAN: &str = "vlan";

/// Lists all interfaces, by index.
///
/// # Errors
/// Fails if Netlink is not available.
pub(crate) fn list() -> io::Result<Vec<Interface>> {
    let netlink = Netlink::open(0)?;
    let mut messages = netlink.dump(libc::RTM_GETLINK)?;
    messages.extend(netlink.dump(libc::RTM_GETADDR)?);
    messages.extend(netlink.dump(libc::RTM_GETROUTE)?);
    Ok(from_messages(&messages))
}

/// Builds the interfaces from the kernel's messages.
fn from_messages(messages: &[Message]) -> Vec<Interface> {
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
                interface.tunnel = TUNNEL_DRIVERS.contains(&kind.as_str());
                interface.lower = if STACKED_DRIVERS.contains(&kind.as_str()) { *lower } else { 0 };
                interface.vlan = kind == VLAN;
                interface.master = *master;
            }
            Message::Address { index, address, scope, flags } => {
                if let Some(interface) = list.get_mut(index)
                    && is_usable(interface, *scope, *flags)
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
    list.into_values().collect()
}

/// Returns true for usable addresses: all on loopback, and on other interfaces those that are not link-local,
/// tentative or deprecated.
fn is_usable(interface: &Interface, scope: u8, flags: u32) -> bool {
    let not_ready = libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED | libc::IFA_F_DEPRECATED;
    interface.loopback || (scope < SCOPE_LINK && flags & not_ready == 0)
}

/// Change notifications for interfaces, addresses and routes.
#[derive(Debug)]
pub(crate) struct Changes {
    netlink: AsyncFd<Netlink>,
}

impl Changes {
    /// Subscribes. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Fails if Netlink is not available.
    pub(crate) fn watch() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        let netlink = Netlink::open(groups as u32)?;
        Ok(Changes { netlink: watch(netlink, Interest::READABLE)? })
    }

    /// Waits until a change has settled.
    ///
    /// # Errors
    /// Fails if Netlink fails.
    pub(crate) async fn wait_until_settled(&mut self) -> io::Result<()> {
        let mut guard = self.netlink.readable().await?;
        guard.retain_ready();
        drop(guard);
        tokio::time::sleep(SETTLE_DELAY).await;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let mut guard = self.netlink.readable().await?;
            match guard.try_io(|inner| inner.get_ref().read(&mut buffer)) {
                // The kind of change and lost messages do not matter, because the whole state is read again.
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Interfaces;

    fn snapshot(messages: &[Message]) -> Interfaces {
        Interfaces::from_list(from_messages(messages))
    }

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
        let interfaces = snapshot(&[
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
        assert_eq!(names, ["wlan0", "wwan0"], "eth0 has no carrier, docker0 has no default route");
        let wlan = interfaces.find_by_name("wlan0").unwrap();
        let addresses: Vec<_> = wlan.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.2", "2001:db8::2"]);
        let routed: Vec<_> = wlan.default_addresses().map(|ip| ip.to_string()).collect();
        assert_eq!(routed, ["192.0.2.2"], "no default route for IPv6");
        let by_address =
            |text: &str| interfaces.find_by_address(text.parse().unwrap()).map(|i| i.name.as_str());
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
            let interfaces = snapshot(messages);
            interfaces.with_default_route().iter().map(|i| i.name.clone()).collect()
        };
        assert_eq!(names(&messages), ["wg0", "tun0"], "only tunnel interfaces have default routes");
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

    /// Builds an interface that is up and has this driver.
    fn up_link(index: u32, name: &str, kind: &str) -> Link {
        let flags = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;
        Link { index, flags, name: name.to_owned(), kind: kind.to_owned(), lower: 0, master: 0 }
    }

    /// Builds the messages for an interface with an address and a default route of this metric (0 for neither).
    fn stacked(link: Link, metric: u32) -> Vec<Message> {
        let index = link.index;
        let link = Message::Link(link);
        if metric == 0 {
            return vec![link];
        }
        let address = address(index, &format!("198.51.100.{index}"), 0, 0);
        vec![link, address, default_route(index, metric, false)]
    }

    #[test]
    fn only_one_of_the_interfaces_sharing_a_wire_is_a_path() {
        let names = |messages: &[Vec<Message>]| -> Vec<String> {
            let interfaces = snapshot(&messages.concat());
            interfaces.with_default_route().iter().map(|i| i.name.clone()).collect()
        };
        let eth0 = |metric| stacked(up_link(2, "eth0", ""), metric);
        let port = |metric| stacked(Link { master: 5, ..up_link(2, "eth0", "") }, metric);
        let on_eth0 = |index, name, kind| Link { lower: 2, ..up_link(index, name, kind) };
        let vlan = |index, name, metric| stacked(on_eth0(index, name, "vlan"), metric);
        assert_eq!(names(&[eth0(100), vlan(3, "eth0.7", 200)]), ["eth0"]);
        assert_eq!(names(&[eth0(200), vlan(3, "eth0.7", 100)]), ["eth0.7"], "the better metric");
        let two_modems = [eth0(0), vlan(3, "eth0.7", 100), vlan(4, "eth0.8", 200)];
        assert_eq!(names(&two_modems), ["eth0.7", "eth0.8"]);
        let macvlan = |index, name, metric| stacked(on_eth0(index, name, "macvlan"), metric);
        assert_eq!(names(&[eth0(0), macvlan(3, "mac0", 100), macvlan(4, "mac1", 200)]), ["mac0"]);
        let bridge = stacked(up_link(5, "br0", "bridge"), 100);
        for metric in [50, 200] {
            assert_eq!(names(&[bridge.clone(), port(metric)]), ["br0"]);
        }
        // A VLAN on a bridge port, as in some routers.
        assert_eq!(names(&[bridge.clone(), port(0), vlan(3, "eth0.7", 200)]), ["br0"]);
        let port = stacked(Link { master: 5, ..on_eth0(3, "eth0.7", "vlan") }, 0);
        assert_eq!(names(&[eth0(50), bridge, port]), ["eth0"]);
        // The peer of a veth pair is not a lower interface, and a VRF is not a path.
        let veth = |index, name, lower| {
            stacked(Link { lower, master: 9, ..up_link(index, name, "veth") }, 100)
        };
        let pair = [veth(2, "veth0", 3), veth(3, "veth1", 2)];
        let domain = stacked(up_link(9, "vrf0", "vrf"), 0);
        assert_eq!(names(&[pair.concat(), domain]), ["veth0", "veth1"]);
    }

    #[test]
    fn the_kernel_answers_and_knows_loopback() {
        let interfaces = Interfaces::now().unwrap();
        let lo = interfaces.find_by_name("lo").expect("the loopback interface exists");
        assert!(lo.loopback);
        assert_eq!(
            interfaces.find_by_address("127.0.0.1".parse().unwrap()).unwrap().index,
            lo.index
        );
    }
}
