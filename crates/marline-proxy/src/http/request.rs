//! Head of a request, and its form for the target.

use httparse::{Error, Status};

use super::answer::Refusal;
use super::body::{BadBody, Body};
pub use super::fields::MAX_HEAD;
use super::fields::{self, BadFields, Fields};
use crate::target::{BadTarget, Host, Target};

/// Request from an application.
#[derive(Debug)]
pub enum Request {
    /// A tunnel to a target: all following bytes are relayed.
    Connect(Target),
    /// A request to forward.
    Forward(Forward),
    /// A request for a resource of this port itself.
    Own(OwnResource),
}

/// A request to forward.
#[derive(Debug)]
pub struct Forward {
    /// Target of the request.
    pub target: Target,
    /// Head for the target, followed by the content received so far.
    pub head: Vec<u8>,
    /// State of the content that is still to come.
    pub body: Body,
    /// True if the application speaks HTTP/1.0.
    pub is_old: bool,
}

impl Forward {
    /// Takes bytes received after the head. Bytes after the content are discarded.
    ///
    /// # Errors
    /// The content is malformed.
    pub fn take_content(&mut self, behind: &[u8]) -> Result<(), BadBody> {
        let count = self.body.parse_bytes(behind)?;
        self.head.extend_from_slice(&behind[..count]);
        Ok(())
    }
}

/// A request for a resource of this port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnResource {
    /// Method of the request.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Value of the `Host` field, if there is one.
    pub host: Option<String>,
}

/// Returns true if a connection that starts with this byte may be HTTP (and cannot be SOCKS).
#[must_use]
pub const fn may_start_http(byte: u8) -> bool {
    // An empty line may precede a request (RFC 9112 section 2.2).
    byte.is_ascii_alphabetic() || matches!(byte, b'\r' | b'\n')
}

/// Parses the head of a request. Returns the request and the length of the head. Returns `None` if the head is
/// incomplete.
///
/// # Errors
/// The head is invalid, or the request is not supported.
pub fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Refusal> {
    let mut room = [httparse::EMPTY_HEADER; fields::MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut room);
    let head_len = match parsed.parse(bytes) {
        Ok(Status::Complete(head_len)) if head_len <= MAX_HEAD => head_len,
        Ok(Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(_) | Err(Error::TooManyHeaders) => {
            let most = fields::MAX_FIELDS;
            let text = format!("the head has more than {MAX_HEAD} bytes or {most} fields");
            return Err(Refusal::new(431, text));
        }
        Err(Error::Version) => {
            return Err(Refusal::new(505, "unsupported HTTP version (supported: 1.0 and 1.1)"));
        }
        Err(error) => return Err(Refusal::bad_request(format!("not an HTTP request: {error}"))),
    };
    let (Some(method), Some(uri), Some(minor)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(Refusal::bad_request("not an HTTP request: the request line is missing"));
    };
    let head = Head { method, uri, minor, fields: Fields(parsed.headers) };
    Ok(Some((head.request()?, head_len)))
}

struct Head<'a> {
    method: &'a str,
    uri: &'a str,
    minor: u8,
    fields: Fields<'a>,
}

/// A URI in absolute-form, in parts.
#[derive(Debug, PartialEq, Eq)]
struct AbsoluteUri<'a> {
    authority: &'a str,
    target: Target,
    path: String,
}

impl Head<'_> {
    fn request(&self) -> Result<Request, Refusal> {
        if !self.uri.is_ascii() {
            return Err(Refusal::bad_request("the request's target has non-ASCII bytes"));
        }
        let host = self.host()?;
        if self.method == "CONNECT" {
            return authority(self.uri, None).map(Request::Connect);
        }
        if self.uri.starts_with('/') || self.uri == "*" {
            let (method, path) = (self.method.to_owned(), self.uri.to_owned());
            return Ok(Request::Own(OwnResource { method, path, host }));
        }
        match self.remaining_hops()? {
            Some(0) => {
                let (method, path) = (self.method.to_owned(), "*".to_owned());
                Ok(Request::Own(OwnResource { method, path, host: None }))
            }
            hops_left => self.forward(hops_left).map(Request::Forward),
        }
    }

    /// Returns the number of hops that may still forward the request, for methods with this limit (RFC 9110 section
    /// 7.6.2).
    fn remaining_hops(&self) -> Result<Option<u32>, Refusal> {
        if !matches!(self.method, "OPTIONS" | "TRACE") {
            return Ok(None);
        }
        let Some(value) = self.fields.values("max-forwards").next() else { return Ok(None) };
        let digits = value.iter().all(u8::is_ascii_digit);
        let number = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let number = number.filter(|_| digits);
        number.map(Some).ok_or_else(|| Refusal::bad_request("Max-Forwards is not a number"))
    }

    /// Returns the single `Host` field, which HTTP/1.0 may omit (RFC 9112 section 3.2).
    fn host(&self) -> Result<Option<String>, Refusal> {
        let mut values = self.fields.values("host");
        let host = match (values.next(), values.next()) {
            (Some(host), None) => host,
            (None, _) if self.minor == 0 => return Ok(None),
            (None, _) => return Err(Refusal::bad_request("the Host field is missing")),
            (Some(_), Some(_)) => return Err(Refusal::bad_request("duplicate Host field")),
        };
        match str::from_utf8(host) {
            Ok(host) if host.is_ascii() => Ok(Some(host.to_owned())),
            _ => Err(Refusal::bad_request("the Host field has non-ASCII bytes")),
        }
    }

    fn forward(&self, hops_left: Option<u32>) -> Result<Forward, Refusal> {
        let uri = parse_absolute(self.method, self.uri)?;
        let body = self.body().map_err(refusal)?;
        // The application's version is kept, because an HTTP/1.0 application would not understand chunks.
        let line = format!("{} {} HTTP/1.{}\r\n", self.method, uri.path, self.minor);
        let mut head = line.into_bytes();
        // The field is replaced regardless of its value (RFC 9112 section 3.2.2).
        fields::append_field("Host", uri.authority.as_bytes(), &mut head);
        let replaced = &["host", "transfer-encoding", "max-forwards"];
        let replaced = &replaced[..if hops_left.is_some() { 3 } else { 2 }];
        self.fields.pass_on(replaced, &mut head).map_err(refusal)?;
        // Written in one form only, because empty elements and repeated lines could be interpreted differently.
        if self.fields.is_chunked().map_err(refusal)? {
            fields::append_field("Transfer-Encoding", b"chunked", &mut head);
        }
        if let Some(hops_left) = hops_left {
            let fewer = hops_left.saturating_sub(1).to_string();
            fields::append_field("Max-Forwards", fewer.as_bytes(), &mut head);
        }
        fields::end(self.minor, &mut head);
        Ok(Forward { target: uri.target, head, body, is_old: self.minor == 0 })
    }

    fn body(&self) -> Result<Body, BadFields> {
        let length = self.fields.content_length()?;
        match (self.fields.is_chunked()?, length) {
            (false, length) => Ok(Body::with_length(length.unwrap_or_default())),
            (true, None) if self.minor > 0 => Ok(Body::chunked()),
            (true, _) => Err(BadFields::Framing),
        }
    }
}

fn refusal(error: BadFields) -> Refusal {
    let status = if error == BadFields::Coding { 501 } else { 400 };
    Refusal::new(status, error.to_string())
}

fn parse_absolute<'a>(method: &str, uri: &'a str) -> Result<AbsoluteUri<'a>, Refusal> {
    let bad = |why: &str| Refusal::bad_request(format!("the request's target: {why}"));
    let (scheme, rest) = uri.split_once(':').ok_or_else(|| bad("neither a URI nor a path"))?;
    if !scheme.eq_ignore_ascii_case("http") {
        // TLS runs between application and target, so the proxy cannot handle it.
        let text = "only http:// is forwarded; use CONNECT for everything else";
        return Err(Refusal::new(501, text));
    }
    let rest = rest.strip_prefix("//").ok_or_else(|| bad("missing // after http:"))?;
    if rest.contains('#') {
        return Err(bad("a fragment is not allowed"));
    }
    let (at, path) = match rest.find(['/', '?']) {
        Some(at) => (at, &rest[at..]),
        None => (rest.len(), ""),
    };
    let path = match path {
        // RFC 9112 section 3.2.4
        "" if method == "OPTIONS" => "*".to_owned(),
        "" => "/".to_owned(),
        query if query.starts_with('?') => format!("/{query}"),
        path => path.to_owned(),
    };
    let authority = &rest[..at];
    let target = self::authority(authority, Some(80))?;
    Ok(AbsoluteUri { authority, target, path })
}

/// Parses `HOST:PORT`. The port may be omitted if there is a default.
fn authority(text: &str, default_port: Option<u16>) -> Result<Target, Refusal> {
    if text.contains('@') {
        // User information disguises a host more often than it logs in (RFC 9110 section 4.2.4).
        return Err(Refusal::bad_request("a user name or password is not allowed before the host"));
    }
    // The port's colon: the one after the brackets, or the only one.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let target = match (port.filter(|port| !port.is_empty()), default_port) {
        (Some(port), _) if !port.bytes().all(|b| b.is_ascii_digit()) => Err(BadTarget::Port),
        (Some(port), _) => port.parse().map_err(|_| BadTarget::Port),
        (None, Some(port)) => Ok(port),
        (None, None) => Err(BadTarget::NoPort),
    };
    let target = target.and_then(|port| Target::new(parse_host(host)?, port));
    target.map_err(|error| Refusal::bad_request(format!("bad destination: {error}")))
}

/// Parses a host. Brackets are required around IPv6 addresses, and not allowed otherwise.
fn parse_host(text: &str) -> Result<Host, BadTarget> {
    let host = Host::parse(text)?;
    match matches!(host, Host::V6(_)) == text.starts_with('[') {
        true => Ok(host),
        false => Err(BadTarget::NoPort),
    }
}

#[cfg(test)]
mod tests;
