//! Set of all MPTCP options of a segment except DSS.
//!
//! Most segments have none, a few have one, and all of them together never exceed the 40 bytes of options in a TCP
//! header. So they are stored as those bytes and decoded on demand, and a parsed data segment does not need an array of
//! large values.

use core::fmt;

use crate::bytes::Writer;
use crate::mptcp::{
    AddAddr, ExperimentalMessage, MpCapable, MpExperimental, MpFail, MpFastclose, MpJoin, MpPrio,
    MpTcpRst, RemoveAddr, subtype,
};
use crate::tcp_options::MAX_OPTIONS;

/// Any MPTCP option except DSS.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MptcpOption {
    /// Subtype 0.
    Capable(MpCapable),
    /// Subtype 1.
    Join(MpJoin),
    /// Subtype 3.
    AddAddr(AddAddr),
    /// Subtype 4.
    RemoveAddr(RemoveAddr),
    /// Subtype 5.
    Prio(MpPrio),
    /// Subtype 6.
    Fail(MpFail),
    /// Subtype 7.
    Fastclose(MpFastclose),
    /// Subtype 8.
    TcpRst(MpTcpRst),
    /// Subtype 15.
    Experimental(MpExperimental),
}

impl MptcpOption {
    /// Length on the wire in bytes, including kind and length.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        match self {
            MptcpOption::Capable(o) => o.encoded_len(),
            MptcpOption::Join(o) => o.encoded_len(),
            MptcpOption::AddAddr(o) => o.encoded_len(),
            MptcpOption::RemoveAddr(o) => o.encoded_len(),
            MptcpOption::Prio(o) => o.encoded_len(),
            MptcpOption::Fail(o) => o.encoded_len(),
            MptcpOption::Fastclose(o) => o.encoded_len(),
            MptcpOption::TcpRst(o) => o.encoded_len(),
            MptcpOption::Experimental(o) => o.encoded_len(),
        }
    }

    /// Parses `option`, the whole option including kind and length. DSS has its own parser.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        Some(match option.get(2)? >> 4 {
            subtype::CAPABLE => MptcpOption::Capable(MpCapable::parse(option)?),
            subtype::JOIN => MptcpOption::Join(MpJoin::parse(option)?),
            subtype::ADD_ADDR => MptcpOption::AddAddr(AddAddr::parse(option)?),
            subtype::REMOVE_ADDR => MptcpOption::RemoveAddr(RemoveAddr::parse(option)?),
            subtype::PRIO => MptcpOption::Prio(MpPrio::parse(option)?),
            subtype::FAIL => MptcpOption::Fail(MpFail::parse(option)?),
            subtype::FASTCLOSE => MptcpOption::Fastclose(MpFastclose::parse(option)?),
            subtype::TCPRST => MptcpOption::TcpRst(MpTcpRst::parse(option)?),
            subtype::EXPERIMENTAL => MptcpOption::Experimental(MpExperimental::parse(option)?),
            _ => return None,
        })
    }

    fn emit(&self, w: &mut Writer<'_>) {
        match self {
            MptcpOption::Capable(o) => o.emit(w),
            MptcpOption::Join(o) => o.emit(w),
            MptcpOption::AddAddr(o) => o.emit(w),
            MptcpOption::RemoveAddr(o) => o.emit(w),
            MptcpOption::Prio(o) => o.emit(w),
            MptcpOption::Fail(o) => o.emit(w),
            MptcpOption::Fastclose(o) => o.emit(w),
            MptcpOption::TcpRst(o) => o.emit(w),
            MptcpOption::Experimental(o) => o.emit(w),
        }
    }
}

/// The MPTCP options of one segment except DSS, in wire order: as many as fit the 40 bytes of options in a header.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct MptcpOptions {
    /// The encoded options; bytes after the first `len` are zero.
    bytes: [u8; MAX_OPTIONS],
    len: u8,
    /// True if an MPTCP option could not be parsed (wrong length, unknown subtype). The segment still counts as one
    /// that carries MPTCP.
    pub malformed: bool,
}

impl Default for MptcpOptions {
    fn default() -> Self {
        MptcpOptions::EMPTY
    }
}

impl MptcpOptions {
    /// No options.
    pub(crate) const EMPTY: MptcpOptions =
        MptcpOptions { bytes: [0; MAX_OPTIONS], len: 0, malformed: false };

    /// The options in wire order.
    pub fn iter(&self) -> impl Iterator<Item = MptcpOption> + '_ {
        let mut rest = self.as_bytes();
        core::iter::from_fn(move || {
            let (option, after) = rest.split_at_checked(usize::from(*rest.get(1)?))?;
            rest = after;
            MptcpOption::parse(option)
        })
    }

    /// Adds an option. Returns `false` if it does not fit the 40 bytes or cannot be encoded (a REMOVE_ADDR without
    /// ids).
    pub fn push(&mut self, option: MptcpOption) -> bool {
        if matches!(option, MptcpOption::RemoveAddr(RemoveAddr { len: 0, .. })) {
            return false;
        }
        let (start, len) = (usize::from(self.len), option.encoded_len());
        let Some(slot) = self.bytes.get_mut(start..start + len) else { return false };
        option.emit(&mut Writer::new(slot));
        self.len += len as u8;
        true
    }

    /// The messages from a Marline peer; invalid ones are skipped.
    pub fn experimental(&self) -> impl Iterator<Item = ExperimentalMessage> + '_ {
        self.iter().filter_map(|option| match option {
            MptcpOption::Experimental(option) => ExperimentalMessage::parse(&option),
            _ => None,
        })
    }

    /// Returns true if there are no options.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length on the wire, without padding.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        self.len as usize
    }

    /// The encoded options.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The MP_CAPABLE option, if there is one.
    #[must_use]
    pub fn capable(&self) -> Option<MpCapable> {
        self.iter().find_map(|o| if let MptcpOption::Capable(c) = o { Some(c) } else { None })
    }

    /// The MP_JOIN option, if there is one.
    #[must_use]
    pub fn join(&self) -> Option<MpJoin> {
        self.iter().find_map(|o| if let MptcpOption::Join(j) = o { Some(j) } else { None })
    }
}

impl fmt::Debug for MptcpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        list.entries(self.iter());
        if self.malformed {
            list.entry(&"malformed");
        }
        list.finish()
    }
}
