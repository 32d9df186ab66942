//! Packets on raw IP sockets: their destination, and the metadata of received ones.

use core::net::{IpAddr, SocketAddr};

/// Maximum number of messages per system call, in each direction.
pub(crate) const MESSAGES: usize = 32;

/// Destination of a batch of segments.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RawDestination {
    /// Source address, which is one of ours.
    pub(crate) local: IpAddr,
    /// Destination address; the port is not used.
    pub(crate) remote: SocketAddr,
    /// Outgoing interface; 0 leaves the choice to the routing table.
    pub(crate) interface: u32,
    /// ECN bits.
    pub(crate) ecn: u8,
}

/// Metadata of a received packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawMeta {
    /// Length of the packet in the buffer; longer packets are truncated.
    pub(crate) len: usize,
    /// True if the packet was longer than its buffer.
    pub(crate) truncated: bool,
    /// Source address; the port is 0.
    pub(crate) source: SocketAddr,
    /// Destination address in the packet's header.
    pub(crate) destination: Option<IpAddr>,
    /// Local address to which the kernel delivered the packet (IPv4; differs from the destination for broadcasts).
    pub(crate) delivered_to: Option<IpAddr>,
    /// TOS or traffic class, if the bytes do not include it.
    pub(crate) class: u8,
}
