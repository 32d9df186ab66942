//! Capabilities: not available. A process keeps the user that started it.

use std::io;

use super::unsupported_error;
use crate::edge::capabilities::KeptCapabilities;

/// Stub: this platform has no capabilities to drop.
///
/// # Errors
/// Always fails with `Unsupported`.
pub fn keep_capabilities(_kept: KeptCapabilities) -> io::Result<()> {
    Err(unsupported_error("capabilities"))
}

/// Returns false: whether the process has the privilege is unknown.
#[must_use]
pub const fn has_net_admin() -> bool {
    false
}
