//! Port filter of the native carriers: not available.

use std::io;
use std::os::fd::BorrowedFd;

use marline_core::Shard;

use super::unsupported_error;

/// Stub: this platform has no raw sockets.
pub(crate) fn install(
    _socket: BorrowedFd<'_>,
    _ipv6: bool,
    _shard: Shard,
    _ports: impl IntoIterator<Item = u16>,
) -> io::Result<()> {
    Err(unsupported_error("native carriers"))
}
