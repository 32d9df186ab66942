//! Preloaded C library functions for calls outside the table: packetdrill requests `TCP_INFO` and similar from the
//! C library, and uses it to send files.
//!
//! Loaded with `LD_PRELOAD` before the C library, these functions answer for our sockets and pass all others to the
//! system.

mod hashing;

use libc::{c_int, c_void, off_t, size_t, socklen_t, ssize_t};

use crate::calls;

/// The C library's `getsockopt`, for sockets of the machine and all others.
///
/// # Safety
/// As for the C library function: `value` points to as many bytes as `len` says, and both may be written.
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
    // SAFETY: the caller's own arguments, passed on unchanged. The system checks the pointers.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int }
}

/// The C library's `sendfile`, to sockets of the machine and all others.
///
/// # Safety
/// As for the C library function: `offset` is null or may be read and written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if let Some(answer) = calls::preloaded_sendfile(to, from, offset, count) {
        return answer;
    }
    // SAFETY: the caller's own arguments, passed on unchanged. The system checks the pointers.
    unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) as ssize_t }
}

/// `sendfile` under the name that programs with large files use.
///
/// # Safety
/// Same as [`sendfile`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's own arguments.
    unsafe { sendfile(to, from, offset, count) }
}
