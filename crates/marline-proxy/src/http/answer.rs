//! Answers of the proxy itself: refusals with their status, and documents.

use crate::message::ErrorCode;

/// A refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} (HTTP status {status})")]
pub struct Refusal {
    /// Status code, 400 to 599.
    pub status: u16,
    /// Explanation for the user.
    pub text: String,
}

impl Refusal {
    /// Creates a refusal.
    #[must_use]
    pub fn new(status: u16, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into() }
    }

    /// Returns the refusal of a request that breaks the protocol's rules.
    #[must_use]
    pub fn bad_request(text: impl Into<String>) -> Refusal {
        Refusal::new(400, text)
    }

    /// Returns the response as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let text = format!("{}\n", self.text);
        let more = if self.status == 405 { "Allow: GET, HEAD, OPTIONS\r\n" } else { "" };
        document(self.status, "text/plain; charset=utf-8", more, &text, false)
    }
}

/// Returns the status that reports a failure to reach the target.
#[must_use]
pub fn status_of(code: ErrorCode) -> u16 {
    match code {
        ErrorCode::NotAuthorized => 403,
        ErrorCode::ResourceExceeded => 503,
        ErrorCode::DestinationUnreachable => 504,
        _ => 502,
    }
}

/// Returns a response with a document. `more` are further fields; `without_body` is for HEAD. The fixed fields prevent
/// a page from another origin from loading the document as a script.
#[must_use]
pub fn document(
    status: u16,
    media_type: &str,
    more: &str,
    text: &str,
    without_body: bool,
) -> Vec<u8> {
    let body = if without_body { "" } else { text };
    let answer = format!(
        "HTTP/1.1 {status} {reason}\r\n\
         Content-Type: {media_type}\r\n\
         Content-Length: {length}\r\n\
         X-Content-Type-Options: nosniff\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\n\
         Cache-Control: no-store\r\n\
         {more}Connection: close\r\n\r\n{body}",
        reason = reason(status),
        length = text.len(),
    );
    answer.into_bytes()
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_proxy_protocol_become_statuses() {
        for (code, status) in [
            (ErrorCode::NotAuthorized, 403),
            (ErrorCode::NetworkFailure, 502),
            (ErrorCode::DestinationUnreachable, 504),
            (ErrorCode::ConnectionReset, 502),
            (ErrorCode::ResourceExceeded, 503),
            (ErrorCode::Malformed, 502),
            (ErrorCode::Other(9), 502),
        ] {
            assert_eq!(status_of(code), status);
            assert!(!reason(status).is_empty());
        }
    }

    #[test]
    fn refusals_are_valid_http_answers() {
        let bytes = Refusal::new(405, "no").to_bytes();
        let mut fields = [httparse::EMPTY_HEADER; 16];
        let mut parsed = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(head_len) = parsed.parse(&bytes).unwrap() else {
            panic!("a whole head");
        };
        assert_eq!((parsed.code, &bytes[head_len..]), (Some(405), &b"no\n"[..]));
        let value = |name| parsed.headers.iter().find(|f| f.name == name).map(|f| f.value);
        assert_eq!(value("Content-Length"), Some(&b"3"[..]));
        assert_eq!(value("Allow"), Some(&b"GET, HEAD, OPTIONS"[..]));
        assert_eq!(value("Connection"), Some(&b"close"[..]));
    }

    #[test]
    fn a_head_answer_still_has_its_content_length() {
        let bytes = document(200, "text/plain", "", "four", true);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("Content-Length: 4\r\n") && text.ends_with("\r\n\r\n"), "{text}");
    }
}
