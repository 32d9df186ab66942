//! Fast Open option (RFC 7413 section 4.1.1): a client's request for a cookie, or a cookie.
//!
//! It occurs only in SYN and SYN/ACK and takes up to 18 bytes. So it is not part of [`TcpOptions`], which exists for
//! every segment. [`find`](FastOpenOption::find) searches for it in the option bytes of a handshake, and
//! [`TcpHeader::emit_with`](crate::TcpHeader::emit_with) writes it.
//!
//! Before it was assigned a kind, it was an experimental option (RFC 6994): kind 254, followed by the number 0xf989
//! and the cookie. Both forms are parsed, and an answer has the form of the request.

use crate::bytes::Writer;
use crate::tcp_options::kind;
use crate::{MAX_OPTIONS, TcpOptions};

/// Minimum and maximum length of a cookie, in bytes.
const COOKIE_LENGTHS: core::ops::RangeInclusive<usize> = 4..=16;
/// Number that identifies the experimental option.
const EXPERIMENT_ID: [u8; 2] = [0xf9, 0x89];

/// The Fast Open option.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FastOpenOption {
    cookie: [u8; 16],
    /// Length of the cookie in bytes; 0 is a request.
    len: u8,
    experimental: bool,
}

impl FastOpenOption {
    /// A request for a cookie.
    pub const REQUEST: FastOpenOption =
        FastOpenOption { cookie: [0; 16], len: 0, experimental: false };

    /// An option with a cookie. `None` unless its length is even and between 4 and 16 bytes.
    #[must_use]
    pub fn cookie(bytes: &[u8]) -> Option<Self> {
        if !COOKIE_LENGTHS.contains(&bytes.len()) || !bytes.len().is_multiple_of(2) {
            return None;
        }
        let mut cookie = [0; 16];
        cookie[..bytes.len()].copy_from_slice(bytes);
        Some(FastOpenOption { cookie, len: bytes.len() as u8, experimental: false })
    }

    /// This option in the experimental or the standard form.
    #[must_use]
    pub const fn with_form(self, experimental: bool) -> Self {
        FastOpenOption { experimental, ..self }
    }

    /// Returns true if the option has the experimental form.
    #[must_use]
    pub const fn is_experimental(&self) -> bool {
        self.experimental
    }

    /// Returns true if the option requests a cookie.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        self.len == 0
    }

    /// The bytes of the cookie; empty for a request.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.cookie[..usize::from(self.len).min(self.cookie.len())]
    }

    /// Length on the wire in bytes, padded to a multiple of four.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        self.bare_len().next_multiple_of(4)
    }

    /// Returns true if the option fits into a header together with these options.
    #[must_use]
    pub const fn fits_with(&self, options: &TcpOptions) -> bool {
        options.encoded_len() + self.encoded_len() <= MAX_OPTIONS
    }

    const fn bare_len(&self) -> usize {
        2 + self.len as usize + if self.experimental { EXPERIMENT_ID.len() } else { 0 }
    }

    /// Finds the first Fast Open option among the option bytes of a header. An option with an invalid length is
    /// skipped, and malformed bytes end the search, as in [`TcpOptions::parse`].
    #[must_use]
    pub fn find(options: &[u8]) -> Option<Self> {
        let mut rest = options;
        loop {
            match rest {
                [kind::NOP, after @ ..] => rest = after,
                [kind, len, ..] if *kind != kind::END && *len >= 2 => {
                    let (option, after) = rest.split_at_checked(usize::from(*len))?;
                    if let Some(found) = Self::from_option(*kind, &option[2..]) {
                        return Some(found);
                    }
                    rest = after;
                }
                _ => return None,
            }
        }
    }

    fn from_option(kind: u8, body: &[u8]) -> Option<Self> {
        let (bytes, experimental) = match kind {
            kind::FAST_OPEN => (body, false),
            kind::EXPERIMENTAL => (body.strip_prefix(&EXPERIMENT_ID)?, true),
            _ => return None,
        };
        let option = if bytes.is_empty() { Self::REQUEST } else { Self::cookie(bytes)? };
        Some(option.with_form(experimental))
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        let end = w.len() + self.encoded_len();
        if self.experimental {
            w.array([kind::EXPERIMENTAL, self.bare_len() as u8]);
            w.array(EXPERIMENT_ID);
        } else {
            w.array([kind::FAST_OPEN, self.bare_len() as u8]);
        }
        w.slice(self.as_bytes());
        while w.len() < end {
            w.u8(kind::NOP);
        }
    }
}

#[cfg(test)]
#[path = "fast_open/tests.rs"]
mod tests;
