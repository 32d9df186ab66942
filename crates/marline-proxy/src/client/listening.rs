//! Listening sockets for applications.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// Length of the kernel's queue of applications. When it is full, the kernel drops their SYNs, which are repeated only
/// after a second, so all connections that a browser opens together must fit. (`somaxconn` may lower it.)
const BACKLOG: i32 = 4_096;

/// Returns an error about an address at which the program cannot listen, with a hint.
pub(super) fn listen_error(protocol: &str, address: SocketAddr, error: io::Error) -> anyhow::Error {
    let help = marline_io::port_help(address, &error);
    let help = help.map_or_else(String::new, |help| format!(" ({help})"));
    anyhow::Error::new(error).context(format!("cannot listen on {protocol} {address}{help}"))
}

/// Listens at an address. `prepare` is called with the socket first.
pub(super) fn listen_with(
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
