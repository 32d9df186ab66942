//! Errors of parsers and emitters.

use core::fmt;

/// Layer in which an error occurred.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// IPv4 header.
    Ipv4,
    /// IPv6 header.
    Ipv6,
    /// UDP header.
    Udp,
    /// TCP header.
    Tcp,
    /// A TCP option.
    TcpOption,
    /// An MPTCP option (TCP option kind 30).
    Mptcp,
}

/// Kind of error.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Fewer bytes than the format needs.
    Truncated,
    /// A length field that contradicts the bytes or the format.
    Length,
    /// A version that this parser does not support.
    Version,
    /// A checksum that does not match.
    Checksum,
    /// A field with a value that the format forbids.
    Value,
}

/// A parse error with its layer, field and kind.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The layer being read.
    pub layer: Layer,
    /// The field, named as in its RFC.
    pub field: &'static str,
    /// Kind of error.
    pub kind: ErrorKind,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.kind {
            ErrorKind::Truncated => "is cut short",
            ErrorKind::Length => "has a wrong length",
            ErrorKind::Version => "has an unknown version",
            ErrorKind::Checksum => "has a wrong checksum",
            ErrorKind::Value => "has a forbidden value",
        };
        write!(f, "{:?}: {} {why}", self.layer, self.field)
    }
}

impl core::error::Error for ParseError {}

/// Error when writing a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// The options need more than the 40 bytes available in a TCP header.
    OptionsTooLong {
        /// Number of bytes that the options need.
        len: usize,
    },
    /// The buffer is too short.
    BufferTooShort {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes available.
        available: usize,
    },
    /// The payload length does not fit the length field.
    PayloadTooLong {
        /// Payload length in bytes.
        len: usize,
    },
    /// The two addresses are of different families.
    FamilyMismatch,
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitError::OptionsTooLong { len } => {
                write!(f, "TCP options need {len} bytes, but a header has room for only 40")
            }
            EmitError::BufferTooShort { needed, available } => {
                write!(f, "{needed} bytes are needed, but the buffer has only {available}")
            }
            EmitError::PayloadTooLong { len } => {
                write!(f, "a payload of {len} bytes does not fit the length field")
            }
            EmitError::FamilyMismatch => {
                f.write_str("source and destination address are of different families")
            }
        }
    }
}

impl core::error::Error for EmitError {}
