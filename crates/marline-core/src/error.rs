//! Errors of an endpoint's calls, and the reasons why a connection ends or falls back.

use core::fmt;

/// Reasons why a connection could not be started.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The endpoint holds as many connections as its limits allow.
    TooManyConnections,
    /// No port or id is free for this pair of addresses.
    AddressInUse,
    /// The two addresses are of different families.
    FamilyMismatch,
}

/// Reasons why bytes could not be written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The send buffer is full; `Event::Writable` will follow.
    Blocked,
    /// The write side was shut down.
    Shutdown,
    /// The connection has ended.
    Closed(CloseReason),
    /// No such connection.
    Unknown,
}

/// Reasons why bytes could not be read.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// No data available; `Event::Readable` will follow.
    Blocked,
    /// The connection ended before the end of its stream.
    Closed(CloseReason),
    /// No such connection.
    Unknown,
}

/// Reasons for the end of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both sides finished.
    Finished,
    /// The local application aborted the connection.
    Aborted,
    /// The peer reset the connection (RST of the last subflow, or MP_FASTCLOSE).
    PeerReset,
    /// The peer answered the first SYN with RST.
    Refused,
    /// The destination is unreachable: an ICMP error or a local send error about the first SYN, or a connection
    /// without other paths lost its local address. A new connection from another address may succeed.
    Unreachable,
    /// Timeout of the handshake, or no path for longer than `linger`, or no answer within
    /// [`SocketOption::AnswerWithin`](crate::SocketOption).
    TimedOut,
    /// The peer violated the protocol, and the connection cannot continue safely.
    PeerMisbehaved,
    /// A limit of this endpoint was reached.
    ResourceLimit,
}

/// Reasons why a connection continues as plain TCP.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackReason {
    /// The SYN/ACK had no MP_CAPABLE, or an unusable one.
    SynAckWithoutOption,
    /// The SYN had no MP_CAPABLE.
    SynWithoutOption,
    /// SYNs with MP_CAPABLE were not answered.
    SynRetries,
    /// SYNs with MP_CAPABLE between these two addresses recently went unanswered.
    KnownNetwork,
    /// The third ACK or the first data had no MPTCP options.
    FirstDataWithoutOption,
    /// After the handshake, no segment with MPTCP options was answered, while one without was; or none was
    /// answered for a long time.
    OptionsUnanswered,
    /// A DSS checksum failed on the only subflow (MP_FAIL).
    ChecksumFailed,
    /// The peer sent MP_FAIL, because a checksum of our data failed.
    PeerFailed,
    /// The peer sent an infinite mapping.
    InfiniteMapping,
}

macro_rules! display_text {
    ($($type:ty { $($variant:pat => $words:expr),+ $(,)? })+) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($variant => $words),+ })
            }
        }
        impl core::error::Error for $type {}
    )+};
}

display_text! {
    ConnectError {
        ConnectError::TooManyConnections => "too many connections",
        ConnectError::AddressInUse => "no free port for this pair of addresses",
        ConnectError::FamilyMismatch => "local and remote address are of different families",
    }
    WriteError {
        WriteError::Blocked => "the send buffer is full",
        WriteError::Shutdown => "the write side is shut down",
        WriteError::Closed(_) => "the connection is closed",
        WriteError::Unknown => "no such connection",
    }
    ReadError {
        ReadError::Blocked => "nothing to read yet",
        ReadError::Closed(_) => "the connection is closed",
        ReadError::Unknown => "no such connection",
    }
    CloseReason {
        CloseReason::Finished => "finished",
        CloseReason::Aborted => "aborted",
        CloseReason::PeerReset => "reset by the peer",
        CloseReason::Refused => "refused by the peer",
        CloseReason::Unreachable => "destination unreachable, or local address gone",
        CloseReason::TimedOut => "timed out",
        CloseReason::PeerMisbehaved => "the peer violated the protocol",
        CloseReason::ResourceLimit => "a resource limit was reached",
    }
    FallbackReason {
        FallbackReason::SynAckWithoutOption => "SYN/ACK without a usable MP_CAPABLE",
        FallbackReason::SynWithoutOption => "SYN without MP_CAPABLE",
        FallbackReason::SynRetries => "SYNs with MP_CAPABLE were not answered",
        FallbackReason::KnownNetwork => "SYNs with MP_CAPABLE recently went unanswered",
        FallbackReason::FirstDataWithoutOption => "first data without MPTCP options",
        FallbackReason::OptionsUnanswered => "segments with MPTCP options were not answered",
        FallbackReason::ChecksumFailed => "a DSS checksum failed",
        FallbackReason::PeerFailed => "the peer sent MP_FAIL",
        FallbackReason::InfiniteMapping => "the peer sent an infinite mapping",
    }
}
