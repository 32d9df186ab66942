//! Interfaces of this machine, and the selection of those that are paths.

use core::net::IpAddr;
use std::io;

use crate::edge::interface::Interface;
use crate::sys;

/// Name of the interface through which Marline provides the network of the machine or of a program. This interface is
/// never a path, although it has a default route.
pub const GATEWAY_INTERFACE: &str = "marline0";

/// Maximum depth of stacked interfaces.
const MAX_STACK_DEPTH: usize = 8;

/// Snapshot of all interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    list: Vec<Interface>,
}

impl Interfaces {
    /// Queries the operating system.
    ///
    /// # Errors
    /// Fails if the interfaces cannot be listed.
    pub fn now() -> io::Result<Self> {
        Ok(Interfaces::from_list(sys::interfaces::list()?))
    }

    /// Creates a snapshot of these interfaces, ordered by index.
    pub(crate) fn from_list(mut list: Vec<Interface>) -> Self {
        for interface in &mut list {
            interface.addresses.sort_by_key(IpAddr::is_ipv6);
        }
        Interfaces { list }
    }

    /// Returns all interfaces, by index.
    #[must_use]
    pub fn list(&self) -> &[Interface] {
        &self.list
    }

    /// Finds an interface by name.
    #[must_use]
    pub fn find_by_name(&self, name: &str) -> Option<&Interface> {
        self.list.iter().find(|interface| interface.name == name)
    }

    /// Finds the interface that has this address. All of 127.0.0.0/8 belongs to loopback.
    #[must_use]
    pub fn find_by_address(&self, address: IpAddr) -> Option<&Interface> {
        self.list.iter().find(|interface| {
            interface.addresses.contains(&address)
                || (interface.loopback && address.is_loopback() && address.is_ipv4())
        })
    }

    /// Returns the interfaces with a default route, best metric first. Marline's own interface is excluded. Of
    /// interfaces that share a wire, only the first is included. Tunnels are included only if there is nothing else: a
    /// tunnel is not an additional path, because its packets use another interface.
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

    /// Returns true if this interface has a default route but is not a path because its packets use the wire of another
    /// interface.
    #[must_use]
    pub fn uses_shared_network(&self, interface: &Interface) -> bool {
        if interface.default_addresses().next().is_none() {
            return false;
        }
        let mut others =
            self.candidates().into_iter().filter(|other| other.index != interface.index);
        others.any(|other| self.share_network(other, interface))
    }

    /// Returns the interfaces that may be a path, best metric first.
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

    /// Returns true if one interface is stacked on the other, or if both are stacked on the same one.
    fn share_network(&self, one: &Interface, other: &Interface) -> bool {
        let beside = one.lower != 0 && one.lower == other.lower && !one.vlan && !other.vlan;
        let above = |one: &Interface, other: &Interface| {
            let mut ports = self.list.iter().filter(|port| port.master == one.index);
            self.is_stacked_on(one, other.index)
                || ports.any(|port| self.is_stacked_on(port, other.index))
        };
        beside || above(one, other) || above(other, one)
    }

    /// Returns true if the interface is stacked on the interface with this index, or on a bridge or bond of which that
    /// one is a port.
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
