//! Registers operating system descriptors with tokio.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with tokio.
pub(crate) fn watch<T: Owned>(inner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: `Owned` types own their descriptor, always return the same one, and close it only
    // when dropped, which AsyncFd does after it has deregistered it.
    Ok(unsafe { AsyncFd::register_with_interest(inner, interest) }?)
}

/// Type that owns one file descriptor during its lifetime.
pub(crate) trait Owned: AsRawFd {}

impl Owned for OwnedFd {}
impl Owned for UdpSocket {}
