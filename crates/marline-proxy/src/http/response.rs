//! Head of a response, and its form for the application.

use httparse::Status;

use super::fields::{self, BadFields, Fields, MAX_HEAD};

/// Rewritten head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewrittenHead {
    /// Length of the original head.
    pub len: usize,
    /// Head for the application.
    pub bytes: Vec<u8>,
    /// True if another head follows (status 1xx).
    pub is_interim: bool,
}

/// A response that cannot be forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid HTTP response from the target: {0}")]
pub struct BadAnswer(String);

impl From<BadFields> for BadAnswer {
    fn from(error: BadFields) -> BadAnswer {
        BadAnswer(error.to_string())
    }
}

/// Rewrites the head of a response. `is_old` is true if the application speaks HTTP/1.0. Returns `None` if the head is
/// incomplete.
///
/// # Errors
/// The head is not valid.
pub fn rewrite(bytes: &[u8], is_old: bool) -> Result<Option<RewrittenHead>, BadAnswer> {
    let mut room = [httparse::EMPTY_HEADER; fields::MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut room);
    let len = match parsed.parse(bytes) {
        Ok(Status::Complete(len)) if len <= MAX_HEAD => len,
        Ok(Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(_) => return Err(BadAnswer(format!("its head has more than {MAX_HEAD} bytes"))),
        Err(error) => return Err(BadAnswer(error.to_string())),
    };
    let (code, minor) = (parsed.code.unwrap_or_default(), parsed.version.unwrap_or_default());
    let is_interim = (100..200).contains(&code);
    // An upgrade cannot have been requested, because that field is not forwarded.
    if code == 101 || !(100..600).contains(&code) {
        return Err(BadAnswer(format!("status {code}")));
    }
    if is_interim && is_old {
        return Ok(Some(RewrittenHead { len, bytes: Vec::new(), is_interim }));
    }
    let fields = Fields(parsed.headers);
    let mut out = format!("HTTP/1.1 {code} {}\r\n", parsed.reason.unwrap_or_default()).into_bytes();
    fields.pass_on(fields_to_remove(fields, minor)?, &mut out)?;
    match is_interim {
        true => out.extend_from_slice(b"\r\n"),
        false => fields::end(minor, &mut out),
    }
    Ok(Some(RewrittenHead { len, bytes: out, is_interim }))
}

/// Returns the fields to remove: a transfer coding overrides a length (RFC 9112 section 6.3).
fn fields_to_remove(fields: Fields<'_>, minor: u8) -> Result<&'static [&'static str], BadFields> {
    let coded = fields.values("transfer-encoding").next().is_some();
    match (coded, minor) {
        (true, 0) => Err(BadFields::Framing),
        (true, _) => Ok(&["content-length"]),
        (false, _) => fields.content_length().map(|_| &[][..]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(head: &str, is_old: bool) -> String {
        let rewritten = rewrite(head.as_bytes(), is_old).unwrap().expect("a whole head");
        assert_eq!(rewritten.len, head.len());
        String::from_utf8(rewritten.bytes).unwrap()
    }

    #[test]
    fn a_response_gets_connection_close_without_hop_fields() {
        let head = "HTTP/1.0 404 Nowhere to be seen\r\nServer: x\r\nConnection: X-Hop\r\n\
            Keep-Alive: 9\r\nX-Hop: 1\r\nProxy-Authenticate: Basic\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(
            text(head, false),
            "HTTP/1.1 404 Nowhere to be seen\r\nServer: x\r\nContent-Length: 5\r\n\
             Via: 1.0 marline\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn content_length_next_to_chunks_is_removed() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(
            text(head, false),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nVia: 1.1 marline\r\n\
             Connection: close\r\n\r\n"
        );
    }

    #[test]
    fn interim_answers_are_forwarded_except_to_http_1_0() {
        let head = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: close\r\n\r\n";
        assert_eq!(text(head, false), "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        assert_eq!(text(head, true), "");
        assert!(rewrite(head.as_bytes(), true).unwrap().unwrap().is_interim);
    }

    #[test]
    fn an_invalid_response_head_is_refused() {
        for head in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "HTTP/1.1 999 Much\r\n\r\n",
            "HTTP/1.1 099 Little\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
        ] {
            assert!(rewrite(head.as_bytes(), false).is_err(), "{head:?}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(MAX_HEAD));
        assert!(rewrite(endless.as_bytes(), false).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_as_an_answer_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [&b"HTTP/1."[..], &bytes].concat();
            if let Ok(Some(rewritten)) = rewrite(&bytes, false) {
                prop_assert!(rewritten.len <= bytes.len());
            }
        }
    }
}
