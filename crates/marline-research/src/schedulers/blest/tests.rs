use marline_testkit::views::{MSS, Stream, backup, full, ms, send, unreachable, view};

use super::*;

const SEGMENT: u64 = MSS as u64;

/// Builds two paths: 20 ms and full, in congestion avoidance with 10 segments; 100 ms and empty.
fn pair() -> [SubflowView; 2] {
    let fast = SubflowView { cwnd: 10 * SEGMENT, ssthresh: 5 * SEGMENT, ..full(view(0, 20)) };
    [fast, SubflowView { cwnd: 10 * SEGMENT, ssthresh: 5 * SEGMENT, ..view(1, 100) }]
}

fn steady(lambda: f64) -> Blest {
    Blest::new(BlestConfig { lambda, bounds: (0.0, 9.0), adapts: false, ..BlestConfig::default() })
}

/// Returns the decision with a window of `window` segments.
fn decide(blest: &mut Blest, pair: &[SubflowView; 2], window: u64) -> Decision {
    let stream = Stream { window: window * SEGMENT, ..Stream::new(500_000) };
    let unsent = stream.unsent().prefix(stream.window);
    let mut cx = stream.context(pair);
    cx.unsent = unsent;
    blest.next_send(&cx)
}

#[test]
fn a_window_that_fits_the_data_of_the_fast_path_is_shared() {
    // 100 ms are 5 round trips, and one more begins: 6 * (10 + 2) segments, and the one for S.
    let mut blest = steady(1.0);
    assert_eq!(decide(&mut blest, &pair(), 72), Decision::Wait);
    assert_eq!(decide(&mut blest, &pair(), 73), send(1, 0, 73_000));
    let mut careful = steady(1.5);
    assert_eq!(decide(&mut careful, &pair(), 108), Decision::Wait);
    assert_eq!(decide(&mut careful, &pair(), 109), send(1, 0, 109_000));
}

#[test]
fn data_on_the_slow_path_counts() {
    let mut pair = pair();
    pair[1].bytes_in_flight = 3 * SEGMENT;
    pair[1].bytes_queued = SEGMENT;
    assert_eq!(decide(&mut steady(1.0), &pair, 76), Decision::Wait);
    assert_eq!(decide(&mut steady(1.0), &pair, 77), send(1, 0, 77_000));
}

#[test]
fn in_slow_start_the_fast_one_doubles() {
    let mut pair = pair();
    pair[0].ssthresh = u64::MAX;
    // 10 * (2^6 - 1) segments.
    assert_eq!(decide(&mut steady(1.0), &pair, 630), Decision::Wait);
    assert_eq!(decide(&mut steady(1.0), &pair, 631), send(1, 0, 500_000));
}

#[test]
fn a_full_slow_path_is_rated_by_its_worst_rtt() {
    let mut blest = steady(1.0);
    let mut pair = pair();
    pair[1].srtt = Some(ms(300));
    decide(&mut blest, &pair, 10_000);
    pair[1].srtt = Some(ms(100));
    let rounds = |blest: &mut Blest, pair: &[SubflowView; 2]| -> u64 {
        (1..2_000).find(|w| decide(blest, pair, *w) != Decision::Wait).expect("a window")
    };
    // The delay is between 100 and 300 ms, depending on how full the path is: 1 of 10 segments means 120 ms, or 7 round
    // trips.
    assert_eq!(rounds(&mut blest, &pair), 7 * 13 + 1);
    pair[1].bytes_in_flight = 9 * SEGMENT;
    // If it is full: 300 ms, or 16 round trips, and its 9 segments.
    assert_eq!(rounds(&mut blest, &pair), 16 * 17 + 10);
}

#[test]
fn the_fast_one_and_lone_classes_never_wait() {
    let mut fast = pair();
    fast[0] = view(0, 20);
    assert_eq!(decide(&mut steady(1.0), &fast, 1), send(0, 0, 1_000));
    let mut spare = pair();
    spare[0] = backup(spare[0]);
    assert_eq!(
        decide(&mut steady(1.0), &spare, 1),
        send(1, 0, 1_000),
        "it does not wait for a backup"
    );
    let mut dead = pair();
    dead[0] = unreachable(dead[0], 3);
    assert_eq!(decide(&mut steady(1.0), &dead, 1), send(1, 0, 1_000), "nor for a silent one");
}

#[test]
fn lambda_learns_once_per_round_trip_of_the_slow_one() {
    let mut blest = Blest::default();
    let pair = pair();
    let stream = Stream { window: 10_000_000, ..Stream::new(500_000) };
    let ask = |blest: &mut Blest, at_ms: u64, blocked: bool| {
        let mut cx = stream.context(&pair);
        cx.now = Instant::from_millis(at_ms);
        if blocked {
            let event = SchedulerEvent::PeerWindowBlocked { picked: SubflowId(0) };
            blest.on_event(event, &cx, &mut Vec::new());
        }
        blest.next_send(&cx);
        (blest.lambda * 100.0).round()
    };
    assert_eq!(ask(&mut blest, 1_000, false), 119.0);
    assert_eq!(ask(&mut blest, 1_050, true), 119.0, "not before 100 ms have passed");
    assert_eq!(ask(&mut blest, 1_100, false), 123.0, "the window has blocked since");
    assert_eq!(ask(&mut blest, 1_200, false), 122.0);
    for at in 2..6 {
        ask(&mut blest, at * 1_000, true);
    }
    assert_eq!(ask(&mut blest, 9_000, true), 130.0, "the upper bound");
    for at in 10..60 {
        ask(&mut blest, at * 1_000, false);
    }
    assert_eq!(ask(&mut blest, 99_000, false), 100.0, "the lower bound");
}
