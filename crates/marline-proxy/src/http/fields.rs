//! Header fields of requests and responses: lookup and forwarding.

use std::fmt;

use httparse::Header;

/// Maximum number of fields in one head.
pub(super) const MAX_FIELDS: usize = 128;
/// Largest size of one head in bytes: the limit of common servers, and far more than applications send.
pub const MAX_HEAD: usize = 32 * 1_024;
/// Name of the proxy in `Via`.
const PSEUDONYM: &str = "marline";

/// Fields for the next hop only, whether `Connection` names them or not (RFC 9110 section 7.6.1).
const HOP_BY_HOP_FIELDS: [&str; 9] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "upgrade",
    "http2-settings",
    "proxy-authorization",
    "proxy-authenticate",
    "proxy-authentication-info",
];
/// Fields that `Connection` must not name: removing them would change the end or the recipient of a message.
const ESSENTIAL_FIELDS: [&str; 3] = ["host", "content-length", "transfer-encoding"];

/// An error in a head's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadFields {
    /// `Connection` names an essential field.
    Nominated(&'static str),
    /// `Content-Length` is not a decimal number, or is repeated.
    Length,
    /// `Transfer-Encoding` does not end in `chunked`, or is combined with `Content-Length` or HTTP/1.0.
    Framing,
    /// An unsupported transfer coding.
    Coding,
}

impl fmt::Display for BadFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadFields::Nominated(name) => write!(f, "Connection names {name}"),
            BadFields::Length => f.write_str("Content-Length is not a single decimal number"),
            BadFields::Framing => f.write_str(
                "Transfer-Encoding does not end in `chunked`, or comes with Content-Length or in HTTP/1.0",
            ),
            BadFields::Coding => f.write_str("unsupported transfer coding (only `chunked` is supported)"),
        }
    }
}

/// The fields of one head.
#[derive(Copy, Clone, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [Header<'a>]);

impl<'a> Fields<'a> {
    /// Returns all values of a field, in order.
    pub(super) fn values(self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        let of_name = self.0.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        of_name.map(|field| field.value)
    }

    /// Returns the elements of a list-valued field.
    fn elements(self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        let all = self.values(name).flat_map(|value| value.split(|b| *b == b','));
        all.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
    }

    /// Returns the announced content length, if there is one.
    pub(super) fn content_length(self) -> Result<Option<u64>, BadFields> {
        let mut values = self.values("content-length");
        let Some(value) = values.next() else { return Ok(None) };
        let text = str::from_utf8(value).unwrap_or_default();
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match (digits, text.parse(), values.next()) {
            (true, Ok(length), None) => Ok(Some(length)),
            _ => Err(BadFields::Length),
        }
    }

    /// Returns true if the content is chunked. Other codings are not supported.
    pub(super) fn is_chunked(self) -> Result<bool, BadFields> {
        if self.values("transfer-encoding").next().is_none() {
            return Ok(false);
        }
        let codings: Vec<&[u8]> = self.elements("transfer-encoding").collect();
        let chunked = |coding: &&&[u8]| coding.eq_ignore_ascii_case(b"chunked");
        match codings[..] {
            [only] if chunked(&&only) => Ok(true),
            [.., last] if chunked(&&last) => Err(BadFields::Coding),
            _ => Err(BadFields::Framing),
        }
    }

    /// Appends the fields for the next hop, except those in `also_without`.
    pub(super) fn pass_on(self, also_without: &[&str], out: &mut Vec<u8>) -> Result<(), BadFields> {
        let nominated: Vec<&[u8]> = self.elements("connection").collect();
        let essential = ESSENTIAL_FIELDS.iter().find(|name| is_among(&nominated, name));
        if let Some(name) = essential {
            return Err(BadFields::Nominated(name));
        }
        for field in self.0 {
            let stays = HOP_BY_HOP_FIELDS.iter().chain(also_without);
            if is_among(&nominated, field.name)
                || stays.into_iter().any(|n| equal_names(n, field.name))
            {
                continue;
            }
            append_field(field.name, field.value, out);
        }
        Ok(())
    }
}

fn equal_names(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

fn is_among(names: &[&[u8]], name: &str) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name.as_bytes()))
}

/// Appends one field.
pub(super) fn append_field(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the fields that end every forwarded head: the `Via` of this proxy (RFC 9110 section 7.6.3, with the `minor`
/// version that was received), and a field that announces the end of the connection.
pub(super) fn end(minor: u8, out: &mut Vec<u8>) {
    append_field("Via", format!("1.{minor} {PSEUDONYM}").as_bytes(), out);
    append_field("Connection", b"close", out);
    out.extend_from_slice(b"\r\n");
}
