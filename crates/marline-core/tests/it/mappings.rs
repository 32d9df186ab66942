//! Tests of data sequence mappings and acknowledgments of a broken or hostile peer (RFC 8684
//! sections 3.3.1, 3.3.2 and 3.3.3).

use std::time::Duration;

use marline_core::{
    BufferTuning, CloseReason, ConnectionConfig, ConnectionId, EndpointConfig, Event, SubflowState,
};
use marline_testkit::fixtures::{listening, path, served};
use marline_testkit::{Expect, Peer, Script, Seg, SentSegment};
use marline_time::{Rng, SeedTree};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{Dss, MptcpOption, WireDsn};

/// Memory limit of one connection: the largest buffers of both directions and slack.
const BOUND: u64 = (6 << 20) + (4 << 20) + (1 << 20);

fn reset() -> Expect {
    Expect::any()
        .that("RST", |s| s.header.flags.contains(TcpFlags::RST))
        .mptcp("MP_TCPRST", |o| matches!(o, MptcpOption::TcpRst(_)))
}

fn was_reset(sent: &[SentSegment]) -> bool {
    sent.iter().any(|s| reset().missing(&s.seg).is_none())
}

/// A mapping by the peer, relative to its next data.
fn mapping(peer: &Peer, dsn: i64, ssn: i32, len: u16) -> Seg {
    let next = peer.next.offset_from(peer.iss);
    let dsn = peer.next_dsn.wrapping_add_signed(dsn);
    Seg::ack().data_ack(peer.expected_dsn).mapping(dsn, next.wrapping_add_signed(ssn), len)
}

/// Nothing of `evil` was delivered, and the subflow that carried it is closed or closing.
fn only_this_subflow_ended(script: &mut Script, id: ConnectionId) {
    let sent = script.take_sent();
    assert!(was_reset(&sent), "{sent:#?}");
    assert_eq!(script.read_all(id), b"");
    assert!(script.endpoint.info(id).is_some_and(|i| i.subflows.is_empty()));
    // No path is left, so the connection ends in a bounded time.
    script.advance(Duration::from_secs(61));
    let closed = script.take_events().into_iter().find_map(|event| match event {
        Event::Closed { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(closed, Some(CloseReason::TimedOut));
}

#[test]
fn mappings_that_contradict_each_other() {
    // (the second mapping's DSN, SSN and length against the first of 0, 0, 100)
    for (i, (dsn, ssn, len)) in
        [(1, 0, 100), (-1, 0, 100), (50, 40, 100), (0, 0, 200), (40, 50, 20), (-3, -3, 100)]
            .into_iter()
            .enumerate()
    {
        let (mut script, peer, id) = served(listening(), i as u64);
        peer.inject(&mut script, peer.stamp(mapping(&peer, 0, 0, 100)));
        assert!(script.take_sent().is_empty());
        peer.inject(&mut script, peer.stamp(mapping(&peer, dsn, ssn, len)));
        only_this_subflow_ended(&mut script, id);
        assert_eq!(script.endpoint.counters().dss_not_matching, 1);
    }
}

/// A middlebox removes the mappings of the second half of a burst, which waits behind a lost segment. That ends
/// the subflow once instead of once per segment: another subflow may take its slot.
#[test]
fn an_unmapped_queue_resets_only_its_subflow() {
    let (mut script, mut peer, id) = served(listening(), 1);
    script.run(|endpoint, now| endpoint.write(now, id, b"a word")).expect("room");
    peer.receive_all(&mut script);
    peer.acknowledge(&mut script);
    let mut later = peer.clone();
    let first = later.mapped(b"first");
    let first = later.stamp(first);
    later.next = first.end();
    let mut waiting = Vec::new();
    for _ in 0..12 {
        waiting.push(later.stamp(Seg::ack().data_ack(later.expected_dsn).payload(b"bare")));
        later.next = waiting[waiting.len() - 1].end();
    }
    // The last one first: each is kept separately.
    waiting.into_iter().rev().for_each(|bare| peer.inject(&mut script, bare));
    let _ = script.take_sent();
    peer.inject(&mut script, first);
    assert_eq!(script.read_all(id), b"first");
    let sent = script.take_sent();
    assert!(was_reset(&sent), "{sent:#?}");
    let final_segment = |option| matches!(option, MptcpOption::Fastclose(_));
    assert!(!sent.iter().any(|sent| sent.seg.options.mptcp.iter().any(final_segment)), "{sent:#?}");
    peer.next_dsn += 5;
    let mut second = Peer::new(path(0, 2, 40_001), 9);
    second.join(&mut script, &peer, 1);
    second.next_dsn = peer.next_dsn;
    second.send_data(&mut script, b" and the rest");
    assert_eq!(script.read_all(id), b" and the rest");
}

#[test]
fn the_same_mapping_again_or_a_part_of_it_is_fine() {
    let (mut script, mut peer, id) = served(listening(), 1);
    for (dsn, ssn, len) in [(0, 0, 8), (0, 0, 8), (2, 2, 3), (4, 4, 4)] {
        peer.inject(&mut script, peer.stamp(mapping(&peer, dsn, ssn, len)));
    }
    let data = mapping(&peer, 0, 0, 8).payload(b"two four");
    peer.send(&mut script, data);
    assert_eq!(script.read_all(id), b"two four");
    // Old mappings of delivered data are ignored.
    peer.inject(&mut script, peer.stamp(mapping(&peer, 77, -8, 8)));
    assert!(!was_reset(&script.take_sent()));
    assert_eq!(script.endpoint.counters().dss_not_matching, 0);
}

/// A partly mapped segment: a middlebox may have merged it. Unmapped bytes are not DATA_ACKed and are sent again.
#[test]
fn bytes_that_no_mapping_covers() {
    let (mut script, mut peer, id) = served(listening(), 2);
    script.run(|endpoint, now| endpoint.write(now, id, b"a word")).expect("room");
    peer.receive_all(&mut script);
    peer.acknowledge(&mut script);
    // A gap of four bytes between two mappings.
    peer.inject(&mut script, peer.stamp(mapping(&peer, 4, 6, 2)));
    let data = mapping(&peer, 0, 0, 2).payload(b"ab????ef");
    peer.send(&mut script, data);
    assert_eq!(script.read_all(id), b"ab", "what was mapped counts");
    peer.next_dsn += 2;
    assert!(!was_reset(&peer.receive_all(&mut script)));
    let again = peer.mapped(b"cd");
    peer.send(&mut script, again);
    peer.next_dsn += 4;
    assert_eq!(script.read_all(id), b"cdef", "the data after it waited for it");
    assert!(!was_reset(&peer.receive_all(&mut script)));
    // Whole segments without any mapping do not show that options pass.
    peer.send(&mut script, Seg::ack().data_ack(peer.expected_dsn).payload(b"bare"));
    only_this_subflow_ended(&mut script, id);
}

#[test]
fn mappings_without_end() {
    let mut config = listening();
    config.limits.mappings = 64;
    let accept = config.accept.take().expect("it listens");
    config.accept = Some(ConnectionConfig { receive_buffer: 16_384, ..accept });
    let (mut script, peer, id) = served(config, 3);
    for i in 0..64 {
        peer.inject(&mut script, peer.stamp(mapping(&peer, 2 * i, 2 * i as i32, 1)));
    }
    assert!(script.take_sent().is_empty());
    peer.inject(&mut script, peer.stamp(mapping(&peer, 1_000, 1_000, 1)));
    only_this_subflow_ended(&mut script, id);
}

/// One loss at a high bandwidth-delay product: more than four thousand mappings wait behind the gap, contiguous or with
/// jumps (the rest is sent on another path), and all data is accepted once it is filled.
#[test]
fn a_hole_before_a_large_window_of_segments_resets_nothing() {
    for (len, jump) in [(1_400, 0), (200, 0), (200, 300)] {
        let (mut script, mut peer, id) = served(wide_open(), 9);
        let (next, dsn) = (peer.next, peer.next_dsn);
        let count: u32 = 4_300;
        for i in (1..count).chain([0]) {
            (peer.next, peer.next_dsn) =
                (next.add(i * len), dsn + u64::from(i) * u64::from(len + jump));
            let data = mapping(&peer, 0, 0, len as u16).payload(&vec![i as u8; len as usize]);
            peer.inject(&mut script, peer.stamp(data));
            assert!(!was_reset(&script.take_sent()), "{len}+{jump}: reset at mapping {i}");
        }
        let readable = if jump == 0 { count * len } else { len };
        assert_eq!(script.read_all(id).len(), readable as usize);
    }
}

#[test]
fn mappings_before_and_far_beyond_the_window() {
    let (mut script, mut peer, id) = served(listening(), 4);
    // A mapping of delivered data is a duplicate and is not delivered again.
    for dsn in [-5, -3] {
        let old = mapping(&peer, dsn, 0, 3).payload(b"old");
        peer.send(&mut script, old);
    }
    // Data before the stream's first byte or beyond all windows is dropped.
    for dsn in [-100, -(1 << 40), i64::MIN, 1 << 30, 1 << 62] {
        let far = mapping(&peer, dsn, 0, 3).payload(b"far");
        let had_reset = {
            peer.inject(&mut script, peer.stamp(far.clone()));
            was_reset(&script.take_sent())
        };
        assert_eq!(script.read_all(id), b"");
        let info = script.endpoint.info(id).expect("the connection exists");
        assert!(info.buffered < BOUND, "{} bytes held", info.buffered);
        if had_reset {
            // Such a mapping is invalid: its bytes are unmapped, and the subflow ends.
            return;
        }
        peer.next = peer.next.add(3);
    }
}

#[test]
fn acknowledgments_of_data_that_was_never_sent() {
    let (mut script, mut peer, id) = served(listening(), 5);
    script.run(|e, now| e.write(now, id, b"0123456789").expect("room"));
    script.advance(Duration::from_millis(1));
    let before = peer.expected_dsn;
    peer.receive_all(&mut script);
    assert_eq!(peer.expected_dsn, before + 10);
    for ahead in [11, 1 << 20, 1 << 31, 1 << 62, 1 << 63, u64::MAX - 10_000] {
        let absurd = Seg::ack().data_ack(before.wrapping_add(ahead));
        peer.inject(&mut script, peer.stamp(absurd));
        let info = script.endpoint.info(id).expect("the connection exists");
        assert_eq!(info.bytes_acked, 0, "DATA_ACK {ahead} ahead");
    }
    assert_eq!(script.endpoint.counters().dss_not_matching, 6);
    peer.acknowledge(&mut script);
    assert_eq!(script.endpoint.info(id).expect("the connection exists").bytes_acked, 10);
    // An old one no longer has any effect.
    peer.inject(&mut script, peer.stamp(Seg::ack().data_ack(before)));
    assert_eq!(script.endpoint.info(id).expect("the connection exists").bytes_acked, 10);
}

#[test]
fn a_data_fin_that_moves_and_data_behind_it() {
    let (mut script, mut peer, id) = served(listening(), 6);
    let fin = |dsn: u64| Seg::ack().mapping(dsn, 0, 1).data_fin();
    let end = peer.next_dsn.wrapping_add(4);
    peer.inject(&mut script, peer.stamp(fin(end)));
    for elsewhere in [end - 1, end + 1, end + (1 << 40)] {
        peer.inject(&mut script, peer.stamp(fin(elsewhere)));
    }
    assert_eq!(script.endpoint.counters().dss_not_matching, 3);
    peer.send_data(&mut script, b"last and more");
    assert_eq!(script.read_all(id), b"last", "no data after the end");
    let mut out = [0; 8];
    assert_eq!(script.run(|e, now| e.read(now, id, &mut out)), Ok(0));
    // An end of stream before data that has already arrived is also rejected.
    let (mut script, mut peer, id) = served(listening(), 7);
    peer.send_data(&mut script, b"data");
    peer.inject(&mut script, peer.stamp(fin(peer.next_dsn - 2)));
    assert_eq!(script.read_all(id), b"data");
    peer.send_data(&mut script, b"more");
    assert_eq!(script.read_all(id), b"more");
}

#[test]
fn data_beyond_the_advertised_window_is_not_kept() {
    let (mut script, mut peer, id) = served(listening(), 8);
    // The application reads nothing; the peer ignores windows.
    let chunk = [0x5a; 1_400];
    for _ in 0..20_000 {
        peer.send_data(&mut script, &chunk);
        let _ = script.take_sent();
    }
    let info = script.endpoint.info(id).expect("the connection exists");
    println!("28 MB sent against the window: {} bytes held", info.buffered);
    assert!(info.buffered <= BOUND, "{} bytes held", info.buffered);
    let read = script.read_all(id);
    assert!(!read.is_empty() && read.iter().all(|b| *b == 0x5a));
}

#[test]
fn single_bytes_far_apart_do_not_multiply_memory() {
    let (mut script, mut peer, id) = served(listening(), 9);
    let first_dsn = peer.next_dsn;
    let mut rng = SeedTree::new(9).stream("far apart");
    for _ in 0..20_000 {
        let dsn = first_dsn.wrapping_add(1 + rng.below(8 << 20));
        let ssn = peer.next.offset_from(peer.iss);
        let seg = Seg::ack().data_ack(peer.expected_dsn).mapping(dsn, ssn, 1).payload(b"x");
        peer.send(&mut script, seg);
        let _ = script.take_sent();
    }
    let info = script.endpoint.info(id).expect("the connection exists");
    println!("20000 bytes one by one, far apart: {} bytes held", info.buffered);
    assert!(info.buffered <= BOUND, "{} bytes held", info.buffered);
    assert_eq!(script.read_all(id), b"");
}

#[test]
fn bytes_held_out_of_order_count_as_buffered_and_are_bounded() {
    let (mut script, peer, id) = served(listening(), 10);
    // Every other segment of the subflow, never the first.
    for i in 1..4_000u32 {
        let seg = peer.stamp(mapping(&peer, i64::from(i) * 2_800, i as i32 * 2_800, 1_400));
        let seg = seg.payload(&[7; 1_400]);
        let seq = peer.next.add(i * 2_800);
        peer.inject(&mut script, seg.at(seq));
        let _ = script.take_sent();
    }
    let info = script.endpoint.info(id).expect("the connection exists");
    println!("5.6 MB out of order on one subflow: {} bytes held", info.buffered);
    assert!(info.buffered > 100_000, "held bytes are counted: {}", info.buffered);
    assert!(info.buffered <= BOUND, "{} bytes held", info.buffered);
}

/// A listener with the full window from the start.
fn wide_open() -> EndpointConfig {
    let mut config = listening();
    let accept = config.accept.take().expect("it listens");
    config.accept = Some(ConnectionConfig { buffer_tuning: BufferTuning::Fixed, ..accept });
    config
}

/// At most one window of data waits behind the gaps in all subflows together.
#[test]
fn bytes_held_out_of_order_are_bounded_for_all_subflows_together() {
    let (mut script, first, id) = served(wide_open(), 11);
    let mut peers = vec![first];
    for n in 1..4 {
        let mut peer = Peer::new(path(n, 2, 40_000), 0);
        peer.join(&mut script, &peers[0], n + 1);
        script.advance(Duration::from_millis(20));
        let _ = script.take_sent();
        peers.push(peer);
    }
    let segment = vec![0x5a; 1_400];
    for i in 1..7_000 {
        for peer in &peers {
            let at = i * 1_400;
            let data = mapping(peer, i64::from(at), at, 1_400).payload(&segment);
            let seq = peer.next.add(at as u32);
            peer.inject(&mut script, peer.stamp(data).at(seq));
        }
        assert!(!was_reset(&script.take_sent()));
    }
    let info = script.endpoint.info(id).expect("the connection exists");
    println!("9.8 MB behind a gap on each of four subflows: {} bytes held", info.buffered);
    assert!(info.buffered > 7 << 20 && info.buffered <= 9 << 20, "{} bytes held", info.buffered);
    // Dropped data arrives again once the gaps are filled.
    let data = mapping(&peers[0], 0, 0, 1_400).payload(&segment);
    peers[0].inject(&mut script, peers[0].stamp(data));
    assert!(!script.read_all(id).is_empty());
}

/// Memory kept for reuse while data flowed, with gaps, in both directions, is released ten seconds later.
#[test]
fn an_idle_connection_holds_next_to_nothing() {
    let (mut script, mut peer, id) = served(wide_open(), 12);
    let (next, dsn) = (peer.next, peer.next_dsn);
    for i in (1..4_000).chain([0]) {
        // Segments in pairs with a gap after each: as many buffers as pairs until all gaps are filled.
        let place = if i < 2_000 { 2 * i } else { 2 * (i - 2_000) + 1 };
        (peer.next, peer.next_dsn) = (next.add(place * 100), dsn + u64::from(place) * 100);
        let data = mapping(&peer, 0, 0, 100).payload(&[7; 100]);
        peer.inject(&mut script, peer.stamp(data));
        assert!(!was_reset(&script.take_sent()));
    }
    assert_eq!(script.read_all(id).len(), 400_000);
    (peer.next, peer.next_dsn) = (next.add(400_000), dsn + 400_000);
    let mut written = 0;
    while script.endpoint.info(id).expect("the connection exists").bytes_acked < 2_000_000 {
        let data = vec![1; (2_000_000 - written).min(400_000)];
        written += script.run(|e, now| e.write(now, id, &data)).unwrap_or(0);
        script.advance(Duration::from_millis(20));
        peer.receive_all(&mut script);
        peer.acknowledge(&mut script);
    }
    let held = |script: &Script| {
        let info = script.endpoint.info(id).expect("the connection exists");
        (info.buffered, info.bookkeeping)
    };
    let before = held(&script);
    script.advance(Duration::from_secs(11));
    let after = held(&script);
    println!("held at the end of the transfer {before:?}, eleven seconds later {after:?}");
    assert!(before.0 > 3_000 && before.1 > 100_000, "{before:?}");
    assert!(after.0 == 0 && after.1 < 1_000, "{after:?}");
    // The connection continues as before.
    peer.send_data(&mut script, b"more");
    assert_eq!(script.read_all(id), b"more");
}

#[test]
fn mappings_at_random() {
    let seeds = SeedTree::new(11);
    let mut resets = 0;
    for run in 0..200u64 {
        let mut rng = seeds.stream(&run.to_string());
        let (mut script, mut peer, id) = served(listening(), run);
        let mut second = Peer::new(path(1, 2, 40_000), 0);
        second.join(&mut script, &peer, 1);
        for _ in 0..200 {
            let len = rng.below(40) as u16;
            let around = |rng: &mut dyn Rng| rng.below(81) as i64 - 40;
            let mut seg = mapping(&peer, around(&mut rng), around(&mut rng) as i32 / 4, len);
            let dss: &mut Dss = seg.options.dss.get_or_insert_default();
            dss.data_fin = rng.below(50) == 0;
            if rng.below(4) == 0
                && let Some(m) = dss.mapping.as_mut()
                && let WireDsn::Long(dsn) = m.dsn
            {
                m.dsn = WireDsn::Short(dsn as u32);
            }
            let payload = vec![0x33; rng.below(60) as usize];
            let to = if rng.below(2) == 0 { &mut peer } else { &mut second };
            to.send(&mut script, seg.payload(&payload));
            let sent = script.take_sent();
            resets += usize::from(was_reset(&sent));
            script.read_all(id);
            if let Some(info) = script.endpoint.info(id) {
                assert!(info.buffered <= BOUND && info.subflows.len() <= 2);
                let states = info.subflows.iter().map(|s| s.state);
                assert!(states.into_iter().all(|s| s != SubflowState::Closed));
            }
        }
        script.advance(Duration::from_secs(200));
    }
    println!("200 runs of 200 random mappings over two subflows: {resets} subflows reset");
    assert!(resets > 20);
}

/// A native carrier hands over merged segments: one segment far larger than any MSS.
#[test]
fn joined_segments_are_taken_whole_and_acknowledged_immediately() {
    let (mut script, mut peer, id) = served(listening(), 1);
    let joined: Vec<u8> = (0..60_000_u32).map(|i| (i * 7) as u8).collect();
    for _ in 0..20 {
        peer.send_data(&mut script, &joined);
        let acked = Expect::any().pure_ack().at(peer.expected).acking(peer.next);
        script.expect(&acked);
        assert!(script.read_all(id) == joined);
        script.advance(Duration::from_millis(20));
        peer.receive_all(&mut script);
    }
    let info = script.endpoint.info(id).expect("the connection exists");
    assert_eq!(info.subflows.len(), 1);
}

/// A carrier that merges segments gets runs of more than eight with equal headers, each with the mapping of the
/// whole run. Other carriers get it on every eighth.
#[test]
fn a_run_that_is_to_be_joined_has_its_mapping_in_each_segment() {
    for joined in [false, true] {
        let (mut script, mut peer, id) = served(listening(), 3);
        if joined {
            script.combine_segments();
        }
        script.run(|endpoint, now| endpoint.write(now, id, b"a word")).expect("room");
        peer.receive_all(&mut script);
        peer.acknowledge(&mut script);
        script.run(|endpoint, now| endpoint.write(now, id, &[7; 40_000])).expect("room");
        let sent = script.take_sent();
        let mapping = |sent: &SentSegment| sent.seg.options.dss.and_then(|dss| dss.mapping);
        let run: Vec<_> = sent.iter().take(9).collect();
        assert!(run.len() == 9, "{} segments", sent.len());
        let first = mapping(run[0]).expect("the first carries its mapping");
        let wanted = |number: usize| (joined || number.is_multiple_of(8)).then_some(first);
        for (number, segment) in run.iter().enumerate() {
            assert_eq!(mapping(segment), wanted(number), "joined: {joined}, {number}");
            let len = |sent: &SentSegment| sent.seg.payload.len();
            assert!(!joined || len(segment) == len(run[0]));
            peer.record_received(segment);
        }
        assert!(usize::from(first.length) >= 9 * 1_000);
    }
}
