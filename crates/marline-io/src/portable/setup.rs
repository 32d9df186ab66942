//! Setup of interfaces: not available.

use core::net::IpAddr;
use std::io;

use super::unsupported_error;

/// Stub: interfaces cannot be set up on this platform.
#[derive(Debug)]
pub struct InterfaceSetup(());

impl InterfaceSetup {
    /// Stub: this platform cannot set up interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn named(_name: &str) -> io::Result<InterfaceSetup> {
        Err(unsupported_error("TUN interfaces"))
    }

    /// Returns the interface index.
    #[must_use]
    pub const fn index(&self) -> u32 {
        0
    }

    /// Stub: this platform cannot set up interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn set_up(&self, _mtu: Option<u32>) -> io::Result<()> {
        Err(unsupported_error("TUN interfaces"))
    }

    /// Stub: this platform cannot set up interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn add_address(&self, _address: IpAddr, _prefix: u8) -> io::Result<()> {
        Err(unsupported_error("TUN interfaces"))
    }

    /// Stub: this platform cannot set up interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn add_default_route(&self, _ipv6: bool) -> io::Result<()> {
        Err(unsupported_error("TUN interfaces"))
    }
}
