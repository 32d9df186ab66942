//! Outlet of packets to a peer, for callers that build Ethernet frames.

/// Length of an Ethernet header: two addresses and a type.
pub(crate) const ETHERNET_HEADER_LEN: usize = 14;

/// Outlet of packets to a peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outlet {
    /// The packets stay on this machine.
    Loopback {
        /// Maximum packet length in bytes.
        mtu: u32,
    },
    /// Ethernet frames.
    Ethernet {
        /// Interface index.
        interface: u32,
        /// Maximum packet length of the route, in bytes.
        mtu: u32,
        /// Header of the frames.
        header: [u8; ETHERNET_HEADER_LEN],
        /// TTL that the route specifies; `None` for the system default.
        hop_limit: Option<u8>,
    },
}
