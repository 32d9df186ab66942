//! Tests of sending during recovery, segment by segment: Proportional Rate Reduction (RFC 9937, with one rule
//! instead of RFC 6937's two). The window is ten times 980 bytes, as segments leave room for a DSS, and allows ten
//! segments of 1,000 bytes. CUBIC reduces it to seven tenths.

use marline_testkit::timeline::{Timeline, full_segments, plain};

fn flight(sack: bool, segments: usize) -> Timeline {
    let mut line = Timeline::served(plain(), sack, 100);
    line.write(segments * 1_000);
    assert_eq!(line.sent(), full_segments(1, 10.min(segments as u32)));
    line.wait(100);
    line
}

/// Segments sent at each of these ACKs.
fn at_each(line: &mut Timeline, acks: impl Iterator<Item = (u32, Vec<(u32, u32)>)>) -> Vec<String> {
    acks.map(|(to, blocks)| {
        line.ack_sack(to, &blocks);
        line.sent().join(", ")
    })
    .collect()
}

fn window(line: &Timeline) -> u64 {
    line.script.endpoint.info(line.id()).expect("the connection exists").subflows[0].cwnd
}

/// Fourteen are in flight when the first is detected as lost, as the window grows by SACKed data (9,800, 10,800,
/// 11,800). Two were SACKed before: twelve are in flight, and seven tenths of 11,800 bytes are allowed. For every
/// 12,000 bytes delivered 8,260 are allowed, rounded up to segments: at the 1st, 2nd and 3rd, not at the 4th, at
/// the 5th and 6th, not at the 7th.
#[test]
fn one_loss_brings_the_flight_from_twelve_to_eight_step_by_step() {
    let mut line = flight(true, 30);
    let acks = (2_001..=10_001).step_by(1_000).map(|end| (1, vec![(1_001, end)]));
    let sent = at_each(&mut line, acks);
    let growing = ["10001:11001, 11001:12001", "12001:13001, 13001:14001"];
    let proportional =
        ["1:1001", "14001:15001", "15001:16001", "", "16001:17001", "17001:18001", ""];
    assert_eq!(sent, [&growing[..], &proportional].concat());
    line.wait(100);
    line.ack(14_001);
    assert!(
        (8_260..9_300).contains(&window(&line)),
        "recovery ends at the target, and it grows again: {}",
        window(&line)
    );
    assert_eq!(
        line.sent(),
        full_segments(18_001, 5),
        "four are in flight, and eight and a bit may be"
    );
}

/// Without SACK arrived segments are not identified. Duplicate ACKs stand for them: twelve in flight, one of them
/// lost.
#[test]
fn without_sack_each_duplicate_stands_for_a_segment() {
    let mut line = flight(false, 30);
    let sent = at_each(&mut line, (0..9).map(|_| (1, vec![])));
    let limited = ["10001:11001", "11001:12001"];
    let proportional = ["1:1001", "12001:13001", "", "13001:14001", ""];
    let one_for_one = ["14001:15001", "15001:16001"];
    assert_eq!(sent, [&limited[..], &proportional, &one_for_one].concat());
    line.wait(100);
    line.ack(12_001);
    assert!((6_860..7_900).contains(&window(&line)));
    let out = ["16001:17001", "17001:18001", "18001:19001", "19001:20001"];
    assert_eq!(line.sent(), out);
}

#[test]
fn duplicates_beyond_the_flight_release_no_data() {
    let mut line = flight(false, 60);
    let sent = at_each(&mut line, (0..200).map(|_| (1, vec![])));
    let out = sent.iter().filter(|words| !words.is_empty()).count();
    // Twelve were in flight at the first loss: this many duplicates count, first seven of twelve.
    assert!((7..=14).contains(&out), "{out}: {sent:?}");
}

/// Seven of ten are lost, three arrived: nothing is in flight, and seven are allowed. Three are sent for the three
/// that arrived. Each retransmission that arrives without showing a further loss allows one more segment than
/// itself, up to the target.
#[test]
fn below_the_target_as_much_goes_out_as_came_in_and_one_more_while_all_goes_well() {
    let mut line = flight(true, 40);
    line.ack_sack(1, &[(7_001, 10_001)]);
    assert_eq!(line.sent(), full_segments(1, 3), "as many as arrived");
    line.wait(100);
    let mut acked = |to: u32| {
        line.ack_sack(to, &[(7_001, 10_001)]);
        line.sent()
    };
    assert_eq!(acked(1_001), full_segments(3_001, 2));
    assert_eq!(acked(2_001), full_segments(5_001, 2));
    assert_eq!(
        acked(3_001),
        full_segments(10_001, 3),
        "all lost data is repeated and new data is sent: seven are in flight"
    );
    assert_eq!(acked(4_001), full_segments(13_001, 1), "one for one");
    assert_eq!(acked(5_001), full_segments(14_001, 1));
    assert_eq!(acked(6_001), full_segments(15_001, 1));
    assert_eq!(
        acked(10_001),
        full_segments(16_001, 1),
        "the end: six are in flight, and the window lets out seven"
    );
}

/// A further loss shown by an ACK revokes the extra segment.
#[test]
fn no_more_than_came_in_goes_out_while_losses_are_uncovered() {
    let mut line = flight(true, 40);
    line.ack_sack(1, &[(7_001, 10_001)]);
    let _ = line.sent();
    line.wait(100);
    // The third repeat overtakes the first two, which are lost again.
    line.ack_sack(1, &[(2_001, 3_001), (7_001, 10_001)]);
    assert_eq!(line.sent().len(), 1, "one arrived");
}

#[test]
fn the_first_repeat_goes_however_small_the_target() {
    let mut line = Timeline::served(plain(), true, 100);
    line.write(2_000);
    let _ = line.sent();
    line.wait(100);
    line.ack_sack(1, &[(1_001, 2_001)]);
    line.wait_for_send(1_000).expect("the reordering timer");
    assert_eq!(line.sent(), ["1:1001"]);
}
