//! Page itself: `page/src/index.html` and what npm made of the rest of `page/src`, part of the program.

use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Response};

/// The page may run and draw what is here, and talk to where it came from.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file by the path of its address: what it is, and its bytes.
pub(crate) fn file(path: &str) -> Option<(&'static str, &'static [u8])> {
    Some(match path {
        "/" => ("text/html; charset=utf-8", include_bytes!("../page/src/index.html").as_slice()),
        "/page.js" => ("text/javascript; charset=utf-8", include_bytes!("../page/dist/page.js")),
        "/page.css" => ("text/css; charset=utf-8", include_bytes!("../page/dist/page.css")),
        _ => return None,
    })
}

/// What every answer says to the browser.
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

/// An answer of this kind.
pub(crate) fn answer<B>(kind: &'static str, body: B) -> Response<B> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    protect(response.headers_mut());
    response
}

/// Bytes that are part of the program.
pub(crate) const fn bytes(of: &'static [u8]) -> Bytes {
    Bytes::from_static(of)
}
