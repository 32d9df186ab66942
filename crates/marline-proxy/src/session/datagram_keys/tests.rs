use marline::datagrams::Keys;

use super::*;

const CIPHERS: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

fn end(byte: u8) -> LaneEnd {
    LaneEnd { generation: [byte; GENERATION_LEN], lane: u64::from_be_bytes([byte; 8]) }
}

fn of(cipher: Cipher, side: Side, client: u8, server: u8, binding: u8) -> Keys {
    keys((cipher, &[1; 32], &[binding; 32]), side, &end(client), &end(server))
}

/// What a key makes of a frame, its tag behind it.
fn sealed(keys: &mut Keys, number: u64) -> Vec<u8> {
    let mut body = b"a datagram".to_vec();
    let tag = keys.seal.seal(number, b"header", &mut body);
    body.extend_from_slice(&tag);
    body
}

fn opened(keys: &mut Keys, number: u64, header: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let (body, tag) = sealed.split_last_chunk().unwrap();
    let mut body = body.to_vec();
    keys.open.open(number, header, &mut body, tag).then_some(body)
}

#[test]
fn each_end_opens_what_the_other_sealed_and_nothing_that_was_changed() {
    for cipher in CIPHERS {
        let mut client = of(cipher, Side::Client, 3, 4, 5);
        let mut server = of(cipher, Side::Server, 3, 4, 5);
        let frame = sealed(&mut client, 7);
        assert_eq!(opened(&mut server, 7, b"header", &frame).unwrap(), b"a datagram");
        assert_eq!(opened(&mut server, 8, b"header", &frame), None, "another number");
        assert_eq!(opened(&mut server, 7, b"Header", &frame), None, "another header");
        assert_eq!(opened(&mut client, 7, b"header", &frame), None, "the other direction");
        for bit in 0..frame.len() * 8 {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&mut server, 7, b"header", &changed), None, "bit {bit}");
        }
        let frame = sealed(&mut server, 0);
        assert!(opened(&mut client, 0, b"header", &frame).is_some());
    }
}

#[test]
fn another_process_lane_or_connection_has_other_keys() {
    for cipher in CIPHERS {
        let make = |client, server, binding| {
            sealed(&mut of(cipher, Side::Client, client, server, binding), 0)
        };
        let frame = make(3, 4, 5);
        assert_eq!(frame, make(3, 4, 5));
        for other in [make(2, 4, 5), make(3, 2, 5), make(3, 4, 2)] {
            assert_ne!(frame, other);
        }
        let mut server = of(cipher, Side::Server, 3, 4, 5);
        assert_ne!(frame, sealed(&mut server, 0), "the directions differ");
    }
}

#[test]
fn limits_are_those_of_rfc_9001_and_no_secret_is_shown() {
    for (cipher, packets, forgeries) in [
        (Cipher::Aes128Gcm, 1 << 28, 1 << 57),
        (Cipher::Aes256Gcm, 1 << 28, 1 << 57),
        (Cipher::ChaCha20Poly1305, u64::MAX, 1 << 36),
    ] {
        let keys = of(cipher, Side::Client, 3, 4, 5);
        assert_eq!(keys.seal.packets_at_most(), packets);
        assert_eq!(keys.open.forgeries_at_most(), forgeries);
        let shown = format!("{keys:?}");
        assert_eq!(shown, "Keys { seal: Sealer { next: 0, .. }, open: Opener(..) }");
    }
}

#[test]
#[should_panic(expected = "a packet number comes once")]
fn a_number_is_not_sealed_twice() {
    let mut keys = of(Cipher::Aes128Gcm, Side::Client, 3, 4, 5);
    sealed(&mut keys, 7);
    sealed(&mut keys, 7);
}
