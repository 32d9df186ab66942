//! Privileges of the process, and advice if one is missing.

use core::net::SocketAddr;
use std::io;

use crate::edge::capabilities::KeptCapabilities;
use crate::sys::privileges::keep_capabilities;

/// Permanently drops all capabilities of this process; no program that it executes can regain them. Open sockets stay
/// open, and raw sockets can still send.
///
/// # Errors
/// Fails if the kernel refuses, or if other threads are already running and still have capabilities.
pub fn drop_capabilities() -> io::Result<()> {
    keep_capabilities(KeptCapabilities::Nothing)
}

/// Returns advice if a port could not be bound because a privilege is missing; `None` for other errors.
#[must_use]
pub fn port_help(address: SocketAddr, error: &io::Error) -> Option<&'static str> {
    let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
    (is_denied && (1..1_024).contains(&address.port())).then_some(
        "ports below 1024 need root or CAP_NET_BIND_SERVICE; choose a higher port, use sudo, or give the program \
         the capability: sudo setcap cap_net_bind_service+ep FILE, or AmbientCapabilities=CAP_NET_BIND_SERVICE in \
         its unit",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_port_that_is_denied_names_the_capability_and_nothing_else_does() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let help = |text: &str, error| port_help(text.parse().unwrap(), error);
        assert!(help("0.0.0.0:443", &denied).unwrap().contains("CAP_NET_BIND_SERVICE"));
        assert_eq!(help("0.0.0.0:4430", &denied), None);
        assert_eq!(help("[::]:443", &io::ErrorKind::AddrInUse.into()), None);
    }
}
