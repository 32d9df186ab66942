//! Setup of the interface: state, MTU and an address for each family of the system.

use std::fs;
use std::io;
use std::net::IpAddr;

use marline_io::{GATEWAY_INTERFACE, InterfaceSetup};

use crate::addresses::{Addresses, MTU, PREFIX_V4, PREFIX_V6};

/// Interface that is ready for routes.
#[derive(Debug)]
pub(crate) struct ReadyInterface {
    setup: InterfaceSetup,
    ipv6: bool,
}

impl ReadyInterface {
    /// Sets up the interface in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The permission is missing.
    pub(crate) fn set_up(addresses: &Addresses) -> io::Result<ReadyInterface> {
        let setup = InterfaceSetup::named(GATEWAY_INTERFACE)?;
        let mut interface = ReadyInterface { setup, ipv6: false };
        interface.restore(addresses)?;
        let added = interface.add_address(addresses.host_v6.into(), PREFIX_V6);
        if let Err(error) = &added {
            // The machine has no IPv6, so the interface has none either.
            tracing::debug!("no IPv6 on {GATEWAY_INTERFACE}: {error}");
        }
        interface.ipv6 = added.is_ok();
        Ok(interface)
    }

    /// Restores the state, the MTU and the addresses if another program has changed them.
    ///
    /// # Errors
    /// The permission is missing, or the interface no longer exists.
    pub(crate) fn restore(&self, addresses: &Addresses) -> io::Result<()> {
        prepare_ipv6();
        self.setup.set_up(Some(MTU))?;
        self.add_address(addresses.host_v4.into(), PREFIX_V4)?;
        if self.ipv6 {
            self.add_address(addresses.host_v6.into(), PREFIX_V6)?;
        }
        Ok(())
    }

    fn add_address(&self, address: IpAddr, prefix: u8) -> io::Result<()> {
        match self.setup.add_address(address, prefix) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            added => added,
        }
    }

    /// Returns the interface index, as used in routes.
    pub(crate) const fn index(&self) -> u32 {
        self.setup.index()
    }

    /// Returns true if the interface has an IPv6 address.
    pub(crate) const fn has_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Adds default routes for each family of the interface.
    ///
    /// # Errors
    /// The permission is missing, or such a route exists.
    pub(crate) fn add_default_routes(&self) -> io::Result<()> {
        self.setup.add_default_route(false)?;
        if self.ipv6 {
            self.setup.add_default_route(true)?;
        }
        Ok(())
    }
}

/// Restricts IPv6 to our own address, without a link-local one and without router solicitations, which would remain
/// unanswered.
fn prepare_ipv6() {
    for (key, value) in [
        ("disable_ipv6", "0"),
        ("addr_gen_mode", "1"),
        ("accept_ra", "0"),
        ("router_solicitations", "0"),
    ] {
        // Without IPv6 this key does not exist.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{GATEWAY_INTERFACE}/{key}"), value);
    }
}
