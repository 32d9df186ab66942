//! Raw IP sockets for TCP segments: not available.

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};

use super::unsupported_error;
use crate::edge::raw_packet::{RawDestination, RawMeta};

/// Stub: this platform has no raw sockets for TCP.
pub(crate) fn open(_ipv6: bool) -> io::Result<OwnedFd> {
    Err(unsupported_error("native carriers"))
}

/// Stub: this platform has no raw sockets for TCP.
pub(crate) fn open_sender(_ipv6: bool) -> io::Result<OwnedFd> {
    Err(unsupported_error("native carriers"))
}

/// Stub: this platform has no raw sockets for TCP.
pub(crate) fn bind_to_interface(_fd: BorrowedFd<'_>, _index: u32) -> io::Result<()> {
    Err(unsupported_error("native carriers"))
}

/// Stub: this platform has no raw sockets for TCP.
pub(crate) fn send(
    _fd: BorrowedFd<'_>,
    _to: &RawDestination,
    _stride: usize,
    _bytes: &[u8],
) -> io::Result<usize> {
    Err(unsupported_error("native carriers"))
}

/// Stub: this platform has no raw sockets for TCP.
pub(crate) fn send_parts(
    _fd: BorrowedFd<'_>,
    _to: &RawDestination,
    _parts: &[IoSlice<'_>],
) -> io::Result<()> {
    Err(unsupported_error("native carriers"))
}

/// Stub: this platform has no raw sockets for TCP.
pub(crate) fn kernel_mtu(_fd: BorrowedFd<'_>, _to: &RawDestination) -> io::Result<u32> {
    Err(unsupported_error("native carriers"))
}

/// Receive buffer for packets, which stays empty.
pub(crate) struct RawBuffer;

impl RawBuffer {
    pub(crate) const fn new() -> Self {
        RawBuffer
    }

    /// Stub: this platform has no raw sockets for TCP.
    pub(crate) fn receive(&mut self, _fd: BorrowedFd<'_>) -> io::Result<usize> {
        Err(unsupported_error("native carriers"))
    }

    /// Returns no packets.
    pub(crate) fn packets(&self) -> impl Iterator<Item = (&RawMeta, &[u8])> {
        core::iter::empty()
    }
}
