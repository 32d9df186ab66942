//! Values of sending: the flow of a datagram, why one is not taken, where a frame goes.

use marline_policy::PathId;

/// A flow of datagrams within a session: between which addresses it goes, the two applications agree. At most 2^62 -
/// 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// Why a datagram was not taken.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// It is larger than any that is carried: what a router would answer by ICMP.
    TooBig {
        /// Bytes of the largest datagram.
        most_bytes: usize,
    },
    /// Too much waits on its path.
    QueueFull,
    /// The lane has no path.
    NoPath,
    /// The keys may seal no more packets.
    KeysSpent,
    /// Flow ids are at most 2^62 - 1.
    BadFlow,
}

impl core::fmt::Display for SendError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SendError::TooBig { most_bytes } => {
                write!(f, "the datagram is too big: the paths take {most_bytes} bytes")
            }
            SendError::QueueFull => f.write_str("too many datagrams wait to be sent"),
            SendError::NoPath => f.write_str("there is no path"),
            SendError::KeysSpent => f.write_str("the keys have sealed as many packets as they may"),
            SendError::BadFlow => f.write_str("a flow id is at most 2^62 - 1"),
        }
    }
}

impl core::error::Error for SendError {}

/// A frame to be sent as one UDP datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where.
    pub path: PathId,
    /// Bytes of the frame.
    pub bytes: usize,
}
