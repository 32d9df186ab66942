//! Fuzz target for the HTTP proxy: arbitrary bytes as a request with following data, and as a response.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marline_proxy::http::request::{Request, parse};
use marline_proxy::http::response::rewrite;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((request, head_len))) = parse(bytes) {
        assert!(head_len <= bytes.len());
        if let Request::Forward(mut forward) = request {
            let passed_on = forward.head.len();
            check_request(&forward.head);
            let behind = &bytes[head_len..];
            if forward.take_content(behind).is_ok() {
                // Content is forwarded unchanged; data after it is kept.
                assert!(behind.starts_with(&forward.head[passed_on..]));
                let rest = forward.head.len() - passed_on < behind.len();
                assert!(!rest || forward.body.is_complete());
            }
        }
    }
    for is_old in [false, true] {
        let Ok(Some(answer)) = rewrite(bytes, is_old) else { continue };
        assert!(answer.len <= bytes.len());
        if !answer.bytes.is_empty() {
            check_answer(&answer.bytes, answer.is_interim);
        }
    }
});

/// Checks that the forwarded bytes are exactly one head, whose headers announce the end of the connection.
fn check_answer(head: &[u8], is_interim: bool) {
    let mut room = [httparse::EMPTY_HEADER; 256];
    let mut parsed = httparse::Response::new(&mut room);
    let complete = parsed.parse(head).expect("the response parses");
    assert_eq!(complete, httparse::Status::Complete(head.len()));
    let count = |name: &str| {
        parsed.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).count()
    };
    assert_eq!((count("connection"), count("keep-alive")), (usize::from(!is_interim), 0));
    assert!(count("content-length") == 0 || count("transfer-encoding") == 0);
}

/// Checks that the forwarded bytes are exactly one head in origin-form, which every parser reads in the same way.
fn check_request(head: &[u8]) {
    let mut room = [httparse::EMPTY_HEADER; 256];
    let mut parsed = httparse::Request::new(&mut room);
    let complete = parsed.parse(head).expect("a request");
    assert_eq!(complete, httparse::Status::Complete(head.len()));
    assert!(parsed.path.is_some_and(|path| path.starts_with('/') || path == "*"));
    let count = |name: &str| {
        parsed.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).count()
    };
    assert_eq!((count("host"), count("connection"), count("upgrade")), (1, 1, 0));
    assert!(count("content-length") + count("transfer-encoding") <= 1);
}
