//! Linux-specific functions: socket options and queries that other systems do not have, and signal numbers. The rest of
//! the crate uses this module as `sys`. `portable` has the same functions for other systems.

use std::io;
use std::net::SocketAddr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::net::TcpStream;
use tokio::signal::unix::SignalKind;

/// Creates a nonblocking TCP socket.
pub(crate) fn tcp_socket(remote: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(remote), Type::STREAM.nonblocking(), Some(Protocol::TCP))
}

/// Makes a listening socket accept connections by TPROXY. Needs CAP_NET_ADMIN.
pub(crate) fn set_transparent(socket: &Socket, ipv6: bool) -> io::Result<()> {
    if ipv6 { socket.set_ip_transparent_v6(true) } else { socket.set_ip_transparent_v4(true) }
}

/// Returns the destination of a connection before REDIRECT rewrote it.
pub(crate) fn original_destination(socket: &SockRef<'_>, ipv6: bool) -> io::Result<SockAddr> {
    if ipv6 { socket.original_dst_v6() } else { socket.original_dst_v4() }
}

/// Limits the unsent data in the kernel. Not supported by a Unix socket.
pub(crate) fn limit_unsent(socket: &SockRef<'_>, bytes: u32) -> io::Result<()> {
    socket.set_tcp_notsent_lowat(bytes)
}

/// Returns true if a FIN arrived, even an unread one.
pub(crate) fn has_finished(socket: &TcpStream) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let ready = poll(&mut polled, Some(&Timespec::default()));
    ready.is_ok() && polled[0].revents().contains(PollFlags::RDHUP)
}

/// Returns the signals without a name in `SignalKind`: SIGVTALRM, SIGPROF, SIGPWR, and the real-time signals.
pub(crate) fn unnamed_signals() -> impl Iterator<Item = SignalKind> {
    [26, 27, 30].into_iter().chain(34..=64).map(SignalKind::from_raw)
}
