use proptest::prelude::*;
use tokio::io::duplex;

use super::*;

/// What the server says to these bytes, what it makes of them, and what it left unread.
async fn talk(input: &[u8]) -> (Vec<u8>, Result<Request, SocksError>, Vec<u8>) {
    let (mut app, mut port) = duplex(4096);
    app.write_all(input).await.unwrap();
    app.shutdown().await.unwrap();
    let result = accept(&mut port).await;
    let mut unread = Vec::new();
    port.read_to_end(&mut unread).await.unwrap();
    drop(port);
    let mut said = Vec::new();
    app.read_to_end(&mut said).await.unwrap();
    (said, result, unread)
}

fn request(command: u8, kind: u8, address: &[u8], port: u16) -> Vec<u8> {
    let mut out = vec![5, 1, 0, 5, command, 0, kind];
    out.extend_from_slice(address);
    out.extend_from_slice(&port.to_be_bytes());
    out
}

#[tokio::test]
async fn connect_with_each_kind_of_address() {
    let v6: Ipv6Addr = "2001:db8::1".parse().unwrap();
    for (kind, address, shown) in [
        (1, vec![192, 0, 2, 1], "192.0.2.1:80"),
        (3, [&[11], &b"example.org"[..]].concat(), "example.org:80"),
        (3, [&[9], &b"192.0.2.9"[..]].concat(), "192.0.2.9:80"),
        (4, v6.octets().to_vec(), "[2001:db8::1]:80"),
    ] {
        let (said, result, unread) = talk(&request(1, kind, &address, 80)).await;
        assert_eq!(said, [5, 0], "only the method so far");
        assert_eq!(result.unwrap(), Request::Connect(shown.parse().unwrap()));
        assert!(unread.is_empty());
    }
}

#[tokio::test]
async fn not_a_byte_is_read_beyond_the_request() {
    let mut bytes = request(1, 1, &[192, 0, 2, 1], 80);
    bytes.extend_from_slice(b"GET /");
    let (_, result, unread) = talk(&bytes).await;
    assert!(result.is_ok());
    assert_eq!(unread, b"GET /");
}

#[tokio::test]
async fn refusals_have_their_codes() {
    for (bytes, code) in [
        (request(2, 1, &[192, 0, 2, 1], 80), 7), // BIND
        (request(4, 1, &[0, 0, 0, 0], 0), 7),
        (request(1, 2, &[], 80), 8),
        (request(1, 1, &[192, 0, 2, 1], 0), 1),
        (request(1, 3, &[3, b'a', b' ', b'b'], 80), 1),
        (request(1, 3, &[0], 80), 1),
    ] {
        let (said, result, _) = talk(&bytes).await;
        assert_eq!(said, [5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0], "{bytes:?}");
        assert!(result.is_err());
    }
}

#[tokio::test]
async fn an_association_is_asked_for_with_or_without_a_port() {
    for (kind, address, port) in
        [(1, vec![0; 4], 0), (1, vec![127, 0, 0, 1], 4_000), (4, vec![0; 16], 9), (3, vec![0], 0)]
    {
        let (said, result, _) = talk(&request(3, kind, &address, port)).await;
        assert_eq!((said, result.unwrap()), (vec![5, 0], Request::Associate(port)));
    }
    let mut said = Vec::new();
    reply_bound(&mut said, "127.0.0.1:258".parse().unwrap()).await.unwrap();
    assert_eq!(said, [5, 0, 0, 1, 127, 0, 0, 1, 1, 2]);
    said.clear();
    reply_bound(&mut said, "[::1]:258".parse().unwrap()).await.unwrap();
    assert_eq!((&said[..4], said.len(), &said[20..]), (&[5, 0, 0, 4][..], 22, &[1, 2][..]));
}

#[tokio::test]
async fn methods_with_authentication_only_are_refused() {
    let (said, result, _) = talk(&[5, 2, 1, 2]).await;
    assert_eq!(said, [5, 0xff]);
    assert!(matches!(result, Err(SocksError::Method)));
    let (said, result, _) = talk(&[5, 0]).await;
    assert_eq!(said, [5, 0xff]);
    assert!(matches!(result, Err(SocksError::Method)));
}

#[tokio::test]
async fn other_protocols_are_guessed() {
    for (first, hint) in
        [(&b"\x04\x01"[..], "SOCKS4"), (b"GET / HTTP/1.1", "HTTP"), (b"\x16", "TLS")]
    {
        let (said, result, _) = talk(first).await;
        assert!(said.is_empty());
        assert!(result.unwrap_err().to_string().contains(hint));
    }
}

#[tokio::test]
async fn every_truncation_is_an_early_end() {
    let bytes = request(1, 3, &[2, b'a', b'b'], 80);
    for cut in 0..bytes.len() {
        let (_, result, _) = talk(&bytes[..cut]).await;
        match result {
            Err(SocksError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
}

#[test]
fn rfc_8803_codes_become_replies() {
    for (code, answer) in [
        (ErrorCode::NotAuthorized, Reply::NotAllowed),
        (ErrorCode::NetworkFailure, Reply::NetworkUnreachable),
        (ErrorCode::DestinationUnreachable, Reply::HostUnreachable),
        (ErrorCode::ConnectionReset, Reply::ConnectionRefused),
        (ErrorCode::ResourceExceeded, Reply::GeneralFailure),
        (ErrorCode::Malformed, Reply::GeneralFailure),
        (ErrorCode::Other(9), Reply::GeneralFailure),
    ] {
        assert_eq!(Reply::from(code), answer);
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_a_target_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (said, result, _) = runtime.block_on(talk(&[&[5, 1, 0][..], &bytes].concat()));
        prop_assert!(said.starts_with(&[5, 0]));
        prop_assert!(said.len() <= 12);
        if let Ok(Request::Connect(target)) = result {
            prop_assert!(target.port != 0);
        }
    }
}

#[tokio::test]
async fn what_is_requested_is_what_is_accepted() {
    let targets = ["192.0.2.1:80", "[2001:db8::1]:443", "example.org:22"];
    for target in targets.map(|text| text.parse::<Target>().unwrap()) {
        let (mut app, mut port) = duplex(4096);
        let (asked, heard) = tokio::join!(ask(&mut app, &target), async {
            let heard = accept(&mut port).await.unwrap();
            reply(&mut port, Reply::Succeeded).await.unwrap();
            port.write_all(b"first byte").await.unwrap();
            heard
        });
        asked.unwrap();
        assert_eq!(heard, Request::Connect(target));
        let mut first = [0; 10];
        app.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"first byte", "nothing of the answer is left, nothing more is taken");
    }
}

#[tokio::test]
async fn refusals_are_errors_with_their_reason() {
    let (mut app, mut port) = duplex(4096);
    let target = "example.org:22".parse().unwrap();
    let (asked, _) = tokio::join!(ask(&mut app, &target), async {
        accept(&mut port).await.unwrap();
        reply(&mut port, Reply::ConnectionRefused).await.unwrap();
    });
    assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}
