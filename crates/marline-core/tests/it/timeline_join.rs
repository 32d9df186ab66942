//! Tests of MP_JOIN, segment by segment: its three forms in both roles, priorities, losses, and
//! every refusal (RFC 8684 section 3.2).

use marline_core::{ConnectionConfig, EndpointConfig, Limits};
use marline_policy::{AddressId, LocalAddress};
use marline_testkit::timeline::multipath::{Subflows, multipath, syn_ack};
use marline_testkit::{Seg, endpoint_config, keys};
use marline_wire::mptcp::{MpJoin, MptcpOption};
use marline_wire::{TcpFlags, TcpOptions};

/// A client with a second address; the server has sent a DSS, and the join's SYN was sent.
fn joining(backup: bool) -> Subflows {
    let second = LocalAddress {
        backup,
        ..LocalAddress::new(AddressId(2), "10.1.0.1:0".parse().expect("an address"))
    };
    let config = ConnectionConfig { local_addresses: vec![second], ..multipath() };
    let mut line = Subflows::called(config);
    line.ack(0);
    let flag = if backup { " B" } else { "" };
    assert_eq!(
        line.sent(),
        [format!("b: S join 2{flag}")],
        "the first DSS shows that the keys arrived"
    );
    line.wait(10);
    line
}

fn served() -> Subflows {
    Subflows::served(multipath())
}

fn nothing() -> [&'static str; 0] {
    []
}

#[test]
fn a_peer_joins() {
    let mut line = served();
    let b = line.add_path();
    let syn = line.join_syn(3, false);
    line.send(b, syn);
    assert_eq!(line.sent(), ["b: S ack join 0 hmac"]);
    line.wait(10);
    let third = line.join_ack(b);
    line.send(b, third);
    assert_eq!(line.sent(), ["b: ack 1 dack 1"], "the fourth ACK, immediately");
    line.data(b, b"here");
    assert_eq!(line.sent(), ["b: ack 5 dack8 5"]);
    assert_eq!(line.read(), b"here");
}

#[test]
fn we_join_and_send_nothing_before_the_fourth_ack() {
    let mut line = joining(false);
    let answer = line.join_syn_ack(1, 0, false);
    line.send(1, answer);
    assert_eq!(line.sent(), ["b: ack 1 join hmac"]);
    let again = line.wait_for_send(5_000).expect("until it is acknowledged");
    assert!((10..1_100).contains(&again), "{again} ms");
    assert_eq!(line.sent(), ["b: ack 1 join hmac"]);
    line.send_at(0, 1, Seg::fin());
    let _ = line.sent();
    line.write(5);
    assert!(line.sent().iter().all(|words| !words.starts_with("b: 1:")), "b may not carry yet");
    line.ack(1);
    let sent = line.sent();
    assert!(sent.iter().any(|words| words.starts_with("b: 1:6 P")), "now it may: {sent:?}");
}

#[test]
fn a_third_ack_waits_two_round_trips_for_the_fourth_and_then_for_the_timer() {
    let mut line = joining(false);
    line.wait(50);
    let answer = line.join_syn_ack(1, 0, false);
    line.send(1, answer);
    assert_eq!(line.sent(), ["b: ack 1 join hmac"]);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        pauses.push(line.wait_for_send(60_000).expect("again"));
        assert_eq!(line.sent(), ["b: ack 1 join hmac"]);
    }
    assert_eq!(pauses[..2], [120, 120], "the fourth is not delayed; the round trip takes 60 ms");
    assert!(pauses[2] >= 200 && pauses[3] == 2 * pauses[2], "{pauses:?}");
}

#[test]
fn data_of_the_answerer_is_as_good_as_the_fourth_ack() {
    let mut line = joining(false);
    let answer = line.join_syn_ack(1, 0, false);
    line.send(1, answer);
    let _ = line.sent();
    line.data(1, b"soon");
    assert_eq!(line.sent(), ["b: ack 5 dack8 5"], "no further third ACK");
    assert_eq!(line.wait_for_send(5_000), None);
}

#[test]
fn backup_is_said_in_the_syn_and_each_side_speaks_for_itself() {
    let mut line = joining(true);
    let answer = line.join_syn_ack(1, 0, false);
    line.send(1, answer);
    assert_eq!(line.sent(), ["b: ack 1 join hmac"]);
    let mut line = served();
    let b = line.add_path();
    let syn = line.join_syn(3, true);
    line.send(b, syn);
    assert_eq!(line.sent(), ["b: S ack join 0 hmac"], "the peer's request does not set our flag");
    let third = line.join_ack(b);
    line.send(b, third);
    let _ = line.sent();
    line.write(2_000);
    assert!(line.sent().iter().all(|words| words.starts_with("a: ")), "b is the peer's backup");
}

#[test]
fn a_syn_ack_without_proof_is_answered_by_a_reset_that_says_why() {
    let wrong = |line: &Subflows| {
        let mut seg = line.join_syn_ack(1, 0, false);
        seg.options.mptcp = Default::default();
        let (hmac, nonce) = (0x0bad_0bad, 7);
        seg.mptcp(MptcpOption::Join(MpJoin::SynAck { backup: false, address_id: 0, hmac, nonce }))
    };
    let bare = |_: &Subflows| syn_ack();
    let of_another_form = |line: &Subflows| {
        let join = line.join_ack(1).options.mptcp;
        Seg { options: TcpOptions { mptcp: join, ..syn_ack().options }, ..syn_ack() }
    };
    type Answer = fn(&Subflows) -> Seg;
    let cases: [(Answer, &str); 3] =
        [(wrong, "reset 1"), (bare, "reset 6"), (of_another_form, "reset 6")];
    for (answer, expected) in cases {
        let mut line = joining(false);
        let answer = answer(&line);
        line.send(1, answer);
        let sent = line.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert!(sent[0].starts_with("b: R ") && sent[0].ends_with(expected), "{sent:?}");
        line.write(5);
        assert_eq!(line.sent(), ["a: 1:6 P dack 1 dsn 1+5"], "the connection does not suffer");
    }
}

#[test]
fn a_join_that_is_refused_or_not_answered_leaves_the_connection_alone() {
    let mut line = joining(false);
    line.send(1, Seg::rst().flag(TcpFlags::ACK));
    assert_eq!(line.sent(), nothing());
    line.write(5);
    assert_eq!(line.sent(), ["a: 1:6 P dack 1 dsn 1+5"]);
    line.ack(0);

    let mut line = joining(false);
    let mut repeats = Vec::new();
    for _ in 0..2 {
        repeats.push(line.wait_for_send(10_000).expect("join_syn_retries is 2"));
        assert_eq!(line.sent(), ["b: S join 2"]);
    }
    assert_eq!(repeats, [990, 2_000]);
}

#[test]
fn a_third_ack_without_proof_is_answered_by_a_reset_that_says_why() {
    let wrong = Seg::ack().mptcp(MptcpOption::Join(MpJoin::Ack { hmac: [7; 20] }));
    for (third, expected) in [(wrong, "reset 1"), (Seg::ack(), "reset 6")] {
        let mut line = served();
        let b = line.add_path();
        let syn = line.join_syn(3, false);
        line.send(b, syn);
        let _ = line.sent();
        line.send(b, third);
        let sent = line.sent();
        assert_eq!(sent, [format!("b: R 1 {expected}")]);
        line.data(0, b"alive");
        assert_eq!(line.read(), b"alive");
    }
}

#[test]
fn a_syn_ack_of_a_join_is_repeated_until_the_third_ack() {
    let mut line = served();
    let b = line.add_path();
    let syn = line.join_syn(3, false);
    line.send(b, syn);
    let mut said = line.sent();
    line.wait_for_send(5_000).expect("a timer");
    said.extend(line.sent());
    assert_eq!(said, ["b: S ack join 0 hmac"; 2]);
    let third = line.join_ack(b);
    line.send(b, third);
    assert_eq!(line.sent(), ["b: ack 1 dack 1"]);
    let again = line.join_ack(b);
    line.send(b, again);
    assert_eq!(line.sent(), ["b: ack 1 dack 1"], "a repeated third ACK lost its answer");
}

#[test]
fn syns_that_may_not_join_are_refused_with_a_reason() {
    // An unknown token.
    let mut line = served();
    let b = line.add_path();
    let token = !keys::token(line.peers[0].their_key);
    let stranger = MpJoin::Syn { backup: false, address_id: 3, token, nonce: 1 };
    let mut syn = line.join_syn(3, false);
    syn.options.mptcp = Default::default();
    line.send(b, syn.mptcp(MptcpOption::Join(stranger)));
    assert_eq!(line.sent(), ["b: R 0 reset 1"]);

    // More than the limit on half-open joins.
    let limits = Limits { pending_joins: 1, ..Limits::default() };
    let config = EndpointConfig { limits, ..endpoint_config(Some(multipath())) };
    let mut line = Subflows::listening_with_config(config);
    line.open();
    for expected in ["b: S ack join 0 hmac", "c: R 0 reset 3"] {
        let on = line.add_path();
        let syn = line.join_syn(on as u8, false);
        line.send(on, syn);
        assert_eq!(line.sent(), [expected]);
    }

    // A connection on plain TCP, and one that ended.
    let mut line = Subflows::served(multipath());
    line.send(0, Seg::ack().payload(b"no option"));
    let _ = line.sent();
    assert!(line.fallback().is_some());
    let b = line.add_path();
    let syn = line.join_syn(3, false);
    line.send(b, syn);
    let sent = line.sent();
    assert_eq!(sent, ["b: R 0 reset 1"]);

    let mut line = served();
    line.abort();
    let _ = line.sent();
    let b = line.add_path();
    let syn = line.join_syn(3, false);
    line.send(b, syn);
    assert_eq!(line.sent(), ["b: R 0 reset 1"], "although the application holds it");
    line.release();
    let c = line.add_path();
    let syn = line.join_syn(4, false);
    line.send(c, syn);
    assert_eq!(line.sent(), ["c: R 0 reset 1"], "then the connection is unknown");
}
