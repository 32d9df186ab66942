//! MP_EXPERIMENTAL: subtype 0xf, which RFC 8684 section 7.2 reserves for private use.

use core::fmt;

use crate::bytes::Writer;
use crate::mptcp::{KIND, subtype};

/// Maximum number of payload bytes in the 40 bytes of options.
const MAX_BYTES: usize = 37;

/// MP_EXPERIMENTAL (subtype 0xf of RFC 8684's registry): uninterpreted bytes after kind, length and subtype. Marline
/// peers use it for [`ExperimentalMessage`](super::ExperimentalMessage).
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct MpExperimental {
    /// Low nibble of the subtype byte.
    pub flags: u8,
    /// Storage; only the first `len` bytes are valid.
    pub bytes: [u8; MAX_BYTES],
    /// Number of valid bytes.
    pub len: u8,
}

impl MpExperimental {
    /// An empty option.
    pub(crate) const EMPTY: MpExperimental =
        MpExperimental { flags: 0, bytes: [0; MAX_BYTES], len: 0 };

    /// Creates an option with these flags (four bits) and bytes; `None` if there are more than 37 bytes.
    #[must_use]
    pub fn new(flags: u8, bytes: &[u8]) -> Option<Self> {
        let mut option =
            MpExperimental { flags: flags & 0x0f, bytes: [0; MAX_BYTES], len: bytes.len() as u8 };
        option.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(option)
    }

    /// The valid bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(MAX_BYTES)]
    }

    /// The third byte on the wire: subtype and flags.
    #[must_use]
    pub const fn subtype_byte(&self) -> u8 {
        subtype::EXPERIMENTAL << 4 | self.flags & 0x0f
    }

    /// Length on the wire in bytes: 3 plus the payload.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        3 + self.len as usize
    }

    /// Parses `option`, the whole option including kind and length.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        MpExperimental::new(*option.get(2)?, option.get(3..)?)
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        w.array([KIND, self.encoded_len() as u8, self.subtype_byte()]);
        w.slice(self.as_slice());
    }
}

impl fmt::Debug for MpExperimental {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpExperimental")
            .field("flags", &self.flags)
            .field("bytes", &self.as_slice())
            .finish()
    }
}
