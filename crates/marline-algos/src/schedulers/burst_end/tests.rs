use marline_testkit::views::{Stream, drain, gone, view};

use super::*;

#[test]
fn the_last_segments_of_a_burst_go_on_both_paths() {
    let mut stream = Stream::new(4_500);
    let sent = drain(&mut BurstEnd::default(), &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(sent.len(), 7, "{sent:?}");
    assert_eq!(sent[5..], [(1, 3500, 4000), (1, 4000, 4500)], "the last 1000 bytes");
}

#[test]
fn a_short_message_goes_whole_on_both_paths() {
    let mut stream = Stream::new(200);
    let sent = drain(&mut BurstEnd::default(), &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(sent, [(0, 0, 200), (1, 0, 200)]);
}

#[test]
fn the_configured_number_of_segments_is_copied() {
    let mut stream = Stream::new(5_000);
    let mut scheduler = BurstEnd::new(BurstEndConfig { segments: 3 });
    let sent = drain(&mut scheduler, &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(sent[5..], [(1, 2000, 3000), (1, 3000, 4000), (1, 4000, 5000)]);
}

#[test]
fn a_tail_that_the_slow_path_introduced_is_copied_to_the_fast_one() {
    let (mut stream, mut scheduler) = (Stream::new(1_000), BurstEnd::default());
    drain(&mut scheduler, &mut stream, &[gone(view(0, 20)), view(1, 90)]);
    let sent = drain(&mut scheduler, &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(sent, [(0, 0, 1000)]);
}

#[test]
fn nothing_is_copied_while_the_burst_continues() {
    let (mut stream, mut scheduler) = (Stream::new(9_000), BurstEnd::default());
    stream.window = 4_000;
    let sent = drain(&mut scheduler, &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(sent.len(), 4, "the window is closed, but the burst continues: {sent:?}");
}
