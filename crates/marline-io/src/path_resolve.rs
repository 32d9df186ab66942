//! Resolution of a path spec to its current addresses and interfaces.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::io;

use crate::edge::interface::Interface;
use crate::edge::socket_spec::PortSharing;
use crate::net::{GATEWAY_INTERFACE, Interfaces};
use crate::sys::netlink::route_exists;
use crate::{LocalSpec, PathSpec, SocketOptions};

/// Local address of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalEnd {
    /// Address by which the driver and the core identify this end.
    pub address: IpAddr,
    /// Address to which the sockets are bound. It differs from `address` only if a second interface has the same
    /// address, as with two tethered phones that use one subnet.
    pub bound: IpAddr,
    /// Name and index of the interface that has the address.
    pub interface: (String, u32),
    /// True on loopback: packets are not bound to an interface.
    pub loopback: bool,
    /// True if the address belongs to Marline itself, behind a TUN interface, without routes in the kernel's tables.
    pub behind_tun: bool,
    /// Mark of the packets for routing rules; 0 for none.
    pub mark: u32,
}

impl LocalEnd {
    /// Creates the local end behind a TUN interface.
    #[must_use]
    pub fn from_tun(interface: &str, address: IpAddr) -> Self {
        let interface = (interface.to_owned(), 0);
        LocalEnd { address, bound: address, interface, loopback: false, behind_tun: true, mark: 0 }
    }

    /// Returns the options of a socket with any port.
    #[must_use]
    pub fn socket_options(&self) -> SocketOptions {
        SocketOptions {
            local: SocketAddr::new(self.bound, 0),
            alias: (self.address != self.bound).then_some(self.address),
            interface: (!self.loopback).then(|| self.interface.clone()),
            port: PortSharing::Alone,
            mark: self.mark,
        }
    }

    /// Checks that the routing tables contain a route to `remote` from this end, through this interface.
    ///
    /// # Errors
    /// Fails if there is no such route, or if the address families differ.
    pub fn check_route(&self, remote: IpAddr) -> io::Result<()> {
        if remote.is_ipv4() != self.address.is_ipv4() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the addresses belong to different families",
            ));
        }
        if self.behind_tun {
            return Ok(());
        }
        let oif = if self.loopback { 0 } else { self.interface.1 };
        route_exists(remote, Some(self.bound), oif, self.mark)
    }
}

/// Reason why a path cannot currently be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// No interface has this name.
    NoInterface {
        /// Name in the path spec.
        name: String,
        /// Existing interfaces, as a hint for typing errors.
        present: Vec<String>,
    },
    /// The interface has no usable address.
    NoAddress(String),
    /// No interface has this address.
    NotLocal {
        /// Address in the path spec.
        address: IpAddr,
        /// Existing addresses, with their interfaces.
        present: Vec<String>,
    },
}

/// Maximum number of existing interfaces or addresses listed.
const MAX_LISTED: usize = 8;

impl ResolveError {
    fn unknown_interface_error(name: &str, interfaces: &Interfaces) -> ResolveError {
        let present = usable_interfaces(interfaces).map(|interface| interface.name.clone());
        ResolveError::NoInterface {
            name: name.to_owned(),
            present: present.take(MAX_LISTED).collect(),
        }
    }

    fn foreign_address_error(address: IpAddr, interfaces: &Interfaces) -> ResolveError {
        let present = usable_interfaces(interfaces).flat_map(|interface| {
            let fitting = interface.addresses.iter().filter(|ip| ip.is_ipv4() == address.is_ipv4());
            fitting.map(|ip| format!("{ip} ({})", interface.name))
        });
        ResolveError::NotLocal { address, present: present.take(MAX_LISTED).collect() }
    }
}

/// Returns the interfaces that a path may use.
fn usable_interfaces(interfaces: &Interfaces) -> impl Iterator<Item = &Interface> {
    let other = |interface: &&Interface| !interface.loopback && interface.name != GATEWAY_INTERFACE;
    interfaces.list().iter().filter(other)
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResolveError::NoInterface { name, present } => {
                write!(f, "interface `{name}` not found")?;
                list(f, present)
            }
            ResolveError::NoAddress(name) => write!(f, "interface `{name}` has no address"),
            ResolveError::NotLocal { address, present } => {
                write!(f, "no interface of this machine has the address {address}")?;
                list(f, present)
            }
        }
    }
}

/// Lists what exists instead.
fn list(f: &mut fmt::Formatter<'_>, present: &[String]) -> fmt::Result {
    match present {
        [] => Ok(()),
        _ => write!(f, " (available: {})", present.join(", ")),
    }
}

impl core::error::Error for ResolveError {}

impl PathSpec {
    /// Returns the local ends of the path: the given address, or the interface's first address of each family.
    ///
    /// # Errors
    /// Fails if the interface or address does not currently exist.
    pub fn resolve(&self, interfaces: &Interfaces) -> Result<Vec<LocalEnd>, ResolveError> {
        match &self.local {
            LocalSpec::Address(address) => {
                let interface = interfaces
                    .find_by_address(*address)
                    .ok_or_else(|| ResolveError::foreign_address_error(*address, interfaces))?;
                Ok(vec![end(interface, *address)])
            }
            LocalSpec::Interface(name) => {
                let interface = interfaces
                    .find_by_name(name)
                    .ok_or_else(|| ResolveError::unknown_interface_error(name, interfaces))?;
                let family = self.remote.map(|remote| remote.is_ipv4());
                let fitting = interface
                    .addresses
                    .iter()
                    .copied()
                    .filter(|ip| family.is_none_or(|ipv4| ipv4 == ip.is_ipv4()));
                let ends: Vec<_> =
                    Interface::first_of_each_family(fitting).map(|ip| end(interface, ip)).collect();
                if ends.is_empty() {
                    return Err(ResolveError::NoAddress(name.clone()));
                }
                Ok(ends)
            }
        }
    }

    /// Returns the default paths if none are configured: every interface with a default route.
    #[must_use]
    pub fn defaults(interfaces: &Interfaces) -> Vec<(PathSpec, Vec<LocalEnd>)> {
        let found = interfaces.with_default_route().into_iter();
        found
            .map(|interface| {
                let local = LocalSpec::Interface(interface.name.clone());
                let spec = PathSpec::new(local);
                let ends = Interface::first_of_each_family(interface.default_addresses());
                (spec, ends.map(|ip| end(interface, ip)).collect())
            })
            .collect()
    }
}

fn end(interface: &Interface, address: IpAddr) -> LocalEnd {
    LocalEnd {
        address,
        bound: address,
        interface: (interface.name.clone(), interface.index),
        loopback: interface.loopback,
        behind_tun: false,
        mark: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_resolves_unbound_and_foreign_addresses_do_not() {
        let interfaces = Interfaces::now().unwrap();
        let spec: PathSpec = "127.0.0.5".parse().unwrap();
        let ends = spec.resolve(&interfaces).unwrap();
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].socket_options().interface, None);
        ends[0].check_route("127.0.0.1".parse().unwrap()).unwrap();
        assert!(ends[0].check_route("::1".parse().unwrap()).is_err());

        let stranger: PathSpec = "203.0.113.77".parse().unwrap();
        let error = stranger.resolve(&interfaces).unwrap_err();
        assert!(error.to_string().contains("203.0.113.77"));
        let missing: PathSpec = "nosuch0".parse().unwrap();
        assert!(matches!(missing.resolve(&interfaces), Err(ResolveError::NoInterface { .. })));
    }

    #[test]
    fn a_path_from_loopback_into_the_world_has_no_route() {
        let interfaces = Interfaces::now().unwrap();
        let lo = interfaces.find_by_name("lo").unwrap();
        let bound = LocalEnd {
            address: "127.0.0.1".parse().unwrap(),
            bound: "127.0.0.1".parse().unwrap(),
            interface: (lo.name.clone(), lo.index),
            loopback: false,
            behind_tun: false,
            mark: 0,
        };
        assert!(bound.check_route("203.0.113.9".parse().unwrap()).is_err());
    }
}
