//! Packet sockets: not available.

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};

use super::unsupported_error;

/// Stub: this platform has no packet sockets.
pub(crate) fn open() -> io::Result<OwnedFd> {
    Err(unsupported_error("packet sockets"))
}

/// Stub: this platform has no packet sockets.
pub(crate) fn send(
    _fd: BorrowedFd<'_>,
    _interface: u32,
    _ipv6: bool,
    _parts: &[IoSlice<'_>],
) -> io::Result<()> {
    Err(unsupported_error("packet sockets"))
}
