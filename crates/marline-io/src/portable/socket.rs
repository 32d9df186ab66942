//! UDP sockets of the driver, with the options that every system has.

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;

use socket2::{Domain, Protocol, Socket, Type};

use super::unsupported_error;
use crate::edge::socket_spec::{PortSharing, SocketSpec};

/// Requested kernel buffer in each direction, in bytes.
const BUFFER_BYTES: usize = 4 << 20;

/// Opens a nonblocking UDP socket.
pub(crate) fn udp_socket(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Opens and binds a UDP socket.
pub(crate) fn open(spec: &SocketSpec<'_>) -> io::Result<UdpSocket> {
    if spec.port != PortSharing::Alone {
        return Err(unsupported_error("several shards"));
    }
    let socket = udp_socket(Domain::for_address(spec.local))?;
    if spec.local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if let Some((name, index)) = spec.interface {
        bind_to_interface(&socket, name, index, spec.local.is_ipv6())?;
    }
    set_mark(&socket, spec.mark)?;
    raise_buffers(&socket);
    socket.bind(&spec.local.into())?;
    Ok(socket.into())
}

/// Returns an error if a mark is given: this platform has no packet marks.
pub(crate) fn set_mark(_socket: &Socket, mark: u32) -> io::Result<()> {
    if mark == 0 { Ok(()) } else { Err(unsupported_error("packet marks")) }
}

/// Binds a socket to an interface if the kernel supports this. Otherwise, the source address selects the path.
pub(crate) fn bind_to_interface(
    socket: &Socket,
    _name: &str,
    index: u32,
    ipv6: bool,
) -> io::Result<()> {
    #[cfg(target_vendor = "apple")]
    {
        let index = core::num::NonZeroU32::new(index);
        if ipv6 {
            socket.bind_device_by_index_v6(index)
        } else {
            socket.bind_device_by_index_v4(index)
        }
    }
    #[cfg(not(target_vendor = "apple"))]
    {
        let _ = (socket, index, ipv6);
        Ok(())
    }
}

/// Requests large buffers.
fn raise_buffers(socket: &Socket) {
    let received = socket.set_recv_buffer_size(BUFFER_BYTES);
    if received.and(socket.set_send_buffer_size(BUFFER_BYTES)).is_err() {
        tracing::debug!("cannot enlarge socket buffers; bursts may be dropped");
    }
}

/// Stub: the kernel would no longer tune the buffer.
///
/// # Errors
/// Always fails with `Unsupported`.
pub fn set_initial_receive_buffer(_socket: BorrowedFd<'_>, _bytes: usize) -> io::Result<()> {
    Err(unsupported_error("initial buffer sizes"))
}

/// Stub: the kernel would no longer tune the buffer.
///
/// # Errors
/// Always fails with `Unsupported`.
pub fn restore_receive_buffer(_socket: BorrowedFd<'_>) -> io::Result<()> {
    Err(unsupported_error("initial buffer sizes"))
}

/// Stub: this platform's kernel does not select sockets by datagram content.
pub(crate) fn spread_by_flow_id(_socket: BorrowedFd<'_>, _shards: u8) -> io::Result<()> {
    Err(unsupported_error("several shards"))
}

/// Stub: this platform does not report the MTU of a route, so it must be probed.
pub(crate) fn route_mtu(_spec: &SocketSpec<'_>, _remote: SocketAddr) -> io::Result<u32> {
    Err(unsupported_error("MTUs of routes"))
}

/// Stub: this platform does not report the MTU of a route.
pub(crate) fn route_mtu_by_index(
    _local: IpAddr,
    _interface: u32,
    _remote: SocketAddr,
) -> io::Result<u32> {
    Err(unsupported_error("MTUs of routes"))
}
