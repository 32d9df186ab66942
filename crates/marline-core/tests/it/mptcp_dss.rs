//! Tests of the forms of DSS: sequence numbers of 32 and 64 bits, their wrap, mappings over several
//! segments (RFC 8684 sections 3.3.1, 3.3.2 and 3.3.6).

use std::time::Duration;

use crate::two_hosts::{bytes, closed, read, served, served_by, write};
use marline_testkit::{Peer, Script, Seg, config, endpoint_config, keys};
use marline_wire::mptcp::{DataAck, Dss, WireDsn, WireMapping};

/// Data with a mapping, both in the requested form.
fn data(peer: &mut Peer, payload: &[u8], long_dsn: bool, long_ack: bool) -> Seg {
    let dsn = peer.next_dsn;
    let mapping = WireMapping {
        dsn: if long_dsn { WireDsn::Long(dsn) } else { WireDsn::Short(dsn as u32) },
        ssn: peer.next.offset_from(peer.iss),
        length: payload.len() as u16,
        checksum: None,
    };
    let ack = peer.expected_dsn;
    let data_ack = Some(if long_ack { DataAck::Long(ack) } else { DataAck::Short(ack as u32) });
    peer.next_dsn = dsn.wrapping_add(payload.len() as u64);
    let mut seg = Seg::ack().payload(payload);
    seg.options.dss = Some(Dss { data_ack, mapping: Some(mapping), data_fin: false });
    seg
}

fn hear_all(script: &mut Script, peer: &mut Peer) -> Vec<Seg> {
    let sent = script.take_sent();
    sent.iter().for_each(|s| peer.record_received(s));
    sent.into_iter().map(|s| s.seg).collect()
}

#[test]
fn every_mix_of_lengths_is_understood() {
    let (mut script, mut peer) = served(config(), 7, 1);
    let mut wanted = Vec::new();
    for turn in 0..8u8 {
        let piece = bytes(100, turn);
        let seg = data(&mut peer, &piece, turn & 1 != 0, turn & 2 != 0);
        peer.send(&mut script, seg);
        wanted.extend_from_slice(&piece);
        write(&mut script, b"some");
        script.advance(Duration::from_millis(50));
        let sent = hear_all(&mut script, &mut peer);
        assert!(sent.iter().any(|s| s.payload == b"some"), "the DATA_ACK did not count");
    }
    assert_eq!(read(&mut script), wanted);
    let id = script.endpoint.connections()[0];
    let info = script.endpoint.info(id).expect("a connection");
    assert!(info.bytes_acked >= 7 * 4, "{}", info.bytes_acked);
}

/// RFC 8684 section 3.3.2: a 64-bit DSN is answered by a 64-bit DATA_ACK, since the sender may have switched to 64
/// bits for its speed.
#[test]
fn long_numbers_are_acknowledged_by_long_numbers() {
    let (mut script, mut peer) = served(config(), 7, 1);
    for long in [false, true] {
        let seg = data(&mut peer, b"data", long, false);
        peer.send(&mut script, seg);
        script.advance(Duration::from_millis(100));
        let sent = hear_all(&mut script, &mut peer);
        let ack = sent.last().expect("an ACK").dss().data_ack.expect("a DATA_ACK");
        assert_eq!(matches!(ack, DataAck::Long(_)), long, "{ack:?}");
        assert_eq!(ack.unwrap_near(peer.next_dsn), Some(peer.next_dsn));
    }
}

/// A key whose stream passes a multiple of 2^32 within 64 KiB.
fn wrapping_key() -> u64 {
    let near = |key: &u64| keys::idsn(*key) as u32 > u32::MAX - 0xffff;
    (1..).find(near).expect("one of 2^16 keys")
}

#[test]
fn the_peers_short_numbers_wrap() {
    let (mut script, mut peer) = served(config(), wrapping_key(), 1);
    let all = bytes(140_000, 5);
    let before = peer.next_dsn >> 32;
    let mut got = Vec::new();
    for piece in all.chunks(1_400) {
        let seg = data(&mut peer, piece, false, false);
        peer.send(&mut script, seg);
        got.extend(read(&mut script));
        hear_all(&mut script, &mut peer);
    }
    assert_eq!(peer.next_dsn >> 32, before.wrapping_add(1), "the test reached the wrap");
    assert!(got == all);
    script.advance(Duration::from_millis(100));
    assert_eq!(closed(&mut script), None);
}

#[test]
fn our_own_short_numbers_wrap() {
    const SIZE: usize = 2_000_000;
    let near = |seed: &u64| {
        let (_, peer) = served(config(), 7, *seed);
        peer.expected_dsn as u32 > u32::MAX - (SIZE as u32) * 9 / 10
    };
    let seed = (1..40_000).find(near).expect("one of 2^11 seeds");
    let (mut script, mut peer) = served(config(), 7, seed);
    let all = bytes(SIZE, 5);
    let id = script.endpoint.connections()[0];
    let first = peer.expected_dsn;
    let (mut written, mut got) = (0, Vec::new());
    while got.len() < SIZE {
        if written < SIZE {
            written += script.run(|e, now| e.write(now, id, &all[written..])).unwrap_or(0);
        }
        for sent in script.take_sent() {
            let fresh = sent.seg.header.seq == peer.expected;
            peer.record_received(&sent);
            if fresh {
                got.extend_from_slice(&sent.seg.payload);
                // View of a receiver: 32 bits that continue at the end of the last segment.
                assert_eq!(peer.expected_dsn.wrapping_sub(first), got.len() as u64);
            }
        }
        let seg = Seg::ack();
        let mut seg = seg.data_ack(peer.expected_dsn);
        seg.options.dss.as_mut().expect("DSS").data_ack =
            Some(DataAck::Short(peer.expected_dsn as u32));
        peer.send(&mut script, seg);
        script.advance(Duration::from_millis(5));
    }
    assert!(got == all);
    assert_ne!(peer.expected_dsn >> 32, first >> 32, "the test reached the wrap");
    script.advance(Duration::from_millis(100));
    hear_all(&mut script, &mut peer);
    let info = script.endpoint.info(id).expect("a connection");
    assert_eq!(info.bytes_acked, SIZE as u64);
}

/// RFC 8684 section 3.3.1: a sender of more than 2^31 bytes within a segment lifetime must use 64 bits.
#[test]
fn a_fast_stream_goes_to_long_numbers() {
    let mut listener = endpoint_config(Some(config()));
    (listener.capabilities.base_segment, listener.capabilities.max_segment) = (60_000, 60_000);
    let syn = Seg::syn().mss(59_900).sack_permitted().window_scale(10);
    let (mut script, mut peer) = served_by(listener, syn);
    let id = script.endpoint.connections()[0];
    let chunk = vec![7; 1 << 20];
    let first = peer.expected_dsn;
    let (mut long_from, mut rounds) = (None, 0);
    while long_from.is_none() && rounds < 20_000 {
        rounds += 1;
        while script.run(|e, now| e.write(now, id, &chunk)).is_ok() {}
        for sent in script.take_sent() {
            let dsn = sent.seg.dss().mapping.map(|m| m.dsn);
            if matches!(dsn, Some(WireDsn::Long(_))) {
                long_from.get_or_insert(peer.expected_dsn.wrapping_sub(first));
            }
            peer.record_received(&sent);
        }
        peer.send(&mut script, Seg::ack().data_ack(peer.expected_dsn));
        script.advance(Duration::from_millis(5));
    }
    let from = long_from.expect("64-bit DSNs");
    assert!((1 << 30..=(1 << 31) + (1 << 24)).contains(&from), "from {from} on");
}

/// One mapping announced once covers the segments that follow it; each may repeat it; a DATA_FIN may
/// end it.
#[test]
fn a_mapping_over_several_segments() {
    for repeated in [false, true] {
        let (mut script, mut peer) = served(config(), 7, 1);
        let all = bytes(4_000, 5);
        let ssn = peer.next.offset_from(peer.iss);
        for (i, piece) in all.chunks(1_000).enumerate() {
            let mut seg = Seg::ack().data_ack(peer.expected_dsn).payload(piece);
            if i == 0 || repeated {
                seg = seg.mapping(peer.next_dsn, ssn, 4_001).data_fin();
            }
            peer.send(&mut script, seg);
        }
        assert!(read(&mut script) == all);
        script.advance(Duration::from_millis(100));
        let sent = hear_all(&mut script, &mut peer);
        let ack = sent.last().expect("an ACK").dss().data_ack.expect("a DATA_ACK");
        let end = peer.next_dsn.wrapping_add(4_001);
        assert_eq!(ack.unwrap_near(end), Some(end), "the DATA_FIN is acknowledged");
    }
}

/// The mapping may come with a later segment than its first byte, if that one is lost: bytes out of order wait for it.
#[test]
fn segments_of_a_mapping_out_of_order() {
    let (mut script, mut peer) = served(config(), 7, 1);
    let all = bytes(3_000, 5);
    let ssn = peer.next.offset_from(peer.iss);
    let start = peer.next;
    for piece in [2usize, 0, 1] {
        peer.next = start.add(piece as u32 * 1_000);
        let seg = Seg::ack()
            .data_ack(peer.expected_dsn)
            .payload(&all[piece * 1_000..][..1_000])
            .mapping(peer.next_dsn, ssn, 3_000);
        peer.send(&mut script, seg);
    }
    assert!(read(&mut script) == all);
}
