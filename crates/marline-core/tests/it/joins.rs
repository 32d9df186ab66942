//! Tests of joins that are forged, replayed, or opened too early and too often (RFC 8684 section 3.2).

use std::time::Duration;

use marline_core::{ConnectionId, SubflowState};
use marline_policy::{AddressId, LocalAddress};
use marline_testkit::fixtures::{listening, path, serve, served};
use marline_testkit::{Expect, Peer, Script, Seg, SentSegment, config, endpoint_config, keys};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{MpJoin, MptcpOption};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn is_reset(sent: &SentSegment) -> bool {
    sent.seg.header.flags.contains(TcpFlags::RST)
}

/// A reset with a reason, as a refused join gets.
fn reset() -> Expect {
    Expect::any()
        .that("RST", |s| s.header.flags.contains(TcpFlags::RST))
        .mptcp("MP_TCPRST", |o| matches!(o, MptcpOption::TcpRst(_)))
}

/// Sends a SYN that joins `first` and takes the SYN/ACK. Returns the endpoint's HMAC and nonce.
fn half_join(script: &mut Script, peer: &mut Peer, first: &Peer, nonce: u32) -> (SentSegment, u32) {
    peer.timestamps = Some((1, 0));
    let syn = peer.join_syn(first, nonce, 1);
    peer.send(script, syn);
    let sent = script.expect(&Expect::any().flags(TcpFlags::SYN.with(TcpFlags::ACK)));
    let Some(MpJoin::SynAck { hmac, nonce: theirs, .. }) = sent.seg.options.mptcp.join() else {
        panic!("a SYN/ACK without MP_JOIN: {:#?}", sent.seg);
    };
    assert_eq!(hmac, keys::left64(keys::join_hmac(first.their_key, first.key, theirs, nonce)));
    peer.record_received(&sent);
    (sent, theirs)
}

/// Third ACK of a join, with the HMAC for these nonces.
fn third_ack(first: &Peer, nonce: u32, theirs: u32) -> Seg {
    let hmac = keys::join_hmac(first.key, first.their_key, nonce, theirs);
    let mut truncated = [0; 20];
    truncated.copy_from_slice(&hmac[..20]);
    Seg::ack().mptcp(MptcpOption::Join(MpJoin::Ack { hmac: truncated }))
}

fn subflows(script: &Script, id: ConnectionId) -> Vec<SubflowState> {
    let info = script.endpoint.info(id).expect("the connection exists");
    info.subflows.iter().map(|s| s.state).collect()
}

/// The connection has one subflow, and its stream continues.
fn unharmed(script: &mut Script, first: &mut Peer, id: ConnectionId) {
    script.advance(MS(100));
    first.receive_all(script);
    first.send_data(script, b"unharmed");
    assert_eq!(script.read_all(id), b"unharmed");
    assert_eq!(subflows(script, id), [SubflowState::Established]);
}

#[test]
fn a_wrong_hmac_ends_the_join_and_nothing_else() {
    let (mut script, mut first, id) = served(listening(), 1);
    let mut second = Peer::new(path(1, 2, 40_000), 0);
    let (_, theirs) = half_join(&mut script, &mut second, &first, 7);
    // Data before the authentication is ignored.
    let early = second.stamp(Seg::ack().mapping(first.next_dsn, 1, 4).payload(b"evil"));
    second.inject(&mut script, early);
    assert_eq!(script.read_all(id), b"");
    let wrong = third_ack(&first, 7, theirs ^ 1);
    second.send(&mut script, wrong);
    script.expect(&reset());
    assert_eq!(script.endpoint.counters().mp_join_bad_hmac, 1);
    let after = second.stamp(Seg::ack().mapping(first.next_dsn, 1, 4).payload(b"evil"));
    second.inject(&mut script, after);
    assert_eq!(script.read_all(id), b"");
    assert!(script.take_sent().iter().all(is_reset));
    unharmed(&mut script, &mut first, id);
}

#[test]
fn a_blind_attacker_cannot_end_a_join() {
    let (mut script, mut first, id) = served(listening(), 2);
    let mut second = Peer::new(path(1, 2, 40_000), 0);
    let (_, theirs) = half_join(&mut script, &mut second, &first, 7);
    let wrong = || second.stamp(third_ack(&first, 7, theirs ^ 1));
    for off in [1, 1_000, 1 << 31] {
        let guessed = wrong();
        let guessed = guessed.clone().acking(guessed.header.ack.add(off));
        second.inject(&mut script, guessed);
        let guessed = wrong();
        second.inject(&mut script, guessed.clone().at(guessed.header.seq.add(off)));
    }
    assert_eq!(script.endpoint.counters().mp_join_bad_hmac, 0);
    script.advance(MS(10));
    let right = third_ack(&first, 7, theirs);
    second.send(&mut script, right);
    assert_eq!(subflows(&script, id), [SubflowState::Established; 2]);
    first.receive_all(&mut script);
    second.next_dsn = first.next_dsn;
    second.send_data(&mut script, b"joined");
    assert_eq!(script.read_all(id), b"joined");
}

#[test]
fn replayed_syns_and_third_acks() {
    let (mut script, mut first, id) = served(listening(), 3);
    let mut second = Peer::new(path(1, 2, 40_000), 0);
    let (answer, theirs) = half_join(&mut script, &mut second, &first, 7);
    // The same SYN again: the same answer, no second subflow.
    let syn = second.join_syn(&first, 7, 1).at(second.iss).timestamps(1, 0);
    script.inject(second.path, syn.clone());
    let again = script.expect(&Expect::any().flags(answer.seg.header.flags));
    assert_eq!(again.seg.header.seq, answer.seg.header.seq);
    assert_eq!(again.seg.options.mptcp.join(), answer.seg.options.mptcp.join());
    script.advance(MS(10));
    let ack = third_ack(&first, 7, theirs);
    second.send(&mut script, ack.clone());
    assert_eq!(subflows(&script, id), [SubflowState::Established; 2]);
    script.advance(MS(10));
    let _ = script.take_sent();

    // A repeated third ACK from the same address: the fourth was lost, and is repeated, without other effects.
    // From another address it is unknown.
    for _ in 0..2 {
        second.inject(&mut script, second.stamp(ack.clone()));
        let fourth = script.expect(&Expect::any().flags(TcpFlags::ACK));
        assert_eq!((fourth.path, fourth.seg.payload.len()), (second.path, 0));
        assert!(script.take_sent().is_empty());
        script.advance(MS(10));
    }
    let third = Peer { path: path(2, 2, 40_000), ..second.clone() };
    third.inject(&mut script, third.stamp(ack.clone()));
    script.expect(&Expect::any().flags(TcpFlags::RST));

    // The whole handshake recorded and replayed from another address: the endpoint's nonce is different, so the
    // HMAC is invalid.
    let mut thief = Peer::new(path(3, 2, 40_000), 0);
    let (_, fresh) = half_join(&mut script, &mut thief, &first, 7);
    assert_ne!(fresh, theirs);
    thief.send(&mut script, ack);
    script.expect(&reset());
    assert_eq!(script.endpoint.counters().mp_join_bad_hmac, 1);
    assert_eq!(subflows(&script, id), [SubflowState::Established; 2]);
    first.receive_all(&mut script);
    first.send_data(&mut script, b"fine");
    assert_eq!(script.read_all(id), b"fine");
}

#[test]
fn a_join_before_the_keys_are_known_is_refused() {
    let mut script = Script::new(listening(), 4);
    let mut first = Peer::new(path(0, 2, 40_000), 0x55);
    // Learn the token from another run of the same endpoint: equal seeds, equal keys.
    let mut oracle = Script::new(listening(), 4);
    let mut twin = first.clone();
    twin.connect(&mut oracle);
    first.their_key = twin.their_key;
    script.inject(first.path, first.capable_syn().at(first.iss).timestamps(1, 0));
    script.expect(&Expect::any().flags(TcpFlags::SYN.with(TcpFlags::ACK)));
    let mut second = Peer::new(path(1, 2, 40_000), 0);
    let join = second.join_syn(&first, 9, 1);
    second.send(&mut script, join);
    script.expect(&reset());
    assert_eq!(script.endpoint.counters().mp_join_rejected, 1);
    assert_eq!(script.endpoint.connections().len(), 1);
}

#[test]
fn pending_joins_are_bounded_and_their_places_come_free() {
    let mut limits = listening();
    limits.limits.pending_joins = 3;
    let (mut script, mut first, id) = served(limits, 5);
    let mut refused = 0;
    for port in 0..1_000 {
        let mut peer = Peer::new(path(1, 2, 20_000 + port), 0);
        let syn = peer.join_syn(&first, u32::from(port), 1);
        peer.send(&mut script, syn);
        refused += script.take_sent().iter().filter(|s| is_reset(s)).count();
    }
    let states = subflows(&script, id);
    assert_eq!(states.len(), 1 + 3, "{states:?}");
    assert_eq!(script.endpoint.counters().mp_join_rejected, 997);
    println!("997 of 1000 joins refused, {refused} with a reset within the limit on answers");
    unharmed_by_pending(&mut script, &mut first, id);
    // The attempts end by themselves, and a real join finds room.
    script.advance(Duration::from_secs(300));
    assert_eq!(subflows(&script, id), [SubflowState::Established]);
    assert_eq!(script.endpoint.info(id).expect("the connection exists").gone.len(), 0);
    let _ = script.take_sent();
    let mut second = Peer::new(path(2, 2, 40_000), 0);
    second.join(&mut script, &first, 2);
    assert_eq!(subflows(&script, id), [SubflowState::Established; 2]);
}

fn unharmed_by_pending(script: &mut Script, first: &mut Peer, id: ConnectionId) {
    script.advance(MS(10));
    first.receive_all(script);
    first.send_data(script, b"pending");
    assert_eq!(script.read_all(id), b"pending");
}

/// A client with two addresses; its first subflow and its SYN of the second.
fn joining_client(seed: u64) -> (Script, Peer, ConnectionId, Peer, u32) {
    let mut with_two = config();
    with_two.local_addresses =
        [0u8, 1].map(|net| LocalAddress::new(AddressId(net), ([10, net, 0, 1], 0).into())).to_vec();
    let mut script = Script::new(endpoint_config(None), seed);
    let ends = path(0, 2, 443);
    let id = script.connect(with_two, ends.local, ends.remote);
    let mut first = Peer::new(ends, 0x9999);
    first.accept(&mut script);
    first.send_data(&mut script, b"hello");
    assert_eq!(script.read_all(id), b"hello");
    script.advance(MS(200));
    let sent = script.take_sent();
    let is_join = |s: &&SentSegment| matches!(s.seg.options.mptcp.join(), Some(MpJoin::Syn { .. }));
    let syn = sent.iter().find(is_join).expect("a join from the second address");
    let Some(MpJoin::Syn { nonce, token, .. }) = syn.seg.options.mptcp.join() else { panic!() };
    assert_eq!(token, keys::token(first.key));
    let on_first = sent.iter().filter(|s| s.path == ends);
    on_first.for_each(|s| first.record_received(s));
    let mut second = Peer::new(syn.path, first.key);
    second.their_key = first.their_key;
    if syn.seg.options.timestamps.is_some() {
        second.timestamps = Some((1, 0));
    }
    second.record_received(syn);
    (script, first, id, second, nonce)
}

#[test]
fn a_client_does_not_believe_a_server_without_the_right_hmac() {
    let theirs = 0x4242;
    for wrong in [Some(1), None] {
        let (mut script, mut first, id, mut second, nonce) = joining_client(6);
        let hmac = keys::left64(keys::join_hmac(first.key, first.their_key, theirs, nonce));
        let mut answer = Seg::syn_ack().mss(1_400).sack_permitted().window_scale(7);
        if let Some(wrong) = wrong {
            let hmac = hmac ^ wrong;
            let join = MpJoin::SynAck { backup: false, address_id: 0, hmac, nonce: theirs };
            answer = answer.mptcp(MptcpOption::Join(join));
        }
        // A peer that did not see the SYN has no effect.
        let blind = second.stamp(answer.clone());
        second.inject(&mut script, blind.clone().acking(blind.header.ack.add(1)));
        assert_eq!(subflows(&script, id), [SubflowState::Established, SubflowState::SynSent]);
        let _ = script.take_sent();
        second.send(&mut script, answer);
        let told = script.expect(&reset().at(second.expected));
        assert!(!told.seg.header.flags.contains(TcpFlags::ACK));
        unharmed(&mut script, &mut first, id);
    }
}

#[test]
fn a_join_to_a_connection_that_ended_is_refused() {
    let (mut script, first, id) = served(listening(), 7);
    script.run(|e, now| e.abort(now, id));
    script.run(|e, now| e.release(now, id));
    script.advance(Duration::from_secs(1));
    let _ = script.take_sent();
    let mut second = Peer::new(path(1, 2, 40_000), 0);
    let syn = second.join_syn(&first, 1, 1);
    second.send(&mut script, syn);
    script.expect(&reset());
    assert_eq!(script.endpoint.counters().mp_join_no_token, 1);
    assert!(script.endpoint.connections().is_empty());
    let mut next = Peer::new(path(0, 2, 50_000), 0x77);
    serve(&mut script, &mut next);
}

/// The client stops immediately, and does not repeat its SYN for half a minute.
#[test]
fn a_join_to_a_connection_that_ended_and_that_the_application_still_holds_is_to_an_unknown_one() {
    let (mut script, first, id) = served(listening(), 7);
    script.run(|e, now| e.abort(now, id));
    script.advance(Duration::from_secs(1));
    let _ = script.take_sent();
    assert_eq!(script.endpoint.connections(), [id], "it is held");
    let mut second = Peer::new(path(1, 2, 40_000), 0);
    let syn = second.join_syn(&first, 1, 1);
    second.send(&mut script, syn);
    let unknown =
        |o: &MptcpOption| matches!(o, MptcpOption::TcpRst(r) if r.reason == 1 && !r.transient);
    script.expect(&Expect::any().mptcp("MPTCP specific error", unknown));
    assert_eq!(script.endpoint.counters().mp_join_no_token, 1);
}

/// The fourth ACK was lost, and the server sends a probe, which shows that it received the third.
#[test]
fn a_server_that_asks_on_a_joined_subflow_has_seen_the_third_ack() {
    let (mut script, mut first, id, mut second, nonce) = joining_client(8);
    let theirs = 0x4242;
    let hmac = keys::left64(keys::join_hmac(first.key, first.their_key, theirs, nonce));
    let join = MpJoin::SynAck { backup: false, address_id: 0, hmac, nonce: theirs };
    let answer = Seg::syn_ack().mss(1_400).sack_permitted().window_scale(7);
    second.send(&mut script, answer.mptcp(MptcpOption::Join(join)));
    let is_third = |o: &MptcpOption| matches!(o, MptcpOption::Join(MpJoin::Ack { .. }));
    let third = Expect::any().mptcp("the third ACK", is_third);
    script.expect(&third);
    script.advance(MS(30));
    let question = second.stamp(Seg::ack()).at(second.iss);
    second.inject(&mut script, question);
    let plain = |seg: &Seg| seg.options.mptcp.join().is_none() && seg.is_empty();
    script.expect(&Expect::any().that("an ACK without the HMAC", plain));
    let repeated = script.advance_to_send(Duration::from_secs(5));
    assert!(!repeated, "{:#?}", script.take_sent());
    unharmed_by_pending(&mut script, &mut first, id);
}
