//! Tests of REPAIR, segment by segment: recovery and refusal at the receiver, sending, repetition
//! and end at the sender (docs/spec/experimental.md).

use std::time::Duration;

use marline_core::{
    ConnectionConfig, ConnectionId, EndpointConfig, Extensions, FourTuple, NetworkError,
};
use marline_testkit::fixtures::{path, served};
use marline_testkit::{Peer, Script, Seg, SentSegment, config, endpoint_config};
use marline_time::{Rng, SeedTree};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{ExperimentalMessage, MpRepair, MptcpOption};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn option(message: ExperimentalMessage) -> MptcpOption {
    MptcpOption::Experimental(message.option())
}

/// A server that sends repairs of all data for which it can.
fn coded() -> EndpointConfig {
    let registry = marline_algos::Registry::default();
    let mut connection: ConnectionConfig = config();
    connection.policies.scheduler = registry.scheduler("coded,without=nothing").expect("built in");
    connection.pacing = false;
    endpoint_config(Some(connection))
}

/// A connection with two subflows, whose peer requested these extensions and got an answer.
fn agreed(extensions: Extensions) -> (Script, Peer, Peer, ConnectionId) {
    let (mut script, mut first, id) = served(coded(), 1);
    let hello = Seg::ack().data_ack(first.expected_dsn);
    first.send(&mut script, hello.mptcp(option(ExperimentalMessage::Hello(extensions))));
    first.receive_all(&mut script);
    let mut second = Peer::new(path(1, 2, 40_001), 9);
    second.join(&mut script, &first, 1);
    script.advance(MS(500));
    first.receive_all(&mut script);
    let _ = script.take_sent();
    assert_eq!(script.endpoint.info(id).map(|info| info.extensions), Some(extensions));
    (script, first, second, id)
}

/// Stream position of the peer's next data, for sums: they count from the first byte.
fn position(peer: &Peer) -> u64 {
    peer.next_dsn.wrapping_sub(marline_testkit::keys::idsn(peer.key).wrapping_add(1))
}

/// The XOR of `data`, which begins `at`, in cells of `symbol`: row 0.
fn xor(at: u64, data: &[u8], symbol: u16) -> Vec<u8> {
    let mut sum = vec![0; usize::from(symbol)];
    for (n, byte) in data.iter().enumerate() {
        sum[(at as usize + n) % usize::from(symbol)] ^= byte;
    }
    sum
}

/// A repair of `span` bytes that start at `dsn`, as the next segment of a subflow.
fn repair(peer: &Peer, dsn: u64, span: u16, row: u8, sum: &[u8]) -> Seg {
    let message = MpRepair {
        ssn: peer.next.offset_from(peer.iss) as u16,
        length: sum.len() as u16,
        dsn: dsn as u32,
        span,
        row,
        data_ack: peer.expected_dsn as u32,
        checksum: None,
    };
    Seg::ack().mptcp(option(ExperimentalMessage::Repair(message))).payload(sum)
}

fn repair_of(seg: &Seg) -> Option<MpRepair> {
    seg.options.mptcp.experimental().find_map(|message| match message {
        ExperimentalMessage::Repair(repair) => Some(repair),
        _ => None,
    })
}

fn repairs(sent: &[SentSegment]) -> Vec<&SentSegment> {
    sent.iter().filter(|sent| repair_of(&sent.seg).is_some()).collect()
}

fn was_reset(sent: &[SentSegment]) -> bool {
    sent.iter().any(|sent| sent.seg.header.flags.contains(TcpFlags::RST))
}

#[test]
fn a_lost_segment_is_computed_from_the_rest_and_a_sum() {
    let (mut script, mut first, mut second, id) = agreed(Extensions::REPAIR);
    let (dsn, at) = (first.next_dsn, position(&first));
    let data: Vec<u8> = (0..300u32).map(|n| (n * 7) as u8).collect();
    let (mut segments, mut next) = (Vec::new(), first.clone());
    for part in data.chunks(100) {
        segments.push(next.stamp(next.mapped(part)));
        next.next = segments[segments.len() - 1].end();
        next.next_dsn += 100;
    }
    // The second of three is lost. The third waits behind it, but is already used.
    first.inject(&mut script, segments[0].clone());
    first.inject(&mut script, segments[2].clone());
    assert_eq!(script.read_all(id), data[..100]);
    let sum = xor(at, &data, 100);
    let seg = repair(&second, dsn, 300, 0, &sum);
    second.send(&mut script, seg);
    assert_eq!(script.read_all(id), data[100..], "computed, and what was behind it");
    let sent = script.take_sent();
    let all = dsn.wrapping_add(300) as u32;
    let told = sent.iter().filter(|sent| sent.path == second.path);
    let acks = told.filter_map(|sent| sent.seg.dss().data_ack);
    assert!(acks.map(|ack| ack.unwrap_near(dsn)).any(|ack| ack.map(|a| a as u32) == Some(all)));
    // The lost data arrives after all: a known duplicate, without an error.
    first.inject(&mut script, segments[1].clone());
    assert_eq!(script.read_all(id), b"");
    let counters = script.endpoint.counters();
    assert_eq!(
        (counters.repair_rx, counters.repaired_bytes, counters.dss_not_matching),
        (1, 100, 0)
    );
    first = next;
    first.send_data(&mut script, b"and on it goes");
    assert_eq!(script.read_all(id), b"and on it goes");
}

#[test]
fn an_unagreed_repair_resets_its_subflow() {
    let (mut script, first, mut second, id) = agreed(Extensions::NONE);
    let seg = repair(&second, first.next_dsn, 10, 0, &[1; 10]);
    second.send(&mut script, seg);
    assert!(was_reset(&script.take_sent()));
    let info = script.endpoint.info(id).expect("the connection exists");
    assert_eq!(info.subflows.len(), 1, "the other subflow continues");
    assert_eq!(script.read_all(id), b"");
}

/// The server may use repairs once it has answered. The answer may come late, or never: the repair itself shows that it
/// agreed.
#[test]
fn a_repair_that_overtakes_the_answer_ends_nothing() {
    for answered in [true, false] {
        let mut script = Script::new(endpoint_config(None), 1);
        let local = "10.0.0.1:0".parse().expect("an address");
        let remote = "10.9.0.1:443".parse().expect("an address");
        let asking = ConnectionConfig { extensions: Extensions::REPAIR, ..config() };
        let id = script.connect(asking, local, remote);
        let mut peer = Peer::new(FourTuple { local, remote }, 7);
        peer.accept(&mut script);
        let seg = Seg::ack().data_ack(peer.expected_dsn);
        peer.send(&mut script, seg);
        let hello = |seg: &Seg| {
            let mut messages = seg.options.mptcp.experimental();
            messages.any(|message| matches!(message, ExperimentalMessage::Hello(_)))
        };
        assert!(
            peer.receive_all(&mut script).iter().any(|sent| hello(&sent.seg)),
            "the client requests repairs"
        );
        peer.send_data(&mut script, b"0123456789");
        let seg = repair(&peer, peer.next_dsn.wrapping_sub(10), 10, 0, b"0123456789");
        peer.send(&mut script, seg);
        if answered {
            let answer = option(ExperimentalMessage::Hello(Extensions::REPAIR));
            let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(answer);
            peer.send(&mut script, seg);
        }
        peer.send_data(&mut script, b" and on");
        assert!(!was_reset(&script.take_sent()), "answered: {answered}");
        assert_eq!(script.read_all(id), b"0123456789 and on");
    }
}

#[test]
fn a_mapping_is_one_of_data_or_of_a_repair_and_stays_it() {
    for data_first in [true, false] {
        let (mut script, first, mut second, id) = agreed(Extensions::REPAIR);
        second.next_dsn = first.next_dsn;
        let data = second.stamp(second.mapped(b"0123456789"));
        let sum = second.stamp(repair(&second, first.next_dsn, 10, 0, b"0123456789"));
        // Each announced on a segment behind a gap, so that neither is consumed.
        let mut order = [data, sum];
        if !data_first {
            order.reverse();
        }
        for mut seg in order {
            seg.payload.truncate(4);
            seg.header.seq = seg.header.seq.add(2);
            second.inject(&mut script, seg);
        }
        assert!(was_reset(&script.take_sent()), "data first: {data_first}");
        assert_eq!(script.endpoint.info(id).expect("the connection exists").subflows.len(), 1);
    }
}

/// Arbitrary repairs over data with a missing segment: they fill missing and unsent data with the peer's values.
/// Received data does not change, there is no panic, and memory stays bounded.
#[test]
fn repair_claims_never_change_received_data() {
    for seed in 0..60 {
        let (mut script, mut first, mut second, id) = agreed(Extensions::REPAIR);
        let mut rng = SeedTree::new(seed).stream("claims");
        let (dsn, at) = (first.next_dsn, position(&first));
        let data: Vec<u8> = (0..6_000u32).map(|n| (n % 251) as u8).collect();
        let lost = rng.below(12) as usize;
        for (n, part) in data.chunks(500).enumerate() {
            let seg = first.stamp(first.mapped(part));
            first.next = seg.end();
            first.next_dsn += 500;
            if n != lost {
                first.inject(&mut script, seg);
            }
        }
        let mut got = script.read_all(id);
        assert_eq!(got.len(), lost * 500);
        for _ in 0..40 {
            // Not before the first byte of the stream: that would not be a mapping at all.
            let from = dsn.wrapping_add(rng.below(9_000)).wrapping_sub(rng.below(at.max(1)));
            let (span, row) = (rng.below(70_000) as u16, rng.below(256) as u8);
            let sum = vec![rng.below(256) as u8; 1 + rng.below(1_300) as usize];
            let seg = repair(&second, from, span, row, &sum);
            second.send(&mut script, seg);
            let held = script.endpoint.info(id).expect("the connection exists").buffered;
            assert!(held < 1 << 20, "{held} bytes held");
        }
        assert!(!was_reset(&script.take_sent()), "seed {seed}");
        got.extend(script.read_all(id));
        let received = |n: &usize| n / 500 != lost;
        let harmed = (0..data.len().min(got.len())).filter(received).find(|n| got[*n] != data[*n]);
        assert_eq!(harmed, None, "seed {seed}");
    }
}

/// The peer receives the segments on its own subflow.
fn hear_own(peer: &mut Peer, sent: &[SentSegment]) {
    let path = peer.path;
    sent.iter().filter(|sent| sent.path == path).for_each(|sent| peer.record_received(sent));
}

/// The server's burst is sent on the first path, 30 % of it as repairs on the second.
fn burst(script: &mut Script, id: ConnectionId, bytes: &[u8]) -> Vec<SentSegment> {
    let written = script.run(|endpoint, now| endpoint.write(now, id, bytes));
    assert_eq!(written.ok(), Some(bytes.len()));
    script.take_sent()
}

#[test]
fn repairs_go_on_the_other_path_and_describe_themselves() {
    let (mut script, first, second, id) = agreed(Extensions::REPAIR);
    let bytes: Vec<u8> = (0..5_000u32).map(|n| (n * n) as u8).collect();
    let dsn = first.expected_dsn;
    let sent = burst(&mut script, id, &bytes);
    let found = repairs(&sent);
    assert_eq!(found.len(), 2, "30 % of four");
    let at = dsn.wrapping_sub(marline_testkit::keys::idsn(first.their_key).wrapping_add(1));
    for (row, sent) in (0..).zip(&found) {
        let repair = repair_of(&sent.seg).expect("one");
        assert_eq!(sent.path, second.path);
        assert_eq!((repair.row, repair.dsn, repair.span), (row, dsn as u32, 5_000));
        assert_eq!(usize::from(repair.length), sent.seg.payload.len());
        let data = sent.seg.dss();
        assert!(data.mapping.is_none() && !sent.seg.payload.is_empty());
        assert_eq!(repair.data_ack, first.next_dsn as u32, "it carries the DATA_ACK");
    }
    let symbol = found[0].seg.payload.len() as u16;
    assert_eq!(found[0].seg.payload, xor(at, &bytes, symbol), "row 0 is the XOR");
    assert_ne!(found[1].seg.payload, found[0].seg.payload);
    assert_eq!(found[1].seg.header.seq, found[0].seg.end(), "they are bytes of the subflow");
}

#[test]
fn a_lost_repair_is_repeated_as_it_was() {
    let (mut script, mut first, _second, id) = agreed(Extensions::REPAIR);
    let sent = burst(&mut script, id, &[5; 1_000]);
    let original = repairs(&sent)[0].clone();
    // All data arrives; the repair does not.
    hear_own(&mut first, &sent);
    first.acknowledge(&mut script);
    script.advance(MS(3_000));
    let again = script.take_sent();
    let again = repairs(&again);
    assert!(!again.is_empty(), "the subflow misses it");
    for sent in again {
        assert_eq!(sent.seg.header.seq, original.seg.header.seq);
        assert_eq!(sent.seg.payload, original.seg.payload);
        let (new, old) = (repair_of(&sent.seg), repair_of(&original.seg));
        let mapping = |repair: MpRepair| MpRepair { data_ack: 0, ..repair };
        assert_eq!(new.map(mapping), old.map(mapping));
    }
}

#[test]
fn a_subflow_that_is_reset_over_a_repair_was_the_last_to_get_one() {
    let (mut script, mut first, second, id) = agreed(Extensions::REPAIR);
    let sent = burst(&mut script, id, &[5; 1_000]);
    assert_eq!(repairs(&sent).len(), 1);
    let rst = second.stamp(Seg::rst());
    second.inject(&mut script, rst);
    hear_own(&mut first, &sent);
    first.acknowledge(&mut script);
    let mut third = Peer::new(path(2, 2, 40_002), 9);
    third.join(&mut script, &first, 2);
    script.advance(MS(500));
    let _ = script.take_sent();
    let sent = burst(&mut script, id, &[6; 1_000]);
    assert!(!sent.is_empty() && repairs(&sent).is_empty(), "{sent:#?}");
}

#[test]
fn a_stock_peer_never_sees_one() {
    let (mut script, _first, _second, id) = agreed(Extensions::NONE);
    let sent = burst(&mut script, id, &[5; 5_000]);
    assert!(sent.len() >= 4 && repairs(&sent).is_empty());
}

/// A path of smaller segments: the symbol is an equal part of the longest segment, and there are as many
/// more repairs.
#[test]
fn where_a_sum_does_not_fit_there_are_two_of_half_the_size() {
    let (mut script, mut first, mut second, id) = agreed(Extensions::REPAIR);
    let sent = burst(&mut script, id, &[5; 1_000]);
    let seq = repairs(&sent)[0].seg.header.seq;
    let error = NetworkError::TooBig { max_segment: 900 };
    let route = second.path;
    assert!(script.run(|endpoint, now| endpoint.network_error(now, &route, seq, error)));
    hear_own(&mut first, &sent);
    hear_own(&mut second, &sent);
    first.acknowledge(&mut script);
    second.acknowledge(&mut script);
    script.advance(MS(500));
    hear_own(&mut second, &script.take_sent());
    let bytes: Vec<u8> = (0..5_000u32).map(|n| (n * 3) as u8).collect();
    let at = first.expected_dsn.wrapping_sub(marline_testkit::keys::idsn(first.their_key) + 1);
    let sent = burst(&mut script, id, &bytes);
    let found = repairs(&sent);
    assert_eq!(found.len(), 4, "two of four segments, in two parts each");
    let data = sent.iter().filter(|sent| repair_of(&sent.seg).is_none());
    let longest = data.map(|sent| sent.seg.payload.len()).max().expect("data");
    for (row, sent) in (0..).zip(&found) {
        let repair = repair_of(&sent.seg).expect("one");
        assert_eq!((repair.row, repair.span), (row, 5_000));
        assert_eq!(sent.seg.payload.len(), longest.div_ceil(2));
    }
    assert_eq!(found[0].seg.payload, xor(at, &bytes, longest.div_ceil(2) as u16));
}
