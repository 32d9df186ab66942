//! TCP options other than Multipath TCP's, and the set of all options of one segment.

use crate::SeqNum;
use crate::mptcp::{Dss, MptcpOptions};

/// The timestamps option (RFC 7323), in ticks of its sender's clock.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the echo of what it last heard.
    pub echo: u32,
}

/// One SACK block (RFC 2018): `left` is the first byte, `right` one past the last.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// First sequence number of the block.
    pub left: SeqNum,
    /// First sequence number after the block.
    pub right: SeqNum,
}

/// Up to four SACK blocks, in the order of the wire.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    /// Storage; only the first `len` count.
    pub blocks: [SackBlock; 4],
    /// How many are filled.
    pub len: u8,
}

impl SackBlocks {
    /// The filled blocks.
    #[must_use]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.len)]
    }

    /// Adds a block; `false` if four are there already.
    pub fn push(&mut self, block: SackBlock) -> bool {
        let Some(slot) = self.blocks.get_mut(usize::from(self.len)) else { return false };
        *slot = block;
        self.len += 1;
        true
    }
}

/// All options of a segment that Marline understands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size (SYN only).
    pub mss: Option<u16>,
    /// Window scale shift (SYN only), as received, not clamped.
    pub window_scale: Option<u8>,
    /// SACK-permitted (SYN only).
    pub sack_permitted: bool,
    /// SACK blocks.
    pub sack: SackBlocks,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// The DSS option, apart from the other MPTCP options because nearly every segment has one.
    pub dss: Option<Dss>,
    /// All other MPTCP options, in the order of the wire.
    pub mptcp: MptcpOptions,
}
