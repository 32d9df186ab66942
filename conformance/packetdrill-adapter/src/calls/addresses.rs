//! Calls that open and close sockets, with the conversion of socket addresses.

use std::net::{IpAddr, SocketAddr};

use libc::{c_int, c_long, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use super::{answer, machine, status};
use crate::abi::Userdata;
use crate::sockets::{to_socket_family, unmapped};

/// Opens a kernel socket that stays unused.
fn token(v6: bool) -> Result<c_int, c_int> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM, 0) };
    if fd < 0 { Err(last_errno()) } else { Ok(fd) }
}

/// The `errno` of a failed system call.
pub(super) fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

pub(super) fn close_token(fd: c_int) {
    // SAFETY: our own descriptor, which the machine no longer knows.
    unsafe { libc::close(fd) };
}

pub(super) extern "C" fn socket(_: Userdata, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    let v6 = match domain {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return status(Err(libc::EAFNOSUPPORT)),
    };
    let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
    let stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    if !stream || ![0, libc::IPPROTO_TCP, libc::IPPROTO_MPTCP].contains(&protocol) {
        return status(Err(libc::EPROTONOSUPPORT));
    }
    let fd = token(v6);
    if let Ok(fd) = fd {
        machine.call(|state| state.open_socket(fd, v6, protocol, nonblocking));
    }
    answer(fd) as c_int
}

/// Reads the address given by a caller. `None` is `AF_UNSPEC`.
pub(super) fn address(
    address: *const sockaddr,
    len: socklen_t,
) -> Result<Option<SocketAddr>, c_int> {
    if address.is_null() {
        return Err(libc::EFAULT);
    }
    let len = len as usize;
    if len < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: not null, and long enough for its family; it need not be aligned.
    let family = c_int::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() });
    match family {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: not null, of this family and this length.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(Some(SocketAddr::new(ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: not null, of this family and this length.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = IpAddr::from(v6.sin6_addr.s6_addr);
            Ok(Some(unmapped(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))))
        }
        libc::AF_INET | libc::AF_INET6 => Err(libc::EINVAL),
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// Writes an address to a caller's buffer, truncated to its length.
fn tell(address: SocketAddr, out: *mut sockaddr, len: *mut socklen_t) {
    if out.is_null() || len.is_null() {
        return;
    }
    // SAFETY: all-zero is a valid value for this integer-only struct.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let size = match address {
        SocketAddr::V4(v4) => {
            let place = (&raw mut storage).cast::<sockaddr_in>();
            // SAFETY: the storage is large enough and aligned for every family.
            let place = unsafe { &mut *place };
            place.sin_family = libc::AF_INET as libc::sa_family_t;
            place.sin_port = v4.port().to_be();
            place.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let place = (&raw mut storage).cast::<sockaddr_in6>();
            // SAFETY: the storage is large enough and aligned for every family.
            let place = unsafe { &mut *place };
            place.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            place.sin6_port = v6.port().to_be();
            place.sin6_addr.s6_addr = v6.ip().octets();
            size_of::<sockaddr_in6>()
        }
    };
    // SAFETY: neither is null. `len` may be read and written, and `*len` bytes may be written at `out`.
    unsafe {
        let room = (*len as usize).min(size);
        std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), out.cast::<u8>(), room);
        *len = size as socklen_t;
    }
}

pub(super) extern "C" fn bind(
    _: Userdata,
    fd: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    let to = match address(to, len) {
        Ok(Some(to)) => to,
        Ok(None) => return status(Err(libc::EAFNOSUPPORT)),
        Err(errno) => return status(Err(errno)),
    };
    status(machine.call(|state| state.bind(fd, to)))
}

pub(super) extern "C" fn listen(_: Userdata, fd: c_int, backlog: c_int) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    let bound = match machine.call(|state| state.listen(fd)) {
        Ok(bound) => bound,
        Err(errno) => return status(Err(errno)),
    };
    show_listener(fd, bound, backlog);
    0
}

/// Makes the unused socket listen on the same port, for scripts that read `/proc/net/tcp`. A failure (the port is
/// taken, outside a namespace) affects no other script.
fn show_listener(fd: c_int, bound: SocketAddr, backlog: c_int) {
    // SAFETY: all-zero is a valid value for these integer-only structs.
    let (mut v4, mut v6): (sockaddr_in, sockaddr_in6) = unsafe { std::mem::zeroed() };
    v4.sin_family = libc::AF_INET as libc::sa_family_t;
    v4.sin_port = bound.port().to_be();
    v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    v6.sin6_port = bound.port().to_be();
    // SAFETY: both structures live until the calls return and have the given lengths. The system rejects the structure
    // of the wrong family.
    unsafe {
        let (short, long) = (size_of::<sockaddr_in>(), size_of::<sockaddr_in6>());
        libc::bind(fd, (&raw const v4).cast(), short as socklen_t);
        libc::bind(fd, (&raw const v6).cast(), long as socklen_t);
        libc::listen(fd, backlog);
    }
}

pub(super) extern "C" fn accept(
    _: Userdata,
    fd: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    let v6 = match machine.call(|state| state.sockets.get(fd).map(|socket| socket.v6)) {
        Ok(v6) => v6,
        Err(errno) => return status(Err(errno)),
    };
    let new_fd = match token(v6) {
        Ok(new_fd) => new_fd,
        Err(errno) => return status(Err(errno)),
    };
    match machine.wait(|state| state.accept(fd, new_fd)) {
        Ok(remote) => {
            tell(to_socket_family(v6, remote), peer, len);
            new_fd
        }
        Err(errno) => {
            close_token(new_fd);
            status(Err(errno))
        }
    }
}

pub(super) extern "C" fn connect(
    _: Userdata,
    fd: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    let to = match address(to, len) {
        Ok(Some(to)) => to,
        Ok(None) => return status(machine.call(|state| state.disconnect(fd))),
        Err(errno) => return status(Err(errno)),
    };
    let mut deadline = None;
    status(machine.wait(|state| state.connect(fd, to, &mut deadline)))
}

pub(super) extern "C" fn fcntl(_: Userdata, fd: c_int, command: c_int, argument: c_long) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    if !machine.call(|state| state.sockets.is_ours(fd)) {
        // SAFETY: the caller's own arguments, which the system checks.
        return unsafe { libc::fcntl(fd, command, argument) };
    }
    answer(machine.call(|state| state.fcntl(fd, command, argument))) as c_int
}

pub(super) extern "C" fn shutdown(_: Userdata, fd: c_int, how: c_int) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    status(machine.call(|state| state.shutdown(fd, how)))
}

pub(super) extern "C" fn close(_: Userdata, fd: c_int) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    if !machine.call(|state| state.sockets.is_ours(fd)) {
        // SAFETY: no pointers. The descriptor is a pipe or a file of the script, or invalid.
        return unsafe { libc::close(fd) };
    }
    let closed = machine.call(|state| state.close(fd));
    if closed.is_ok() {
        close_token(fd);
    }
    status(closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_conversion_for_a_caller_and_back() {
        for text in ["192.0.2.1:8080", "[fd00::1]:443"] {
            let sent: SocketAddr = text.parse().expect("an address");
            // SAFETY: all-zero is a valid value for this integer-only struct.
            let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
            let mut len = size_of::<sockaddr_storage>() as socklen_t;
            tell(sent, (&raw mut storage).cast(), &raw mut len);
            assert_eq!(address((&raw const storage).cast(), len), Ok(Some(sent)));
        }
        assert_eq!(address(std::ptr::null(), 16), Err(libc::EFAULT));
    }
}
