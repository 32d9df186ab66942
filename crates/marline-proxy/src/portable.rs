//! Substitutes for `linux` on other Unix systems, with the same functions.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::net::TcpStream;
use tokio::signal::unix::SignalKind;

/// Creates a nonblocking TCP socket.
pub(crate) fn tcp_socket(remote: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Stub: this platform has no TPROXY.
pub(crate) fn set_transparent(_socket: &Socket, _ipv6: bool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Stub: this platform has no REDIRECT.
pub(crate) fn original_destination(_socket: &SockRef<'_>, _ipv6: bool) -> io::Result<SockAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Stub: this platform's kernel chooses how much unsent data it takes.
pub(crate) fn limit_unsent(_socket: &SockRef<'_>, _bytes: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns true if a FIN arrived and all data before it was read.
pub(crate) fn has_finished(socket: &TcpStream) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    matches!(SockRef::from(socket).peek(&mut byte), Ok(0))
}

/// Returns the signals without a name in `SignalKind`: none.
pub(crate) fn unnamed_signals() -> impl Iterator<Item = SignalKind> {
    std::iter::empty()
}
