//! Tests of first SYNs over several paths, segment by segment: the schedule, the winner, the end of the others,
//! and when the option is left out (docs/decisions/opening.md).

use marline_core::{CloseReason, ConnectionConfig, Event, FallbackReason};
use marline_policy::{AddressId, LocalAddress};
use marline_testkit::Seg;
use marline_testkit::timeline::multipath::{KEY, Subflows, capable, multipath, syn_ack};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{MpCapableForm, MptcpOption};

fn address(n: u8, backup: bool) -> LocalAddress {
    LocalAddress {
        backup,
        ..LocalAddress::new(AddressId(n), format!("10.{n}.0.1:0").parse().expect("an address"))
    }
}

/// A client with these addresses besides the first.
fn config(others: &[LocalAddress]) -> ConnectionConfig {
    let local_addresses = [&[address(0, false)], others].concat();
    ConnectionConfig { local_addresses, ..multipath() }
}

fn calling(others: &[LocalAddress]) -> Subflows {
    let mut line = Subflows::calling(config(others));
    assert_eq!(line.sent(), ["a: S capable"]);
    line
}

/// Two paths, with a SYN sent on both.
fn both_asked() -> Subflows {
    let mut line = calling(&[address(2, false)]);
    assert_eq!(line.wait_for_send(5_000), Some(250));
    assert_eq!(line.sent(), ["b: S capable"]);
    line
}

fn with_key() -> Seg {
    let form = MpCapableForm::SynAck { listener_key: KEY };
    syn_ack().mptcp(MptcpOption::Capable(capable(form)))
}

/// Returns the segments sent within this time without further input, each with the milliseconds since now.
fn sends(line: &mut Subflows, within_ms: u64) -> Vec<(u64, String)> {
    let (mut said, mut passed) = (Vec::new(), 0);
    while let Some(after) = line.wait_for_send(within_ms - passed) {
        passed += after;
        said.extend(line.sent().into_iter().map(|words| (passed, words)));
    }
    said
}

/// These segments as text.
fn said(line: &mut Subflows, within_ms: u64) -> Vec<String> {
    sends(line, within_ms).into_iter().map(|(ms, words)| format!("{ms} {words}")).collect()
}

fn is_connected(line: &mut Subflows) -> bool {
    let events = line.script.take_events();
    events.iter().any(|event| matches!(event, Event::Connected { .. }))
}

#[test]
fn a_silent_first_path_is_joined_later() {
    let mut line = both_asked();
    line.wait(20);
    line.send(1, with_key());
    assert_eq!(line.sent(), ["b: ack 1 capable keys"]);
    assert!(is_connected(&mut line));
    assert_eq!(line.fallback(), None);
    line.write(5);
    assert_eq!(line.sent(), ["b: 1:6 P capable keys+5"]);
    line.ack(1);
    let sent = line.sent();
    assert_eq!(sent, ["c: S join 2"], "0 is the initial subflow's, and 2 is free");
    line.peers[2].their_key = line.peers[1].their_key;
    let join = line.join_syn_ack(2, 0, false);
    line.wait(20);
    line.send(2, join);
    assert_eq!(line.sent(), ["c: ack 1 join hmac"]);
    line.ack(2);
    let _ = line.sent();
    let subflows = line.script.endpoint.info(line.id()).expect("the connection exists").subflows;
    assert_eq!(subflows.len(), 2);
    line.data(2, b"here");
    assert_eq!(line.read(), b"here");
}

#[test]
fn a_late_answer_is_reset_and_ends_nothing() {
    for with_option in [true, false] {
        let mut line = both_asked();
        line.wait(20);
        line.send(1, with_key());
        assert_eq!(line.sent(), ["b: ack 1 capable keys"]);
        let late = || if with_option { with_key() } else { syn_ack() };
        for _ in 0..2 {
            line.send_at(0, 0, late());
            assert_eq!(line.sent(), ["a: R 1"], "the repeated answer is reset again");
            line.wait(1_000);
            let _ = line.sent();
        }
        line.wait(20_000);
        let _ = line.sent();
        line.send_at(0, 0, late());
        assert_eq!(line.sent(), ["a: R 1"], "long after");
        assert_eq!(line.closed(), None);
        line.write(3);
        assert_eq!(line.sent(), ["b: 1:4 P capable keys+3"]);
    }
}

#[test]
fn the_first_path_wins_although_the_second_was_asked() {
    let mut line = both_asked();
    line.wait(100);
    line.send(0, with_key());
    assert_eq!(line.sent(), ["a: ack 1 capable keys"]);
    line.send(1, with_key());
    assert_eq!(line.sent(), ["b: R 1"]);
    line.ack(0);
    assert_eq!(line.sent(), ["c: S join 2"]);
}

#[test]
fn an_answer_in_time_starts_no_other_attempt() {
    let mut line = calling(&[address(2, false)]);
    line.wait(249);
    line.send(0, with_key());
    assert_eq!(line.sent(), ["a: ack 1 capable keys"]);
    // Only probes to the server, for its DATA_ACK, without which no join may begin.
    assert_eq!(said(&mut line, 5_000), ["747 a: ack 1 capable keys", "2241 a: ack 1 capable keys"]);
}

#[test]
fn each_attempt_has_its_own_timer_and_the_option_goes_last() {
    let mut line = calling(&[address(2, false)]);
    assert_eq!(
        said(&mut line, 16_000),
        [
            "250 b: S capable",
            "1000 a: S capable",
            "1250 b: S capable",
            "2000 a: S capable",
            "2250 b: S capable",
            "3000 a: S",
            "3250 b: S",
            "4000 a: S",
            "4250 b: S",
            "5000 a: S",
            "5250 b: S",
            "7000 a: S",
            "7250 b: S",
            "11000 a: S",
            "11250 b: S",
        ]
    );
    line.send(1, syn_ack());
    assert_eq!(line.sent(), ["b: ack 1"]);
    assert_eq!(line.fallback(), Some(FallbackReason::SynRetries));
    line.write(5);
    assert_eq!(line.sent(), ["b: 1:6 P"]);
    line.send_at(0, 0, syn_ack());
    assert_eq!(line.sent(), ["a: R 1"]);
    line.send(1, Seg::ack().payload(b"plain"));
    assert_eq!(line.read(), b"plain");
}

#[test]
fn the_option_is_dropped_only_after_every_path_was_tried_with_it() {
    let config = ConnectionConfig { mptcp_syn_retries: 0, ..config(&[address(2, true)]) };
    let mut line = Subflows::calling(config);
    assert_eq!(line.sent(), ["a: S capable"]);
    assert_eq!(
        said(&mut line, 3_500),
        [
            "1000 a: S capable",
            "1250 b: S capable",
            "2000 a: S",
            "2250 b: S",
            "3000 a: S",
            "3250 b: S"
        ],
    );
}

#[test]
fn backup_addresses_wait_until_the_others_were_asked_twice() {
    let mut line = calling(&[address(2, true), address(3, false), address(4, true)]);
    assert_eq!(
        said(&mut line, 1_999),
        [
            "250 b: S capable",
            "1000 a: S capable",
            "1250 b: S capable",
            "1500 c: S capable",
            "1750 d: S capable",
        ]
    );
    let ends: Vec<String> = line.peers.iter().map(|p| p.path.local.ip().to_string()).collect();
    assert_eq!(ends, ["10.0.0.1", "10.3.0.1", "10.2.0.1", "10.4.0.1"]);
}

#[test]
fn all_silent_ends_with_the_last_attempt() {
    let quick =
        ConnectionConfig { syn_retries: 1, linear_syn_retries: 0, ..config(&[address(2, false)]) };
    let mut line = Subflows::calling(quick);
    let _ = line.sent();
    assert_eq!(
        said(&mut line, 10_000),
        ["250 b: S capable", "1000 a: S capable", "1250 b: S capable"]
    );
    assert_eq!(line.closed(), Some(CloseReason::TimedOut));
}

fn refusal() -> Seg {
    Seg::new(TcpFlags::RST.with(TcpFlags::ACK))
}

#[test]
fn a_refusal_is_believed_once_the_other_path_says_the_same() {
    let mut line = calling(&[address(2, false)]);
    line.wait(10);
    line.send(0, refusal());
    assert_eq!(line.sent(), ["b: S capable"], "at once");
    assert_eq!(line.closed(), None);
    line.wait(10);
    line.send(1, refusal());
    assert_eq!(line.closed(), Some(CloseReason::Refused));
}

#[test]
fn a_refusal_is_believed_if_the_other_path_is_silent() {
    let mut line = both_asked();
    line.send(1, refusal());
    assert_eq!(line.closed(), None, "the first path may only be slow");
    assert_eq!(said(&mut line, 999), ["750 a: S capable"]);
    assert_eq!(line.closed(), None);
    line.wait(1);
    assert_eq!(line.closed(), Some(CloseReason::Refused));
    assert_eq!(said(&mut line, 60_000), [""; 0]);
}

#[test]
fn a_refusal_does_not_count_where_another_path_answers() {
    let mut line = both_asked();
    line.send(1, refusal());
    line.wait(500);
    line.send(0, with_key());
    assert_eq!(line.sent(), ["a: ack 1 capable keys"]);
    let _ = said(&mut line, 5_000);
    assert_eq!(line.closed(), None);
}

#[test]
fn an_address_that_comes_up_is_tried() {
    let mut second = address(2, false);
    second.up = false;
    let mut line = calling(&[second]);
    assert_eq!(said(&mut line, 500), [""; 0]);
    second.up = true;
    line.script.run(|endpoint, now| endpoint.set_local_address(now, None, second));
    assert_eq!(line.wait_for_send(5_000), Some(250));
    assert_eq!(line.sent(), ["b: S capable"]);
}

#[test]
fn an_address_that_goes_makes_the_next_one_go_immediately() {
    let mut line = calling(&[address(2, false)]);
    line.wait(10);
    let gone = LocalAddress { up: false, ..address(0, false) };
    line.script.run(|endpoint, now| endpoint.set_local_address(now, None, gone));
    line.wait(0);
    assert_eq!(line.sent(), ["b: S capable"]);
}

#[test]
fn aborting_an_unanswered_connection_resets_every_attempt() {
    let mut line = both_asked();
    line.abort();
    let mut sent = line.sent();
    sent.sort();
    assert_eq!(sent, ["a: R 1", "b: R 1"]);
    assert_eq!(said(&mut line, 60_000), [""; 0]);
}

#[test]
fn without_a_delay_only_the_first_path_is_asked() {
    let config =
        ConnectionConfig { connection_attempt_delay: None, ..config(&[address(2, false)]) };
    let mut line = Subflows::calling(config);
    let _ = line.sent();
    assert_eq!(said(&mut line, 3_500), ["1000 a: S capable", "2000 a: S capable", "3000 a: S"]);
}

#[test]
fn data_goes_with_the_third_ack_of_the_winning_attempt() {
    let config = ConnectionConfig { speaks_first: true, ..config(&[address(2, false)]) };
    let mut line = Subflows::calling(config);
    let _ = line.sent();
    line.write(5);
    line.wait(250);
    assert_eq!(line.sent(), ["b: S capable"], "no SYN carries data");
    line.wait(20);
    line.send(1, with_key());
    assert_eq!(line.sent(), ["b: 1:6 P capable keys+5"]);
}

#[test]
fn both_sides_may_call_at_once_on_one_of_the_paths() {
    let mut line = both_asked();
    line.send_at(1, 0, Seg::syn().mss(1_400));
    let answer = line.sent();
    assert!(answer[0].starts_with("b: S ack"), "{answer:?}");
    line.send_at(0, 0, with_key());
    assert_eq!(line.sent(), ["a: R 1"], "the others are over");
}

#[test]
fn an_answer_without_the_option_waits_for_one_with_it() {
    let mut line = calling(&[address(2, false)]);
    line.wait(10);
    line.send(0, syn_ack());
    assert_eq!(line.sent(), ["b: S capable"], "at once");
    line.wait(20);
    line.send(1, with_key());
    assert_eq!(line.sent(), ["b: ack 1 capable keys"]);
    assert_eq!(line.fallback(), None);
    line.wait(1_000);
    let _ = line.sent();
    line.send_at(0, 0, syn_ack());
    assert_eq!(line.sent(), ["a: R 1"]);
}

#[test]
fn two_answers_without_the_option_are_the_servers_word_and_the_first_one_counts() {
    let mut line = calling(&[address(2, false)]);
    line.wait(10);
    line.send(0, syn_ack());
    assert_eq!(line.sent(), ["b: S capable"]);
    line.wait(20);
    line.send(1, syn_ack());
    assert_eq!(line.sent(), ["a: ack 1"]);
    assert_eq!(line.fallback(), Some(FallbackReason::SynAckWithoutOption));
    let rtt = line.script.endpoint.info(line.id()).expect("the connection exists").subflows[0].srtt;
    assert_eq!(rtt.map(|rtt| rtt.as_millis()), Some(10), "it was kept for the rest of the time");
    line.send_at(1, 0, syn_ack());
    assert_eq!(line.sent(), ["b: R 1"]);
    line.write(5);
    assert_eq!(line.sent(), ["a: 1:6 P"]);
}

#[test]
fn an_answer_without_the_option_waits_no_longer_than_a_delay_and_that_once() {
    let mut line = calling(&[address(2, false)]);
    line.wait(10);
    line.send(0, syn_ack());
    assert_eq!(line.sent(), ["b: S capable"]);
    assert_eq!(line.wait_for_send(5_000), Some(250));
    assert_eq!(line.sent(), ["a: ack 1"]);
    assert_eq!(line.fallback(), Some(FallbackReason::SynAckWithoutOption));
    let (local, remote) = ("10.0.0.1:40009".parse().unwrap(), line.peers[0].path.remote);
    line.id = Some(line.script.connect(config(&[address(2, false)]), local, remote));
    assert_eq!(line.sent(), ["c: S capable"]);
    line.wait(10);
    line.send(2, syn_ack());
    assert_eq!(line.sent(), ["c: ack 1"], "no other segment was sent there lately");
}

#[test]
fn an_answer_without_the_option_does_not_wake_a_backup_path() {
    let mut line = calling(&[address(2, true)]);
    line.wait(10);
    line.send(0, syn_ack());
    assert_eq!(line.sent(), ["a: ack 1"]);
}

#[test]
fn an_answer_that_waits_counts_when_the_other_path_refuses() {
    let mut line = calling(&[address(2, false)]);
    line.wait(10);
    line.send(0, syn_ack());
    assert_eq!(line.sent(), ["b: S capable"]);
    line.send(1, refusal());
    assert_eq!(line.sent(), ["a: ack 1"]);
    assert_eq!(line.closed(), None);
}
