//! TCP connections of links, as the rest of the crate describes and sees them.

use std::time::Duration;

/// Segment size of a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segments {
    /// MSS of the interface.
    Standard,
    /// MSS that any path carries, in both directions.
    Small,
}

/// State of a TCP connection in the kernel.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TcpInfo {
    /// Consecutive timeouts without a new acknowledgment.
    pub(crate) timeouts: u8,
    /// Number of segments that were sent and are not acknowledged.
    pub(crate) unacknowledged: u32,
    pub(crate) acknowledged_bytes: u64,
    pub(crate) rtt: Duration,
}
