//! Route queries, answered by binding and connecting UDP sockets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io;
use std::net::UdpSocket;

/// Destination port for route queries, which send nothing.
const DISCARD_PORT: u16 = 9;

/// Checks that there is a route to `dst` from `src`. Interfaces and marks are not considered.
///
/// # Errors
/// Fails if there is no such route.
pub(crate) fn route_exists(
    dst: IpAddr,
    src: Option<IpAddr>,
    _oif: u32,
    _mark: u32,
) -> io::Result<()> {
    let any = match dst {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind(SocketAddr::new(src.unwrap_or(any), 0))?;
    socket.connect(SocketAddr::new(dst, DISCARD_PORT))
}

/// Returns true if packets to an address are delivered to this machine: a socket can be bound to it.
///
/// # Errors
/// Fails if no socket can be opened; the address may then belong to this machine.
pub fn is_local_address(address: IpAddr) -> io::Result<bool> {
    match UdpSocket::bind(SocketAddr::new(address, 0)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(false),
        Err(error) => Err(error),
    }
}
