//! The option of TCP Fast Open (RFC 7413): a request for a cookie, or a cookie.

use crate::bytes::Writer;

/// Option kind (RFC 7413 section 4.1.1).
pub(crate) const KIND: u8 = 34;

/// Bytes of the longest cookie.
const MAX_COOKIE: usize = 16;

/// A Fast Open cookie of 4 to 16 bytes, an even number of them (RFC 7413 section 4.1.1). What is in it only
/// its server knows.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct FastOpenCookie {
    bytes: [u8; MAX_COOKIE],
    len: u8,
}

impl FastOpenCookie {
    /// A cookie of these bytes; `None` unless they are 4 to 16, and an even number.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < 4 || !bytes.len().is_multiple_of(2) {
            return None;
        }
        let mut cookie = FastOpenCookie { bytes: [0; MAX_COOKIE], len: bytes.len() as u8 };
        cookie.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(cookie)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// What the option says. It counts in segments with SYN only (RFC 7413 section 4.1.1); whoever reads it in
/// others has to ignore it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FastOpen {
    /// In a SYN: the client asks for a cookie.
    Request,
    /// In a SYN: the client shows its cookie. In a SYN/ACK: the server gives one.
    Cookie(FastOpenCookie),
}

impl FastOpen {
    /// Reads what follows kind and length; `None` if no cookie is that long.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        if body.is_empty() {
            return Some(FastOpen::Request);
        }
        FastOpenCookie::new(body).map(FastOpen::Cookie)
    }

    /// Bytes of the option with the NOPs that fill up its last word.
    pub(crate) const fn padded_len(&self) -> usize {
        match self {
            FastOpen::Request => 4,
            FastOpen::Cookie(cookie) => (2 + cookie.len as usize).next_multiple_of(4),
        }
    }

    /// Writes the option, and NOPs up to the next word.
    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        let cookie = match self {
            FastOpen::Request => &[][..],
            FastOpen::Cookie(cookie) => cookie.as_bytes(),
        };
        w.array([KIND, 2 + cookie.len() as u8]);
        w.slice(cookie);
        if (2 + cookie.len()) % 4 == 2 {
            w.array([1, 1]);
        }
    }
}
