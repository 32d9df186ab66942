//! Send-only packet sockets (packet(7)): Ethernet frames after a virtio header. A frame of up to 64 kB represents many
//! segments, into which the kernel or the network card cuts it.

use core::mem;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Socket, Type};

use super::{set_option, socket};

/// Option for frames that start with a virtio header (linux/if_packet.h).
const PACKET_VNET_HDR: libc::c_int = 15;

/// Opens a packet socket that receives nothing, because it has no protocol. Opening needs CAP_NET_RAW; sending does
/// not.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)?;
    let on: libc::c_int = 1;
    set_option(socket.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &on)?;
    socket::raise_buffers(&socket);
    Ok(socket.into())
}

/// Sends one frame on an interface: virtio header, Ethernet header, packet.
///
/// # Errors
/// Fails if there is no room now, the interface is down or gone, or its queue is full.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    interface: u32,
    ipv6: bool,
    parts: &[IoSlice<'_>],
) -> io::Result<()> {
    let kind = if ipv6 { libc::ETH_P_IPV6 } else { libc::ETH_P_IP } as u16;
    // SAFETY: all-zero bytes are a valid sockaddr_ll and a valid msghdr (null pointers, zero lengths).
    let (mut to, mut message) =
        unsafe { (mem::zeroed::<libc::sockaddr_ll>(), mem::zeroed::<libc::msghdr>()) };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_protocol = kind.to_be();
    to.sll_ifindex = interface as libc::c_int;
    message.msg_name = (&raw mut to).cast();
    message.msg_namelen = mem::size_of_val(&to) as libc::socklen_t;
    // An IoSlice has the layout of an iovec, and the call only reads it.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the descriptor is open, and every pointer in the header refers to a live value with the length given next
    // to it.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
