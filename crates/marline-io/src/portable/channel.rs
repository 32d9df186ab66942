//! Channels between processes: not available, so there is no handover.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::unsupported_error;

/// Stub: this platform has no channels.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Err(unsupported_error("upgrades without interruption"))
}

/// Stub: this platform has no channels.
pub(crate) fn send(
    _to: BorrowedFd<'_>,
    _parts: &[&[u8]],
    _fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    Err(unsupported_error("upgrades without interruption"))
}

/// Stub: this platform has no channels.
pub(crate) fn receive(
    _from: BorrowedFd<'_>,
    _buffer: &mut [u8],
) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    Err(unsupported_error("upgrades without interruption"))
}
