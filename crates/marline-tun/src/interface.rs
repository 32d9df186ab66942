//! Setup of the interface: state, MTU and an address for each family of the system.

use std::fs;
use std::io;

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
    /// The permission is missing, or the interface is already set up.
    pub(crate) fn set_up(addresses: &Addresses) -> io::Result<ReadyInterface> {
        let setup = InterfaceSetup::named(GATEWAY_INTERFACE)?;
        prepare_ipv6();
        setup.set_up(Some(MTU))?;
        setup.add_address(addresses.host_v4.into(), PREFIX_V4)?;
        let added = setup.add_address(addresses.host_v6.into(), PREFIX_V6);
        if let Err(error) = &added {
            // The machine has no IPv6, so the interface has none either.
            tracing::debug!("no IPv6 on {GATEWAY_INTERFACE}: {error}");
        }
        Ok(ReadyInterface { setup, ipv6: added.is_ok() })
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
