//! Tests of connections that the peer does not finish: each ends in a bounded time, and leaves no state.

mod ends;
mod outages;
mod resets;
mod strangers;

use std::time::Duration;

use marline_core::{CloseReason, ConnectionId, Event};
use marline_testkit::fixtures::{listening, path, served};
use marline_testkit::{Expect, Peer, Script, Seg};
use marline_wire::TcpFlags;

const S: fn(u64) -> Duration = Duration::from_secs;

/// Advances `within` seconds, one second at a time, and calls `each` before every second. Returns the time after which
/// all connections and their subflows were gone.
fn ends_within(
    script: &mut Script,
    within: u64,
    mut each: impl FnMut(&mut Script, u64),
) -> Option<u64> {
    (0..within).find(|second| {
        each(script, *second);
        script.advance(S(1));
        script.endpoint.connections().is_empty()
    })
}

/// All tables are empty: no timers, and the end of every flow was reported.
fn nothing_is_left(script: &mut Script, flows: usize) {
    script.advance(S(120));
    let gone = script.take_events().iter().filter(|e| matches!(e, Event::FlowGone { .. })).count();
    assert_eq!(gone, flows);
    // An old timer may still fire once without effect.
    for _ in 0..3 {
        script.advance(S(3_600));
    }
    assert_eq!(script.endpoint.poll_timeout(), None);
    assert!(script.endpoint.connections().is_empty());
}

#[test]
fn an_unfinished_handshake_is_dropped() {
    for with_mptcp in [true, false] {
        let mut script = Script::new(listening(), 1);
        let mut peer = Peer::new(path(0, 2, 40_000), 1);
        let syn = if with_mptcp { peer.capable_syn() } else { Seg::syn().mss(1_400) };
        peer.send(&mut script, syn);
        let took = ends_within(&mut script, 300, |_, _| {});
        let answers = script.take_sent().len();
        println!("half-open for {took:?} s, {answers} SYN/ACKs");
        assert!(took.is_some_and(|s| s <= 128), "{took:?}");
        assert!(answers <= 7, "{answers} SYN/ACKs to one SYN");
        assert!(!script.take_events().iter().any(|e| matches!(e, Event::Incoming(_))));
    }
}

/// Releases the connection and takes the DATA_FIN.
fn released(seed: u64) -> (Script, Peer, ConnectionId) {
    let (mut script, mut peer, id) = served(listening(), seed);
    script.run(|e, now| e.release(now, id));
    let fin = script.take_sent();
    assert!(fin.iter().any(|s| s.seg.dss().data_fin), "{fin:#?}");
    for sent in &fin {
        peer.record_received(sent);
    }
    (script, peer, id)
}

#[test]
fn a_released_connection_whose_peer_says_nothing_more() {
    let (mut script, _, _) = released(2);
    let took = ends_within(&mut script, 1_000, |_, _| {});
    println!("a silent peer: gone after {took:?} s, {} segments", script.take_sent().len());
    assert!(took.is_some_and(|s| s <= 70), "{took:?}");
    nothing_is_left(&mut script, 1);
}

#[test]
fn a_released_connection_whose_peer_never_closes() {
    let (mut script, mut peer, _) = released(3);
    // It acknowledges our end and continues to send, which is not read.
    let mut reset = false;
    let took = ends_within(&mut script, 1_000, |script, _| {
        if !reset {
            peer.send_data(script, &[1; 1_000]);
        }
        let sent = peer.receive_all(script);
        reset |= sent.iter().any(|s| s.seg.header.flags.contains(TcpFlags::RST));
    });
    println!("a peer that never closes: gone after {took:?} s");
    assert!(took.is_some_and(|s| s <= 70), "{took:?}");
    let told = script.take_sent();
    assert!(reset || told.iter().any(|s| s.seg.header.flags.contains(TcpFlags::RST)));
    nothing_is_left(&mut script, 1);
}

#[test]
fn a_released_connection_whose_peer_answers_but_takes_nothing() {
    let (mut script, mut peer, id) = served(listening(), 4);
    let bytes = vec![7; 1 << 20];
    let shut = |peer: &Peer| Seg::ack().data_ack(peer.expected_dsn).window(0);
    for _ in 0..200 {
        let _ = script.run(|e, now| e.write(now, id, &bytes));
        script.advance(Duration::from_millis(20));
        peer.receive_all(&mut script);
        peer.send(&mut script, shut(&peer));
    }
    let info = script.endpoint.info(id).expect("the connection exists");
    assert!(info.bytes_written > info.bytes_acked, "the window is closed: {info:#?}");
    script.run(|e, now| e.release(now, id));
    let took = ends_within(&mut script, 2_000, |script, _| {
        if !peer.receive_all(script).is_empty() {
            peer.send(script, shut(&peer));
        }
    });
    println!("a window that stays closed: gone after {took:?} s");
    assert!(took.is_some_and(|s| s <= 130), "{took:?}");
    nothing_is_left(&mut script, 1);
}

#[test]
fn data_written_before_the_release_reaches_even_a_slow_peer() {
    let (mut script, mut peer, id) = served(listening(), 5);
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    let written = script.run(|e, now| e.write(now, id, &bytes)).expect("room");
    script.run(|e, now| e.release(now, id));
    // A little room from time to time is progress, for 20 minutes in total.
    let start = peer.expected_dsn;
    let (mut acked, mut edge) = (0, 0);
    let _ = ends_within(&mut script, 1_200, |script, second| {
        peer.receive_all(script);
        acked = peer.expected_dsn.wrapping_sub(start);
        if second % 40 == 0 {
            edge += 3_000;
        }
        let room = edge.max(acked) - acked;
        peer.send(script, Seg::ack().data_ack(peer.expected_dsn).window(room as u16));
    });
    println!("a slow peer has {acked} of {written} bytes after 20 minutes");
    assert!(acked >= 3_000 * 29, "{acked}");
}

#[test]
fn a_closed_connection_whose_peer_does_not_finish_tcp() {
    let (mut script, mut peer, id) = released(6);
    // Both DATA_FINs are acknowledged, then the peer vanishes without a FIN.
    let end = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 0, 1).data_fin();
    peer.send(&mut script, end);
    script.advance(Duration::from_millis(10));
    let sent = script.take_sent();
    assert!(sent.iter().any(|s| s.seg.header.flags.contains(TcpFlags::FIN)), "{sent:#?}");
    let took = ends_within(&mut script, 1_000, |_, _| {});
    println!("FIN-WAIT-1 without an answer: gone after {took:?} s");
    assert!(took.is_some_and(|s| s <= 70), "{took:?}");
    let _ = id;
    nothing_is_left(&mut script, 1);
}

#[test]
fn fin_wait_2_is_bounded_too() {
    let (mut script, mut peer, _) = released(7);
    let end = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 0, 1).data_fin();
    peer.send(&mut script, end);
    script.advance(Duration::from_millis(10));
    peer.receive_all(&mut script);
    peer.send(&mut script, Seg::ack());
    let took = ends_within(&mut script, 1_000, |_, _| {});
    println!("FIN-WAIT-2: gone after {took:?} s");
    assert!(took.is_some_and(|s| s <= 70), "{took:?}");
    nothing_is_left(&mut script, 1);
}

#[test]
fn a_plain_connection_whose_peer_never_closes() {
    let mut script = Script::new(listening(), 8);
    let mut peer = Peer::new(path(0, 2, 40_000), 0);
    let syn = Seg::syn().mss(1_400).sack_permitted().window_scale(7);
    peer.send(&mut script, syn);
    let answer = script.expect(&Expect::any().plain_tcp());
    peer.record_received(&answer);
    peer.send(&mut script, Seg::ack());
    let id = script.take_incoming().expect("a connection");
    script.run(|e, now| e.release(now, id));
    script.advance(Duration::from_millis(10));
    let sent = peer.receive_all(&mut script);
    assert!(sent.iter().any(|s| s.seg.header.flags.contains(TcpFlags::FIN)), "{sent:#?}");
    peer.send(&mut script, Seg::ack());
    let took = ends_within(&mut script, 1_000, |_, _| {});
    println!("plain TCP in FIN-WAIT-2: gone after {took:?} s");
    assert!(took.is_some_and(|s| s <= 70), "{took:?}");
    nothing_is_left(&mut script, 1);
}

#[test]
fn a_connection_whose_last_path_was_reset_ends_after_its_linger() {
    let (mut script, mut peer, id) = served(listening(), 9);
    peer.send(&mut script, Seg::rst());
    assert!(script.endpoint.info(id).is_some_and(|i| i.subflows.is_empty()));
    script.advance(S(59));
    assert!(script.take_events().iter().all(|e| !matches!(e, Event::Closed { .. })));
    script.advance(S(2));
    let closed = script.take_events().into_iter().find_map(|event| match event {
        Event::Closed { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(closed, Some(CloseReason::TimedOut));
    script.run(|e, now| e.release(now, id));
    assert!(script.endpoint.connections().is_empty());
}

#[test]
fn an_aborted_attempt_to_connect_leaves_immediately() {
    let mut script = Script::new(marline_testkit::endpoint_config(None), 10);
    let ends = path(0, 2, 443);
    let id = script.connect(marline_testkit::config(), ends.local, ends.remote);
    script.run(|e, now| e.abort(now, id));
    script.run(|e, now| e.release(now, id));
    assert!(script.endpoint.connections().is_empty(), "an attempt that is no longer needed");
}
