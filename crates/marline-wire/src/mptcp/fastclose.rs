//! MP_FASTCLOSE (RFC 8684 section 3.5): closes the whole connection immediately.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::mptcp::{KIND, subtype};

const LEN: u8 = 12;

/// MP_FASTCLOSE (RFC 8684 section 3.5). `Debug` hides the key.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct MpFastclose {
    /// The receiver's key.
    pub receiver_key: u64,
}

impl fmt::Debug for MpFastclose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpFastclose").finish_non_exhaustive()
    }
}

impl MpFastclose {
    /// Length on the wire in bytes.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        LEN as usize
    }

    /// Parses `option`, the whole option including kind and length.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        let mut r = Reader::new(option);
        let [_, LEN, _, _] = r.array()? else { return None };
        Some(MpFastclose { receiver_key: r.u64()? })
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        w.array([KIND, LEN, subtype::FASTCLOSE << 4, 0]);
        w.u64(self.receiver_key);
    }
}
