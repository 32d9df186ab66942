//! Listening sockets for applications.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// Applications that the kernel queues for us. Beyond, it drops their SYNs, and they wait for a second: what a
/// browser opens at once must fit. (The kernel takes less if `somaxconn` is.)
const BACKLOG: i32 = 4_096;

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
