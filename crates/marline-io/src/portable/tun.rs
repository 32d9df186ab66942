//! TUN interfaces: not available.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::unsupported_error;

/// TUN interface of this process, which is never opened.
#[derive(Debug)]
pub struct Tun {
    descriptor: OwnedFd,
}

impl Tun {
    /// Stub: this platform has no TUN interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn open(_name: &str) -> io::Result<Tun> {
        Err(unsupported_error("TUN interfaces"))
    }

    /// Stub: this platform has no TUN interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn open_queue(_name: &str) -> io::Result<Tun> {
        Err(unsupported_error("TUN interfaces"))
    }

    /// Stub: this platform has no TUN interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn open_offloading(_name: &str) -> io::Result<Tun> {
        Err(unsupported_error("TUN interfaces"))
    }

    /// Stub: this platform has no TUN interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn adopt(_descriptor: OwnedFd) -> io::Result<Tun> {
        Err(unsupported_error("TUN interfaces"))
    }

    /// Creates a second handle to the same interface.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub fn try_clone(&self) -> io::Result<Tun> {
        Ok(Tun { descriptor: self.descriptor.try_clone()? })
    }

    /// Returns false: packets have no virtio header.
    #[must_use]
    pub const fn offloads(&self) -> bool {
        false
    }

    /// Stub: this platform has no TUN interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn read(&self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(unsupported_error("TUN interfaces"))
    }

    /// Stub: this platform has no TUN interfaces.
    ///
    /// # Errors
    /// Always fails with `Unsupported`.
    pub fn write(&self, _packet: &[u8]) -> io::Result<()> {
        Err(unsupported_error("TUN interfaces"))
    }
}

impl From<Tun> for OwnedFd {
    fn from(tun: Tun) -> OwnedFd {
        tun.descriptor
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
