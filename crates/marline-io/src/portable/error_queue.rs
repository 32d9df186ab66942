//! Error queue of a socket: always empty. Failures are detected by timeouts.

use std::io;
use std::os::fd::BorrowedFd;

use crate::edge::network_error::NetworkError;

/// Does nothing.
#[expect(clippy::unnecessary_wraps, reason = "same signature as on Linux")]
pub(crate) const fn enable(_fd: BorrowedFd<'_>, _ipv6: bool) -> io::Result<()> {
    Ok(())
}

/// Returns `None`: the queue is empty.
pub(crate) const fn next(_fd: BorrowedFd<'_>) -> Option<NetworkError> {
    None
}
