use proptest::prelude::*;

use super::*;

fn hosts() -> impl Strategy<Value = Host> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(|o| Host::V4(o.into())),
        any::<[u8; 16]>().prop_map(|o| Host::V6(o.into())),
        "[a-zA-Z0-9._-]{1,255}".prop_map(Host::Name),
    ]
}

fn addresses() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        any::<([u8; 4], u16)>().prop_map(|(octets, port)| (octets, port).into()),
        any::<([u8; 16], u16)>().prop_map(|(octets, port)| (octets, port).into()),
    ]
}

fn messages() -> impl Strategy<Value = Message> {
    prop_oneof![
        any::<(u8, [u8; 32])>().prop_map(|(version, token)| Message::Hello {
            version,
            token: Secret::from_bytes(token)
        }),
        any::<u16>().prop_map(|idle_limit_s| Message::Welcome {
            idle_limit_s,
            session: None,
            own: vec![]
        }),
        (
            any::<(u16, [u8; 16], u32)>(),
            proptest::collection::vec(addresses(), 0..=MAX_OWN_ADDRESSES)
        )
            .prop_map(|((idle_limit_s, id, lifetime_s), mut own)| {
                own.retain(|address| address.port() != 0);
                let session = Some(Offer { id: SessionId::from_bytes(id), lifetime_s });
                Message::Welcome { idle_limit_s, session, own }
            }),
        (hosts(), 1u16..).prop_map(|(host, port)| Message::Connect(Target { host, port })),
        Just(Message::Working),
        Just(Message::Connected),
        (any::<u8>(), "[ -~]{0,255}")
            .prop_map(|(code, text)| Message::Failed(Failure::new(ErrorCode::from_u8(code), text))),
        addresses().prop_map(Message::Listen),
        addresses().prop_map(Message::Listening),
        (any::<[u8; 16]>(), addresses())
            .prop_map(|(id, from)| Message::Visitor { id: VisitorId::from_bytes(id), from }),
        any::<[u8; 16]>().prop_map(|id| Message::Accept(VisitorId::from_bytes(id))),
        any::<[u8; 16]>().prop_map(|id| Message::Decline(VisitorId::from_bytes(id))),
        Just(Message::Alive),
        any::<([u8; 16], u64)>().prop_map(|(generation, lane)| {
            Message::Datagrams(LaneEnd { generation, lane: lane.max(1) })
        }),
        any::<([u8; 16], u64)>().prop_map(|(generation, lane)| {
            Message::Lane(LaneEnd { generation, lane: lane.max(1) })
        }),
        any::<(u8, u64)>().prop_map(|(number, flow)| Message::Path { number, flow }),
    ]
}

fn read_all(mut bytes: &[u8]) -> io::Result<(Message, usize)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let message = runtime.block_on(Message::read(&mut bytes))?;
    Ok((message, bytes.len()))
}

#[test]
fn bytes_of_a_request() {
    let target = "192.0.2.1:443".parse().unwrap();
    assert_eq!(Message::Connect(target).to_bytes(), [3, 0, 7, 1, 187, 1, 192, 0, 2, 1]);
    let target = "ab.c:22".parse().unwrap();
    assert_eq!(Message::Connect(target).to_bytes(), [3, 0, 7, 0, 22, 3, b'a', b'b', b'.', b'c']);
    assert_eq!(Message::Working.to_bytes(), [4, 0, 0]);
}

#[test]
fn extensions_that_are_offered_and_unknown_are_ignored() {
    let hello = Message::Hello { version: VERSION, token: Secret::from_bytes([7; 32]) };
    let mut body = hello.to_bytes()[HEADER_LEN..].to_vec();
    for _ in 0..100 {
        body.extend([0xfe, 0xed]);
        assert_eq!(Message::decode(1, &body).unwrap(), hello);
    }
    body.push(0);
    assert!(Message::decode(1, &body).is_err(), "half an extension number");
}

#[test]
fn own_addresses_stand_behind_the_session() {
    let session = Some(Offer { id: SessionId::from_bytes([7; 16]), lifetime_s: 3_600 });
    let own = vec!["192.0.2.1:7777".parse().unwrap(), "[2001:db8::1]:443".parse().unwrap()];
    let bytes = Message::Welcome { idle_limit_s: 600, session, own }.to_bytes();
    assert_eq!(bytes.len(), HEADER_LEN + 22 + 7 + 19);
    assert_eq!(bytes[25..32], [0x1e, 0x61, 1, 192, 0, 2, 1]);
    let body = &bytes[HEADER_LEN..];
    // Too many addresses, half an address, a name, and no port.
    let tails: [&[u8]; 4] = [
        &[0, 9, 1, 192, 0, 2, 2].repeat(MAX_OWN_ADDRESSES - 1),
        &[0, 9, 1, 192, 0],
        &[0, 9, 3, b'a', b'b', b'c', b'd'],
        &[0, 0, 1, 192, 0, 2, 2],
    ];
    for tail in tails {
        let wrong = Message::decode(2, &[body, tail].concat()).unwrap_err();
        assert!(matches!(wrong, BadMessage::Length { kind: 2, .. }), "{wrong}");
    }
}

#[test]
fn error_codes_are_rfc_8803s() {
    for (code, number) in [
        (ErrorCode::UnsupportedVersion, 0),
        (ErrorCode::Malformed, 1),
        (ErrorCode::UnsupportedMessage, 2),
        (ErrorCode::NotAuthorized, 32),
        (ErrorCode::ResourceExceeded, 64),
        (ErrorCode::NetworkFailure, 65),
        (ErrorCode::ConnectionReset, 96),
        (ErrorCode::DestinationUnreachable, 97),
        (ErrorCode::Other(200), 200),
    ] {
        assert_eq!(code.to_u8(), number);
        assert_eq!(ErrorCode::from_u8(number), code);
    }
}

#[test]
fn malformed_messages_have_precise_errors() {
    assert_eq!(Message::decode(9, &[]), Err(BadMessage::Type(9)));
    assert_eq!(Message::decode(1, &[1; 32]), Err(BadMessage::Length { kind: 1, length: 32 }));
    assert_eq!(Message::decode(1, &[1; 34]), Err(BadMessage::Length { kind: 1, length: 34 }));
    assert_eq!(Message::decode(4, &[0]), Err(BadMessage::Length { kind: 4, length: 1 }));
    assert_eq!(Message::decode(3, &[0, 80, 2, 1]), Err(BadMessage::AddressKind(2)));
    let short = Err(BadMessage::Length { kind: 3, length: 5 });
    assert_eq!(Message::decode(3, &[0, 80, 1, 1, 2]), short);
    let port = Err(BadMessage::Target(BadTarget::Port));
    assert_eq!(Message::decode(3, &[0, 0, 1, 1, 2, 3, 4]), port);
    let name = Err(BadMessage::Target(BadTarget::Byte { byte: b' ', position: 1 }));
    assert_eq!(Message::decode(3, &[0, 80, 3, b'a', b' ']), name);
}

#[test]
fn a_long_announcement_reads_nothing_more() {
    let error = read_all(&[3, 0xff, 0xff, 1, 2, 3]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(read_all(&[3, 0]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn texts_are_cut_at_characters_and_made_printable() {
    let long = Failure::new(ErrorCode::Malformed, "ä".repeat(200));
    let (message, rest) = read_all(&Message::Failed(long).to_bytes()).unwrap();
    assert_eq!(rest, 0);
    assert_eq!(message, Message::Failed(Failure::new(ErrorCode::Malformed, "?".repeat(254))));
    // The first byte is the code: 32.
    let escape = Message::decode(6, b"\x20\x1b[2Jx\n").unwrap();
    let expected = Failure::new(ErrorCode::NotAuthorized, "?[2Jx?");
    assert_eq!(escape, Message::Failed(expected));
}

proptest! {
    #[test]
    fn round_trip(message in messages(), tail in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut bytes = message.to_bytes();
        bytes.extend_from_slice(&tail);
        let (read, rest) = read_all(&bytes).unwrap();
        prop_assert_eq!(read, message);
        prop_assert_eq!(rest, tail.len());
    }

    #[test]
    fn any_bytes_give_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Ok((message, rest)) = read_all(&bytes) {
            prop_assert!(rest < bytes.len());
            let again = read_all(&message.to_bytes()).unwrap().0;
            prop_assert_eq!(again, message);
        }
    }

    #[test]
    fn every_truncation_is_an_early_end(message in messages(), cut in any::<prop::sample::Index>()) {
        let bytes = message.to_bytes();
        let error = read_all(&bytes[..cut.index(bytes.len())]).unwrap_err();
        prop_assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
