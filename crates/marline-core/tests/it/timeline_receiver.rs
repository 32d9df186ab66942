//! Tests of a receiver's segments: SACK blocks and their order, duplicates, scaled, closed and probed windows,
//! segment sizes (RFC 2018, 2883, 7323, 9293).

use marline_core::ConnectionConfig;
use marline_testkit::timeline::{MSS, Timeline, full_segments, plain};
use marline_testkit::{Seg, SentSegment};

fn served() -> Timeline {
    Timeline::served(plain(), true, 100)
}

/// A hundred bytes of the peer, starting at this position.
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
    assert_eq!(
        piece(&mut line, 9_001),
        [newest],
        "four fit, so the one reported most often is left out"
    );
}

/// Data has no room for SACK, and its receiver does not take it for a duplicate ACK.
#[test]
fn ready_data_does_not_replace_an_ack_of_out_of_order_data() {
    let mut line = served();
    line.ack_window(1, 0);
    line.write(3_000);
    assert_eq!(line.sent().len(), 0, "the window is closed");
    line.send_at(1_001, Seg::ack().window(1_000).payload(&[b'x'; 100]));
    assert_eq!(
        line.sent(),
        [full_segments(1, 2), words(&["2001:3001 P", "ack 1 sack 1001:1101"])].concat()
    );
    line.write(1_000);
    assert_eq!(line.sent(), ["3001:4001 P"], "reported once");
}

fn words(of: &[&str]) -> Vec<String> {
    of.iter().map(ToString::to_string).collect()
}

#[test]
fn a_filled_hole_is_acknowledged_immediately_and_leaves_the_sack_list() {
    let mut line = served();
    let _ = piece(&mut line, 101);
    let _ = piece(&mut line, 301);
    assert_eq!(piece(&mut line, 1), ["ack 201 sack 301:401"]);
    assert_eq!(piece(&mut line, 201), ["ack 401"]);
}

#[test]
fn a_duplicate_is_reported_first_and_once() {
    let mut line = served();
    let _ = piece(&mut line, 1);
    assert_eq!(piece(&mut line, 1), ["ack 101 sack 1:101"], "below the ACK");
    let _ = piece(&mut line, 301);
    assert_eq!(piece(&mut line, 301), ["ack 101 sack 301:401 sack 301:401"], "within a range");
    assert_eq!(piece(&mut line, 501), ["ack 101 sack 501:601 sack 301:401"], "and once");
}

/// `len` bytes of the peer, starting at this position.
fn stretch(line: &mut Timeline, at: u32, len: usize) -> Vec<String> {
    line.send_at(at, Seg::ack().payload(&vec![b'x'; len]));
    line.sent()
}

#[test]
fn a_partial_duplicate_is_reported_as_far_as_it_overlaps() {
    let mut line = served();
    assert_eq!(stretch(&mut line, 1_001, 500), ["ack 1 sack 1001:1501"]);
    let begins_with_it = "ack 1 sack 1001:1501 sack 1001:2001";
    assert_eq!(stretch(&mut line, 1_001, 1_000), [begins_with_it]);
    assert_eq!(stretch(&mut line, 501, 1_000), ["ack 1 sack 1001:1501 sack 501:2001"], "ends");
    assert_eq!(stretch(&mut line, 401, 2_000), ["ack 1 sack 501:2001 sack 401:2401"], "contains");
    assert_eq!(
        stretch(&mut line, 2_401, 100),
        ["ack 1 sack 401:2501"],
        "adjacent, without a duplicate"
    );
}

#[test]
fn of_two_repeated_ranges_the_first_is_reported() {
    let mut line = served();
    let _ = stretch(&mut line, 1_001, 500);
    let _ = stretch(&mut line, 2_001, 500);
    assert_eq!(stretch(&mut line, 1_001, 1_500), ["ack 1 sack 1001:1501 sack 1001:2501"]);
}

#[test]
fn data_filling_a_hole_and_repeating_a_range_is_reported() {
    let mut line = served();
    let _ = stretch(&mut line, 501, 500);
    let _ = stretch(&mut line, 2_001, 500);
    assert_eq!(
        stretch(&mut line, 1, 1_000),
        ["ack 1001 sack 501:1001 sack 2001:2501"],
        "all of it"
    );
    assert_eq!(stretch(&mut line, 1_001, 1_200), ["ack 2501 sack 2001:2201"], "a part");
    let _ = stretch(&mut line, 3_001, 100);
    let both = "ack 3101 sack 2401:2501";
    assert_eq!(
        stretch(&mut line, 2_401, 650),
        [both],
        "below the ACK, and beyond the gap: the first"
    );
}

#[test]
fn segments_respect_a_small_mss() {
    for (asked, largest) in [(100, 100), (88, 88), (48, 48), (20, 48), (0, 48)] {
        for timestamps in [false, true] {
            let config = ConnectionConfig { timestamps, ..plain() };
            let mut line = Timeline::listening(config);
            let syn = Seg::syn().mss(asked).sack_permitted().window_scale(7);
            line.send(if timestamps { syn.timestamps(1, 0) } else { syn });
            assert_eq!(line.sent(), ["S ack"]);
            let ack = Seg::ack().window(60_000);
            line.ack_with(1, if timestamps { ack.timestamps(2, line.stamp) } else { ack });
            line.id = line.script.take_incoming();
            line.write(4_000);
            let sent = line.script.take_sent();
            let options = if timestamps { 12 } else { 0 };
            assert!(sent.len() >= 4, "{asked}: {} segments", sent.len());
            for SentSegment { seg, .. } in &sent {
                let room = seg.payload.len() + options;
                assert_eq!(room, largest, "{asked}: payload and options");
            }
        }
    }
}

#[test]
fn without_sack_permitted_no_sack_is_sent() {
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
fn a_peer_without_window_scale_gets_none() {
    let mut line = Timeline::listening(plain());
    line.send(Seg::syn().mss(MSS).sack_permitted());
    let answer = line.script.take_sent();
    assert_eq!(answer[0].seg.options.window_scale, None);
}

#[test]
fn a_peer_without_mss_option_gets_at_most_536_bytes() {
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

/// A peer that does not scale and offers this window.
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
    assert_eq!(line.sent(), full_segments(1, 5));
    line.wait(100);
    line.ack_window(5_001, 0);
    let mut gaps = Vec::new();
    for _ in 0..5 {
        gaps.push(line.wait_for_send(60_000).expect("a probe"));
        assert_eq!(
            line.sent(),
            ["ack 1"],
            "it has no payload, and its sequence number causes an answer"
        );
        line.wait(20);
        line.ack_window(5_001, 0);
    }
    assert!(gaps.windows(2).all(|pair| pair[1] > pair[0] * 3 / 2), "{gaps:?}");
    line.ack_window(5_001, 3_000);
    assert_eq!(line.sent(), full_segments(5_001, 3));
}

#[test]
fn a_window_that_opens_by_little_lets_no_stub_out() {
    let mut line = offering(5_000);
    line.write(20_000);
    assert_eq!(line.sent(), full_segments(1, 5));
    line.wait(100);
    line.ack_window(2_001, 4_200);
    assert_eq!(line.sent(), ["5001:6001"], "not the 200 bytes behind it");
}

#[test]
fn a_sliver_of_window_is_used_only_after_a_while() {
    let mut line = offering(5_000);
    line.write(20_000);
    assert_eq!(line.sent(), full_segments(1, 5));
    line.wait(100);
    line.ack_window(5_001, 200);
    assert_eq!(line.sent(), [""; 0], "although nothing is in flight");
    let wait = line.wait_for_send(5_000).expect("a sliver after all");
    assert!((200..=1_000).contains(&wait), "{wait} ms: the timeout, at most a second");
    assert_eq!(line.sent(), ["5001:5201 P"]);
    line.ack_window(5_201, 200);
    let wait = line.wait_for_send(5_000).expect("and each time");
    assert!((200..=1_000).contains(&wait), "{wait} ms");
    assert_eq!(line.sent(), ["5201:5401 P"]);
    line.ack_window(5_401, 200);
    line.wait(50);
    line.ack_window(5_401, 1_200);
    assert_eq!(line.sent(), ["5401:6401"], "a full segment does not wait");
    line.wait(500);
    let _ = line.sent();
    line.ack_window(6_401, 200);
    let wait = line.wait_for_send(5_000).expect("sent again");
    assert!((200..=1_000).contains(&wait), "{wait} ms: an old wait does not count");
}

#[test]
fn half_of_a_window_that_never_held_a_segment_is_used_immediately() {
    let mut line = Timeline::listening(plain());
    line.send(Seg::syn().mss(MSS).sack_permitted().window(600));
    assert_eq!(line.sent(), ["S ack"]);
    line.ack_window(1, 600);
    line.id = line.script.take_incoming();
    line.write(1_100);
    assert_eq!(line.sent(), ["1:601 P"], "all that the peer ever had");
    line.ack_window(601, 300);
    assert_eq!(line.sent(), ["601:901 P"]);
    line.ack_window(901, 99);
    assert!(line.wait_for_send(5_000).is_some_and(|wait| wait >= 200));
    assert_eq!(line.sent(), ["901:1000 P"]);
}

#[test]
fn the_last_bytes_of_a_write_go_into_a_small_window() {
    let mut line = offering(5_000);
    line.write(5_100);
    assert_eq!(line.sent(), full_segments(1, 5));
    line.wait(100);
    line.ack_window(5_001, 100);
    assert_eq!(line.sent(), ["5001:5101 P"]);
}

#[test]
fn a_shrunken_window_stops_new_data_and_is_probed_with_backoff() {
    let mut line = offering(30_000);
    line.write(20_000);
    assert_eq!(line.sent(), full_segments(1, 10), "the initial window");
    line.wait(100);
    line.ack_window(10_001, 0);
    assert_eq!(line.sent(), [""; 0], "what was offered before is taken back (SHLD-15)");
    let mut pauses = Vec::new();
    for _ in 0..4 {
        pauses.push(line.wait_for_send(60_000).expect("a probe"));
        assert_eq!(line.sent(), ["ack 1"], "without payload");
    }
    assert!(pauses.windows(2).all(|pair| pair[1] == pair[0] * 2), "{pauses:?}");
    line.ack_window(10_001, 2_000);
    assert_eq!(line.sent(), full_segments(10_001, 2));
}
