use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> Request {
    let (request, head_len) = parse(text.as_bytes()).unwrap().expect("a whole head");
    assert_eq!(head_len, text.len());
    request
}

fn forwarded(text: &str) -> (Target, String) {
    match parsed(text) {
        Request::Forward(forward) => {
            (forward.target, String::from_utf8(forward.head).expect("text"))
        }
        other => panic!("{other:?}"),
    }
}

fn status(text: &str) -> u16 {
    parse(text.as_bytes()).unwrap_err().status
}

#[test]
fn connect_names_its_target_with_a_port_and_ipv6_in_brackets() {
    for target in ["example.org:443", "192.0.2.1:22", "[2001:db8::1]:443"] {
        match parsed(&format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n")) {
            Request::Connect(asked) => assert_eq!(asked.to_string(), target),
            other => panic!("{other:?}"),
        }
    }
    for target in [
        "example.org",
        "example.org:",
        "example.org:0",
        "example.org:+80",
        "example.org:65536",
        "2001:db8::1:443",
        "[2001:db8::1]",
        "[192.0.2.1]:80",
        "[example.org]:80",
        "[fe80::1%25eth0]:80",
        ":443",
        "user@example.org:443",
        "http://example.org/",
        "/",
    ] {
        let text = format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(status(&text), 400, "{target}");
    }
}

#[test]
fn absolute_form_becomes_origin_form_with_the_targets_host() {
    for (uri, target, line, host) in [
        ("http://example.org/a?b=c", "example.org:80", "GET /a?b=c HTTP/1.1", "example.org"),
        ("HTTP://Example.ORG:8080", "Example.ORG:8080", "GET / HTTP/1.1", "Example.ORG:8080"),
        ("http://example.org:?q", "example.org:80", "GET /?q HTTP/1.1", "example.org:"),
        ("http://[2001:db8::1]/", "[2001:db8::1]:80", "GET / HTTP/1.1", "[2001:db8::1]"),
        ("http://[::1]:81/x:y@z", "[::1]:81", "GET /x:y@z HTTP/1.1", "[::1]:81"),
    ] {
        let text = format!("GET {uri} HTTP/1.1\r\nHost: lies.example\r\n\r\n");
        let (asked, head) = forwarded(&text);
        assert_eq!(asked.to_string(), target);
        let expected =
            format!("{line}\r\nHost: {host}\r\nVia: 1.1 marline\r\nConnection: close\r\n\r\n");
        assert_eq!(head, expected);
    }
    let options = "OPTIONS http://example.org HTTP/1.1\r\nHost: x\r\n\r\n";
    assert!(forwarded(options).1.starts_with("OPTIONS * HTTP/1.1\r\n"));
}

#[test]
fn hop_by_hop_fields_are_removed_and_others_kept_in_order() {
    let (_, head) = forwarded(
        "POST http://a.example/ HTTP/1.1\r\nAccept: */*\r\nproxy-connection: keep-alive\r\n\
         Connection: X-Mine, Keep-Alive\r\nKeep-Alive: 5\r\nx-mine: 1\r\nTE: trailers\r\n\
         Upgrade: websocket\r\nProxy-Authorization: Basic c2VjcmV0\r\nHost: b\r\n\
         Content-Length: 3\r\nX-Other: a\tb \r\nVia: 1.0 before\r\n\r\n",
    );
    assert_eq!(
        head,
        "POST / HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\nContent-Length: 3\r\n\
         X-Other: a\tb\r\nVia: 1.0 before\r\nVia: 1.1 marline\r\nConnection: close\r\n\r\n"
    );
}

/// Found by fuzzing: an empty field next to the real one was also forwarded.
#[test]
fn the_transfer_encoding_is_forwarded_in_canonical_form() {
    for fields in
        ["Transfer-Encoding:\r\ntransfer-encoding: , Chunked", "Transfer-Encoding: chunked,"]
    {
        let text = format!("POST http://a.example/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let (_, head) = forwarded(&text);
        let expected = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\
             Via: 1.1 marline\r\nConnection: close\r\n\r\n";
        assert_eq!(head, expected);
    }
}

#[test]
fn hops_are_counted_where_they_are_to_be() {
    let ask = |method: &str, left: &str| {
        format!("{method} http://a.example/ HTTP/1.1\r\nHost: a\r\nMax-Forwards: {left}\r\n\r\n")
    };
    for (method, left, passed_on) in
        [("OPTIONS", "2", "1"), ("TRACE", "010", "9"), ("GET", "0", "0")]
    {
        let (_, head) = forwarded(&ask(method, left));
        assert!(head.contains(&format!("\r\nMax-Forwards: {passed_on}\r\n")), "{head}");
        assert_eq!(head.matches("Max-Forwards").count(), 1);
    }
    assert!(matches!(parsed(&ask("OPTIONS", "0")), Request::Own(own) if own.path == "*"));
    assert_eq!(status(&ask("OPTIONS", "-1")), 400);
    assert_eq!(status(&ask("TRACE", "99999999999")), 400);
}

#[test]
fn a_client_of_http_1_0_is_passed_on_as_one() {
    let (_, head) = forwarded("GET http://a.example/ HTTP/1.0\r\n\r\n");
    let expected =
        "GET / HTTP/1.0\r\nHost: a.example\r\nVia: 1.0 marline\r\nConnection: close\r\n\r\n";
    assert_eq!(head, expected);
}

#[test]
fn framing_that_two_could_read_in_two_ways_is_refused() {
    for (fields, expected) in [
        ("Content-Length: 3\r\nContent-Length: 3", 400),
        ("Content-Length: 3, 3", 400),
        ("Content-Length: +3", 400),
        ("Content-Length:", 400),
        ("Content-Length: 18446744073709551616", 400),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: gzip", 400),
        ("Transfer-Encoding:", 400),
        ("Transfer-Encoding: chunked, gzip", 400),
        ("Transfer-Encoding: gzip, chunked", 501),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 501),
        ("Transfer-Encoding : chunked", 400),
        ("X: a\r\n Transfer-Encoding: chunked", 400),
        ("Connection: Content-Length\r\nContent-Length: 3", 400),
        ("Connection: close, host", 400),
    ] {
        let text = format!("POST http://a.example/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        assert_eq!(status(&text), expected, "{fields}");
    }
    let old = "POST http://a.example/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(status(old), 400);
}

#[test]
fn an_unsupported_request_gets_its_status_code() {
    for (text, expected) in [
        ("GET http://a.example/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://a.example/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        ("GET https://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        ("GET ftp://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        ("GET http:/a.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http:///path HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://u:p@a.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a.example/#top HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a.example/\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET nonsense HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nNo colon\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ] {
        assert_eq!(status(text), expected, "{text:?}");
    }
}

#[test]
fn origin_form_is_for_this_port() {
    let own = |method: &str, path: &str, host: Option<&str>| OwnResource {
        method: method.to_owned(),
        path: path.to_owned(),
        host: host.map(str::to_owned),
    };
    for (text, expected) in [
        ("GET /proxy.pac HTTP/1.0\r\n\r\n", own("GET", "/proxy.pac", None)),
        ("HEAD /a HTTP/1.1\r\nHost: b:1\r\n\r\n", own("HEAD", "/a", Some("b:1"))),
        ("OPTIONS * HTTP/1.1\r\nHost: b\r\n\r\n", own("OPTIONS", "*", Some("b"))),
    ] {
        match parsed(text) {
            Request::Own(asked) => assert_eq!(asked, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn heads_are_bounded_in_bytes_and_fields() {
    let begin = "GET http://a.example/ HTTP/1.1\r\nHost: a\r\n";
    let many = format!("{begin}{}\r\n", "A: b\r\n".repeat(fields::MAX_FIELDS));
    assert_eq!(status(&many), 431);
    let long = format!("{begin}A: {}", "x".repeat(MAX_HEAD));
    assert_eq!(status(&long), 431);
    assert_eq!(status(&format!("{long}\r\n\r\n")), 431);
}

#[test]
fn a_truncated_head_waits_and_following_bytes_are_left() {
    let text = "POST http://a.example/ HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";
    for cut in 0..text.len() {
        assert!(parse(&text.as_bytes()[..cut]).unwrap().is_none(), "cut at {cut}");
    }
    let (_, head_len) = parse(format!("{text}abcGET").as_bytes()).unwrap().unwrap();
    assert_eq!(head_len, text.len());
}

proptest! {
    /// Every forwarded head parses as one request in origin-form with one Host, and is unchanged if it is rewritten
    /// again.
    #[test]
    fn a_forwarded_head_parses_as_one_request(
        method in "[A-Z]{1,7}",
        host in "[a-z0-9.-]{1,20}",
        path in "(/[!-\"$-~]{0,20})?",
        names in prop::collection::vec("[A-Za-z-]{1,12}", 0..8),
        value in "[ -~\t]{0,30}",
    ) {
        let mut text = format!("{method} http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n");
        names.iter().for_each(|name| text += &format!("{name}: {value}\r\n"));
        text += "\r\n";
        if let Ok(Some((Request::Forward(forward), _))) = parse(text.as_bytes()) {
            let mut room = [httparse::EMPTY_HEADER; 200];
            let mut again = httparse::Request::new(&mut room);
            let complete = again.parse(&forward.head).unwrap();
            prop_assert_eq!(complete, Status::Complete(forward.head.len()));
            prop_assert!(again.path.is_some_and(|path| path.starts_with('/') || path == "*"));
            let count = |name: &str| {
                again.headers.iter().filter(|f| f.name.eq_ignore_ascii_case(name)).count()
            };
            prop_assert_eq!((count("host"), count("connection"), count("te")), (1, 1, 0));
        }
    }

    #[test]
    fn any_bytes_are_a_request_or_a_refusal(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(Some((_, head_len))) = parse(&bytes) {
            prop_assert!(head_len <= bytes.len());
        }
    }

    /// Damaged requests reach more of the parser than random bytes.
    #[test]
    fn any_damage_is_a_request_or_a_refusal(at in 0usize..200, byte in any::<u8>()) {
        let mut text = b"POST http://[::1]:80/a?b HTTP/1.1\r\nHost: a\r\nConnection: x, y\r\n\
            Transfer-Encoding: chunked\r\nContent-Type: text/plain\r\nX: y\r\n\r\n".to_vec();
        let at = at % text.len();
        text[at] = byte;
        if let Err(refusal) = parse(&text) {
            prop_assert!([400, 431, 501, 505].contains(&refusal.status));
        }
    }
}
