//! Capabilities: none. A process keeps the user it was started by.

use std::io;

use super::unsupported_error;
use crate::edge::capabilities::KeptCapabilities;

/// Fails: there are no capabilities to drop.
///
/// # Errors
/// Always `Unsupported`.
pub fn keep_capabilities(_kept: KeptCapabilities) -> io::Result<()> {
    Err(unsupported_error("capabilities"))
}

/// Returns false: the privilege is unknown.
#[must_use]
pub const fn has_net_admin() -> bool {
    false
}
