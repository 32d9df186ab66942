//! `getsockopt` past the table: packetdrill asks the C library for `TCP_INFO` and its kin.
//!
//! Loaded with `LD_PRELOAD` before the C library, this function answers for our sockets and hands all
//! others on to the system.

mod hashing;

use libc::{c_int, c_void, socklen_t};

use crate::calls;

/// The C library's `getsockopt`, for sockets of the world and all others.
///
/// # Safety
/// As the C library's: `value` points to as many bytes as `len` says, and both may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some(answer) = calls::preloaded_getsockopt(fd, level, name, value, len) {
        return answer;
    }
    // SAFETY: the arguments are the caller's own, passed on as they came; the system checks the pointers.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int }
}
