use proptest::prelude::*;
use tokio::io::duplex;

use super::*;

/// Returns the server's reply to these bytes, its result, and the bytes that it left unread.
async fn talk(input: &[u8]) -> (Vec<u8>, Result<(Version, Request), SocksError>, Vec<u8>) {
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
        let connect = Request::Connect(shown.parse().unwrap());
        assert_eq!(result.unwrap(), (Version::Five, connect));
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
        assert_eq!((said, result.unwrap().1), (vec![5, 0], Request::Associate(port)));
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
    for (first, hint) in [(&b"GET / HTTP/1.1"[..], "HTTP"), (b"\x16", "TLS")] {
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
        if let Ok((_, Request::Connect(target))) = result {
            prop_assert!(target.port != 0);
        }
    }

    #[test]
    fn any_bytes_of_version_four_end_in_a_target_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        // Texts of any length. Random bytes would end them early, with a zero in every 256.
        address in any::<[u8; 2]>(),
        user in prop::collection::vec(1_u8.., 0..400),
        name in prop::collection::vec(1_u8.., 0..400),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let head = [4, 1, 0, 80, 0, 0, address[0], address[1]];
        let made = [&head[..], &user, &[0], &name, &[0]].concat();
        for bytes in [[&[4], &bytes[..]].concat(), made] {
            let (said, result, _) = runtime.block_on(talk(&bytes));
            match result {
                Ok((version, Request::Connect(target))) => {
                    prop_assert!(version == Version::Four && target.port != 0 && said.is_empty());
                }
                Ok((_, request)) => prop_assert!(false, "{request:?}"),
                // A request that ends early is not answered.
                Err(SocksError::Io(_)) => prop_assert!(said.is_empty()),
                Err(_) => prop_assert_eq!(said, [0, 91, 0, 0, 0, 0, 0, 0]),
            }
        }
    }

    #[test]
    fn a_version_four_request_is_read_to_its_last_byte(
        last in 1_u8..,
        user in prop::collection::vec(1_u8.., 0..=255),
        name in "[a-z][a-z0-9.-]{0,254}",
        port in 1_u16..,
        behind in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let [high, low] = port.to_be_bytes();
        let head = [4, 1, high, low, 0, 0, 0, last];
        let bytes = [&head[..], &user, &[0], name.as_bytes(), &[0], &behind].concat();
        let (_, result, unread) = runtime.block_on(talk(&bytes));
        let target = Target { host: Host::Name(name), port };
        prop_assert_eq!(result.unwrap(), (Version::Four, Request::Connect(target)));
        prop_assert_eq!(unread, behind);
    }
}

fn request_four(command: u8, address: [u8; 4], port: u16, texts: &[&[u8]]) -> Vec<u8> {
    let mut out = [&[4, command][..], &port.to_be_bytes(), &address].concat();
    for text in texts {
        out.extend_from_slice(text);
        out.push(0);
    }
    out
}

#[tokio::test]
async fn version_four_connects_to_an_address_and_four_a_to_a_name() {
    for (address, texts, shown) in [
        ([192, 0, 2, 1], &[&b"ann"[..]][..], "192.0.2.1:80"),
        ([192, 0, 2, 1], &[b""], "192.0.2.1:80"),
        ([0, 0, 0, 1], &[b"ann", b"example.org"], "example.org:80"),
        ([0, 0, 0, 255], &[b"", b"2001:db8::1"], "[2001:db8::1]:80"),
        // Not SOCKS4a: no name follows.
        ([0, 0, 1, 1], &[b""], "0.0.1.1:80"),
        ([0, 0, 0, 0], &[b""], "0.0.0.0:80"),
    ] {
        let mut bytes = request_four(1, address, 80, texts);
        bytes.extend_from_slice(b"GET /");
        let (said, result, unread) = talk(&bytes).await;
        assert!(said.is_empty(), "the answer comes when the target is reached");
        let connect = Request::Connect(shown.parse().unwrap());
        assert_eq!(result.unwrap(), (Version::Four, connect));
        assert_eq!(unread, b"GET /");
    }
}

#[tokio::test]
async fn version_four_is_refused_by_its_own_reply() {
    let long = [b'a'; version_four::MAX_TEXT_BYTES + 1];
    let most = [b'a'; version_four::MAX_TEXT_BYTES];
    for (bytes, why) in [
        (request_four(2, [192, 0, 2, 1], 80, &[b"ann"]), "command 2"), // BIND
        (request_four(3, [0, 0, 0, 1], 80, &[b"", b"a"]), "command 3"),
        (request_four(1, [192, 0, 2, 1], 0, &[b""]), "port"),
        (request_four(1, [0, 0, 0, 1], 80, &[b"", b""]), "1 to 255"),
        (request_four(1, [0, 0, 0, 1], 80, &[b"", b"a b"]), "0x20"),
        (request_four(1, [0, 0, 0, 1], 80, &[b"", b"a\xff"]), "position 1"),
        (request_four(1, [0, 0, 0, 1], 80, &[b"", &long]), "host name"),
        (request_four(1, [192, 0, 2, 1], 80, &[&long]), "user id"),
    ] {
        let (said, result, _) = talk(&bytes).await;
        assert_eq!(said, [0, 91, 0, 0, 0, 0, 0, 0], "{bytes:?}");
        let error = result.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(!error.contains("ann"), "a user id does not reach the log: {error}");
    }
    assert!(talk(&request_four(1, [0, 0, 0, 1], 80, &[&most, &most])).await.1.is_ok());
}

#[tokio::test]
async fn every_truncation_of_version_four_is_an_early_end() {
    let bytes = request_four(1, [0, 0, 0, 1], 80, &[b"ann", b"example.org"]);
    for cut in 1..bytes.len() {
        let (said, result, _) = talk(&bytes[..cut]).await;
        assert!(said.is_empty());
        match result {
            Err(SocksError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn the_listener_gets_the_requested_target() {
    let targets = ["192.0.2.1:80", "[2001:db8::1]:443", "example.org:22"];
    for target in targets.map(|text| text.parse::<Target>().unwrap()) {
        let (mut app, mut port) = duplex(4096);
        let (asked, heard) = tokio::join!(request_target(&mut app, &target), async {
            let heard = accept(&mut port).await.unwrap();
            reply(&mut port, Version::Five, Reply::Succeeded).await.unwrap();
            port.write_all(b"first byte").await.unwrap();
            heard
        });
        asked.unwrap();
        assert_eq!(heard, (Version::Five, Request::Connect(target)));
        let mut first = [0; 10];
        app.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"first byte", "exactly the answer was read");
    }
}

#[tokio::test]
async fn refusals_are_errors_with_their_reason() {
    let (mut app, mut port) = duplex(4096);
    let target = "example.org:22".parse().unwrap();
    let (asked, _) = tokio::join!(request_target(&mut app, &target), async {
        accept(&mut port).await.unwrap();
        reply(&mut port, Version::Five, Reply::ConnectionRefused).await.unwrap();
    });
    assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}
