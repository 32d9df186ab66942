//! Description of a socket to open.

use core::net::SocketAddr;

/// Port sharing of a socket with others of the same server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortSharing {
    /// No sharing.
    Alone,
    /// First of several sockets. The port must not be in use by others: sockets that share one are a single group to
    /// the kernel, and a second server would receive every other datagram of the first.
    First,
    /// Further socket on the port of the first.
    Additional,
}

/// Parameters of a new socket.
#[derive(Clone, Debug)]
pub(crate) struct SocketSpec<'a> {
    /// Address and port to bind.
    pub(crate) local: SocketAddr,
    /// Interface to bind to, by name and index.
    pub(crate) interface: Option<(&'a str, u32)>,
    /// Port sharing.
    pub(crate) port: PortSharing,
    /// Mark of the packets for the routing rules (SO_MARK); 0 for none.
    pub(crate) mark: u32,
}
