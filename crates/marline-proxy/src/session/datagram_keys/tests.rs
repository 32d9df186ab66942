use marline::datagrams::{FlowId, Keys, PathId};
use marline_datagram::{Event, Lane, LaneIds};
use marline_time::{Instant, Rng, SeedTree};

use super::*;
use crate::testing::lane_config;

const CIPHERS: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

fn end(byte: u8) -> LaneEnd {
    LaneEnd { generation: [byte; GENERATION_LEN], lane: u64::from_be_bytes([byte; 8]) }
}

fn of(cipher: Cipher, side: Side, client: u8, server: u8, binding: u8) -> Keys {
    keys(cipher, &[1; 32], &[binding; 32], side, &end(client), &end(server))
}

/// Returns a sealed frame followed by its tag.
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
fn each_end_opens_only_unchanged_frames_of_the_other() {
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
        assert_eq!(keys.seal.max_packets(), packets);
        assert_eq!(keys.open.max_forgeries(), forgeries);
        let shown = format!("{keys:?}");
        assert_eq!(shown, "Keys { seal: Sealer { next: 0, .. }, open: Opener(..) }");
    }
}

#[test]
#[should_panic(expected = "packet numbers must increase")]
fn a_number_is_not_sealed_twice() {
    let mut keys = of(Cipher::Aes128Gcm, Side::Client, 3, 4, 5);
    sealed(&mut keys, 7);
    sealed(&mut keys, 7);
}

const PATH: PathId = PathId(0);

/// Two ends of a lane with one path.
fn lanes(cipher: Cipher) -> [Lane; 2] {
    let [client, server] = [end(3), end(4)];
    [(Side::Client, client.lane, server.lane), (Side::Server, server.lane, client.lane)].map(
        |(side, ours, peers)| {
            let ids = LaneIds { local: ours, peers };
            let keys = of(cipher, side, 3, 4, 5);
            let mut lane = Lane::new(lane_config(), ids, keys, Instant::ZERO);
            assert!(lane.add_path(PATH, Instant::ZERO));
            lane
        },
    )
}

/// Returns true if a frame gives the receiver a datagram.
fn delivers(lane: &mut Lane, now: Instant, frame: &[u8]) -> bool {
    lane.handle(now, PATH, &mut frame.to_vec());
    let mut delivered = false;
    while let Some(event) = lane.poll_event() {
        delivered |= matches!(event, Event::Datagram { .. });
    }
    delivered
}

#[test]
fn a_million_forged_and_repeated_frames_are_dropped() {
    let mut rng = SeedTree::new(28).stream("forgeries");
    let [mut client, mut server] = lanes(Cipher::Aes128Gcm);
    let (mut genuine, mut frame) = (Vec::new(), Vec::new());
    let (mut sent, mut delivered, mut bad) = (0u64, 0u64, 0u64);
    while bad < 1_000_000 {
        let now = Instant::from_millis(sent);
        sent += 1;
        client.send(now, FlowId(2), &sent.to_be_bytes()).unwrap();
        while client.poll_transmit(now, &mut frame).is_some() {
            delivered += u64::from(delivers(&mut server, now, &frame));
            genuine.push(frame.clone());
        }
        while server.poll_transmit(now, &mut frame).is_some() {
            client.handle(now, PATH, &mut frame);
        }
        while client.poll_event().is_some() {}
        client.handle_timeout(now);
        server.handle_timeout(now);
        for _ in 0..100 {
            let mut wrong = genuine[rng.below(genuine.len() as u64) as usize].clone();
            match rng.below(10) {
                // Unchanged: dropped before its tag is computed.
                0..3 => {}
                // One bit of the header, the body or the tag.
                3..5 => {
                    let bit = rng.below(wrong.len() as u64 * 8) as usize;
                    wrong[bit / 8] ^= 1 << (bit % 8);
                }
                // With a number that has not been received yet.
                _ => {
                    wrong[9..17].copy_from_slice(&(u64::MAX - 1 - rng.below(1 << 40)).to_be_bytes())
                }
            }
            bad += 1;
            assert!(!delivers(&mut server, now, &wrong), "{bad}: {wrong:?}");
        }
    }
    assert_eq!(delivered, sent, "and every genuine one is, once");
    let stats = server.stats();
    assert!(stats.forged > 500_000 && stats.replays > 300_000 && stats.malformed == 0, "{stats:?}");
}

#[test]
fn frames_of_one_direction_are_not_taken_in_the_other() {
    for cipher in CIPHERS {
        let [mut client, mut server] = lanes(cipher);
        let mut frame = Vec::new();
        client.send(Instant::ZERO, FlowId(2), b"there").unwrap();
        assert!(client.poll_transmit(Instant::ZERO, &mut frame).is_some());
        // Sent back to its sender, with the sender's own lane id.
        frame[1..9].copy_from_slice(&end(3).lane.to_be_bytes());
        assert!(!delivers(&mut client, Instant::ZERO, &frame));
        assert_eq!(client.stats().forged, 1);
        frame[1..9].copy_from_slice(&end(4).lane.to_be_bytes());
        assert!(delivers(&mut server, Instant::ZERO, &frame));
    }
}
