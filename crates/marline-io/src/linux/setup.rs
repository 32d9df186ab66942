//! Setup of an interface that this process has created: state, MTU, addresses, and default routes.

use core::net::IpAddr;
use std::io;

use super::message;
use super::netlink::Netlink;

/// Interface in the network namespace of the thread that looked it up. Its setup needs CAP_NET_ADMIN in this namespace.
#[derive(Debug)]
pub struct InterfaceSetup {
    netlink: Netlink,
    index: u32,
}

impl InterfaceSetup {
    /// Looks up an interface by name.
    ///
    /// # Errors
    /// Fails if there is no such interface.
    pub fn named(name: &str) -> io::Result<InterfaceSetup> {
        let netlink = Netlink::open(0)?;
        let index = rustix::net::netdevice::name_to_index(&netlink, name)?;
        Ok(InterfaceSetup { netlink, index })
    }

    /// Returns the interface index.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Sets the interface up, with an MTU (in bytes) if given.
    ///
    /// # Errors
    /// Fails if the privilege is missing or the MTU is not valid for this interface.
    pub fn set_up(&self, mtu: Option<u32>) -> io::Result<()> {
        self.netlink.change(&message::link_up_request(self.index, mtu))
    }

    /// Adds an address without duplicate address detection, so that it is immediately usable, and a route to its subnet
    /// with this prefix length.
    ///
    /// # Errors
    /// Fails if the privilege is missing, the address already exists, or the family is not available.
    pub fn add_address(&self, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.netlink.change(&message::address_request(self.index, address, prefix))
    }

    /// Adds a default route of a family.
    ///
    /// # Errors
    /// Fails if the privilege is missing, such a route already exists, or the family is not available.
    pub fn add_default_route(&self, ipv6: bool) -> io::Result<()> {
        self.netlink.change(&message::default_route_request(self.index, ipv6))
    }
}
