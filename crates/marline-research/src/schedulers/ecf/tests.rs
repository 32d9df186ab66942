use marline_testkit::views::{MSS, Stream, full, ms, send, unreachable, view};

use super::*;

const SEGMENT: u64 = MSS as u64;

/// Builds two paths: 20 ms and full, 10 segments; 100 ms, 10 segments.
fn pair() -> [SubflowView; 2] {
    let fast = SubflowView { cwnd: 10 * SEGMENT, rttvar: ms(0), ..full(view(0, 20)) };
    [fast, SubflowView { cwnd: 10 * SEGMENT, rttvar: ms(0), ..view(1, 100) }]
}

fn decide(ecf: &mut Ecf, pair: &[SubflowView; 2], unsent: u64) -> Decision {
    ecf.next_send(&Stream::new(unsent).context(pair))
}

#[test]
fn a_short_rest_waits_for_the_fast_one() {
    // 20 ms * (1 + k / 10 segments) equals 100 ms at 40 segments.
    assert_eq!(decide(&mut Ecf::default(), &pair(), 39_999), Decision::Wait);
    assert_eq!(decide(&mut Ecf::default(), &pair(), 40_000), send(1, 0, 40_000));
    assert_eq!(decide(&mut Ecf::default(), &pair(), 100), Decision::Wait, "at least one window");
}

#[test]
fn hysteresis_prolongs_a_wait() {
    let mut ecf = Ecf::default();
    assert_eq!(decide(&mut ecf, &pair(), 40_000), send(1, 0, 40_000));
    assert_eq!(decide(&mut ecf, &pair(), 39_000), Decision::Wait);
    // 1.25 * 100 ms: up to 52.5 segments.
    assert_eq!(decide(&mut ecf, &pair(), 52_499), Decision::Wait);
    assert_eq!(decide(&mut ecf, &pair(), 52_500), send(1, 0, 52_500));
    assert_eq!(decide(&mut ecf, &pair(), 40_000), send(1, 0, 40_000), "then the wait ends");
}

#[test]
fn variation_is_a_reason_to_wait_longer() {
    let mut pair = pair();
    pair[0].rttvar = ms(20);
    assert_eq!(decide(&mut Ecf::default(), &pair, 49_999), Decision::Wait);
    assert_eq!(decide(&mut Ecf::default(), &pair, 50_000), send(1, 0, 50_000));
}

#[test]
fn a_slow_path_that_is_hardly_slower_is_used_although_the_first_question_says_wait() {
    let mut pair = pair();
    pair[1].srtt = Some(ms(39));
    // 20 * (1 + 10 / 10) = 40 ms is not less than 39 ms: send.
    assert_eq!(decide(&mut Ecf::default(), &pair, 1_000), send(1, 0, 1_000));
    // With 41 ms, the first condition means waiting. With its window full of data, S takes 41 ms, and two round trips
    // of F take 40 ms: the second condition also means waiting, but not with 15 ms of variation.
    pair[1].srtt = Some(ms(41));
    assert_eq!(decide(&mut Ecf::default(), &pair, 1_000), Decision::Wait);
    pair[1].rttvar = ms(15);
    assert_eq!(decide(&mut Ecf::default(), &pair, 1_000), send(1, 0, 1_000));
}

#[test]
fn unknown_and_silent_paths_are_not_waited_for() {
    let mut young = pair();
    young[0].srtt = None;
    assert_eq!(decide(&mut Ecf::default(), &young, 1_000), send(1, 0, 1_000));
    let mut dead = pair();
    dead[0] = unreachable(dead[0], 3);
    assert_eq!(decide(&mut Ecf::default(), &dead, 1_000), send(1, 0, 1_000));
}
