//! Description of a socket to open.

use core::net::SocketAddr;

/// Sharing of a socket's port with other sockets of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortSharing {
    /// The port is not shared.
    Alone,
    /// First of several sockets. The port must not be in use: the kernel treats all sockets that share a port as one
    /// group, so a second server would receive every other datagram of the first.
    First,
    /// Another socket on the port of the first.
    Additional,
}

/// Parameters of a new socket.
#[derive(Clone, Debug)]
pub(crate) struct SocketSpec<'a> {
    /// Address and port to bind.
    pub(crate) local: SocketAddr,
    /// Interface to bind to, by name and index.
    pub(crate) interface: Option<(&'a str, u32)>,
    /// Sharing of the port.
    pub(crate) port: PortSharing,
    /// Mark of the packets for routing rules (SO_MARK); 0 for none.
    pub(crate) mark: u32,
}
