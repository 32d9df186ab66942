//! Error queue of a socket: ICMP errors about sent datagrams (ip(7), IP_RECVERR).
//!
//! Each entry has the datagram's destination, by which the core identifies the subflow, and the
//! host that reported the error, for display.

use core::mem;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::set_option;
use crate::edge::network_error::{NetworkError, QUOTED_LEN};

/// Enables the error queue.
pub(crate) fn enable(fd: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    let on: libc::c_int = 1;
    let (level, option) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVERR)
    };
    set_option(fd, level, option, &on)
}

/// Takes the next error from the queue; `None` if it is empty.
pub(crate) fn next(fd: BorrowedFd<'_>) -> Option<NetworkError> {
    #[repr(C, align(8))]
    struct Control([u8; 256]);
    let mut control = Control([0; 256]);
    let mut quoted = [0u8; QUOTED_LEN];
    // SAFETY: all-zero bytes are a valid sockaddr_storage and a valid msghdr (null pointers, zero
    // lengths).
    let (mut name, mut header) =
        unsafe { (mem::zeroed::<libc::sockaddr_storage>(), mem::zeroed::<libc::msghdr>()) };
    let mut iov = libc::iovec { iov_base: quoted.as_mut_ptr().cast(), iov_len: quoted.len() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = mem::size_of_val(&name) as libc::socklen_t;
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: every pointer in the header refers to a live local variable with the length given next to it.
    if unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) } < 0 {
        return None;
    }
    let remote = socket_addr(&name)?;
    let mut found = Controls::default();
    read_controls(&header, &mut found);
    let error = found.error?;
    let too_big = error.ee_errno == libc::EMSGSIZE as u32;
    Some(NetworkError {
        remote,
        local: found.local,
        is_local: error.ee_origin == libc::SO_EE_ORIGIN_LOCAL,
        quoted,
        errno: error.ee_errno as i32,
        mtu: (too_big && error.ee_info > 0).then_some(error.ee_info),
        icmp: matches!(error.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6)
            .then_some((error.ee_type, error.ee_code)),
        offender: found.offender,
    })
}

/// Error with the address of its sender, in the kernel's layout (SO_EE_OFFENDER).
#[repr(C)]
#[derive(Copy, Clone)]
struct ErrorOrigin<T> {
    _error: libc::sock_extended_err,
    by: T,
}

#[derive(Default)]
struct Controls {
    error: Option<libc::sock_extended_err>,
    offender: Option<IpAddr>,
    local: Option<IpAddr>,
}

fn read_controls(header: &libc::msghdr, found: &mut Controls) {
    // SAFETY: the kernel filled the header's control buffer, which is still borrowed by it.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !cmsg.is_null() {
        // SAFETY: not null, so within the control buffer, which is aligned for cmsghdr.
        let (level, kind) = unsafe { ((*cmsg).cmsg_level, (*cmsg).cmsg_type) };
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_RECVERR) => {
                found.error = payload::<libc::sock_extended_err>(cmsg);
                let whole = payload::<ErrorOrigin<libc::sockaddr_in>>(cmsg);
                found.offender = whole.and_then(|whole| offender_v4(&whole.by));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                found.error = payload::<libc::sock_extended_err>(cmsg);
                let whole = payload::<ErrorOrigin<libc::sockaddr_in6>>(cmsg);
                found.offender = whole.and_then(|whole| offender_v6(&whole.by));
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let v4 =
                    |info: libc::in_pktinfo| Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr));
                found.local = payload(cmsg).map(|info| IpAddr::V4(v4(info)));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let v6 = |info: libc::in6_pktinfo| Ipv6Addr::from(info.ipi6_addr.s6_addr);
                found.local = payload(cmsg).map(|info| IpAddr::V6(v6(info)));
            }
            _ => {}
        }
        // SAFETY: both pointers belong to the same filled control buffer.
        cmsg = unsafe { libc::CMSG_NXTHDR(header, cmsg) };
    }
}

fn offender_v4(by: &libc::sockaddr_in) -> Option<IpAddr> {
    let known = i32::from(by.sin_family) == libc::AF_INET;
    known.then(|| Ipv4Addr::from(u32::from_be(by.sin_addr.s_addr)).into())
}

fn offender_v6(by: &libc::sockaddr_in6) -> Option<IpAddr> {
    let known = i32::from(by.sin6_family) == libc::AF_INET6;
    known.then(|| Ipv6Addr::from(by.sin6_addr.s6_addr).into())
}

/// Reads the content of a control message, if it is long enough. `T` is a plain data type of the kernel.
fn payload<T: Copy>(cmsg: *const libc::cmsghdr) -> Option<T> {
    // SAFETY: arithmetic on a constant; the caller's pointer is within a filled control buffer.
    let (needed, len) = unsafe {
        let needed = libc::CMSG_LEN(mem::size_of::<T>() as libc::c_uint) as usize;
        (needed, (*cmsg).cmsg_len)
    };
    // SAFETY: the control message is long enough for the struct; it may be unaligned.
    (len >= needed).then(|| unsafe { core::ptr::read_unaligned(libc::CMSG_DATA(cmsg).cast()) })
}

pub(super) fn socket_addr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family identifies the type; sockaddr_storage is larger and at least as aligned.
            let v4 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_closed_port_is_reported_with_the_address_it_was_sent_to() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = closed.local_addr().unwrap();
        drop(closed);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        enable(socket.as_fd(), false).unwrap();
        assert_eq!(next(socket.as_fd()), None);
        socket.send_to(b"x", to).unwrap();
        // Loopback delivers the ICMP message before send_to returns.
        let error = next(socket.as_fd()).expect("an error is queued");
        assert_eq!((error.remote, error.errno), (to, libc::ECONNREFUSED));
        assert_eq!((error.mtu, error.is_local, error.quoted[0]), (None, false, b'x'));
        // Port unreachable, reported by the host itself.
        assert_eq!((error.icmp, error.offender), (Some((3, 3)), Some(to.ip())));
        assert_eq!(next(socket.as_fd()), None);
    }
}
