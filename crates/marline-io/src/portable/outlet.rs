//! Outlets for Ethernet frames: not available.

use core::net::SocketAddr;
use std::io;

use crate::edge::outlet::Outlet;

/// Finder of outlets, which finds none.
#[derive(Debug, Default)]
pub(crate) struct OutletFinder;

impl OutletFinder {
    /// Returns `None`: packets are left to the kernel.
    #[expect(clippy::unnecessary_wraps, reason = "same signature as on Linux")]
    #[expect(clippy::needless_pass_by_ref_mut, reason = "same signature as on Linux")]
    pub(crate) const fn find(
        &mut self,
        _local: SocketAddr,
        _remote: SocketAddr,
        _interface: u32,
    ) -> io::Result<Option<Outlet>> {
        Ok(None)
    }
}
