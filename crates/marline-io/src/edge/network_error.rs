//! Errors about sent datagrams, reported by the network (ICMP) or by this machine.

use core::net::{IpAddr, SocketAddr};

/// Length of the quoted payload to read. For TCP, RFC 792 guarantees the first 8 bytes; for UDP, it covers the first
/// byte of a frame and two ids, which routers also quote (RFC 1812 section 4.3.2.3).
pub(crate) const QUOTED_LEN: usize = 17;

/// Error that the network or this machine reported.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkError {
    /// Destination of the datagram.
    pub(crate) remote: SocketAddr,
    /// Local address that received the ICMP message, if the socket requests it (IP_PKTINFO).
    pub(crate) local: Option<IpAddr>,
    /// True if this machine reported the error itself.
    pub(crate) is_local: bool,
    /// Beginning of the datagram's payload as quoted by ICMP, padded with zeros.
    pub(crate) quoted: [u8; QUOTED_LEN],
    /// Error number.
    pub(crate) errno: i32,
    /// Path MTU (IP packet length) in bytes, for "packet too big" errors.
    pub(crate) mtu: Option<u32>,
    /// ICMP type and code, for ICMP errors.
    pub(crate) icmp: Option<(u8, u8)>,
    /// Sender of the error.
    pub(crate) offender: Option<IpAddr>,
}
