//! Tests of loss recovery on plain TCP, segment by segment: retransmissions, their times, and other data sent
//! meanwhile. The peer's segments are full at 1,000 bytes, the round trip takes 100 ms.

use marline_testkit::timeline::{Timeline, full_segments, plain};

fn flight(sack: bool, bytes: usize) -> Timeline {
    let mut line = Timeline::served(plain(), sack, 100);
    line.write(bytes);
    line
}

#[test]
fn three_sacked_segments_mark_lower_data_as_lost() {
    let mut line = flight(true, 4_000);
    assert_eq!(line.sent(), ["1:1001", "1001:2001", "2001:3001", "3001:4001 P"]);
    line.wait(100);
    line.ack_sack(1, &[(1_001, 2_001)]);
    line.ack_sack(1, &[(1_001, 3_001)]);
    assert_eq!(line.sent(), [""; 0], "two may be reordering");
    line.ack_sack(1, &[(1_001, 4_001)]);
    assert_eq!(line.sent(), ["1:1001"]);
    line.wait(100);
    line.ack(4_001);
    assert_eq!(line.wait_for_send(5_000), None, "nothing is left to repeat");
}

#[test]
fn a_quarter_of_the_round_trip_settles_reordering() {
    let mut line = flight(true, 4_000);
    let _ = line.sent();
    line.wait(100);
    line.ack_sack(1, &[(3_001, 4_001)]);
    assert_eq!(line.sent(), [""; 0]);
    assert_eq!(line.wait_for_send(1_000), Some(25), "RACK's reordering window");
    assert_eq!(line.sent()[0], "1:1001");
}

#[test]
fn reordered_segments_that_arrive_in_time_are_not_repeated() {
    let mut line = flight(true, 3_000);
    let _ = line.sent();
    line.wait(100);
    line.ack_sack(1, &[(1_001, 2_001)]);
    line.wait(10);
    line.ack(2_001);
    line.ack(3_001);
    assert_eq!(line.wait_for_send(5_000), None);
}

#[test]
fn a_silent_tail_is_probed_and_the_probe_finds_the_hole() {
    let mut line = flight(true, 3_000);
    let _ = line.sent();
    let probe = line.wait_for_send(1_000).expect("a probe");
    assert!((150..320).contains(&probe), "{probe} ms, at most 2 RTT and an allowance");
    assert_eq!(line.sent(), ["2001:3001 P"], "the last segment again");
    line.wait(100);
    // The probe arrived, the first two did not.
    line.ack_sack(1, &[(2_001, 3_001)]);
    let repaired = line.wait_for_send(100).is_some();
    assert!(repaired, "RACK learns from the probe");
    let sent = line.sent();
    assert_eq!(sent[0], "1:1001");
}

#[test]
fn the_retransmission_timer_backs_off() {
    let mut line = flight(true, 1_000);
    let _ = line.sent();
    let mut times = Vec::new();
    for _ in 0..5 {
        let _ = line.wait_for_send(60_000).expect("it never gives up so early");
        times.push(line.now_ms());
        assert_eq!(line.sent(), ["1:1001 P"]);
    }
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps[1..].windows(2).all(|g| g[1].abs_diff(2 * g[0]) <= 2), "{gaps:?}");
    line.ack(1_001);
    line.write(1_000);
    assert_eq!(line.sent(), ["1001:2001 P"], "an ACK ends the back-off");
}

#[test]
fn a_timeout_that_was_too_early_is_taken_back() {
    let mut line = flight(true, 10_000);
    assert_eq!(line.sent().len(), 10);
    // A probe, then the timeout: the path has become slow.
    let _ = line.wait_for_send(2_000).expect("a probe");
    let _ = line.sent();
    let _ = line.wait_for_send(5_000).expect("the timeout");
    assert_eq!(line.sent(), ["1:1001"]);
    line.write(10_000);
    // F-RTO: data sent before the timeout is acknowledged step by step. Nothing was lost.
    line.ack(1_001);
    let _ = line.sent();
    line.ack(2_001);
    let after = line.sent();
    assert!(after.iter().all(|words| !words.starts_with("2001:")), "{after:?}");
    line.ack(10_001);
    let again = line.sent();
    let new = |words: &String| words.split(':').next().and_then(|n| n.parse().ok()) > Some(10_000);
    assert!(!again.is_empty() && again.iter().all(new), "only new data: {again:?}");
}

#[test]
fn prr_sends_less_than_leaves_the_network() {
    let mut line = flight(true, 30_000);
    assert_eq!(line.sent(), full_segments(1, 10));
    line.wait(100);
    line.ack_sack(1, &[(1_001, 2_001)]);
    line.ack_sack(1, &[(1_001, 3_001)]);
    line.ack_sack(1, &[(1_001, 4_001)]);
    let mut sent = line.sent();
    assert_eq!(sent.iter().filter(|words| words.as_str() == "1:1001").count(), 1);
    for end in (5_001..=10_001).step_by(1_000) {
        line.ack_sack(1, &[(1_001, end)]);
        sent.extend(line.sent());
    }
    // One retransmission, and about seven tenths of the data delivered by the rest.
    assert!((4..=9).contains(&sent.len()), "{sent:?}");
}

#[test]
fn without_sack_duplicates_let_new_data_out_and_the_third_repeats() {
    let mut line = flight(false, 15_000);
    assert_eq!(line.sent(), full_segments(1, 10));
    line.wait(100);
    line.ack(1);
    assert_eq!(line.sent(), ["10001:11001"], "limited transmit");
    line.ack(1);
    assert_eq!(line.sent(), ["11001:12001"]);
    line.ack(1);
    assert_eq!(line.sent()[0], "1:1001", "fast retransmit");
    line.wait(100);
    // A partial ACK shows the next gap.
    line.ack(3_001);
    assert!(line.sent().contains(&"3001:4001".to_owned()));
}

#[test]
fn the_sacks_of_an_overtaken_ack_count() {
    let mut line = flight(true, 6_000);
    let _ = line.sent();
    line.wait(100);
    line.ack(2_001);
    line.wait(1);
    // Sent before the ACK of 2001, but with newer information about later segments.
    line.ack_sack(1_001, &[(3_001, 6_001)]);
    line.wait(30);
    assert_eq!(line.sent(), ["2001:3001"], "three SACKed above it");
}

#[test]
fn the_window_grows_by_sacked_bytes_while_nothing_is_lost() {
    let mut line = flight(true, 30_000);
    let _ = line.sent();
    line.wait(100);
    line.ack_sack(1, &[(1_001, 2_001)]);
    assert_eq!(line.sent(), ["10001:11001", "11001:12001"], "one left, and the window grew by one");
}

#[test]
fn a_window_of_which_less_than_half_was_used_does_not_grow() {
    for (segments, grows) in [(4, 0), (5, 2_000)] {
        let mut line = Timeline::served(plain(), true, 100);
        let cwnd = |line: &Timeline| {
            line.script.endpoint.info(line.id()).expect("the connection exists").subflows[0].cwnd
        };
        let before = cwnd(&line);
        assert_eq!(before, 9_800, "ten segments that leave room for a DSS");
        line.write(segments * 1_000);
        line.wait(100);
        line.ack(2_001);
        assert_eq!(cwnd(&line), before + grows, "{segments}");
    }
}
