//! TCP sockets of links: bound like the UDP socket they stand in for, with short queues.

use core::net::SocketAddr;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::set_option;
use super::socket::{SocketSpec, bind_to_interface, mark};

/// Bytes that the kernel takes and has not sent: a quarter of a millisecond at 1 Gbit/s, and 26 ms at 10 Mbit/s.
const UNSENT_BYTES: u32 = 32 << 10;
/// What was sent and is not acknowledged for so long ends the connection.
const UNACKED: Duration = Duration::from_secs(20);
/// The longest pause before the kernel repeats what is not acknowledged: the least that it allows (Linux 6.15, which
/// `libc` does not know yet). By default the pause doubles up to two minutes, and a network that is back is not
/// noticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const TCP_RTO_MAX_MS: libc::c_int = 44;
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
    bound_pauses(&socket);
    Ok(socket.into())
}

/// Asks the kernel for [`LONGEST_PAUSE`]; before Linux 6.15 its pauses grow.
fn bound_pauses(socket: &Socket) {
    let value = LONGEST_PAUSE.as_millis() as libc::c_int;
    let set = set_option(socket.as_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, &value);
    if let Err(error) = set {
        tracing::trace!(%error, "pauses of TCP connections are not bounded");
    }
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
    bound_pauses(&socket);
    let prepared = socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_user_timeout(Some(UNACKED)))
        .and_then(|()| socket.set_tcp_notsent_lowat(UNSENT_BYTES));
    if let Err(error) = prepared {
        tracing::debug!(%error, "an option of a TCP connection was refused");
    }
}
