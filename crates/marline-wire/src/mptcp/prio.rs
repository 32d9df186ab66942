//! MP_PRIO (RFC 8684 section 3.3.8): makes a subflow a backup or a regular subflow.

use crate::bytes::Writer;
use crate::mptcp::{KIND, subtype};

const BACKUP: u8 = 0x01;
const LEN: u8 = 3;

/// MP_PRIO (RFC 8684 section 3.3.8): priority of the subflow on which it arrives.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpPrio {
    /// Flag B: use as backup only.
    pub backup: bool,
}

impl MpPrio {
    /// Length on the wire in bytes.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        LEN as usize
    }

    /// Parses `option`, the whole option including kind and length.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        let &[_, LEN, first] = option else { return None };
        Some(MpPrio { backup: first & BACKUP != 0 })
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        w.array([KIND, LEN, subtype::PRIO << 4 | if self.backup { BACKUP } else { 0 }]);
    }
}
