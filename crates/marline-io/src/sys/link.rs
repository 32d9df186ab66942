//! TCP sockets of links: bound like the UDP socket they stand in for, with short queues.

use core::net::SocketAddr;
use std::io;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::socket::{SocketSpec, bind_to_interface, mark};

/// Bytes that the kernel takes and has not sent: a quarter of a millisecond at 1 Gbit/s, and 26 ms at 10 Mbit/s.
const UNSENT_BYTES: u32 = 32 << 10;
/// What was sent and is not acknowledged for so long ends the connection.
const UNACKED: Duration = Duration::from_secs(20);
/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 256;

fn new(local: SocketAddr) -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::for_address(local), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// A socket that is to be connected, bound to the address and interface of `spec`, whatever its port.
pub(crate) fn open(spec: &SocketSpec<'_>) -> io::Result<std::net::TcpStream> {
    let socket = new(spec.local)?;
    if let Some((name, index)) = spec.interface {
        bind_to_interface(&socket, name, index, spec.local.is_ipv6())?;
    }
    mark(&socket, spec.mark)?;
    let mut local = spec.local;
    local.set_port(0);
    socket.bind(&local.into())?;
    Ok(socket.into())
}

/// A listening socket.
pub(crate) fn listen(local: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = new(local)?;
    // A server that starts again finds connections of the one before in TIME-WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&local.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Sets what a connected socket needs. What the system refuses costs delay, and nothing else.
pub(crate) fn prepare(stream: &tokio::net::TcpStream) {
    let socket = SockRef::from(stream);
    let prepared = socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_user_timeout(Some(UNACKED)))
        .and_then(|()| socket.set_tcp_notsent_lowat(UNSENT_BYTES));
    if let Err(error) = prepared {
        tracing::debug!(%error, "an option of a TCP connection was refused");
    }
}
