//! Types exchanged between the core and a carrier.

use core::net::{IpAddr, SocketAddr};

/// Both addresses of a subflow in the core. On native TCP these are the addresses of the packets. On the UDP carrier,
/// the ports are the inner TCP ports and the addresses are the initial ones. The carrier handles NAT rebindings,
/// which do not change them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FourTuple {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
}

impl FourTuple {
    /// The addresses without ports.
    #[must_use]
    pub const fn addresses(&self) -> PathAddresses {
        PathAddresses { local: self.local.ip(), remote: self.remote.ip() }
    }
}

/// IP addresses of a path, which several subflows may use.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathAddresses {
    /// Local address.
    pub local: IpAddr,
    /// Remote address.
    pub remote: IpAddr,
}

/// The ECN field of the IP header.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct,
    /// ECT(0).
    Ect0,
    /// ECT(1).
    Ect1,
    /// CE: congestion experienced.
    Ce,
}

/// Network error about a segment that did not arrive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NetworkError {
    /// The segment was too large.
    TooBig {
        /// Size in bytes of TCP segments that may pass.
        max_segment: u16,
    },
    /// The destination is unreachable or refused the segment.
    Unreachable,
}

/// Metadata of a received packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PacketMeta {
    /// Local and remote address.
    pub path: FourTuple,
    /// ECN field.
    pub ecn: Ecn,
    /// Our subflow id, to which the packet is addressed; 0 if there is none (every SYN, and all of native TCP).
    pub flow: u64,
    /// Subflow id with which the sender wants to be addressed; 0 if the packet does not contain one.
    pub peer_flow: u64,
    /// The TCP checksum was already verified (by hardware, or the kernel's coalescing).
    pub checksum_verified: bool,
}

/// Datagrams for one path, in the buffer passed to `poll_transmit`.
#[derive(Copy, Clone, Debug)]
pub struct Transmit {
    /// Local and remote address.
    pub path: FourTuple,
    /// ECN field to send with.
    pub ecn: Ecn,
    /// Our subflow id, which the peer must include in packets to us. 0 on carriers without ids.
    pub local_flow: u64,
    /// The peer's subflow id; 0 until it is known.
    pub peer_flow: u64,
    /// The segment is a SYN or SYN/ACK: the carrier must send `local_flow` to the peer.
    pub handshake: bool,
    /// Number of datagrams.
    pub datagrams: usize,
    /// Distance in bytes from the start of one datagram to the start of the next, including headroom. All datagrams
    /// have this length except the last, which may be shorter.
    pub stride: usize,
}

/// A reusable buffer that `poll_transmit` fills with the datagrams of one batch.
///
/// Each datagram consists of `headroom` bytes, reserved for the carrier's framing, and a TCP segment.
#[derive(Debug)]
pub struct TransmitBuf {
    /// Memory, of which the first `filled` bytes are valid. The rest is not cleared, because that would cost as much
    /// as filling it.
    memory: Vec<u8>,
    filled: usize,
    headroom: usize,
    max_datagrams: usize,
    joined: bool,
}

impl TransmitBuf {
    /// Creates a buffer for batches of at most `max_datagrams`, each preceded by `headroom` bytes.
    #[must_use]
    pub fn new(headroom: usize, max_datagrams: usize) -> Self {
        let max_datagrams = max_datagrams.max(1);
        TransmitBuf { memory: Vec::new(), filled: 0, headroom, max_datagrams, joined: false }
    }

    /// Limits the size of future batches.
    pub fn set_max_datagrams(&mut self, max_datagrams: usize) {
        self.max_datagrams = max_datagrams.max(1);
    }

    /// Sets whether the carrier sends segments as one packet whose headers differ only in sequence number and
    /// checksum, so that long runs should have equal options in all segments.
    pub const fn combine_segments(&mut self, joined: bool) {
        self.joined = joined;
    }

    /// True if long runs have equal options in all segments.
    #[must_use]
    pub const fn combines_segments(&self) -> bool {
        self.joined
    }

    /// Filled bytes: all datagrams, one after another.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.filled]
    }

    /// Filled bytes, for the carrier's framing.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.filled]
    }

    /// Number of bytes reserved before each segment.
    #[must_use]
    pub const fn headroom(&self) -> usize {
        self.headroom
    }

    /// Maximum number of datagrams in a batch.
    #[must_use]
    pub const fn max_datagrams(&self) -> usize {
        self.max_datagrams
    }

    /// Empties the buffer, keeping its memory.
    pub const fn clear(&mut self) {
        self.filled = 0;
    }

    /// Appends a datagram of `len` segment bytes after the headroom and returns the segment's bytes, with their
    /// previous contents.
    pub(crate) fn append_datagram(&mut self, len: usize) -> &mut [u8] {
        let start = self.filled + self.headroom;
        self.filled = start + len;
        if self.memory.len() < self.filled {
            self.memory.resize(self.filled.next_power_of_two(), 0);
        }
        &mut self.memory[start..self.filled]
    }
}
