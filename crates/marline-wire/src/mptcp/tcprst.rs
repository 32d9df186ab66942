//! MP_TCPRST (RFC 8684 section 3.6): gives the reason for resetting a subflow.

use crate::bytes::Writer;
use crate::mptcp::{KIND, subtype};

const TRANSIENT: u8 = 0x01;
const LEN: u8 = 4;

/// MP_TCPRST (RFC 8684 section 3.6).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpTcpRst {
    /// Flag T: the condition is transient.
    pub transient: bool,
    /// Reason code; 0 is unspecified. Codes are in the registry of RFC 8684 section 7.
    pub reason: u8,
}

impl MpTcpRst {
    /// Length on the wire in bytes.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        LEN as usize
    }

    /// Parses `option`, the whole option including kind and length.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        let &[_, LEN, first, reason] = option else { return None };
        Some(MpTcpRst { transient: first & TRANSIENT != 0, reason })
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        let first = subtype::TCPRST << 4 | if self.transient { TRANSIENT } else { 0 };
        w.array([KIND, LEN, first, self.reason]);
    }
}
