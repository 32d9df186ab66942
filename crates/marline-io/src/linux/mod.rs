//! System calls that no safe crate offers: a timer with nanosecond resolution, the program that distributes
//! datagrams over shards, the socket error queue, raw and packet sockets, their filters, and the allocator's free
//! pages. Linux only.

pub(crate) mod error_queue;
pub(crate) mod filter;
pub(crate) mod link;
pub(crate) mod memory;
pub(crate) mod packet;
pub(crate) mod raw;
pub(crate) mod socket;
pub(crate) mod timer;
pub(crate) mod ttl;
pub(crate) mod tun;

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Converts a system call's result to `io::Result`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Sets a socket option to a value in the kernel's layout: an integer, or a filter program.
pub(crate) fn set_option<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open; pointer and length describe a live value, which the call only reads.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, core::ptr::from_ref(value).cast(), len)
    })?;
    Ok(())
}

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
