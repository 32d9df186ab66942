//! Tests of spurious retransmission timeouts without timestamps, segment by segment: the segments that F-RTO
//! sends, its conclusions and the undo (RFC 5682 section 3). Round trips take 100 ms, segments are full at 1,000
//! bytes.

use marline_core::ConnectionConfig;
use marline_testkit::Seg;
use marline_testkit::timeline::multipath::{Subflows, multipath};
use marline_testkit::timeline::{Timeline, full_segments, plain};
use marline_wire::mptcp::{MpPrio, MptcpOption};

/// Ten segments are in flight, `more` bytes wait, and the timer has fired: the first is retransmitted. With SACK a
/// probe was sent before.
fn timed_out(sack: bool, more: usize) -> Timeline {
    let mut line = Timeline::served(plain(), sack, 100);
    line.write(10_000);
    assert_eq!(line.sent().len(), 10);
    if more > 0 {
        line.write(more);
        assert_eq!(line.sent(), [""; 0], "the window is full");
    }
    if sack {
        // The probe is new data if there is any.
        let _ = line.wait_for_send(2_000).expect("a probe");
        let probe = if more > 0 { "10001:11001" } else { "9001:10001 P" };
        assert_eq!(line.sent(), [probe]);
    }
    let _ = line.wait_for_send(5_000).expect("the timeout");
    assert_eq!(line.sent(), ["1:1001"]);
    line.wait(100);
    line
}

fn undone(line: &Timeline) -> u64 {
    let info = line.script.endpoint.info(line.id()).expect("the connection exists");
    info.subflows.iter().map(|subflow| subflow.undone).sum()
}

/// Segments sent while the rest of the ten segments is acknowledged one by one, as on a slow path.
fn rest(line: &mut Timeline, from: u32) -> Vec<String> {
    let mut sent = Vec::new();
    for end in (from..=10_001).step_by(1_000) {
        line.ack(end);
        sent.extend(line.sent());
    }
    sent
}

#[test]
fn f_rto_sends_two_new_segments_and_judges_by_the_next_ack() {
    for sack in [true, false] {
        let mut line = timed_out(sack, 20_000);
        line.ack(1_001);
        let new = if sack { 11_001 } else { 10_001 };
        assert_eq!(line.sent(), full_segments(new, 2), "no repeat: step 2b");
        line.ack(2_001);
        assert_eq!(undone(&line), 1, "the second was sent once: the timeout was too early");
        let mut all = line.sent();
        all.extend(rest(&mut line, 3_001));
        let start = |words: &String| words.split(':').next().and_then(|n| n.parse::<u32>().ok());
        assert!(!all.is_empty(), "sending continues where it was");
        assert!(
            all.iter().all(|words| start(words) >= Some(new + 2_000)),
            "nothing is repeated: {all:?}"
        );
    }
}

/// An outage: the timeout was too early for data that had arrived before it (its ACKs were lost in it), and right
/// for the rest. Recovery begins with the whole flight, although the timeout had marked it lost: one
/// retransmission per round trip would take seconds.
#[test]
fn other_losses_are_resent_at_the_pace_of_the_whole_flight() {
    let mut line = timed_out(true, 0);
    line.ack(3_001);
    assert_eq!(undone(&line), 1, "the second was sent once");
    assert_eq!(
        line.sent(),
        full_segments(3_001, 3),
        "as many as left the network according to the ACK (RFC 9937)"
    );
    line.wait(100);
    line.ack(4_001);
    assert_eq!(line.sent(), full_segments(6_001, 2), "no further loss: one more");
}

#[test]
fn a_sack_of_the_new_data_says_that_the_timeout_was_right() {
    let mut line = timed_out(true, 20_000);
    line.ack(1_001);
    assert_eq!(line.sent(), ["11001:12001", "12001:13001"]);
    line.wait(100);
    line.ack_sack(1_001, &[(11_001, 12_001)]);
    assert_eq!(line.sent()[0], "1001:2001", "the rest is lost: step 3a");
    assert_eq!(undone(&line), 0);
}

#[test]
fn without_sack_a_duplicate_says_so() {
    let mut line = timed_out(false, 20_000);
    line.ack(1_001);
    assert_eq!(line.sent(), ["10001:11001", "11001:12001"]);
    line.wait(100);
    line.ack(1_001);
    assert_eq!(line.sent()[0], "1001:2001");
    assert_eq!(undone(&line), 0);
}

#[test]
fn without_new_data_repeats_do_not_wait() {
    let mut line = timed_out(true, 0);
    line.ack(1_001);
    assert_eq!(line.sent(), ["1001:2001", "2001:3001"]);
    assert_eq!(undone(&line), 0);
    // The ACKs of the originals come before those of the retransmissions: segments sent only once are distinguished.
    line.ack(2_001);
    line.ack(3_001);
    let _ = line.sent();
    line.ack(10_001);
    assert_eq!(undone(&line), 1);
}

#[test]
fn repeats_go_on_if_the_peer_window_leaves_no_room_for_new_data() {
    let mut line = Timeline::listening(plain());
    line.send(Seg::syn().mss(1_000).sack_permitted());
    assert_eq!(line.sent(), ["S ack"]);
    line.wait(100);
    line.ack_window(1, 5_000);
    line.id = line.script.take_incoming();
    line.write(20_000);
    assert_eq!(line.sent(), full_segments(1, 5));
    while line.sent() != ["1:1001"] {
        line.wait_for_send(5_000).expect("a probe, the timeout");
    }
    line.wait(100);
    line.ack_window(1_001, 4_000);
    assert_eq!(line.sent()[0], "1001:2001", "the window's edge has not moved");
}

#[test]
fn f_rto_works_with_one_new_segment() {
    let mut line = timed_out(true, 2_000);
    line.ack(1_001);
    assert_eq!(line.sent(), ["11001:12001 P"], "one is left, and the repeats wait for its answer");
    line.ack(2_001);
    assert_eq!(undone(&line), 1);
}

#[test]
fn repeats_go_on_after_an_unanswered_f_rto_question() {
    let mut line = timed_out(true, 20_000);
    // The timer fires again: the first is retransmitted again.
    let _ = line.wait_for_send(5_000).expect("the next timeout");
    assert_eq!(line.sent(), ["1:1001"]);
    line.ack(1_001);
    assert_eq!(line.sent(), ["11001:12001", "12001:13001"], "F-RTO evaluates every timeout");
    let _ = line.wait_for_send(5_000).expect("no answer arrived, so the timer fires");
    assert_eq!(line.sent(), ["1001:2001"]);
    assert_eq!(undone(&line), 0);
}

#[test]
fn a_timeout_within_recovery_is_not_judged() {
    let mut line = Timeline::served(plain(), true, 100);
    line.write(40_000);
    assert_eq!(line.sent(), full_segments(1, 10));
    line.wait(100);
    line.ack_sack(1, &[(1_001, 4_001)]);
    let sent = line.sent();
    assert_eq!(sent[0], "1:1001");
    for end in (5_001..=10_001).step_by(1_000) {
        line.ack_sack(1, &[(1_001, end)]);
    }
    let new = line.sent();
    assert!(new.iter().any(|words| words == "10001:11001"), "recovery sends new data: {new:?}");
    // The retransmission is lost, and silence follows until the timer fires.
    while !line.sent().contains(&"1:1001".to_owned()) {
        line.wait_for_send(5_000).expect("the timeout");
    }
    // New data of the recovery arrives, sent once and before the timeout. The first segment is lost anyway.
    line.ack_sack(1, &[(1_001, 11_001)]);
    assert_eq!(undone(&line), 0, "RFC 5682 3.1 step 1: no F-RTO while a recovery runs");
}

#[test]
fn timestamps_decide_immediately_without_f_rto() {
    for spurious in [false, true] {
        let config = ConnectionConfig { timestamps: true, ..plain() };
        let mut line = Timeline::listening(config);
        line.send(Seg::syn().mss(1_012).sack_permitted().window_scale(7).timestamps(1, 0));
        assert_eq!(line.sent(), ["S ack"]);
        line.wait(100);
        let echo = |line: &Timeline| Seg::ack().timestamps(1, line.stamp);
        let third = echo(&line);
        line.ack_with(1, third);
        line.id = line.script.take_incoming();
        line.write(30_000);
        assert_eq!(line.sent().len(), 10);
        let original = echo(&line);
        while line.sent() != ["1:1001"] {
            line.wait_for_send(5_000).expect("a probe, the timeout");
        }
        let repeat = echo(&line);
        line.wait(50);
        line.ack_with(1_001, if spurious { original } else { repeat });
        let sent = line.sent();
        assert_eq!(undone(&line), u64::from(spurious));
        assert_eq!(sent[0].starts_with("1001:2001"), !spurious, "repeats if it was real: {sent:?}");
    }
}

#[test]
fn a_healthy_subflow_is_not_kept_waiting_for_f_rto() {
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    let b = line.join(3);
    line.option(b, MptcpOption::Prio(MpPrio { backup: true }));
    line.write(8_000);
    let sent = line.sent();
    assert!(sent.iter().all(|words| words.starts_with("a: ")), "{sent:?}");
    let repeats = |words: &String| words.starts_with("a: 1:");
    // Data copied to b meanwhile is acknowledged there; the connection waits for the first byte.
    let answer = |line: &mut Subflows| {
        let first = line.endpoint_dsn(1);
        line.send(b, Seg::ack().data_ack(first));
    };
    while !line.sent().iter().any(repeats) {
        answer(&mut line);
        line.wait_for_send(5_000).expect("a probe, the timeout");
    }
    line.write(8_000);
    let _ = line.sent();
    answer(&mut line);
    let _ = line.sent();
    // Only the first segment was acknowledged on a.
    let first = sent[0].split(['a', ':', ' ']).filter_map(|n| n.parse::<u32>().ok()).nth(1);
    let end = first.expect("its end");
    line.peers[0].expected = line.peers[0].irs.add(end);
    let have = line.endpoint_dsn(u64::from(end));
    line.send(0, Seg::ack().data_ack(have));
    let sent = line.sent();
    let again = |words: &String| {
        let at = words.strip_prefix("a: ").and_then(|words| words.split(':').next());
        at.and_then(|at| at.parse::<u32>().ok()).is_some_and(|at| at < 8_001)
    };
    assert!(
        !sent.is_empty() && sent.iter().all(again),
        "only retransmissions, no new data: {sent:?}"
    );
}
