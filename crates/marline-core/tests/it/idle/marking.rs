//! Tests of the server's mark on the last segment of the written data.

use marline_core::Extensions;
use marline_testkit::{Peer, Seg, SentSegment, config, endpoint_config};
use marline_wire::mptcp::{DataAck, ExperimentalMessage, WireDsn};

use super::{BOTH, client, messages, ms, option, server_with};
use crate::two_hosts::{bytes, served, served_by, served_path, with_checksums, write};

/// Payload of a full segment between these peers: 1,400 bytes minus timestamps and a DSS of 20.
const FULL: usize = 1_400 - 12 - 20;

fn is_marked(seg: &Seg) -> bool {
    messages(seg).contains(&ExperimentalMessage::Idle)
}

fn data_of(sent: &[SentSegment]) -> Vec<Seg> {
    sent.iter().map(|s| s.seg.clone()).filter(|seg| !seg.payload.is_empty()).collect()
}

#[test]
fn only_the_last_segment_of_a_write_is_marked() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    for len in [1, 100, FULL - 4, 5_000, 9_999] {
        write(&mut script, &bytes(len, 1));
        let sent = data_of(&peer.receive_all(&mut script));
        let marks: Vec<bool> = sent.iter().map(is_marked).collect();
        let (last, before) = marks.split_last().expect("segments");
        assert!(*last && !before.contains(&true), "{len} bytes: {marks:?}");
        assert!(sent.last().is_some_and(|seg| seg.dss().mapping.is_some()));
        peer.acknowledge(&mut script);
        script.advance(ms(20));
    }
    assert_eq!(script.endpoint.counters().mp_idle_tx, 5);
}

#[test]
fn nothing_is_marked_that_was_not_agreed_on() {
    let (mut stranger, mut peer) = served(config(), 7, 1);
    write(&mut stranger, b"before any HELLO");
    assert!(!data_of(&peer.receive_all(&mut stranger)).iter().any(is_marked));
    let (mut script, mut peer) = server_with(config(), Extensions::RTO);
    write(&mut script, b"not this one");
    assert!(!data_of(&peer.receive_all(&mut script)).iter().any(is_marked));
}

/// The mark takes four bytes. A burst that would fill its last segment continues in one more: no segment is longer
/// than others of its batch, no byte is lost, and the mark is always present.
#[test]
fn every_length_ends_in_one_mark() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    for len in (FULL * 2 - 12)..(FULL * 2 + 12) {
        let written = bytes(len, 3);
        write(&mut script, &written);
        let sent = data_of(&peer.receive_all(&mut script));
        let got: Vec<u8> = sent.iter().flat_map(|seg| seg.payload.clone()).collect();
        assert!(got == written, "{len} bytes");
        let marks: Vec<bool> = sent.iter().map(is_marked).collect();
        assert_eq!(marks.iter().filter(|marked| **marked).count(), 1, "{len} bytes: {marks:?}");
        assert!(marks.ends_with(&[true]), "{len} bytes: {marks:?}");
        let size = |seg: &Seg| seg.bytes(None).len();
        let largest = sent.iter().map(size).max().expect("segments");
        assert!(largest <= 1_400 + 20, "{largest}");
        peer.acknowledge(&mut script);
        script.advance(ms(20));
    }
}

#[test]
fn a_resent_segment_is_marked_while_it_is_the_last() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    write(&mut script, b"the end for now");
    let first = data_of(&peer.receive_all(&mut script));
    assert!(first.len() == 1 && is_marked(&first[0]));
    // The probe repeats it: still the last data.
    assert!(script.advance_to_send(ms(400)));
    let repeats = data_of(&script.take_sent());
    assert!(!repeats.is_empty() && repeats.iter().all(is_marked), "{repeats:#?}");
    // More data is written: the previous end is no longer the last data.
    write(&mut script, b"but not forever");
    script.advance(ms(3_000));
    let old = |seg: &&Seg| seg.payload == b"the end for now";
    let later = data_of(&script.take_sent());
    let (again, new): (Vec<&Seg>, Vec<&Seg>) = later.iter().partition(old);
    assert!(!again.is_empty() && !again.iter().any(|seg| is_marked(seg)), "{later:#?}");
    assert!(new.first().is_some_and(|seg| is_marked(seg)), "{later:#?}");
}

/// A middlebox may drop every segment with an unknown option.
#[test]
fn a_box_that_drops_marks_does_not_keep_the_bytes() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    write(&mut script, b"the end for now");
    script.advance(ms(3_000));
    let sent = data_of(&script.take_sent());
    let marks: Vec<bool> = sent.iter().map(is_marked).collect();
    // First transmission, probe, and the timeout's retransmission. Data sent again by the data-level timer is
    // marked again.
    assert!(marks.len() > 3 && marks[..3] == [true, true, false], "{marks:?}");
    peer.expected = peer.expected.add(15);
    peer.expected_dsn = peer.expected_dsn.wrapping_add(15);
    peer.acknowledge(&mut script);
    write(&mut script, b"and then");
    assert!(data_of(&peer.receive_all(&mut script)).iter().all(is_marked));
}

#[test]
fn copies_and_reinjections_are_marked_alike() {
    let registry = marline_algos::Registry::default();
    let mut twice = config();
    twice.policies.scheduler = registry.scheduler("redundant").expect("a scheduler");
    let (mut script, mut first) = server_with(twice, BOTH);
    let mut second = Peer::new(served_path(1), 0);
    second.join(&mut script, &first, 2);
    script.advance(ms(20));
    first.receive_all(&mut script);
    write(&mut script, b"on both");
    let sent = script.take_sent();
    for path in [first.path, second.path] {
        let copies: Vec<SentSegment> = sent.iter().filter(|s| s.path == path).cloned().collect();
        let copies = data_of(&copies);
        assert!(copies.len() == 1 && is_marked(&copies[0]), "{path:?}: {copies:#?}");
    }
}

/// Data that waits for the peer's window is unsent: the last segment of the window is not the last data.
#[test]
fn the_end_of_the_window_is_not_the_end() {
    let syn = Seg::syn().mss(1_400).window(6_400);
    let (mut script, mut peer) = served_by(endpoint_config(Some(config())), syn);
    let hello = option(ExperimentalMessage::Hello(BOTH));
    let seg = Seg::ack().data_ack(peer.expected_dsn).window(6_400).mptcp(hello);
    peer.send(&mut script, seg);
    script.advance(ms(50));
    peer.receive_all(&mut script);
    write(&mut script, &bytes(8_000, 1));
    let sent = data_of(&peer.receive_all(&mut script));
    let passed: usize = sent.iter().map(|seg| seg.payload.len()).sum();
    assert!(passed > 0 && passed <= 6_400, "{passed}");
    assert!(!sent.iter().any(is_marked), "{sent:#?}");
}

#[test]
fn the_mark_stands_next_to_checksums() {
    let (mut script, mut peer) = {
        let (mut script, mut peer) = served(with_checksums(), 7, 1);
        let hello = option(ExperimentalMessage::Hello(BOTH));
        let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(hello);
        peer.send(&mut script, seg);
        script.advance(ms(50));
        peer.receive_all(&mut script);
        (script, peer)
    };
    write(&mut script, &bytes(3_000, 1));
    let sent = data_of(&peer.receive_all(&mut script));
    let last = sent.last().expect("segments");
    assert!(is_marked(last) && last.dss().mapping.is_some_and(|m| m.checksum.is_some()));
    assert!(last.options.timestamps.is_some());
}

#[test]
fn the_mark_stands_next_to_long_data_acks() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    // A 64-bit DSN from the peer makes our DATA_ACKs 64 bits long.
    peer.send_data(&mut script, b"long numbers");
    script.advance(ms(50));
    peer.receive_all(&mut script);
    write(&mut script, b"room enough");
    let sent = data_of(&peer.receive_all(&mut script));
    assert!(matches!(sent[0].dss().data_ack, Some(DataAck::Long(_))));
    assert!(is_marked(&sent[0]));
}

/// 64-bit numbers both ways and timestamps use up the 40 bytes: then there is no mark, and no oversized segment.
#[test]
fn full_option_space_leaves_no_mark() {
    let mut listener = endpoint_config(Some(config()));
    (listener.capabilities.base_segment, listener.capabilities.max_segment) = (60_000, 60_000);
    let syn = Seg::syn().mss(59_900).sack_permitted().window_scale(10).timestamps(1, 0);
    let (mut script, mut peer) = served_by(listener, syn);
    peer.timestamps = Some((2, 0));
    let id = script.endpoint.connections()[0];
    let hello = option(ExperimentalMessage::Hello(BOTH));
    let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(hello);
    peer.send(&mut script, seg);
    let chunk = vec![7; 1 << 20];
    let is_long = |sent: &SentSegment| {
        sent.seg.dss().mapping.is_some_and(|mapping| matches!(mapping.dsn, WireDsn::Long(_)))
    };
    // A sender of more than 2^31 bytes in two minutes switches to 64-bit numbers.
    let mut rounds = 0;
    while rounds < 20_000
        && !script.take_sent().iter().any(|sent| {
            peer.record_received(sent);
            is_long(sent)
        })
    {
        rounds += 1;
        while script.run(|e, now| e.write(now, id, &chunk)).is_ok() {}
        peer.acknowledge(&mut script);
        script.advance(ms(5));
    }
    // The rest of the written data.
    for _ in 0..200 {
        peer.acknowledge(&mut script);
        script.advance(ms(5));
        peer.receive_all(&mut script);
    }
    for long_ack in [false, true] {
        if long_ack {
            peer.send_data(&mut script, b"long numbers");
            script.advance(ms(50));
            peer.receive_all(&mut script);
        }
        write(&mut script, b"the last");
        let sent = peer.receive_all(&mut script);
        let last = sent.last().expect("a segment");
        assert!(is_long(last) && last.seg.payload == b"the last", "{last:?}");
        assert_eq!(is_marked(&last.seg), !long_ack, "{:?}", last.seg.options);
        peer.acknowledge(&mut script);
    }
}

#[test]
fn a_client_marks_nothing() {
    let (mut script, mut peer) = client(BOTH);
    write(&mut script, b"a request");
    assert!(!data_of(&peer.receive_all(&mut script)).iter().any(is_marked));
    assert_eq!(script.endpoint.counters().mp_idle_tx, 0);
}
