//! TCP sockets of links, with the options that every system has.

use core::net::SocketAddr;
use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::socket::{bind_to_interface, set_mark};
use super::unsupported_error;
use crate::edge::socket_spec::SocketSpec;
use crate::edge::tcp::{Segments, TcpInfo};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: libc::c_int = 256;

fn new(local: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Opens a socket for connecting, bound to any port on the address and interface of `spec`. The kernel chooses the
/// segment size.
pub(crate) fn open(spec: &SocketSpec<'_>, _segments: Segments) -> io::Result<std::net::TcpStream> {
    let socket = new(spec.local)?;
    if let Some((name, index)) = spec.interface {
        bind_to_interface(&socket, name, index, spec.local.is_ipv6())?;
    }
    set_mark(&socket, spec.mark)?;
    socket.bind(&SocketAddr::new(spec.local.ip(), 0).into())?;
    Ok(socket.into())
}

/// Opens a listening socket.
pub(crate) fn listen(local: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = new(local)?;
    socket.set_reuse_address(true)?;
    socket.bind(&local.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Sets TCP_NODELAY on a connected socket. If the kernel rejects it, this only costs delay.
pub(crate) fn prepare(stream: &tokio::net::TcpStream) {
    if let Err(error) = SockRef::from(stream).set_tcp_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY; small writes may be delayed");
    }
}

impl TcpInfo {
    /// Stub: the kernel's state is not available on this platform.
    pub(crate) fn of(_socket: &impl AsRawFd) -> io::Result<Self> {
        Err(unsupported_error("states of TCP connections"))
    }
}
