//! Tests of MP_CAPABLE, segment by segment: each form, each flag, in both roles, and losses (RFC 8684 section 3.1).

use marline_core::{ConnectionConfig, FallbackReason};
use marline_testkit::Seg;
use marline_testkit::timeline::multipath::{KEY, Subflows, capable, multipath, sum, syn, syn_ack};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{CapableData, MpCapable, MpCapableForm, MptcpOption};

const SYN: MpCapableForm = MpCapableForm::Syn;
const SYN_ACK: MpCapableForm = MpCapableForm::SynAck { listener_key: KEY };

fn option(capable: MpCapable) -> MptcpOption {
    MptcpOption::Capable(capable)
}

/// Keys in the client's first data.
fn keys_and_data(line: &Subflows, bytes: &[u8], checksum: Option<u16>) -> Seg {
    let MpCapableForm::Ack { initiator_key, listener_key, .. } = line.keys_form() else {
        unreachable!("that is its form")
    };
    let data = Some(CapableData { length: bytes.len() as u16, checksum });
    let form = MpCapableForm::Ack { initiator_key, listener_key, data };
    let checksum_required = checksum.is_some();
    let all = MpCapable { checksum_required, ..capable(form) };
    Seg::ack().flag(TcpFlags::PSH).mptcp(option(all)).payload(bytes)
}

fn half_open(flags: MpCapable) -> (Subflows, Vec<String>) {
    let mut line = Subflows::listening(multipath());
    line.send(0, syn().mptcp(option(flags)));
    let answer = line.sent();
    line.wait(10);
    (line, answer)
}

#[test]
fn keys_are_exchanged_one_after_the_other() {
    let (mut line, answer) = half_open(capable(SYN));
    assert_eq!(answer, ["a: S ack capable key"]);
    let third = Seg::ack().mptcp(option(capable(line.keys_form())));
    line.send(0, third);
    assert_eq!(line.sent(), ["a: ack 1 dack 1"], "the fourth ACK lets the client join immediately");
    line.id = line.script.take_incoming();
    assert_eq!(line.fallback(), None);
}

#[test]
fn the_first_data_stands_for_a_lost_third_ack() {
    let (mut line, _) = half_open(capable(SYN));
    let data = keys_and_data(&line, b"hello", None);
    line.advance_dsn(5);
    line.send(0, data);
    assert_eq!(line.sent(), [""; 0], "an answer may be as soon");
    assert_eq!(line.wait_for_send(100), Some(4));
    assert_eq!(line.sent(), ["a: ack 6 dack 6"]);
    line.id = line.script.take_incoming();
    assert_eq!(line.read(), b"hello");
    line.data(0, b", world");
    assert_eq!(line.read(), b", world", "a DSS continues where the keys' data ended");
    assert_eq!(line.fallback(), None);
}

#[test]
fn the_keys_data_has_a_checksum_if_that_was_agreed_on() {
    for right in [true, false] {
        let (mut line, answer) = half_open(MpCapable { checksum_required: true, ..capable(SYN) });
        assert_eq!(answer, ["a: S ack capable key A"]);
        let told = sum(line.dsn(1), 1, 5, b"hello") ^ u16::from(!right);
        let data = keys_and_data(&line, b"hello", Some(told));
        line.send(0, data);
        line.id = line.script.take_incoming();
        line.wait(4);
        let sent = line.sent();
        if right {
            assert_eq!(sent, ["a: ack 6 dack 6"]);
            assert_eq!(line.read(), b"hello");
        } else {
            assert!(sent.iter().any(|words| words.contains("fail 1")), "{sent:?}");
        }
    }
}

#[test]
fn the_first_data_of_a_client_that_speaks_first_is_its_third_ack() {
    for (wait_ms, sent) in [
        (0, vec!["a: 1:6 P capable keys+5"]),
        (3, vec!["a: 1:6 P capable keys+5"]),
        (4, vec!["a: ack 1 capable keys", "a: 1:6 P capable keys+5"]),
    ] {
        let config = ConnectionConfig { speaks_first: true, ..multipath() };
        let mut line = Subflows::calling(config);
        assert_eq!(line.sent(), ["a: S capable"]);
        line.wait(10);
        let form = MpCapableForm::SynAck { listener_key: KEY };
        line.send(0, syn_ack().mptcp(option(capable(form))));
        assert_eq!(line.sent(), [""; 0], "the application is about to write");
        line.wait(wait_ms);
        line.write(5);
        assert_eq!(line.sent(), sent, "written after {wait_ms} ms");
    }
}

#[test]
fn the_client_says_the_keys_with_its_first_data_until_a_dss_comes() {
    let mut line = Subflows::called(multipath());
    line.write(5);
    assert_eq!(line.sent(), ["a: 1:6 P capable keys+5"]);
    line.wait_for_send(5_000).expect("it is repeated");
    assert_eq!(line.sent(), ["a: 1:6 P capable keys+5"], "the same again");
    line.write(5);
    assert_eq!(
        line.sent(),
        ["a: 6:11 P dack 1 dsn 6+5"],
        "only the first bytes are sent with keys"
    );
    line.ack(0);
    line.write(5);
    assert_eq!(line.sent(), ["a: 11:16 P dack 1 dsn 11+5"]);
}

#[test]
fn a_server_that_speaks_first_needs_no_keys_said_again() {
    let mut line = Subflows::called(multipath());
    line.data(0, b"220 hello");
    assert_eq!(line.sent(), ["a: ack 10 dack8 10"], "numbers as long as the server's");
    line.write(5);
    assert_eq!(line.sent(), ["a: 1:6 P dack8 10 dsn 1+5"]);
    assert_eq!(line.read(), b"220 hello");
}

#[test]
fn checksums_are_on_if_either_side_asks() {
    for (ours, theirs) in [(true, false), (false, true), (true, true), (false, false)] {
        let config = ConnectionConfig { dss_checksum: ours, ..multipath() };
        let mut line = Subflows::calling(config);
        let flag = if ours { " A" } else { "" };
        assert_eq!(line.sent(), [format!("a: S capable{flag}")]);
        let answer = MpCapable { checksum_required: theirs, ..capable(SYN_ACK) };
        line.send(0, syn_ack().mptcp(option(answer)));
        let flag = if ours || theirs { " A" } else { "" };
        assert_eq!(line.sent(), [format!("a: ack 1 capable keys{flag}")]);
        line.write(5);
        let sum = if ours || theirs { " sum A" } else { "" };
        assert_eq!(line.sent(), [format!("a: 1:6 P capable keys+5{sum}")]);
        line.ack(0);
        line.write(5);
        let sum = if ours || theirs { " sum" } else { "" };
        assert_eq!(line.sent(), [format!("a: 6:11 P dack 1 dsn 6+5{sum}")]);
    }
}

#[test]
fn a_listener_offers_its_version_or_falls_back_to_plain_tcp() {
    let base = capable(SYN);
    let cases = [
        (MpCapable { version: 2, ..base }, true),
        (MpCapable { version: 15, ..base }, true),
        (MpCapable { version: 0, ..base }, false),
        (MpCapable { extensibility: true, ..base }, false),
        (MpCapable { hmac_sha256: false, ..base }, false),
        (MpCapable { deny_join_id0: true, ..base }, true),
    ];
    for (flags, understood) in cases {
        let (mut line, answer) = half_open(flags);
        let expected = if understood { "a: S ack capable key" } else { "a: S ack" };
        assert_eq!(answer, [expected], "{flags:?}");
        if !understood {
            line.send(0, Seg::ack().payload(b"plain"));
            line.id = line.script.take_incoming();
            assert_eq!(line.sent(), ["a: ack 6"]);
            assert_eq!(line.read(), b"plain");
        }
    }
}

#[test]
fn an_answer_that_cannot_be_read_leaves_plain_tcp() {
    let base = capable(SYN_ACK);
    let answers = [
        None,
        Some(MpCapable { version: 0, ..base }),
        Some(MpCapable { version: 2, ..base }),
        Some(MpCapable { extensibility: true, ..base }),
        Some(MpCapable { hmac_sha256: false, ..base }),
        Some(capable(SYN)),
    ];
    for answer in answers {
        let mut line = Subflows::calling(multipath());
        let _ = line.sent();
        let seg = answer.map_or(syn_ack(), |answer| syn_ack().mptcp(option(answer)));
        line.send(0, seg);
        assert_eq!(line.sent(), ["a: ack 1"], "{answer:?}");
        assert_eq!(line.fallback(), Some(FallbackReason::SynAckWithoutOption));
        line.write(5);
        assert_eq!(line.sent(), ["a: 1:6 P"]);
        line.send(0, Seg::ack().payload(b"plain"));
        assert_eq!(line.read(), b"plain");
    }
}

#[test]
fn a_third_ack_with_wrong_keys_falls_back_to_tcp() {
    let (mut line, _) = half_open(capable(SYN));
    let MpCapableForm::Ack { initiator_key, listener_key, .. } = line.keys_form() else {
        unreachable!("that is its form")
    };
    let form = MpCapableForm::Ack { initiator_key, listener_key: !listener_key, data: None };
    line.send(0, Seg::ack().mptcp(option(capable(form))));
    line.id = line.script.take_incoming();
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    line.write(3);
    assert_eq!(line.sent(), ["a: 1:4 P"]);
}

#[test]
fn a_repeated_syn_gets_the_same_key_unless_it_lacks_the_option() {
    let (mut line, _) = half_open(capable(SYN));
    line.send_at(0, 0, Seg { options: syn().options, ..Seg::syn() }.mptcp(option(capable(SYN))));
    assert_eq!(line.sent(), ["a: S ack capable key"], "the key does not change");
    line.send_at(0, 0, Seg { options: syn().options, ..Seg::syn() });
    assert_eq!(line.sent(), ["a: S ack"], "the client gave the option up");
    line.send(0, Seg::ack().payload(b"plain"));
    line.id = line.script.take_incoming();
    assert_eq!(line.read(), b"plain");
}

#[test]
fn an_unanswered_syn_ack_is_repeated_with_the_same_key() {
    let (mut line, _) = half_open(capable(SYN));
    let first = line.wait_for_send(5_000);
    assert_eq!(line.sent(), ["a: S ack capable key"]);
    let second = line.wait_for_send(5_000);
    assert_eq!(line.sent(), ["a: S ack capable key"]);
    assert_eq!((first, second), (Some(990), Some(2_000)), "a second, and it doubles");
}

#[test]
fn after_three_unanswered_syns_the_option_is_left_out() {
    let mut line = Subflows::calling(multipath());
    let mut said = line.sent();
    for _ in 0..4 {
        line.wait_for_send(60_000).expect("the attempt continues");
        said.extend(line.sent());
    }
    let (with, without) = ("a: S capable", "a: S");
    assert_eq!(said, [with, with, with, without, without]);
    line.send(0, syn_ack().mptcp(option(capable(SYN_ACK))));
    assert_eq!(line.sent(), ["a: ack 1"], "a late key has no effect");
    assert_eq!(line.fallback(), Some(FallbackReason::SynRetries));
}

#[test]
fn both_sides_may_call_at_once_and_talk() {
    let mut line = Subflows::calling(multipath());
    let _ = line.sent();
    line.send_at(0, 0, Seg { options: syn().options, ..Seg::syn() }.mptcp(option(capable(SYN))));
    let answer = line.sent();
    assert!(answer[0].starts_with("a: S ack"), "{answer:?}");
    let peer = &mut line.peers[0];
    peer.next = peer.iss.add(1);
    line.send(0, Seg::ack());
    line.write(5);
    assert_eq!(line.sent(), ["a: 1:6 P"], "RFC 8684 has no keys for that: plain TCP");
}

#[test]
fn flag_c_is_said_and_heard() {
    let config = ConnectionConfig { deny_join_id0: true, ..multipath() };
    let mut line = Subflows::calling(config);
    assert_eq!(line.sent(), ["a: S capable C"]);
    line.send(0, syn_ack().mptcp(option(capable(SYN_ACK))));
    assert_eq!(line.sent(), ["a: ack 1 capable keys C"]);
}
