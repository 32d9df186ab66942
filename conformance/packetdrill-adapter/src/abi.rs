//! Function table that a stack fills in for packetdrill: 33 pointers, in this order.
//!
//! Every function gets `userdata` first and returns like the C library, with -1 and `errno` on failure. packetdrill
//! would also call empty slots, so all are filled, some with functions that only fail.

use libc::{
    c_int, c_long, c_longlong, c_uint, c_ulong, c_void, epoll_event, iovec, msghdr, nfds_t, pollfd,
    size_t, sockaddr, socklen_t, ssize_t, timeval,
};

/// Pointer to the machine, which is never dereferenced. See [`crate::calls`].
pub(crate) type Userdata = *mut c_void;

/// The table.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct Interface {
    pub(crate) userdata: Userdata,
    pub(crate) free: extern "C" fn(Userdata),
    pub(crate) socket: extern "C" fn(Userdata, c_int, c_int, c_int) -> c_int,
    pub(crate) bind: extern "C" fn(Userdata, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) listen: extern "C" fn(Userdata, c_int, c_int) -> c_int,
    pub(crate) accept: extern "C" fn(Userdata, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub(crate) connect: extern "C" fn(Userdata, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) read: extern "C" fn(Userdata, c_int, *mut c_void, size_t) -> ssize_t,
    pub(crate) readv: extern "C" fn(Userdata, c_int, *const iovec, c_int) -> ssize_t,
    pub(crate) recv: extern "C" fn(Userdata, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub(crate) recvfrom: extern "C" fn(
        Userdata,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    pub(crate) recvmsg: extern "C" fn(Userdata, c_int, *mut msghdr, c_int) -> ssize_t,
    pub(crate) write: extern "C" fn(Userdata, c_int, *const c_void, size_t) -> ssize_t,
    pub(crate) writev: extern "C" fn(Userdata, c_int, *const iovec, c_int) -> ssize_t,
    pub(crate) send: extern "C" fn(Userdata, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub(crate) sendto: extern "C" fn(
        Userdata,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    pub(crate) sendmsg: extern "C" fn(Userdata, c_int, *const msghdr, c_int) -> ssize_t,
    /// Variadic in C. On the platforms of packetdrill the single argument of these calls is passed in the same
    /// register as a fixed one.
    pub(crate) fcntl: extern "C" fn(Userdata, c_int, c_int, c_long) -> c_int,
    /// Variadic in C, like `fcntl`.
    pub(crate) ioctl: extern "C" fn(Userdata, c_int, c_ulong, *mut c_void) -> c_int,
    pub(crate) close: extern "C" fn(Userdata, c_int) -> c_int,
    pub(crate) shutdown: extern "C" fn(Userdata, c_int, c_int) -> c_int,
    pub(crate) getsockopt:
        extern "C" fn(Userdata, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub(crate) setsockopt:
        extern "C" fn(Userdata, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub(crate) poll: extern "C" fn(Userdata, *mut pollfd, nfds_t, c_int) -> c_int,
    /// Passes an IP packet to the stack.
    pub(crate) netdev_send: extern "C" fn(Userdata, *const c_void, size_t) -> c_int,
    /// Returns the stack's next IP packet and its sending time (`gettimeofday`, in microseconds). A count of 0 means
    /// that there is none.
    pub(crate) netdev_receive:
        extern "C" fn(Userdata, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub(crate) usleep: extern "C" fn(Userdata, c_uint) -> c_int,
    pub(crate) gettimeofday: extern "C" fn(Userdata, *mut timeval, *mut c_void) -> c_int,
    pub(crate) epoll_create: extern "C" fn(Userdata, c_int) -> c_int,
    pub(crate) epoll_ctl: extern "C" fn(Userdata, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub(crate) epoll_wait: extern "C" fn(Userdata, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub(crate) pipe: extern "C" fn(Userdata, *mut c_int) -> c_int,
    pub(crate) splice:
        extern "C" fn(Userdata, c_int, *mut c_void, c_int, *mut c_void, size_t, c_uint) -> ssize_t,
}

const _: () = assert!(size_of::<Interface>() == 33 * size_of::<usize>());
