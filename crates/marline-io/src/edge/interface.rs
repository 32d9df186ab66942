//! Description of a network interface of this machine.

use core::net::IpAddr;

/// Network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// True if the interface is up and has a carrier.
    pub up: bool,
    /// True for the loopback interface.
    pub loopback: bool,
    /// True for a tunnel: packets are encapsulated and sent over another interface.
    pub tunnel: bool,
    /// Index of the lower interface whose wire this one uses; 0 if it has its own wire.
    pub(crate) lower: u32,
    /// True for a VLAN on the lower interface.
    pub(crate) vlan: bool,
    /// Index of the bridge or bond to which this port belongs; 0 for none.
    pub(crate) master: u32,
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

    /// Selects the first address of each family; each becomes a path.
    pub fn first_of_each_family(
        addresses: impl Iterator<Item = IpAddr>,
    ) -> impl Iterator<Item = IpAddr> {
        let mut seen = [false; 2];
        addresses.filter(move |ip| !core::mem::replace(&mut seen[usize::from(ip.is_ipv6())], true))
    }
}
