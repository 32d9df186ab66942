//! Content of a request, parsed up to its end: by length, or chunk by chunk (RFC 9112 section 7.1).
//!
//! The content is passed on unchanged, so the next recipient must find the same end. The grammar is therefore
//! applied strictly: lines end in CRLF, and extensions and trailers contain no control characters.

/// Largest size of one chunk's extensions, in bytes.
const MAX_EXTENSION: usize = 1_024;
/// Largest size of all trailers, in bytes.
const MAX_TRAILER: usize = 8 * 1_024;
/// Maximum number of hexadecimal digits in a chunk's size.
const MAX_DIGITS: u8 = 16;

/// An error in chunked content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    /// A byte that is not allowed here.
    #[error("invalid byte {byte:#04x} in {place} (chunked body)")]
    Byte {
        /// Invalid byte.
        byte: u8,
        /// Part of the content.
        place: &'static str,
    },
    /// Extensions or trailers that exceed their limit.
    #[error("{0} is too long (chunked body)")]
    Long(&'static str),
}

/// Parser state: the element to which the next byte belongs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Content of known length, or the data of a chunk, with the number of bytes left.
    Data {
        left: u64,
        chunked: bool,
    },
    Size {
        digits: u8,
        value: u64,
    },
    Extension {
        len: usize,
        value: u64,
    },
    /// LF after a chunk's size.
    SizeEnd {
        value: u64,
    },
    /// CR after a chunk's data.
    DataEnd,
    /// LF that follows the CR after a chunk's data.
    ChunkEnd,
    /// Trailers, with their size so far and whether the current line has begun.
    Trailer {
        len: usize,
        is_started: bool,
    },
    /// LF after a trailer.
    TrailerEnd {
        len: usize,
    },
    /// LF after the empty line.
    LastEnd,
    Over,
}

/// Content of a request.
#[derive(Clone, Debug)]
pub struct Body(Place);

impl Body {
    /// Creates a parser for `length` bytes of content.
    #[must_use]
    pub fn with_length(length: u64) -> Body {
        Body(if length == 0 { Place::Over } else { Place::Data { left: length, chunked: false } })
    }

    /// Creates a parser for chunked content.
    #[must_use]
    pub fn chunked() -> Body {
        Body(Place::Size { digits: 0, value: 0 })
    }

    /// Returns true if the content is complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.0 == Place::Over
    }

    /// Parses the next bytes. Returns how many of them belong to the content.
    ///
    /// # Errors
    /// The bytes are not valid chunked content.
    pub fn parse_bytes(&mut self, bytes: &[u8]) -> Result<usize, BadBody> {
        let mut at = 0;
        while at < bytes.len() && !self.is_complete() {
            match self.0 {
                Place::Data { left, chunked } => {
                    let most = usize::try_from(left).unwrap_or(usize::MAX);
                    let count = most.min(bytes.len() - at);
                    at += count;
                    self.0 = match (left - count as u64, chunked) {
                        (0, true) => Place::DataEnd,
                        (0, false) => Place::Over,
                        (left, _) => Place::Data { left, chunked },
                    };
                }
                place => {
                    self.0 = next_place(place, bytes[at])?;
                    at += 1;
                }
            }
        }
        Ok(at)
    }
}

/// Returns the state after a byte of the framing.
fn next_place(place: Place, byte: u8) -> Result<Place, BadBody> {
    let wrong = |place| Err(BadBody::Byte { byte, place });
    let next = match (place, byte) {
        (Place::Size { digits, value }, _) if byte.is_ascii_hexdigit() && digits < MAX_DIGITS => {
            let digit = (byte as char).to_digit(16).unwrap_or_default();
            Place::Size { digits: digits + 1, value: value << 4 | u64::from(digit) }
        }
        (Place::Size { digits: 1.., value }, b'\r') => Place::SizeEnd { value },
        (Place::Size { digits: 1.., value }, b';' | b' ' | b'\t') => {
            Place::Extension { len: 1, value }
        }
        (Place::Size { .. }, _) => return wrong("the chunk size"),
        (Place::Extension { value, .. }, b'\r') => Place::SizeEnd { value },
        (Place::Extension { len: MAX_EXTENSION.., .. }, _) => {
            return Err(BadBody::Long("an extension"));
        }
        (Place::Extension { len, value }, _) if is_text(byte) => {
            Place::Extension { len: len + 1, value }
        }
        (Place::Extension { .. }, _) => return wrong("an extension"),
        (Place::SizeEnd { value: 0 }, b'\n') => Place::Trailer { len: 0, is_started: false },
        (Place::SizeEnd { value }, b'\n') => Place::Data { left: value, chunked: true },
        (Place::DataEnd, b'\r') => Place::ChunkEnd,
        (Place::ChunkEnd, b'\n') => Place::Size { digits: 0, value: 0 },
        (Place::Trailer { is_started: false, .. }, b'\r') => Place::LastEnd,
        (Place::Trailer { len, .. }, b'\r') => Place::TrailerEnd { len },
        (Place::Trailer { len: MAX_TRAILER.., .. }, _) => return Err(BadBody::Long("the trailer")),
        (Place::Trailer { len, .. }, _) if is_text(byte) => {
            Place::Trailer { len: len + 1, is_started: true }
        }
        (Place::TrailerEnd { len }, b'\n') => Place::Trailer { len, is_started: false },
        (Place::LastEnd, b'\n') => Place::Over,
        (Place::Trailer { .. } | Place::TrailerEnd { .. } | Place::LastEnd, _) => {
            return wrong("the trailer");
        }
        _ => return wrong("the end of a chunk"),
    };
    Ok(next)
}

/// Returns true unless the byte is a control character.
const fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= 0x20 && byte != 0x7f
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the number of bytes that belong to the content, and whether it is complete.
    fn follow_body(mut body: Body, bytes: &[u8]) -> Result<(usize, bool), BadBody> {
        body.parse_bytes(bytes).map(|count| (count, body.is_complete()))
    }

    #[test]
    fn content_of_known_length_ends_after_its_length() {
        assert_eq!(follow_body(Body::with_length(0), b"GET"), Ok((0, true)));
        assert_eq!(follow_body(Body::with_length(3), b"abcGET"), Ok((3, true)));
        assert_eq!(follow_body(Body::with_length(u64::MAX), b"abc"), Ok((3, false)));
    }

    #[test]
    fn chunks_with_extensions_and_trailers_end_at_the_empty_line() {
        for (text, rest) in [
            ("0\r\n\r\n", "GET"),
            ("3\r\nabc\r\n0\r\n\r\n", ""),
            (
                "00a;name=value\r\n0123456789\r\nF ;x\r\n0123456789abcde\r\n0\r\nA: b\r\nC: d\r\n\r\n",
                "x",
            ),
        ] {
            let bytes = [text, rest].concat();
            assert_eq!(
                follow_body(Body::chunked(), bytes.as_bytes()),
                Ok((text.len(), true)),
                "{text:?}"
            );
        }
    }

    #[test]
    fn ambiguous_chunked_bodies_are_refused() {
        for text in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "0x3\r\nabc",
            "3\nabc\r\n",
            "3;a\nb\r\n",
            "3;a\0\r\n",
            "3\r\nabcd\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "00000000000000000\r\n",
            "0\r\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\nA\rb\r\n\r\n",
        ] {
            assert!(follow_body(Body::chunked(), text.as_bytes()).is_err(), "{text:?}");
        }
        let long = format!("1;{}\r\n", "x".repeat(MAX_EXTENSION));
        assert_eq!(
            follow_body(Body::chunked(), long.as_bytes()),
            Err(BadBody::Long("an extension"))
        );
        let long = format!("0\r\nA: {}\r\n", "x".repeat(MAX_TRAILER));
        assert_eq!(
            follow_body(Body::chunked(), long.as_bytes()),
            Err(BadBody::Long("the trailer"))
        );
    }

    fn chunked(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts {
            out.extend_from_slice(format!("{:X}\r\n", part.len()).as_bytes());
            out.extend_from_slice(part);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\n\r\n");
        out
    }

    proptest! {
        #[test]
        fn chunked_content_ends_at_its_end_in_any_pieces(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..70), 0..6),
            piece in 1usize..50,
            rest in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let whole = chunked(&parts);
            let bytes = [&whole[..], &rest].concat();
            let mut body = Body::chunked();
            let mut taken = 0;
            for piece in bytes.chunks(piece) {
                taken += body.parse_bytes(piece).unwrap();
            }
            prop_assert_eq!((taken, body.is_complete()), (whole.len(), true));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut body = Body::chunked();
            if let Ok(taken) = body.parse_bytes(&bytes) {
                prop_assert!(taken == bytes.len() || body.is_complete());
            }
        }
    }
}
