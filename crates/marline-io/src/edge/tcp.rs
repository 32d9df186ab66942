//! Options and state of the TCP connections that carry links.

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
    /// Number of segments sent but not acknowledged.
    pub(crate) unacknowledged: u32,
    pub(crate) acknowledged_bytes: u64,
    pub(crate) rtt: Duration,
}
