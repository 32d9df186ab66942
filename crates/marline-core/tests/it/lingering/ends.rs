//! Tests of the states in which an application leaves its connection when the peer is gone: each ends in a bounded
//! time.

use std::time::Duration;

use marline_core::{CloseReason, ConnectionId, Event, SubflowState};
use marline_policy::{PathAction, SubflowId};
use marline_testkit::fixtures::{listening, path, served};
use marline_testkit::{Expect, Peer, Script, Seg, Side, config, endpoint_config};
use marline_wire::TcpFlags;

use super::S;
use crate::two_hosts::{MiddleboxAction, Packet, TwoHosts, reset_reason, two_paths};

/// Time in seconds until the connection ended, and the reason; the application does not release it.
fn closes_within(
    script: &mut Script,
    within_s: u64,
    mut each: impl FnMut(&mut Script, u64),
) -> Option<(u64, CloseReason)> {
    (0..within_s).find_map(|second| {
        each(script, second);
        script.advance(S(1));
        let closed = |event| match event {
            Event::Closed { reason, .. } => Some((second, reason)),
            _ => None,
        };
        script.take_events().into_iter().find_map(closed)
    })
}

/// A plain connection that was accepted.
fn plain(seed: u64) -> (Script, Peer, ConnectionId) {
    let mut script = Script::new(listening(), seed);
    let mut peer = Peer::new(path(0, 2, 40_000), 0);
    peer.send(&mut script, Seg::syn().mss(1_400).sack_permitted().window_scale(7));
    let answer = script.expect(&Expect::any().plain_tcp());
    peer.record_received(&answer);
    peer.send(&mut script, Seg::ack());
    let id = script.take_incoming().expect("a connection");
    (script, peer, id)
}

/// The peer's segment with a zero window.
fn shut(peer: &Peer, multipath: bool) -> Seg {
    let ack = Seg::ack().window(0);
    if multipath { ack.data_ack(peer.expected_dsn) } else { ack }
}

/// The peer accepted data up to its window, which is then closed.
fn filled(multipath: bool) -> (Script, Peer, ConnectionId) {
    let (mut script, mut peer, id) = if multipath { served(listening(), 1) } else { plain(1) };
    let bytes = vec![7; 1 << 20];
    for _ in 0..200 {
        let _ = script.run(|e, now| e.write(now, id, &bytes));
        script.advance(Duration::from_millis(20));
        peer.receive_all(&mut script);
        let full = shut(&peer, multipath);
        peer.send(&mut script, full);
    }
    (script, peer, id)
}

#[test]
fn a_shut_window_whose_owner_is_gone_ends_the_connection() {
    for multipath in [true, false] {
        let (mut script, _, _) = filled(multipath);
        let end = closes_within(&mut script, 3_600, |_, _| {});
        println!("multipath {multipath}: {end:?}, {} probes", script.take_sent().len());
        let (after_s, why) = end.expect("an end");
        assert_eq!(why, CloseReason::TimedOut);
        assert!((60..=200).contains(&after_s), "{after_s} s");
    }
}

/// RFC 9293 section 3.8.6.1: while the peer answers, the connection stays.
#[test]
fn a_shut_window_whose_owner_answers_stays() {
    for multipath in [true, false] {
        let (mut script, mut peer, _) = filled(multipath);
        let mut lost = 0;
        let end = closes_within(&mut script, 20_000, |script, _| {
            if peer.receive_all(script).is_empty() {
                return;
            }
            // Every third answer is lost.
            lost += 1;
            if lost % 3 > 0 {
                let full = shut(&peer, multipath);
                peer.send(script, full);
            }
        });
        assert_eq!(end, None, "multipath {multipath}");
    }
}

#[test]
fn an_unanswered_data_fin_ends_the_connection() {
    let (mut script, _, id) = served(listening(), 2);
    script.run(|e, now| e.shutdown(now, id));
    let end = closes_within(&mut script, 3_600, |_, _| {});
    println!("{end:?}, {} DATA_FINs", script.take_sent().len());
    let (after_s, why) = end.expect("an end");
    assert_eq!(why, CloseReason::TimedOut);
    assert!((60..=90).contains(&after_s), "{after_s} s");
}

/// The other half may stay open for as long as the peer's application needs.
#[test]
fn a_half_closed_connection_whose_peer_sends_for_hours_stays() {
    let (mut script, mut peer, id) = served(listening(), 3);
    script.run(|e, now| e.shutdown(now, id));
    peer.receive_all(&mut script);
    let end = closes_within(&mut script, 20_000, |script, second| {
        peer.receive_all(script);
        if second % 600 == 0 {
            peer.send_data(script, b"still there");
        }
        script.read_all(id);
    });
    assert_eq!(end, None);
}

/// Peers before Linux 6.11 keep their half of a subflow open for the lifetime of the connection.
#[test]
fn subflows_that_the_peer_never_closes_give_their_places_back() {
    let (mut script, first, id) = served(endpoint_config(Some(config())), 4);
    let limit = script.endpoint.info(id).map(|_| 8).expect("a connection");
    let (mut at, mut told) = (Vec::new(), 0);
    for round in 0..2 {
        for n in 1..limit {
            let mut peer = Peer::new(path(n, 2, 41_000 + round), 0);
            peer.join(&mut script, &first, n);
            let subflows = script.endpoint.info(id).expect("the connection exists").subflows;
            let last = subflows.iter().map(|s| s.id).max_by_key(|id| id.0).expect("subflows");
            peer.receive_all(&mut script);
            script.run(|e, now| e.path_action(now, id, PathAction::CloseSubflow(last)));
            let fin = peer.receive_all(&mut script);
            assert!(fin.iter().any(|s| s.seg.header.flags.contains(TcpFlags::FIN)), "{fin:#?}");
            peer.send(&mut script, Seg::ack());
            at.push(peer);
        }
        let waiting = |script: &Script| {
            let subflows = script.endpoint.info(id).expect("the connection exists").subflows;
            subflows.iter().filter(|s| s.state == SubflowState::FinWait2).count()
        };
        assert_eq!(waiting(&script), usize::from(limit) - 1);
        script.advance(S(59));
        assert_eq!(waiting(&script), usize::from(limit) - 1, "data may still be on its way");
        script.advance(S(2));
        assert_eq!(waiting(&script), 0);
        let resets = script.take_sent();
        let resets = resets.iter().filter(|s| s.seg.header.flags.contains(TcpFlags::RST)).count();
        told += resets;
        script.advance(S(60));
    }
    assert_eq!(told, at.len(), "each peer gets a reset");
    assert_eq!(script.take_events().iter().find(|e| matches!(e, Event::Closed { .. })), None);
}

/// Data that still arrives on the half-closed subflow is accepted, and keeps the subflow.
#[test]
fn a_subflow_that_we_closed_stays_while_the_peer_sends_on_it() {
    let (mut script, mut peer, id) = served(listening(), 5);
    script.run(|e, now| e.path_action(now, id, PathAction::CloseSubflow(SubflowId(0))));
    peer.receive_all(&mut script);
    for _ in 0..20 {
        script.advance(S(30));
        peer.receive_all(&mut script);
        peer.send_data(&mut script, b"still sending");
        assert_eq!(script.read_all(id), b"still sending");
    }
}

#[test]
fn unacknowledged_data_ends_the_connection() {
    for multipath in [true, false] {
        let (mut script, _, id) = if multipath { served(listening(), 6) } else { plain(6) };
        script.run(|e, now| e.write(now, id, b"anybody there?")).expect("room");
        let end = closes_within(&mut script, 3_600, |_, _| {});
        println!("multipath {multipath}: {end:?}");
        let (after_s, why) = end.expect("an end");
        assert_eq!(why, CloseReason::TimedOut);
        assert!((50..=600).contains(&after_s), "{after_s} s");
    }
}

#[test]
fn a_join_whose_fourth_ack_never_comes_is_reset() {
    let swallow = |p: &mut Packet<'_>| {
        let syn_ack = p.seg.header.flags.contains(TcpFlags::SYN);
        if p.path == 1 && p.to == Side::A && !syn_ack {
            MiddleboxAction::Drop
        } else {
            MiddleboxAction::Pass
        }
    };
    let mut hosts = TwoHosts::new(two_paths(config()), config(), swallow, 1);
    hosts.run_ms(30_000);
    let given_up = hosts.sent_to(Side::B, 0).filter(|seg| reset_reason(seg) == Some(5)).count();
    assert!(given_up >= 1, "the join holds its place");
    assert_eq!(hosts.ends[0].closed, None);
}
