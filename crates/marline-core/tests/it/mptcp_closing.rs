//! Tests of connection ends: DATA_FIN, subflow FIN, MP_FASTCLOSE (RFC 8684 sections 3.3.3 and 3.5).

use std::time::Duration;

use crate::two_hosts::{
    MiddleboxAction, Packet, TwoHosts, bytes, closed, read, served, two_paths, two_subflows, write,
};
use marline_core::CloseReason;
use marline_testkit::fixtures::{listening, path, serve};
use marline_testkit::{Peer, Script, Seg, Side, config};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{MpFastclose, MptcpOption};

const SIZE: usize = 300_000;

fn pass(_: &mut Packet<'_>) -> MiddleboxAction {
    MiddleboxAction::Pass
}

#[test]
fn a_data_fin_waits_for_unsent_data_and_one_half_stays_open() {
    let mut hosts = TwoHosts::new(two_paths(config()), config(), pass, 1);
    hosts.write(Side::A, &bytes(SIZE, 1));
    hosts.shutdown(Side::A);
    hosts.run_ms(5_000);
    assert!(hosts.ends[1].at_end && hosts.ends[1].received == bytes(SIZE, 1));
    assert_eq!((hosts.ends[0].closed, hosts.ends[1].closed), (None, None), "half open");
    hosts.write(Side::B, &bytes(4_000_000, 2));
    hosts.run_ms(60_000);
    assert!(hosts.ends[0].received == bytes(4_000_000, 2) && !hosts.ends[0].at_end);
    hosts.shutdown(Side::B);
    hosts.run_ms(5_000);
    for end in &hosts.ends {
        assert_eq!(end.closed, Some(CloseReason::Finished));
    }
}

#[test]
fn lost_data_fins_are_repeated() {
    let mut lost = [0; 2];
    let lose = move |p: &mut Packet<'_>| {
        let count = &mut lost[p.to as usize];
        if p.seg.dss().data_fin && *count < 3 {
            *count += 1;
            return MiddleboxAction::Drop;
        }
        MiddleboxAction::Pass
    };
    let mut hosts = TwoHosts::new(two_paths(config()), config(), lose, 1);
    hosts.exchange_and_close(Side::A, &bytes(SIZE, 1), &bytes(SIZE, 2));
}

/// Time in milliseconds until a DATA_FIN is sent.
fn until_data_fin(script: &mut Script) -> u128 {
    let began = script.now();
    while script.advance_to_send(Duration::from_secs(60)) {
        if script.take_sent().iter().any(|sent| sent.seg.dss().data_fin) {
            break;
        }
    }
    script.now().since(began).as_millis()
}

/// Messages, each answered after this round trip, one after the other.
fn talk(script: &mut Script, peer: &mut Peer, words: usize, round_trip_ms: u64) {
    for _ in 0..words {
        write(script, b"word");
        script.advance(Duration::from_millis(round_trip_ms));
        peer.receive_all(script);
        peer.acknowledge(script);
        let _ = script.take_sent();
    }
}

/// A lost DATA_FIN is not retransmitted with other segments, but a probe repeats it, as it would repeat the last
/// data: after two round trips.
#[test]
fn a_lost_data_fin_is_probed_for_before_the_timeout() {
    let (mut script, mut peer) = served(config(), 7, 1);
    let id = script.endpoint.connections()[0];
    talk(&mut script, &mut peer, 30, 10);
    script.run(|endpoint, now| endpoint.shutdown(now, id));
    assert!(script.take_sent().iter().any(|sent| sent.seg.dss().data_fin));
    let waits = [until_data_fin(&mut script), until_data_fin(&mut script)];
    assert!((40..60).contains(&waits[0]) && (200..260).contains(&waits[1]), "{waits:?} ms");
}

/// It is unknown which subflow lost the DATA_FIN: if subflows took turns, the DATA_FIN could be lost on each.
#[test]
fn a_data_fin_goes_first_on_one_subflow_and_again_on_each() {
    let (mut script, _, second) = two_subflows(config());
    let id = script.endpoint.connections()[0];
    script.run(|endpoint, now| endpoint.shutdown(now, id));
    let mut rounds = Vec::new();
    for _ in 0..200 {
        let sent = script.take_sent();
        let fins = sent.iter().filter(|sent| sent.seg.dss().data_fin);
        let on: Vec<_> = fins.map(|sent| sent.path == second.path).collect();
        if !on.is_empty() {
            rounds.push(on);
        }
        script.advance(Duration::from_millis(50));
    }
    assert_eq!(rounds[0].len(), 1, "{rounds:?}: the first is sent on the best");
    assert!(rounds.len() > 3, "{rounds:?}");
    for mut round in rounds.drain(1..) {
        round.sort_unstable();
        assert_eq!(round, [false, true], "once on each");
    }
}

#[test]
fn both_end_at_the_same_time() {
    let mut hosts = TwoHosts::new(two_paths(config()), config(), pass, 1);
    hosts.run_ms(500);
    for side in [Side::A, Side::B] {
        hosts.write(side, &bytes(100, 3));
        hosts.shutdown(side);
    }
    hosts.run_ms(1_000);
    for end in &hosts.ends {
        assert!(end.at_end && end.received == bytes(100, 3));
        assert_eq!(end.closed, Some(CloseReason::Finished));
    }
    let fins = hosts.trace.iter().filter(|(_, s)| s.dss().data_fin).count();
    assert_eq!(fins, 2, "none needs to be repeated");
}

/// The FIN of a subflow ends the subflow but not the stream.
#[test]
fn a_subflow_fin_without_data_fin() {
    let (mut script, mut first, mut second) = two_subflows(config());
    first.send(&mut script, Seg::fin().data_ack(first.expected_dsn));
    let answer = script.take_sent();
    assert!(answer.iter().all(|s| s.path == first.path), "only that subflow closes");
    assert!(answer.iter().any(|s| s.seg.header.flags.contains(TcpFlags::FIN)));
    assert_eq!(closed(&mut script), None);
    write(&mut script, b"still here");
    let sent = script.take_sent();
    let data = sent.iter().find(|s| !s.seg.payload.is_empty()).expect("data");
    assert_eq!((data.path, &data.seg.payload[..]), (second.path, &b"still here"[..]));
    second.record_received(data);
    second.send_data(&mut script, b"here, too");
    assert_eq!(read(&mut script), b"here, too");
}

fn fastclose(key: u64) -> MptcpOption {
    MptcpOption::Fastclose(MpFastclose { receiver_key: key })
}

fn resets(script: &mut Script, peer: &Peer) -> usize {
    let sent = script.take_sent();
    let rst = |s: &&marline_testkit::SentSegment| s.seg.header.flags.contains(TcpFlags::RST);
    sent.iter().filter(rst).filter(|s| s.path == peer.path).count()
}

#[test]
fn fastclose_on_an_ack_is_answered_by_resets_on_all_subflows() {
    let (mut script, mut first, second) = two_subflows(config());
    let key = first.their_key;
    first.send(&mut script, Seg::ack().mptcp(fastclose(key)));
    assert_eq!(closed(&mut script), Some(CloseReason::PeerReset));
    let sent = script.take_sent();
    for peer in [&first, &second] {
        let answered =
            sent.iter().any(|s| s.path == peer.path && s.seg.header.flags.contains(TcpFlags::RST));
        assert!(answered, "no RST on {:?}", peer.path);
    }
    // If that RST was lost, the option comes again and gets the same answer.
    first.send(&mut script, Seg::ack().mptcp(fastclose(key)));
    assert_eq!(resets(&mut script, &first), 1);
}

#[test]
fn fastclose_on_a_reset_ends_everything() {
    let (mut script, mut first, second) = two_subflows(config());
    let key = first.their_key;
    let rst = Seg::rst().mptcp(fastclose(key));
    first.send(&mut script, rst);
    assert_eq!(closed(&mut script), Some(CloseReason::PeerReset));
    let sent = script.take_sent();
    assert!(sent.iter().all(|s| s.path == second.path), "no answer to a RST");
    assert!(sent.iter().any(|s| s.seg.header.flags.contains(TcpFlags::RST)));
}

/// The kernel aborts while its own data in flight is lost: its RST is behind a gap, and no second RST follows.
#[test]
fn fastclose_on_a_reset_behind_a_hole_ends_everything() {
    let (mut script, first, second) = two_subflows(config());
    let behind = |key| first.stamp(Seg::rst().mptcp(fastclose(key))).at(first.next.add(3_000));
    first.inject(&mut script, behind(first.their_key ^ 1));
    assert_eq!(closed(&mut script), None, "a wrong key proves nothing");
    let challenge = script.take_sent();
    assert!(challenge.iter().all(|s| s.path == first.path) && challenge.len() == 1);
    first.inject(&mut script, behind(first.their_key));
    assert_eq!(closed(&mut script), Some(CloseReason::PeerReset));
    let sent = script.take_sent();
    assert!(sent.iter().all(|s| s.path == second.path), "no answer to a RST: {sent:?}");
    assert!(sent.iter().any(|s| s.seg.header.flags.contains(TcpFlags::RST)));
}

#[test]
fn fastclose_with_a_wrong_key_is_ignored() {
    let (mut script, mut first, mut second) = two_subflows(config());
    let key = first.their_key ^ 1;
    first.send(&mut script, Seg::ack().mptcp(fastclose(key)));
    assert_eq!(closed(&mut script), None);
    assert_eq!(resets(&mut script, &first), 0);
    // On a RST it resets only that subflow.
    let rst = Seg::rst().mptcp(fastclose(key));
    first.send(&mut script, rst);
    assert_eq!(closed(&mut script), None);
    second.send_data(&mut script, b"alive");
    assert_eq!(read(&mut script), b"alive");
}

#[test]
fn an_abort_says_fastclose_on_every_subflow() {
    let (mut script, first, second) = two_subflows(config());
    let id = script.endpoint.connections()[0];
    script.run(|e, now| e.abort(now, id));
    assert_eq!(closed(&mut script), Some(CloseReason::Aborted));
    let sent = script.take_sent();
    for peer in [&first, &second] {
        let mine: Vec<_> = sent.iter().filter(|s| s.path == peer.path).collect();
        assert_eq!(mine.len(), 1, "{mine:?}");
        assert!(mine[0].seg.header.flags.contains(TcpFlags::RST));
        let named = mine[0].seg.options.mptcp.iter().any(|o| o == fastclose(7));
        assert!(named, "the receiver's key is not in {:?}", mine[0].seg);
    }
}

/// The join's SYN would be repeated for a minute without any use.
#[test]
fn an_unanswered_join_does_not_outlive_the_connection() {
    let swallow = |p: &mut Packet<'_>| {
        if p.path == 1 { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
    };
    let mut hosts = TwoHosts::new(two_paths(config()), config(), swallow, 1);
    hosts.run_ms(500);
    assert_eq!(hosts.info(Side::A).subflows.len(), 2, "the join is under way");
    for side in [Side::A, Side::B] {
        hosts.write(side, &bytes(100, 3));
        hosts.shutdown(side);
    }
    hosts.run_ms(1_000);
    for side in [Side::A, Side::B] {
        assert_eq!(hosts.end(side).closed, Some(CloseReason::Finished));
        let id = hosts.id(side);
        let now = hosts.pair.now();
        hosts.pair.endpoint(side).release(now, id);
    }
    hosts.run_ms(1_000);
    for side in [Side::A, Side::B] {
        assert!(hosts.pair.endpoint(side).connections().is_empty(), "{side:?} is idle");
    }
}

/// A pure ACK overtaken by a later one is an old duplicate for PAWS. A DATA_FIN on it may be the only copy; one
/// older than any possible delay may belong to another connection.
#[test]
fn a_data_fin_that_was_overtaken_counts() {
    for (age_ms, ends) in [(10, true), (100_000, false)] {
        let mut script = Script::new(listening(), 1);
        let mut peer = Peer::new(path(0, 2, 40_000), 0x1111);
        peer.timestamps = Some((200_000, 0));
        let id = serve(&mut script, &mut peer);
        let fin = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 0, 1).data_fin();
        let fin = peer.stamp(fin);
        if let Some((clock, _)) = &mut peer.timestamps {
            *clock += age_ms;
        }
        peer.acknowledge(&mut script);
        peer.inject(&mut script, fin);
        let read = script.run(|endpoint, now| endpoint.read(now, id, &mut [0; 10]));
        assert_eq!(read == Ok(0), ends, "{age_ms} ms: {read:?}");
    }
}

/// A DATA_FIN is sent as a pure ACK, and earlier data retransmitted on the same subflow arrives first.
#[test]
fn a_data_fin_that_repeated_data_overtook_counts() {
    let mut script = Script::new(listening(), 1);
    let mut peer = Peer::new(path(0, 2, 40_000), 0x1111);
    let id = serve(&mut script, &mut peer);
    let (data, first) = (b"the last words", peer.next_dsn);
    let end = first + data.len() as u64;
    let fin = Seg::ack().data_ack(peer.expected_dsn).mapping(end, 0, 1).data_fin();
    let fin = peer.stamp(fin);
    peer.send_data(&mut script, data);
    peer.inject(&mut script, fin);
    let mut buffer = [0; 40];
    let read = script.run(|endpoint, now| endpoint.read(now, id, &mut buffer));
    assert_eq!(read, Ok(data.len()));
    let read = script.run(|endpoint, now| endpoint.read(now, id, &mut buffer));
    assert_eq!(read, Ok(0), "the end is known");
}
