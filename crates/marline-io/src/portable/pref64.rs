//! NAT64 prefixes that routers advertise: not available.

use std::io;

use marline_wire::Pref64;

use super::unsupported_error;

/// Listener for prefixes that routers advertise.
#[derive(Debug)]
pub struct Pref64Listener(());

impl Pref64Listener {
    /// Stub: this platform's kernel does not pass these options to programs.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn start() -> io::Result<Self> {
        Err(unsupported_error("NAT64 prefixes from routers"))
    }

    /// Waits forever.
    ///
    /// # Errors
    /// Never fails.
    pub async fn next_options(&mut self) -> io::Result<Vec<(u32, Pref64)>> {
        core::future::pending().await
    }
}
