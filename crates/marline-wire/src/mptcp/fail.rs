//! MP_FAIL (RFC 8684 section 3.7): a DSS checksum failed, so the peer falls back or closes the subflow.

use crate::bytes::{Reader, Writer};
use crate::mptcp::{KIND, subtype};

const LEN: u8 = 12;

/// MP_FAIL (RFC 8684 section 3.7).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpFail {
    /// The data sequence number at which the checksum failed.
    pub dsn: u64,
}

impl MpFail {
    /// Length on the wire in bytes.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        LEN as usize
    }

    /// Parses `option`, the whole option including kind and length.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        let mut r = Reader::new(option);
        let [_, LEN, _, _] = r.array()? else { return None };
        Some(MpFail { dsn: r.u64()? })
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        w.array([KIND, LEN, subtype::FAIL << 4, 0]);
        w.u64(self.dsn);
    }
}
