//! Tests of off-path attackers: RFC 5961, and segments from foreign addresses.

use std::time::Duration;

use marline_core::{ConnectionId, FourTuple, NetworkError, ReadError, SubflowState};
use marline_testkit::fixtures::{flow_capabilities, listening, path, served};
use marline_testkit::{Expect, Peer, Script, Seg};
use marline_wire::mptcp::{MpFastclose, MptcpOption};
use marline_wire::{SeqNum, TcpFlags};

/// No data was read, and the subflow is still established.
fn unharmed(script: &mut Script, id: ConnectionId) {
    let mut out = [0; 64];
    let read = script.run(|e, now| e.read(now, id, &mut out));
    assert_eq!(read, Err(ReadError::Blocked));
    let info = script.endpoint.info(id).expect("the connection exists");
    assert_eq!(info.subflows.len(), 1);
    assert_eq!(info.subflows[0].state, SubflowState::Established);
}

/// The stream continues in both directions.
fn still_works(script: &mut Script, peer: &mut Peer, id: ConnectionId) {
    script.advance(Duration::from_secs(1));
    peer.receive_all(script);
    peer.send_data(script, b"and on");
    assert_eq!(script.read_all(id), b"and on");
    script.run(|e, now| e.write(now, id, b"too").expect("room"));
    script.advance(Duration::from_millis(1));
    let sent = peer.receive_all(script);
    assert!(sent.iter().any(|s| s.seg.payload == b"too"), "{sent:#?}");
    peer.acknowledge(script);
    let info = script.endpoint.info(id).expect("the connection exists");
    assert_eq!(info.bytes_acked, info.bytes_written);
}

fn challenge(peer: &Peer) -> Expect {
    Expect::any().pure_ack().at(peer.expected).acking(peer.next)
}

#[test]
fn resets_and_syns_that_do_not_hit_exactly() {
    let (mut script, mut peer, id) = served(listening(), 1);
    let outside = [1 << 30, 1 << 31, u32::MAX, u32::MAX - 70_000];
    for off in outside {
        peer.inject(&mut script, Seg::rst().at(peer.next.add(off)));
        script.expect_nothing();
    }
    for off in [1, 2, 1_000, 60_000] {
        peer.inject(&mut script, Seg::rst().at(peer.next.add(off)));
        script.expect(&challenge(&peer));
    }
    for off in [0, 1, 60_000, 1 << 30, u32::MAX] {
        for flags in [TcpFlags::SYN, TcpFlags::SYN.with(TcpFlags::ACK)] {
            let syn = Seg::new(flags).at(peer.next.add(off)).mss(1_400);
            script.inject(peer.path, syn);
            script.expect(&challenge(&peer));
        }
    }
    script.expect_nothing();
    unharmed(&mut script, id);
    assert_eq!(script.endpoint.counters().challenge_acks, 14);
    still_works(&mut script, &mut peer, id);
    peer.inject(&mut script, Seg::rst().at(peer.next));
    assert!(script.endpoint.info(id).is_none_or(|i| i.subflows.is_empty()), "an exact RST counts");
}

#[test]
fn data_outside_the_window_and_with_impossible_acks() {
    let (mut script, mut peer, id) = served(listening(), 2);
    for off in [1u32 << 24, 1 << 30, u32::MAX - (1 << 24)] {
        let evil = peer.stamp(peer.mapped(b"evil")).at(peer.next.add(off));
        peer.inject(&mut script, evil);
    }
    for off in [1, 1 << 20, 1 << 30, u32::MAX - (1 << 30)] {
        let evil = peer.stamp(peer.mapped(b"evil")).acking(peer.expected.add(off));
        peer.inject(&mut script, evil);
    }
    // Each of them was answered with our position only.
    for sent in script.take_sent() {
        assert_eq!(challenge(&peer).missing(&sent.seg), None, "{:#?}", sent.seg);
    }
    unharmed(&mut script, id);
    still_works(&mut script, &mut peer, id);
}

#[test]
fn an_old_ack_is_harmless_and_moves_nothing() {
    let (mut script, mut peer, id) = served(listening(), 3);
    for _ in 0..4 {
        still_works(&mut script, &mut peer, id);
    }
    for back in 1..12 {
        let old = peer.stamp(Seg::ack().data_ack(peer.expected_dsn.wrapping_sub(back)));
        peer.inject(&mut script, old.acking(SeqNum(peer.expected.0.wrapping_sub(back as u32))));
    }
    script.expect_nothing();
    let info = script.endpoint.info(id).expect("the connection exists");
    assert_eq!((info.bytes_acked, info.bytes_written), (12, 12));
    still_works(&mut script, &mut peer, id);
}

#[test]
fn foreign_ends_with_the_right_numbers_are_strangers() {
    let (mut script, mut peer, id) = served(listening(), 4);
    let close = MptcpOption::Fastclose(MpFastclose { receiver_key: peer.their_key });
    for (net, host, port) in [(0, 2, 40_001), (0, 3, 40_000), (1, 2, 40_000)] {
        let foreign = path(net, host, port);
        let segments = [
            peer.stamp(peer.mapped(b"evil")),
            peer.stamp(Seg::fin()),
            peer.stamp(Seg::ack().mptcp(close)),
            peer.stamp(Seg::rst()),
        ];
        for seg in segments {
            let is_rst = seg.header.flags.contains(TcpFlags::RST);
            script.inject(foreign, seg);
            if is_rst {
                script.expect_nothing();
            } else {
                let answer = Expect::any().flags(TcpFlags::RST).at(peer.expected);
                assert_eq!(script.expect(&answer).path, foreign);
            }
        }
    }
    unharmed(&mut script, id);
    still_works(&mut script, &mut peer, id);
}

#[test]
fn unknown_and_guessed_flow_ids() {
    let mut config = listening();
    config.capabilities = flow_capabilities();
    let (mut script, mut peer, id) = served(config, 5);
    let right = peer.flows.1;
    assert_ne!(right, 0);
    for wrong in [right ^ 1, right ^ (1 << 63), 1, u64::MAX] {
        script.inject_to(peer.path, wrong, 0, peer.stamp(peer.mapped(b"evil")));
        let reset = script.expect(&Expect::any().flags(TcpFlags::RST).at(peer.expected));
        assert_eq!((reset.path, reset.flows), (peer.path, (wrong, 0)));
    }
    // Without an id it belongs to no subflow, regardless of its addresses.
    script.inject_to(peer.path, 0, 0, peer.stamp(peer.mapped(b"evil")));
    script.expect(&Expect::any().flags(TcpFlags::RST));
    // The right id in a segment with wrong numbers is handled like any blind attack.
    script.inject_to(peer.path, right, 0, Seg::rst().at(peer.next.add(9)));
    script.expect(&challenge(&peer));
    // A flow id announced in mid-connection does not redirect the answers.
    script.inject_to(peer.path, right, 0xdead, peer.stamp(Seg::ack()).at(peer.next.add(1 << 30)));
    let _ = script.take_sent();
    // Neither do foreign addresses: the carrier validates the destination of a flow's segments.
    script.inject_to(path(0, 66, 6_666), right, 0, Seg::rst().at(peer.next.add(9)));
    for sent in script.take_sent() {
        assert_eq!((sent.path, sent.flows), (peer.path, (right, 0x7777)));
    }
    unharmed(&mut script, id);
    still_works(&mut script, &mut peer, id);
}

#[test]
fn answers_are_limited_per_second_and_strangers_do_not_use_up_those_of_connections() {
    const LIMIT: u32 = 100;
    let mut config = listening();
    config.limits.challenges_per_s = LIMIT;
    let (mut script, mut peer, id) = served(config, 6);
    let stranger = path(0, 77, 4_000);
    let mut granted = Vec::new();
    for _second in 0..5 {
        script.advance(Duration::from_secs(2));
        let _ = script.take_sent();
        for _ in 0..20 * LIMIT {
            script.inject(stranger, Seg::ack().acking(SeqNum(5)));
        }
        let resets = script.take_sent().len();
        for _ in 0..20 * LIMIT {
            peer.inject(&mut script, Seg::rst().at(peer.next.add(7)));
        }
        let challenges = script.take_sent().len();
        granted.push((resets, challenges));
    }
    println!("limit {LIMIT} per second: (resets to strangers, challenge ACKs) = {granted:?}");
    let limit = LIMIT as usize;
    for &(resets, challenges) in &granted {
        assert!((limit / 2..=limit).contains(&resets), "{granted:?}");
        assert!((limit / 2..=limit).contains(&challenges), "{granted:?}");
    }
    // A limit that is constant per second shows an observer how much of it others used (CVE-2016-5696).
    assert!(granted.iter().any(|g| g.1 != granted[0].1), "{granted:?}");
    unharmed(&mut script, id);
    still_works(&mut script, &mut peer, id);
}

#[test]
fn icmp_is_believed_only_about_data_in_flight() {
    let (mut script, mut peer, id) = served(listening(), 1);
    script.run(|e, now| e.write(now, id, b"some").expect("room"));
    script.advance(Duration::from_millis(1));
    let sent = peer.receive_all(&mut script);
    let data = sent.iter().find(|s| s.seg.payload == b"some").expect("the data is sent");
    let (path, seq) = (peer.path, data.seg.header.seq);
    let mut say =
        |path: &FourTuple, seq, error| script.run(|e, now| e.network_error(now, path, seq, error));
    for error in [NetworkError::Unreachable, NetworkError::TooBig { max_segment: 600 }] {
        for off in [4, 1 << 20, 1 << 31, u32::MAX] {
            assert!(!say(&path, seq.add(off), error), "{off} beyond what was sent");
        }
        let mut stranger = path;
        stranger.remote.set_port(path.remote.port() ^ 1);
        assert!(!say(&stranger, seq, error));
        assert!(say(&path, seq, error) && say(&path, seq.add(3), error));
    }
    unharmed(&mut script, id);
    script.run(|e, now| e.write(now, id, &[7; 3_000]).expect("room"));
    peer.acknowledge(&mut script);
    script.advance(Duration::from_millis(300));
    let sent = peer.receive_all(&mut script);
    let largest = sent.iter().map(|s| s.seg.payload.len()).max().unwrap_or_default();
    assert!((400..600).contains(&largest), "{largest}");
}

/// RFC 9293 section 3.10.7.2: a listener ignores a segment that neither opens nor acknowledges anything.
#[test]
fn a_listener_ignores_a_segment_without_flags() {
    let (mut script, _, _) = served(listening(), 1);
    let stranger = path(0, 77, 4_000);
    script.inject(stranger, Seg::new(TcpFlags(0)).payload(b"hello"));
    script.expect_nothing();
    script.inject(stranger, Seg::ack().acking(SeqNum(5)));
    script.expect(&Expect::any().flags(TcpFlags::RST).at(SeqNum(5)));
}
