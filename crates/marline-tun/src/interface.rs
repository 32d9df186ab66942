//! Setup of the interface: up, with its MTU and an address of each family that the system has.

use std::fs;
use std::io;

use marline_io::{GATEWAY_INTERFACE, InterfaceSetup};

use crate::addresses::{Addresses, MTU, PREFIX_V4, PREFIX_V6};

/// The interface, ready for routes.
#[derive(Debug)]
pub(crate) struct ReadyInterface {
    setup: InterfaceSetup,
    ipv6: bool,
}

impl ReadyInterface {
    /// Sets up the interface in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The right is missing, or it is set up already.
    pub(crate) fn set_up(addresses: &Addresses) -> io::Result<ReadyInterface> {
        let setup = InterfaceSetup::named(GATEWAY_INTERFACE)?;
        prepare_ipv6();
        setup.up(Some(MTU))?;
        setup.add_address(addresses.host_v4.into(), PREFIX_V4)?;
        let added = setup.add_address(addresses.host_v6.into(), PREFIX_V6);
        if let Err(error) = &added {
            // A machine without IPv6: then there is none here either.
            tracing::debug!("no IPv6 on {GATEWAY_INTERFACE}: {error}");
        }
        Ok(ReadyInterface { setup, ipv6: added.is_ok() })
    }

    /// Its index.
    pub(crate) const fn index(&self) -> u32 {
        self.setup.index()
    }

    /// Whether it has an IPv6 address.
    pub(crate) const fn has_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Makes it the way to everywhere, of both families if it can.
    ///
    /// # Errors
    /// The right is missing, or there is such a way.
    pub(crate) fn add_default_routes(&self) -> io::Result<()> {
        self.setup.add_default_route(false)?;
        if self.ipv6 {
            self.setup.add_default_route(true)?;
        }
        Ok(())
    }
}

/// An address of ours alone, no link-local one, and no questions about routers: there is nobody to answer.
fn prepare_ipv6() {
    for (key, value) in [
        ("disable_ipv6", "0"),
        ("addr_gen_mode", "1"),
        ("accept_ra", "0"),
        ("router_solicitations", "0"),
    ] {
        // Without IPv6 there is no such key.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{GATEWAY_INTERFACE}/{key}"), value);
    }
}
