//! The system calls that no safe crate offers: a timer with nanoseconds, the program that spreads
//! datagrams over shards, the socket error queue. Linux.

pub(crate) mod error_queue;
pub(crate) mod socket;
pub(crate) mod timer;

use std::io;

/// A system call's result as `io::Result`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
