//! Slots of the table that nothing stands behind: an empty one would be jumped through.

use libc::{c_int, c_uint, c_ulong, c_void, epoll_event, size_t, ssize_t};

use super::{length, status};
use crate::abi::Userdata;

pub(super) extern "C" fn ioctl(_: Userdata, _: c_int, _: c_ulong, _: *mut c_void) -> c_int {
    status(Err(libc::ENOSYS))
}

pub(super) extern "C" fn epoll_create(_: Userdata, _: c_int) -> c_int {
    status(Err(libc::ENOSYS))
}

pub(super) extern "C" fn epoll_ctl(
    _: Userdata,
    _: c_int,
    _: c_int,
    _: c_int,
    _: *mut epoll_event,
) -> c_int {
    status(Err(libc::ENOSYS))
}

pub(super) extern "C" fn epoll_wait(
    _: Userdata,
    _: c_int,
    _: *mut epoll_event,
    _: c_int,
    _: c_int,
) -> c_int {
    status(Err(libc::ENOSYS))
}

pub(super) extern "C" fn pipe(_: Userdata, _: *mut c_int) -> c_int {
    status(Err(libc::ENOSYS))
}

pub(super) extern "C" fn splice(
    _: Userdata,
    _: c_int,
    _: *mut c_void,
    _: c_int,
    _: *mut c_void,
    _: size_t,
    _: c_uint,
) -> ssize_t {
    length(Err(libc::ENOSYS))
}
