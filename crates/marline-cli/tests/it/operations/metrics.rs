//! Tests of invalid requests and slow readers on the metrics port: a scrape is still answered, and the program
//! continues.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::support::{self, start_server};
use super::{PATIENCE, metric};
use marline_testkit::free_address;

#[test]
fn invalid_or_slow_clients_delay_a_scrape_only_by_seconds() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let port = free_address();
    let _server = start_server(dir.path(), &["--metrics", &port.to_string()]);
    let mut words: Vec<Vec<u8>> = vec![
        b"\0\x01\x02\xff\xfe".repeat(2_000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        [b"GET /".as_slice(), &b"a".repeat(2_000_000), b" HTTP/1.1\r\n\r\n"].concat(),
        b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n"
            .to_vec(),
    ];
    // Requests that are never complete, and some of clients that do not read.
    words.extend(std::iter::repeat_n(b"GET /metrics HTTP/1.1\r\nHost:".to_vec(), 12));
    words.extend(std::iter::repeat_n(
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        4,
    ));
    let mut others: Vec<TcpStream> = Vec::new();
    for text in words {
        let mut stream = TcpStream::connect(port).unwrap();
        stream.set_write_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        // The server may have closed the connection already.
        let _ = stream.write_all(&text);
        others.push(stream);
    }
    assert_eq!(metric(port, "marline_build_info"), 1);
    for mut stream in others {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        let hangs = end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!hangs, "every client is disconnected: {answer:?}");
    }
    assert_eq!(metric(port, "marline_build_info"), 1);
}

#[test]
fn idle_connections_make_room_for_a_scrape() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let port = free_address();
    let _server = start_server(dir.path(), &["--metrics", &port.to_string()]);
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(port).unwrap()).collect();
    assert_eq!(metric(port, "marline_build_info"), 1);
    // At most 64 connections are open at a time. A scrape does not wait for the 10 s limit of the others.
    let closed = idle.iter().filter(|stream| {
        stream.set_read_timeout(Some(std::time::Duration::from_millis(10))).unwrap();
        (&**stream).read(&mut [0]).is_ok_and(|count| count == 0)
    });
    assert!(closed.count() >= 200 - 64);
}

#[test]
fn on_loopback_a_scrape_goes_by_address_as_any_name_may_be_another_sites() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let port = free_address();
    let _server = start_server(dir.path(), &["--metrics", &port.to_string()]);
    for (host, status) in
        [("rebound.example", "403"), ("localhost:9", "200"), ("127.0.0.1", "200"), ("[::1]", "200")]
    {
        let mut stream = TcpStream::connect(port).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {text}");
        assert_eq!(text.contains("marline_build_info"), status == "200", "{host}: {text}");
    }
}
