//! Tests of RACK and tail loss probes, segment by segment: probed data and times, the cost of a probe, lost
//! retransmissions, learned reordering (RFC 8985). Round trips take 100 ms, segments are full at 1,000 bytes,
//! there are no timestamps.

use marline_testkit::timeline::{Timeline, full_segments, plain};

fn flight(sack: bool, bytes: usize) -> Timeline {
    let mut line = Timeline::served(plain(), sack, 100);
    line.write(bytes);
    let _ = line.sent();
    line
}

fn window(line: &Timeline) -> u64 {
    line.script.endpoint.info(line.id()).expect("the connection exists").subflows[0].cwnd
}

#[test]
fn a_probe_is_new_data_if_there_is_some_one_segment_beyond_the_window() {
    let mut line = flight(true, 12_000);
    assert_eq!(line.wait_for_send(50), None, "the window is full");
    line.wait_for_send(500).expect("a probe");
    assert_eq!(line.sent(), ["10001:11001"]);
    assert_eq!(line.wait_for_send(150), None, "one at a time");
}

#[test]
fn a_probe_that_was_not_needed_costs_nothing() {
    let mut line = flight(true, 3_000);
    line.wait_for_send(500).expect("a probe");
    assert_eq!(line.sent(), ["2001:3001 P"]);
    let before = window(&line);
    line.ack(3_001);
    line.wait(100);
    line.ack_sack(3_001, &[(2_001, 3_001)]);
    line.write(1_000);
    line.wait(100);
    line.ack(4_001);
    assert!(window(&line) >= before, "the original arrived, only late");
}

#[test]
fn a_probe_that_repaired_the_tail_costs_a_reduction() {
    let mut line = flight(true, 3_000);
    line.wait(100);
    line.ack(2_001);
    line.wait_for_send(500).expect("a probe");
    assert_eq!(line.sent(), ["2001:3001 P"]);
    let before = window(&line);
    line.wait(100);
    line.ack(3_001);
    line.write(1_000);
    let _ = line.sent();
    line.wait(100);
    line.ack(4_001);
    assert!(
        window(&line) < before,
        "no DSACK arrived, so it was lost: {} of {before}",
        window(&line)
    );
}

#[test]
fn a_lost_retransmission_is_found_by_later_segments() {
    let mut line = flight(true, 4_000);
    line.wait(100);
    line.ack_sack(1, &[(1_001, 4_001)]);
    assert_eq!(line.sent(), ["1:1001"]);
    line.wait(1);
    line.write(2_000);
    let new = line.sent();
    assert!(!new.is_empty() && new[0].starts_with("4001:"), "{new:?}");
    line.wait(100);
    line.ack_sack(1, &[(1_001, 5_001)]);
    let mut sent = line.sent();
    if sent.is_empty() {
        line.wait_for_send(60).expect("the reordering timer");
        sent = line.sent();
    }
    assert_eq!(sent[0], "1:1001", "long before the timer: {sent:?}");
}

#[test]
fn reordering_that_was_seen_teaches_patience() {
    let mut line = flight(true, 4_000);
    line.wait(100);
    // The second overtakes the first, which was never repeated.
    line.ack_sack(1, &[(1_001, 2_001)]);
    line.ack(2_001);
    let info = line.script.endpoint.info(line.id()).expect("the connection exists");
    let tcp = info.subflows[0].tcp;
    assert_eq!((tcp.reordering, tcp.reorderings), (2, 1), "the first arrived two segments late");
    line.ack(4_001);
    line.write(4_000);
    assert_eq!(line.sent().len(), 4);
    line.wait(100);
    line.ack_sack(4_001, &[(5_001, 8_001)]);
    assert_eq!(line.sent(), [""; 0], "three SACKed mean loss no longer");
    assert_eq!(line.wait_for_send(1_000), Some(25), "a quarter of the round trip does");
    assert_eq!(line.sent(), ["4001:5001"]);
}

#[test]
fn no_tail_loss_probe_without_sack() {
    let mut line = flight(false, 3_000);
    let first = line.wait_for_send(5_000).expect("the timer");
    assert!(first >= 200, "{first} ms: the retransmission timeout");
    assert_eq!(line.sent()[0], full_segments(1, 1)[0], "and the first segment");
}

#[test]
fn a_peer_that_takes_its_sacks_back_is_repeated_everything() {
    let mut line = flight(true, 4_000);
    line.wait(100);
    line.ack_sack(1, &[(1_001, 4_001)]);
    assert_eq!(line.sent(), ["1:1001"]);
    line.wait(100);
    // The gap is filled, but the SACKed data behind it was dropped.
    line.ack(1_001);
    let mut sent = line.sent();
    while sent.len() < 3 {
        line.wait_for_send(5_000).expect("the timer");
        sent.extend(line.sent());
        line.wait(50);
        let have = 1_001 + 1_000 * sent.len() as u32;
        line.ack(have.min(4_001));
    }
    assert_eq!(sent[0], "1001:2001", "{sent:?}");
}
