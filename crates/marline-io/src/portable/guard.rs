//! Port guards of native carriers: not available.

use core::net::SocketAddr;
use std::io;
use std::os::fd::OwnedFd;

use super::unsupported_error;

/// Guard of a port, which is never created.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) local: SocketAddr,
    pub(crate) both_families: bool,
}

impl Guard {
    /// Stub: this platform has no guards.
    pub(crate) fn on_address(_local: SocketAddr) -> io::Result<Self> {
        Err(unsupported_error("native carriers"))
    }

    /// Stub: this platform has no guards.
    pub(crate) fn on_all_addresses(_port: u16) -> io::Result<Self> {
        Err(unsupported_error("native carriers"))
    }

    /// Stub: this platform has no guards.
    pub(crate) fn inherited(_socket: OwnedFd) -> io::Result<Self> {
        Err(unsupported_error("native carriers"))
    }

    /// Stub: this platform has no guards.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        Err(unsupported_error("native carriers"))
    }

    /// Returns true if it guards this address and port.
    pub(crate) fn covers(&self, local: SocketAddr) -> bool {
        self.local == local
    }
}
