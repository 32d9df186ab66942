//! TCP options other than Multipath TCP's, and the set of all options of one segment.
//!
//! Options are untrusted bytes. RFC 9293 section 3.2 (MUST-7) requires handling illegal lengths and suggests resetting
//! the connection. No stack does that, because middleboxes also modify options. Here, as in other stacks, a length
//! below two or beyond the header ends the parsing of options, and the segment is used with the options before it. A
//! known option with a wrong length is skipped, like unknown ones. Among options of the same kind (for kind 30: of the
//! same subtype), the first counts, except that ADD_ADDR and private-use options may repeat.
//!
//! Emitted options have the layout of Linux, because middleboxes and fast paths are tested with it: a SYN has MSS,
//! SACK-permitted with timestamps, NOP, window scale; later segments have NOP, NOP, timestamps, then NOP, NOP, SACK.
//! MPTCP options follow, and NOPs fill the last word.

use crate::bytes::{Reader, Writer};
use crate::mptcp::{self, Dss, MptcpOption, MptcpOptions, subtype};
use crate::{EmitError, SeqNum};

/// Number of option bytes that a TCP header can hold.
pub const MAX_OPTIONS: usize = 40;

/// Option kinds (RFC 9293 section 3.2, RFC 7323, RFC 2018, RFC 7413, RFC 4727).
pub(crate) mod kind {
    pub(crate) const END: u8 = 0;
    pub(crate) const NOP: u8 = 1;
    pub(crate) const MSS: u8 = 2;
    pub(crate) const WINDOW_SCALE: u8 = 3;
    pub(crate) const SACK_PERMITTED: u8 = 4;
    pub(crate) const SACK: u8 = 5;
    pub(crate) const TIMESTAMPS: u8 = 8;
    pub(crate) const FAST_OPEN: u8 = 34;
    pub(crate) const EXPERIMENTAL: u8 = 254;
}

/// NOP, NOP, timestamps: the start of nearly every segment's options.
const NOP_NOP_TIMESTAMPS: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

/// The timestamps option (RFC 7323), in ticks of its sender's clock.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the timestamp that the sender last received.
    pub echo: u32,
}

/// One SACK block (RFC 2018).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// First sequence number of the block.
    pub left: SeqNum,
    /// First sequence number after the block.
    pub right: SeqNum,
}

/// Up to four SACK blocks, in wire order.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    /// Storage; only the first `len` blocks are valid.
    pub blocks: [SackBlock; 4],
    /// Number of valid blocks.
    pub len: u8,
}

impl SackBlocks {
    /// The valid blocks.
    #[must_use]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.len).min(self.blocks.len())]
    }

    /// Adds a block. Returns `false` if there are four already.
    pub fn push(&mut self, block: SackBlock) -> bool {
        let Some(slot) = self.blocks.get_mut(usize::from(self.len)) else { return false };
        *slot = block;
        self.len += 1;
        true
    }
}

/// All options of a segment that Marline supports.
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
    /// The DSS option, separate from other MPTCP options because nearly every segment has one.
    pub dss: Option<Dss>,
    /// All other MPTCP options, in wire order.
    pub mptcp: MptcpOptions,
}

impl SackBlocks {
    /// Returns true if there are no options.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of blocks that fit into `room` bytes of options (see [`TcpOptions::room`]), at most four.
    #[must_use]
    pub const fn fitting_block_count(room: usize) -> usize {
        let blocks = room.saturating_sub(4) / 8;
        if blocks > 4 { 4 } else { blocks }
    }
}

impl TcpOptions {
    /// Length of all options with their leading NOPs, without final padding.
    pub(crate) const fn unpadded_len(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        // SACK-permitted replaces the two NOPs before the timestamps.
        if self.timestamps.is_some() {
            len += 12;
        } else if self.sack_permitted {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        if self.sack.len > 0 {
            len += 4 + 8 * self.sack.len as usize;
        }
        if let Some(dss) = &self.dss {
            len += dss.encoded_len();
        }
        len + self.mptcp.encoded_len()
    }

    /// Length of the options as [`TcpHeader::emit`](crate::TcpHeader::emit) writes them: a multiple of four, more than
    /// 40 if they do not fit.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        self.unpadded_len().next_multiple_of(4)
    }

    /// Length of the Multipath TCP options, which follow all others.
    pub(crate) fn multipath_len(&self) -> usize {
        let dss = self.dss.as_ref().map_or(0, Dss::encoded_len);
        dss + self.mptcp.encoded_len()
    }

    /// Returns true if the options fit a TCP header.
    #[must_use]
    pub const fn fits_header(&self) -> bool {
        self.unpadded_len() <= MAX_OPTIONS
    }

    /// Number of bytes available for further options.
    #[must_use]
    pub const fn room(&self) -> usize {
        MAX_OPTIONS.saturating_sub(self.unpadded_len())
    }

    /// Returns true if there is any MPTCP option, even a malformed one.
    #[must_use]
    pub const fn has_mptcp(&self) -> bool {
        self.dss.is_some() || !self.mptcp.is_empty() || self.mptcp.malformed
    }

    /// No options.
    pub(crate) const EMPTY: TcpOptions = TcpOptions {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        sack: SackBlocks { blocks: [SackBlock { left: SeqNum(0), right: SeqNum(0) }; 4], len: 0 },
        timestamps: None,
        dss: None,
        mptcp: MptcpOptions::EMPTY,
    };

    /// Parses the option bytes of a header. Never fails; see the module documentation.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut options = TcpOptions::EMPTY;
        let mut rest = bytes;
        let mut seen = 0u16;
        loop {
            match rest {
                [] | [kind::END, ..] => return options,
                [kind::NOP, after @ ..] => rest = after,
                [mptcp::KIND, len, ..] if usize::from(*len) > rest.len() || *len < 2 => {
                    options.mptcp.malformed = true;
                    return options;
                }
                [kind, len, ..] if *len >= 2 => {
                    let Some((option, after)) = rest.split_at_checked(usize::from(*len)) else {
                        return options;
                    };
                    rest = after;
                    if *kind == mptcp::KIND {
                        options.parse_mptcp(option, &mut seen);
                    } else {
                        options.parse_option(*kind, &option[2..]);
                    }
                }
                _ => return options,
            }
        }
    }

    /// Parses one option other than MPTCP.
    fn parse_option(&mut self, kind: u8, body: &[u8]) {
        let mut r = Reader::new(body);
        match (kind, body.len()) {
            (kind::MSS, 2) => self.mss = self.mss.or(r.u16()),
            (kind::WINDOW_SCALE, 1) => self.window_scale = self.window_scale.or(r.u8()),
            (kind::SACK_PERMITTED, 0) => self.sack_permitted = true,
            (kind::TIMESTAMPS, 8) if self.timestamps.is_none() => {
                if let (Some(value), Some(echo)) = (r.u32(), r.u32()) {
                    self.timestamps = Some(Timestamps { value, echo });
                }
            }
            (kind::SACK, 8 | 16 | 24 | 32) if self.sack.is_empty() => {
                while let (Some(left), Some(right)) = (r.u32(), r.u32()) {
                    self.sack.push(SackBlock { left: SeqNum(left), right: SeqNum(right) });
                }
            }
            _ => {}
        }
    }

    /// Parses one MPTCP option. `seen` has a bit for each subtype that occurred before.
    fn parse_mptcp(&mut self, option: &[u8], seen: &mut u16) {
        let bit = 1 << option.get(2).map_or(0, |first| first >> 4);
        if bit != 1 << subtype::DSS {
            self.parse_other_mptcp(option, bit, seen);
        } else if self.dss.is_none() {
            self.dss = Dss::parse(option);
            self.mptcp.malformed |= self.dss.is_none();
        }
    }

    /// Parses one MPTCP option other than DSS.
    fn parse_other_mptcp(&mut self, option: &[u8], bit: u16, seen: &mut u16) {
        if *seen & bit != 0 {
            return;
        }
        match MptcpOption::parse(option) {
            Some(other) if self.mptcp.push(other) => {
                *seen |= bit & !(1 << subtype::ADD_ADDR | 1 << subtype::EXPERIMENTAL);
            }
            _ => self.mptcp.malformed = true,
        }
    }

    /// Writes the options and their padding to the front of `out`. Returns their length.
    pub(crate) fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let len = self.encoded_len();
        if len > MAX_OPTIONS {
            return Err(EmitError::OptionsTooLong { len: self.unpadded_len() });
        }
        let available = out.len();
        let Some(out) = out.get_mut(..len) else {
            return Err(EmitError::BufferTooShort { needed: len, available });
        };
        let mut w = Writer::new(out);
        self.emit_tcp(&mut w);
        if let Some(dss) = &self.dss {
            dss.emit(&mut w);
        }
        if !self.mptcp.is_empty() {
            w.slice(self.mptcp.as_bytes());
        }
        while w.len() < len {
            w.u8(kind::NOP);
        }
        Ok(len)
    }

    #[inline]
    fn emit_tcp(&self, w: &mut Writer<'_>) {
        if let Some(mss) = self.mss {
            w.array([kind::MSS, 4]);
            w.u16(mss);
        }
        match (self.sack_permitted, self.timestamps.is_some()) {
            (true, true) => w.array([kind::SACK_PERMITTED, 2, kind::TIMESTAMPS, 10]),
            (false, true) => w.array(NOP_NOP_TIMESTAMPS),
            (true, false) => w.array([kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2]),
            (false, false) => {}
        }
        if let Some(timestamps) = self.timestamps {
            w.u32(timestamps.value);
            w.u32(timestamps.echo);
        }
        if let Some(shift) = self.window_scale {
            w.array([kind::NOP, kind::WINDOW_SCALE, 3, shift]);
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            w.array([kind::NOP, kind::NOP, kind::SACK, 2 + 8 * blocks.len() as u8]);
            for block in blocks {
                w.u32(block.left.0);
                w.u32(block.right.0);
            }
        }
    }
}

/// Parses the options of most segments: NOP, NOP, timestamps, then DSS or nothing, then NOPs. `None` for other or
/// malformed options, which [`TcpOptions::parse`] handles.
#[inline]
pub(crate) fn parse_common_options(bytes: &[u8]) -> Option<(Timestamps, Option<Dss>)> {
    let mut r = Reader::new(bytes);
    if r.array()? != NOP_NOP_TIMESTAMPS {
        return None;
    }
    let timestamps = Timestamps { value: r.u32()?, echo: r.u32()? };
    let &[kind, len, first, ..] = r.rest() else {
        return if r.rest().is_empty() { Some((timestamps, None)) } else { None };
    };
    if kind != mptcp::KIND || first >> 4 != subtype::DSS {
        return None;
    }
    let (option, padding) = r.rest().split_at_checked(usize::from(len))?;
    if padding.iter().any(|&kind| kind != kind::NOP) {
        return None;
    }
    Some((timestamps, Some(Dss::parse(option)?)))
}

#[cfg(test)]
#[path = "tcp_options/tests.rs"]
mod tests;
