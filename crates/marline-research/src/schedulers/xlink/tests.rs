use marline_policy::{Scheduler as _, SubflowId};
use marline_testkit::views::{MSS, Stream, backup, drain, full, gone, ms, send, unreachable, view};

use super::*;

/// Builds two subflows of 8 Mbit/s each (together 2,000 bytes per millisecond), with data in flight.
fn pair(fast_ms: u64, slow_ms: u64) -> [SubflowView; 2] {
    let of = |view: SubflowView| SubflowView {
        delivery_rate: Some(Rate::from_mbit(8)),
        bytes_in_flight: 1_000,
        rttvar: ms(5),
        ..view
    };
    [of(view(0, fast_ms)), of(view(1, slow_ms))]
}

/// Builds a stream with this many segments sent on the slow subflow, none of them acknowledged.
fn outstanding(segments: u64) -> Stream {
    let mut stream = Stream::new(segments * u64::from(MSS));
    while !stream.unsent().is_empty() {
        stream.apply(SubflowId(1), stream.unsent());
    }
    stream
}

fn asked(pair: &[SubflowView], segments: u64) -> Decision {
    let config = XlinkConfig { near: ms(20), far: ms(100) };
    Xlink::new(config).next_send(&outstanding(segments).context(pair))
}

#[test]
fn with_little_time_left_the_oldest_data_goes_on_the_other_path() {
    // 39 segments take 19.5 ms.
    assert_eq!(asked(&pair(10, 10), 39), send(0, 0, 1_000));
    let mut stream = outstanding(3);
    stream.ack(1_000);
    let all = drain(&mut Xlink::default(), &mut stream, &pair(10, 10));
    assert_eq!(all, [(0, 1_000, 2_000), (0, 2_000, 3_000)], "in order, and only once");
}

#[test]
fn between_the_thresholds_a_path_that_takes_longer_is_the_reason() {
    // 30 ms are left; no subflow takes longer than 25 ms.
    assert_eq!(asked(&pair(10, 20), 60), Decision::Wait);
    // The slow subflow may take 35 + 5 ms.
    assert_eq!(asked(&pair(10, 35), 60), send(0, 0, 1_000));
    // A subflow with nothing in flight does not delay anything.
    let mut idle = pair(10, 35);
    idle[1].bytes_in_flight = 0;
    assert_eq!(asked(&idle, 60), Decision::Wait);
}

#[test]
fn with_much_time_left_nothing_is_repeated_however_slow_a_path() {
    assert_eq!(asked(&pair(10, 190), 190), send(0, 0, 1_000));
    assert_eq!(asked(&pair(10, 900), 201), Decision::Wait);
}

#[test]
fn new_data_comes_first_and_is_waited_with() {
    let mut stream = outstanding(3);
    stream.written += 2_000;
    let subflows = pair(10, 40);
    let first = Xlink::default().next_send(&stream.context(&subflows));
    assert!(matches!(first.data(), Some((SubflowId(0), range)) if range.start.0 == 3_000));
    // The peer's window blocks data, so this is not the end.
    stream.window = 3_000;
    assert_eq!(Xlink::default().next_send(&stream.context(&subflows)), Decision::Wait);
}

#[test]
fn without_rates_or_round_trips_no_time_is_left() {
    let unknown = |view: SubflowView| SubflowView { srtt: None, delivery_rate: None, ..view };
    let subflows = pair(10, 20).map(unknown);
    assert_eq!(asked(&subflows, 10_000), send(0, 0, 1_000));
    let zero = |view: SubflowView| SubflowView {
        srtt: Some(Duration::ZERO),
        delivery_rate: Some(Rate::ZERO),
        cwnd: 0,
        ..view
    };
    assert_eq!(asked(&pair(10, 20).map(zero), 10_000), send(0, 0, 1_000));
}

#[test]
fn classes_are_respected() {
    let [fast, slow] = pair(10, 10);
    for other in [backup(fast), gone(fast), full(fast), unreachable(fast, 3)] {
        assert_eq!(asked(&[other, slow], 5), Decision::Wait, "{other:?}");
    }
    assert_eq!(asked(&[slow], 5), Decision::Wait, "alone");
    assert_eq!(asked(&[], 5), Decision::Wait, "none");
}
