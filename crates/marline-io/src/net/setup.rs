//! Setup of an interface that this process made: up, MTU, addresses, default routes.

use core::net::IpAddr;
use std::io;

use super::message;
use super::netlink::Netlink;

/// An interface of the network namespace of the thread that looked it up; setting it up needs CAP_NET_ADMIN there.
#[derive(Debug)]
pub struct InterfaceSetup {
    netlink: Netlink,
    index: u32,
}

impl InterfaceSetup {
    /// The interface of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> io::Result<InterfaceSetup> {
        let netlink = Netlink::open(0)?;
        let index = rustix::net::netdevice::name_to_index(&netlink, name)?;
        Ok(InterfaceSetup { netlink, index })
    }

    /// Its index.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Takes it up, and gives it an MTU (bytes) unless that is `None`.
    ///
    /// # Errors
    /// The right is missing, or the MTU is none for this interface.
    pub fn up(&self, mtu: Option<u32>) -> io::Result<()> {
        self.netlink.change(&message::link_up_request(self.index, mtu))
    }

    /// Gives it an address, which is used at once (no duplicate address detection), and the route to the others
    /// with the same first `prefix` bits.
    ///
    /// # Errors
    /// The right is missing, the address is there, or the family is not.
    pub fn add_address(&self, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.netlink.change(&message::address_request(self.index, address, prefix))
    }

    /// Makes it the way to everywhere of a family.
    ///
    /// # Errors
    /// The right is missing, there is such a route, or the family is not there.
    pub fn add_default_route(&self, ipv6: bool) -> io::Result<()> {
        self.netlink.change(&message::default_route_request(self.index, ipv6))
    }
}
