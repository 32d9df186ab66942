//! REMOVE_ADDR (RFC 8684 section 3.4.2): withdraws addresses by their ids.

use core::fmt;

use crate::bytes::Writer;
use crate::mptcp::{KIND, subtype};

/// Maximum number of ids in the 40 bytes of options.
const MAX_IDS: usize = 37;

/// REMOVE_ADDR (RFC 8684 section 3.4.2), with up to 37 ids.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct RemoveAddr {
    /// Storage; only the first `len` ids are valid.
    pub ids: [u8; MAX_IDS],
    /// Number of valid ids, at least 1.
    pub len: u8,
}

impl RemoveAddr {
    /// Creates an option with these ids; `None` if there are none, or more than 37.
    #[must_use]
    pub fn new(ids: &[u8]) -> Option<Self> {
        if ids.is_empty() {
            return None;
        }
        let mut option = RemoveAddr { ids: [0; MAX_IDS], len: ids.len() as u8 };
        option.ids.get_mut(..ids.len())?.copy_from_slice(ids);
        Some(option)
    }

    /// The valid ids.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.ids[..usize::from(self.len).min(MAX_IDS)]
    }

    /// Length on the wire in bytes: 3 plus one per id.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        3 + self.len as usize
    }

    /// Parses `option`, the whole option including kind and length.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        RemoveAddr::new(option.get(3..)?)
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        w.array([KIND, self.encoded_len() as u8, subtype::REMOVE_ADDR << 4]);
        w.slice(self.as_slice());
    }
}

impl fmt::Debug for RemoveAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoveAddr").field(&self.as_slice()).finish()
    }
}
