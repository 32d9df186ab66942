//! Listening sockets for applications.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// Applications that the kernel queues for us. Beyond, it drops their SYNs, and they wait for a second: what a
/// browser opens at once must fit. (The kernel takes less if `somaxconn` is.)
const BACKLOG: i32 = 4_096;

/// Why nothing listens at an address, and what helps.
pub(super) fn cannot_listen(
    protocol: &str,
    address: SocketAddr,
    error: io::Error,
) -> anyhow::Error {
    let help = marline_io::port_help(address, &error);
    let help = help.map_or_else(String::new, |help| format!(" ({help})"));
    anyhow::Error::new(error).context(format!("cannot listen on {protocol} {address}{help}"))
}

/// Listens at an address, on a socket that `prepare` has seen before.
pub(super) fn listening(
    address: SocketAddr,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    prepare(&socket)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
