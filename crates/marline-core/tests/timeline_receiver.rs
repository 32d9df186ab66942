//! What a receiver says, segment by segment: SACK blocks and their order, duplicates, windows that are scaled,
//! shut and probed, segment sizes (RFC 2018, 2883, 7323, 9293).

use marline_core::ConnectionConfig;
use marline_testkit::Seg;
use marline_testkit::timeline::{MSS, Timeline, full, plain};

fn served() -> Timeline {
    Timeline::served(plain(), true, 100)
}

/// Hundred bytes of the peer from there on.
fn piece(line: &mut Timeline, at: u32) -> Vec<String> {
    line.send_at(at, Seg::ack().payload(&[b'x'; 100]));
    line.sent()
}

#[test]
fn ranges_changed_last_come_first() {
    let mut line = served();
    assert_eq!(piece(&mut line, 1_001), ["ack 1 sack 1001:1101"]);
    assert_eq!(piece(&mut line, 3_001), ["ack 1 sack 3001:3101 sack 1001:1101"]);
    let all = "ack 1 sack 5001:5101 sack 3001:3101 sack 1001:1101";
    assert_eq!(piece(&mut line, 5_001), [all]);
    let grown = "ack 1 sack 1001:1201 sack 5001:5101 sack 3001:3101";
    assert_eq!(piece(&mut line, 1_101), [grown]);
    let four = "ack 1 sack 7001:7101 sack 1001:1201 sack 5001:5101 sack 3001:3101";
    assert_eq!(piece(&mut line, 7_001), [four]);
    let newest = "ack 1 sack 9001:9101 sack 7001:7101 sack 1001:1201 sack 5001:5101";
    assert_eq!(piece(&mut line, 9_001), [newest], "four fit: the one told most often is left out");
}

#[test]
fn a_hole_that_is_filled_is_acknowledged_at_once_and_its_range_is_no_more() {
    let mut line = served();
    let _ = piece(&mut line, 101);
    let _ = piece(&mut line, 301);
    assert_eq!(piece(&mut line, 1), ["ack 201 sack 301:401"]);
    assert_eq!(piece(&mut line, 201), ["ack 401"]);
}

#[test]
fn a_duplicate_is_told_first_and_once() {
    let mut line = served();
    let _ = piece(&mut line, 1);
    assert_eq!(piece(&mut line, 1), ["ack 101 sack 1:101"], "below the ACK");
    let _ = piece(&mut line, 301);
    assert_eq!(piece(&mut line, 301), ["ack 101 sack 301:401 sack 301:401"], "within a range");
    assert_eq!(piece(&mut line, 501), ["ack 101 sack 501:601 sack 301:401"], "and once");
}

#[test]
fn without_sack_permitted_there_is_none() {
    let mut line = Timeline::served(plain(), false, 100);
    assert_eq!(piece(&mut line, 1_001), ["ack 1"]);
    assert_eq!(piece(&mut line, 1_001), ["ack 1"]);
}

#[test]
fn a_window_scale_beyond_fourteen_is_fourteen() {
    let config = ConnectionConfig { initial_window: 100, ..plain() };
    for (shift, bytes) in [(15, 16_384), (14, 16_384), (13, 8_192)] {
        let mut line = Timeline::listening(config.clone());
        line.send(Seg::syn().mss(MSS).sack_permitted().window_scale(shift));
        assert_eq!(line.sent(), ["S ack"]);
        line.ack_window(1, 1);
        line.id = line.script.take_incoming();
        line.write(60_000);
        let sent = line.sent().len() as u32;
        assert!(sent * 1_000 <= bytes && (sent + 1) * 1_000 > bytes, "{shift}: {sent}");
    }
}

#[test]
fn who_does_not_scale_is_not_scaled_for() {
    let mut line = Timeline::listening(plain());
    line.send(Seg::syn().mss(MSS).sack_permitted());
    let answer = line.script.take_sent();
    assert_eq!(answer[0].seg.options.window_scale, None);
}

#[test]
fn who_names_no_segment_size_gets_no_more_than_536_bytes() {
    let mut line = Timeline::listening(plain());
    line.send(Seg::syn());
    assert_eq!(line.sent(), ["S ack"]);
    line.ack(1);
    line.id = line.script.take_incoming();
    line.write(1_500);
    let sizes: Vec<usize> =
        line.script.take_sent().iter().map(|sent| sent.seg.payload.len()).collect();
    assert!(sizes.iter().all(|size| *size <= 536) && sizes.len() >= 3, "{sizes:?}");
}

/// A peer that does not scale and offers so much.
fn offering(window: u16) -> Timeline {
    let mut line = Timeline::listening(plain());
    line.send(Seg::syn().mss(MSS).sack_permitted().window(window));
    assert_eq!(line.sent(), ["S ack"]);
    line.wait(100);
    line.ack_window(1, window);
    line.id = line.script.take_incoming();
    line
}

#[test]
fn a_shut_window_is_probed_with_growing_pauses_and_opens() {
    let mut line = offering(5_000);
    line.write(20_000);
    assert_eq!(line.sent(), full(1, 5));
    line.wait(100);
    line.ack_window(5_001, 0);
    let mut gaps = Vec::new();
    for _ in 0..5 {
        gaps.push(line.wait_for_send(60_000).expect("a probe"));
        assert_eq!(line.sent(), ["ack 1"], "it has no bytes: its number asks for an answer");
        line.wait(20);
        line.ack_window(5_001, 0);
    }
    assert!(gaps.windows(2).all(|pair| pair[1] > pair[0] * 3 / 2), "{gaps:?}");
    line.ack_window(5_001, 3_000);
    assert_eq!(line.sent(), full(5_001, 3));
}

#[test]
fn a_window_that_opens_by_little_lets_no_stub_out() {
    let mut line = offering(5_000);
    line.write(20_000);
    assert_eq!(line.sent(), full(1, 5));
    line.wait(100);
    line.ack_window(2_001, 4_200);
    assert_eq!(line.sent(), ["5001:6001"], "not the 200 bytes behind it");
}
