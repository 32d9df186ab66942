use tokio::io::duplex;

use super::*;
use crate::tls::{ServerKey, connector, server_name};

/// Returns the client's and the server's session from one TLS handshake.
pub(super) async fn both(id: SessionId) -> (Session, Session) {
    let key = ServerKey::generate().unwrap();
    let (near, far) = duplex(64 * 1024);
    let tls = connector(key.pin()).unwrap();
    let accept = key.acceptor().unwrap();
    let (near, far) = tokio::join!(tls.connect(server_name(), near), accept.accept(far));
    let client = Session::from_tls(id, near.unwrap().get_ref().1).unwrap();
    (client, Session::from_tls(id, far.unwrap().get_ref().1).unwrap())
}

fn opening(bytes: &[u8]) -> Option<ReceivedOpening> {
    ReceivedOpening::parse(bytes[..OPENING_LEN].try_into().unwrap())
}

#[tokio::test]
async fn both_ends_of_a_handshake_have_the_same_session() {
    let (client, server) = both(SessionId::from_bytes([7; 16])).await;
    assert_eq!(client.secret, server.secret);
    let (other, _) = both(SessionId::from_bytes([7; 16])).await;
    assert_ne!(client.secret, other.secret);
    assert_eq!(client.datagrams, server.datagrams);
    assert_ne!(client.datagrams, client.secret, "each purpose has a secret of its own");
    assert_ne!(client.datagrams, other.datagrams);
    assert!(format!("{client:?}").starts_with("Session(SessionId([7, 7"), "no secret is shown");
}

#[tokio::test]
async fn an_opening_is_good_for_its_connection_alone() {
    let (client, server) = both(SessionId::from_bytes([1; 16])).await;
    let (bytes, _) = client.open(&[9; 32], b"request").unwrap();
    let first = opening(&bytes).unwrap();
    assert_eq!((first.session(), first.flight()), (server.id(), bytes.len() - OPENING_LEN));
    let mut keys = server.accept(&[9; 32], &first).unwrap();
    let mut record = bytes[OPENING_LEN + keys::LENGTH_LEN..].to_vec();
    assert_eq!(keys.open.open_record(&mut record).unwrap(), b"request");
    // The opening is replayed on another connection, which has another binding.
    assert!(server.accept(&[8; 32], &first).is_none());
    let (_, stranger) = both(SessionId::from_bytes([1; 16])).await;
    assert!(stranger.accept(&[9; 32], &first).is_none());
}

#[tokio::test]
async fn an_opening_changed_anywhere_is_not_accepted() {
    let (client, server) = both(SessionId::from_bytes([1; 16])).await;
    let (bytes, _) = client.open(&[9; 32], b"").unwrap();
    for bit in 0..OPENING_LEN * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let accepted = opening(&changed).and_then(|o| server.accept(&[9; 32], &o));
        assert!(accepted.is_none(), "bit {bit}");
    }
}

#[test]
fn answers_are_three_bytes_and_nothing_else() {
    for answer in [Answer::Known, Answer::Unknown] {
        assert_eq!(Answer::parse(answer.to_bytes()), Some(answer));
    }
    assert_eq!(Answer::parse([b'M', 1, 2]), None);
    assert_eq!(Answer::parse([0x16, 3, 1]), None);
}
