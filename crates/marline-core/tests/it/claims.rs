//! Tests of the packets that an endpoint claims on addresses that it shares with others: only its own, and all of
//! them.

use std::time::Duration;

use marline_core::{Ecn, PacketMeta, SegmentRequest, Shard};
use marline_testkit::fixtures::path;
use marline_testkit::{Peer, Script, Seg, config, endpoint_config};
use marline_wire::SeqNum;

use crate::two_hosts::{served, served_path};

/// True if the endpoint claims this segment of a peer.
fn claims(script: &mut Script, peer: &Peer, seg: Seg) -> bool {
    let path = peer.path;
    let bytes = seg
        .ports(path.remote.port(), path.local.port())
        .bytes(Some((path.remote.ip(), path.local.ip())));
    let meta =
        PacketMeta { path, ecn: Ecn::NotEct, flow: 0, peer_flow: 0, checksum_verified: true };
    script.run(|endpoint, now| endpoint.owns_segment(now, &meta, &bytes))
}

#[test]
fn a_subflow_and_joins_to_its_connection_are_claimed_and_strangers_are_not() {
    let (mut script, first) = served(config(), 7, 1);
    let second = Peer::new(served_path(1), 0);
    let stranger = Peer::new(served_path(2), 9);
    assert!(claims(&mut script, &first, Seg::ack().at(first.next).acking(first.expected)));
    // The peer repeats its SYN, because the answer was lost.
    assert!(claims(&mut script, &first, first.capable_syn()));
    let data = Seg::ack().at(SeqNum(5)).acking(SeqNum(5)).payload(b"whose?");
    assert!(!claims(&mut script, &stranger, stranger.capable_syn()));
    assert!(!claims(&mut script, &stranger, data.clone()));
    assert!(!claims(&mut script, &stranger, Seg::rst()));
    let join = second.join_syn(&first, 1, 2);
    assert!(claims(&mut script, &second, join));
    assert!(!claims(&mut script, &second, data), "it has not joined yet");
    let mut unknown = Peer::new(served_path(0), 7);
    unknown.their_key = 0x1234;
    let join = second.join_syn(&unknown, 1, 2);
    assert!(!claims(&mut script, &second, join), "an unknown token");
}

#[test]
fn the_remains_of_a_subflow_are_claimed_until_a_newer_syn() {
    let (mut script, peer) = served(config(), 7, 1);
    let id = script.endpoint.connections()[0];
    script.run(|endpoint, now| endpoint.abort(now, id));
    script.run(|endpoint, now| endpoint.release(now, id));
    assert!(script.endpoint.connections().is_empty());
    let late = Seg::fin().at(peer.next).acking(peer.expected);
    assert!(claims(&mut script, &peer, late.clone()), "it is answered again");
    let again = Seg::syn().at(peer.next.add(1_000_000));
    assert!(!claims(&mut script, &peer, again), "it opens another connection");
    assert!(claims(&mut script, &peer, late.clone()), "no connection has it so far");
    script.advance(Duration::from_secs(300));
    assert!(!claims(&mut script, &peer, late), "nothing is left");
}

#[test]
fn the_final_ack_of_a_cookie_handshake_is_claimed_by_its_issuer() {
    let pressed = |seed| {
        let mut endpoint = endpoint_config(Some(config()));
        endpoint.limits.syn_queue = 8;
        let mut script = Script::new(endpoint, seed);
        for port in 0..20 {
            let nobody = Peer::new(path(0, 9, 1_000 + port), 0);
            nobody.inject(&mut script, nobody.capable_syn().at(SeqNum(1)));
        }
        let _ = script.take_sent();
        script
    };
    let (mut ours, mut theirs) = (pressed(1), pressed(2));
    let mut peer = Peer::new(path(0, 2, 40_000), 0);
    peer.send(&mut ours, Seg::syn().mss(1_000));
    let answer = ours.take_sent().pop().expect("a SYN/ACK");
    peer.record_received(&answer);
    let ack = Seg::ack().at(peer.next).acking(peer.expected);
    assert!(claims(&mut ours, &peer, ack.clone()));
    assert!(!claims(&mut theirs, &peer, ack), "another one's cookie");
    let guess = Seg::ack().at(peer.next).acking(peer.expected.add(1));
    assert!(!claims(&mut ours, &peer, guess));
}

#[test]
fn subflow_remains_give_way_to_joins_of_any_endpoint() {
    let (mut script, first) = served(config(), 7, 1);
    let path = served_path(1);
    let reset = |script: &mut Script| {
        // A subflow between these addresses was reset: its RST is repeated for a while.
        let gone = Peer::new(path, 0);
        gone.inject(script, gone.capable_syn());
        let of_path = |script: &Script, id: &_| {
            script.endpoint.info(*id).is_some_and(|info| info.subflows[0].path == path)
        };
        let ids = script.endpoint.connections();
        let id = *ids.iter().find(|id| of_path(script, id)).expect("half open");
        script.run(|endpoint, now| endpoint.abort(now, id));
        script.run(|endpoint, now| endpoint.release(now, id));
        let _ = script.take_sent();
    };
    reset(&mut script);
    let peer = Peer::new(path, 0);
    let late = Seg::ack().at(SeqNum(5)).acking(SeqNum(5)).payload(b"late");
    assert!(claims(&mut script, &peer, late.clone()), "it is left");
    assert!(claims(&mut script, &peer, peer.join_syn(&first, 1, 2).at(SeqNum(77))), "ours");
    let mut unknown = Peer::new(served_path(0), 7);
    unknown.their_key = 0x1234;
    let join = peer.join_syn(&unknown, 1, 2).at(SeqNum(77));
    assert!(!claims(&mut script, &peer, join), "another endpoint's");
    script.run(|endpoint, _| endpoint.release_address_pair(&path));
    assert!(!claims(&mut script, &peer, late), "the other endpoint owns the addresses");
    // A live connection stays.
    script.run(|endpoint, _| endpoint.release_address_pair(&first.path));
    assert!(claims(&mut script, &first, Seg::ack().at(first.next).acking(first.expected)));
}

#[test]
fn a_segment_is_classified_by_its_request() {
    let (_, first) = served(config(), 7, 1);
    let second = Peer::new(served_path(1), 0);
    let asks = |seg: Seg| SegmentRequest::of(&seg.ports(1, 2).bytes(None));
    assert_eq!(asks(second.capable_syn()), SegmentRequest::ToOpen);
    assert_eq!(asks(Seg::syn()), SegmentRequest::ToOpen);
    assert!(matches!(asks(second.join_syn(&first, 1, 2)), SegmentRequest::ToJoin(_)));
    assert_eq!(asks(Seg::ack()), SegmentRequest::Nothing);
    assert_eq!(asks(Seg::rst()), SegmentRequest::Nothing);
    assert_eq!(SegmentRequest::of(&[0; 7]), SegmentRequest::Nothing);
}

#[test]
fn joins_to_a_cookie_connection_reach_the_shard_that_issued_it() {
    for index in 0..4 {
        let mut endpoint = endpoint_config(Some(config()));
        endpoint.limits.syn_queue = 0;
        endpoint.shard = Shard { index, count: 4, generation: None };
        let mut script = Script::new(endpoint, 5);
        for port in 0..8 {
            let mut peer = Peer::new(path(0, 2, 40_000 + port), 9);
            peer.connect(&mut script);
            let join = Peer::new(path(1, 3, 40_000 + port), 0).join_syn(&peer, 1, 2);
            let SegmentRequest::ToJoin(token) = SegmentRequest::of(&join.ports(1, 2).bytes(None))
            else {
                unreachable!("a join")
            };
            assert!(script.endpoint.knows_token(token));
            assert_eq!(Shard::index_for_token(token, 4), index);
        }
        assert_eq!(script.endpoint.counters().syn_cookies_received, 8);
    }
}
