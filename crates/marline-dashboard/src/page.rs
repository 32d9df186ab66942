//! The page: `page/src/index.html` and the files that npm built from the rest of `page/src`, embedded in the program.

use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Response};

/// Content security policy: the page may only run scripts, use styles and open connections of its own origin.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the content type and bytes of the file at this path.
pub(crate) fn file(path: &str) -> Option<(&'static str, &'static [u8])> {
    Some(match path {
        "/" => ("text/html; charset=utf-8", include_bytes!("../page/src/index.html").as_slice()),
        "/page.js" => ("text/javascript; charset=utf-8", include_bytes!("../page/dist/page.js")),
        "/page.css" => ("text/css; charset=utf-8", include_bytes!("../page/dist/page.css")),
        _ => return None,
    })
}

/// Adds the headers that every response has.
pub(crate) fn protect(headers: &mut HeaderMap) {
    let fixed = [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cache-control", "no-store"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Creates a response of this content type.
pub(crate) fn answer<B>(kind: &'static str, body: B) -> Response<B> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    protect(response.headers_mut());
    response
}

/// Wraps bytes embedded in the program.
pub(crate) const fn bytes(of: &'static [u8]) -> Bytes {
    Bytes::from_static(of)
}
