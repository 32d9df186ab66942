//! Interface to Linux: all system calls and files of this crate that other systems do not have. Raw and packet sockets
//! with their filters and guards, TUN interfaces, netlink, the socket error queue, a timer with nanosecond resolution,
//! binding to interfaces, capabilities, descriptors passed between processes, and the allocator's free pages.
//!
//! The rest of the crate uses this module as `sys`. `portable` has the corresponding functions for other systems.

pub(crate) mod channel;
pub(crate) mod error_queue;
mod filter;
pub(crate) mod guard;
mod instructions;
pub(crate) mod interfaces;
pub(crate) mod link;
pub(crate) mod memory;
mod message;
pub(crate) mod netlink;
pub(crate) mod outlet;
pub(crate) mod packet;
pub(crate) mod port_filter;
pub(crate) mod pref64;
pub(crate) mod privileges;
pub(crate) mod random;
pub(crate) mod raw;
pub(crate) mod setup;
pub(crate) mod socket;
pub(crate) mod timer;
mod ttl;
pub(crate) mod tun;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use tokio::io::Interest;

/// Interest for registering a socket that another process reads, so that input does not wake this process.
pub(crate) const WITHOUT_INPUT: Interest = Interest::PRIORITY;

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
