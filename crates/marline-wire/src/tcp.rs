//! The TCP header (RFC 9293 section 3.1).

use crate::{SeqNum, TcpOptions};

/// Control bits, as the low twelve bits of the header's fourth word hold them.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(pub u16);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Push.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgment number is significant.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer is significant.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: TcpFlags = TcpFlags(0x80);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: TcpFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }
}

/// The fixed part of a TCP header.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first payload byte (of the SYN, if set).
    pub seq: SeqNum,
    /// Next sequence number expected from the other side, if ACK is set.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window as it stands on the wire, unscaled.
    pub window: u16,
    /// Urgent pointer; Marline neither sends nor acts on urgent data.
    pub urgent: u16,
}

/// A parsed segment: header and options by value, payload by reference.
#[derive(Clone, Debug)]
pub struct TcpSegment<'a> {
    /// The fixed header.
    pub header: TcpHeader,
    /// Everything Marline understands among the options; the rest was skipped.
    pub options: TcpOptions,
    /// The bytes after the header.
    pub payload: &'a [u8],
}
