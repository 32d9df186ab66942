//! Tests of the retransmission timeout exchange: the client sends a request, and the server answers.

use marline_core::Extensions;
use marline_testkit::{Peer, Script, Seg, SentSegment, config};
use marline_wire::mptcp::ExperimentalMessage;

use super::{BOTH, client, judged_after, messages, ms, option, send, server_with};
use crate::two_hosts::bytes;

fn ask(script: &mut Script, peer: &mut Peer) -> Vec<u32> {
    let seg = Seg::ack().data_ack(peer.expected_dsn);
    peer.send(script, seg.mptcp(option(ExperimentalMessage::RtoRequest)));
    let told = |message: ExperimentalMessage| match message {
        ExperimentalMessage::RtoInfo { rto_us } => Some(rto_us),
        _ => None,
    };
    let sent = peer.receive_all(script);
    sent.iter().flat_map(|s| messages(&s.seg)).filter_map(told).collect()
}

#[test]
fn a_question_is_answered_with_the_timeout() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    let told = ask(&mut script, &mut peer);
    // A handshake of 10 ms: 200 ms and the round trip.
    assert!(told.len() == 1 && (205_000..225_000).contains(&told[0]), "{told:?}");
    // A flood is answered ten times a second.
    let mut answers = 0;
    for _ in 0..1_000 {
        script.advance(ms(1));
        answers += ask(&mut script, &mut peer).len();
    }
    assert!((9..=11).contains(&answers), "{answers}");
}

#[test]
fn a_question_that_was_not_agreed_on_is_not_answered() {
    let (mut script, mut peer) = server_with(config(), Extensions::IDLE);
    assert_eq!(ask(&mut script, &mut peer), []);
}

fn tell(script: &mut Script, peer: &mut Peer, rto_us: u32) {
    let seg = Seg::ack().data_ack(peer.expected_dsn);
    peer.send(script, seg.mptcp(option(ExperimentalMessage::RtoInfo { rto_us })));
}

fn questions(script: &mut Script, peer: &mut Peer) -> usize {
    let sent = peer.receive_all(script);
    let asks = |s: &&SentSegment| messages(&s.seg).contains(&ExperimentalMessage::RtoRequest);
    sent.iter().filter(asks).count()
}

#[test]
fn the_announced_timeout_is_used_within_bounds() {
    for (rto_us, wait_ms) in [(700_000, 700), (213_000, 500), (0, 500), (u32::MAX, 10_000)] {
        let (mut script, mut peer) = client(BOTH);
        send(&mut script, &mut peer, b"that was it", true);
        script.advance(ms(1_000));
        send(&mut script, &mut peer, b"more to come", false);
        assert_eq!(questions(&mut script, &mut peer), 1);
        tell(&mut script, &mut peer, rto_us);
        send(&mut script, &mut peer, b"and more", false);
        assert_eq!(judged_after(&mut script), Some(wait_ms), "{rto_us} us");
    }
}

#[test]
fn an_answer_without_a_question_is_refused() {
    let (mut script, mut peer) = client(BOTH);
    script.advance(ms(1_000));
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(questions(&mut script, &mut peer), 1);
    tell(&mut script, &mut peer, 600_000);
    for _ in 0..10 {
        tell(&mut script, &mut peer, 9_000_000);
    }
    let counters = script.endpoint.counters();
    assert_eq!((counters.rto_info_rx, counters.rto_info_refused), (1, 10));
    send(&mut script, &mut peer, b"and more", false);
    assert_eq!(judged_after(&mut script), Some(600));
}

#[test]
fn timeout_questions_repeat_and_back_off_without_an_answer() {
    let (mut script, mut peer) = client(BOTH);
    let (mut asked, start) = (Vec::new(), script.now());
    for n in 0..300 {
        script.advance(ms(100));
        send(&mut script, &mut peer, &bytes(100, n as u8), false);
        for _ in 0..questions(&mut script, &mut peer) {
            asked.push(script.now().since(start).as_millis() / 100);
            if asked.len() > 3 {
                tell(&mut script, &mut peer, 300_000);
            }
        }
    }
    let gaps: Vec<u128> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(gaps[..3], [20, 40, 80], "unanswered, in tenths of a second: {asked:?}");
    assert!(gaps[3..].iter().all(|gap| *gap == 100), "answered: {asked:?}");
}

#[test]
fn only_agreed_peers_are_asked_for_their_timeout() {
    let (mut script, mut peer) = client(Extensions::IDLE);
    for n in 0..50 {
        script.advance(ms(100));
        send(&mut script, &mut peer, &bytes(100, n), false);
    }
    assert_eq!(questions(&mut script, &mut peer), 0);
    tell(&mut script, &mut peer, 9_000_000);
    assert_eq!(script.endpoint.counters().rto_info_rx, 0);
}
