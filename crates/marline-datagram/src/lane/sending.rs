//! Types for sending: the flow of a datagram, send errors, and the path of a frame.

use marline_policy::PathId;

/// Flow of datagrams within a session. The two applications agree on the addresses that it connects. The id is at most
/// 2^62 - 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// Reason why a datagram was not accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The datagram exceeds the maximum length (like a router's "packet too big" error).
    TooBig {
        /// Length of the largest datagram, in bytes.
        most_bytes: usize,
    },
    /// The queue of the chosen path is full.
    QueueFull,
    /// The lane has no path.
    NoPath,
    /// The keys must not seal any more packets.
    KeyLimitReached,
    /// The flow id exceeds 2^62 - 1.
    BadFlow,
}

impl core::fmt::Display for SendError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SendError::TooBig { most_bytes } => {
                write!(f, "the datagram is too big: the paths carry at most {most_bytes} bytes")
            }
            SendError::QueueFull => f.write_str("the send queue is full"),
            SendError::NoPath => f.write_str("no path is available"),
            SendError::KeyLimitReached => f.write_str("the key usage limit is reached"),
            SendError::BadFlow => f.write_str("the flow id exceeds 2^62 - 1"),
        }
    }
}

impl core::error::Error for SendError {}

/// Frame to send as one UDP datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Path of the frame.
    pub path: PathId,
    /// Length of the frame in bytes.
    pub bytes: usize,
}
