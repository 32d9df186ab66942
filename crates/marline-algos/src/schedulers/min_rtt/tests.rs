use marline_policy::{DataRange, Dsn, Forecast, SubflowId, SubflowView};
use marline_testkit::views::{DEGRADED, Stream, backup, full, gone, ms, paced, unreachable, view};
use marline_time::Instant;

use super::*;

/// Makes the address pair degraded, with data received at this time.
fn degraded(view: SubflowView, heard_ms: u64) -> SubflowView {
    SubflowView { health: DEGRADED, last_rx_at: Instant::from_millis(heard_ms), ..view }
}

/// Fills the window, with data in flight.
fn filled(view: SubflowView) -> SubflowView {
    SubflowView { bytes_in_flight: 1_000, ..full(view) }
}

/// Builds a run of this data on this subflow.
fn run(id: u8, start: u64, end: u64) -> Decision {
    let range = DataRange::new(Dsn(start), Dsn(end));
    Decision::SendRun { subflow: SubflowId(id), range }
}

#[test]
fn decision_table() {
    let (fast, slow) = (view(0, 20), view(1, 60));
    let spare = backup(view(2, 5));
    let pacer = Decision::WaitUntil(Instant::from_millis(3));
    let table: &[(&str, &[SubflowView], Decision)] = &[
        ("nothing", &[], Decision::Wait),
        ("lowest RTT", &[slow, fast], run(0, 0, 5_000)),
        ("full, but soon done: wait for it", &[filled(fast), slow], Decision::Wait),
        ("waits for its pacer: wait for it", &[paced(fast, 3), slow], pacer),
        ("all full: never the backup", &[full(fast), full(slow), spare], Decision::Wait),
        ("all wait", &[full(slow), paced(fast, 3), spare], pacer),
        ("silent: not used", &[unreachable(fast, 9), slow], run(1, 0, 5_000)),
        ("silent and full: wait", &[unreachable(fast, 9), full(slow)], Decision::Wait),
        ("all silent: the backup", &[unreachable(fast, 9), spare], run(2, 0, 5_000)),
        ("alone and silent: still used", &[unreachable(fast, 9)], run(0, 0, 5_000)),
        ("full, and nothing would end the wait", &[full(fast), slow], run(1, 0, 5_000)),
        // The faster one has nothing to do, so waiting for it would never end.
        (
            "otherwise: the one that received last",
            &[degraded(fast, 3), degraded(slow, 9)],
            run(1, 0, 5_000),
        ),
        ("gone", &[gone(fast)], Decision::Wait),
    ];
    let stream = Stream::new(5_000);
    for (name, subflows, expected) in table {
        let decision = MinRtt::default().next_send(&stream.context(subflows));
        assert_eq!(decision, *expected, "{name}");
    }
    let much = Stream::new(500_000);
    for busy in [filled(fast), paced(fast, 3)] {
        let decision = MinRtt::default().next_send(&much.context(&[busy, slow]));
        assert_eq!(decision, run(1, 0, 500_000), "more than the fast one can deliver soon");
    }
    let empty = Stream::new(0);
    assert_eq!(MinRtt::default().next_send(&empty.context(&[fast])), Decision::Wait);
}

#[test]
fn a_subflow_without_rtt_draws_no_burst() {
    let young = SubflowView { srtt: None, ..view(0, 1) };
    let stream = Stream::new(5_000);
    let all = [young, view(1, 200)];
    assert_eq!(MinRtt::default().next_send(&stream.context(&all)), run(1, 0, 5_000));
    let all = [young, full(view(1, 200))];
    assert_eq!(MinRtt::default().next_send(&stream.context(&all)), run(0, 0, 5_000));
}

#[test]
fn a_burst_smaller_than_the_fast_window_stays_on_the_fast_path() {
    let mut stream = Stream::new(10_000);
    let mut scheduler = MinRtt::default();
    let all = [view(0, 20), view(1, 60)];
    while let Some((subflow, range)) = scheduler.next_send(&stream.context(&all)).data() {
        assert_eq!(subflow, SubflowId(0));
        stream.apply(subflow, range);
    }
    assert_eq!(stream.sent(), 10_000);
}

#[test]
fn where_nothing_is_known_nothing_is_held_back() {
    let unknown = SubflowView { srtt: None, forecast: Forecast::default(), ..view(1, 1) };
    let all = [filled(view(0, 20)), unknown];
    let stream = Stream { window: 20_000, ..Stream::new(5_000) };
    assert_eq!(MinRtt::default().next_send(&stream.context(&all)), run(1, 0, 5_000));
}

#[test]
fn a_run_ends_where_its_last_segment_would_come_too_late() {
    let rate = Some(marline_time::Rate::from_mbit(8));
    let forecast = Forecast::with_quantiles([ms(40); 3], 0.0, rate);
    let slow = SubflowView { forecast, ..view(1, 40) };
    let busy = SubflowView { cwnd: 10_000, ssthresh: 10_000, ..filled(view(0, 20)) };
    // The slow one takes 20 ms plus 1.5 ms per segment. The fast one has delivered all 30 kB after 70 ms, or what a run
    // of 30 segments leaves after 12 ms.
    let stream = Stream::new(30_000);
    let decision = MinRtt::default().next_send(&stream.context(&[busy, slow]));
    assert_eq!(decision, run(1, 0, 30_000).limited_to_segment());
    let decision = MinRtt::default().next_send(&Stream::new(300_000).context(&[busy, slow]));
    assert_eq!(decision, run(1, 0, 300_000));
}

#[test]
fn bare_min_rtt_has_no_estimates_repeats_or_probe_patience() {
    let stream = Stream { window: 20_000, ..Stream::new(50_000) };
    let slow = [filled(view(0, 20)), view(1, 500)];
    let mut cx = stream.context(&slow);
    cx.unsent = cx.unsent.prefix(20_000);
    let mut bare = MinRtt::new(MinRttConfig::LOWEST_RTT);
    assert_eq!(MinRtt::default().next_send(&cx), Decision::Wait, "it would block the fast one");
    assert_eq!(bare.next_send(&cx), run(1, 0, 20_000));
    let mut held_up = Stream::new(5_000);
    held_up.apply(SubflowId(1), held_up.unsent());
    let both = [view(0, 20), view(1, 500)];
    let actions = |scheduler: &mut MinRtt| {
        let mut out = Vec::new();
        let event = SchedulerEvent::PeerWindowBlocked { picked: SubflowId(0) };
        scheduler.on_event(event, &held_up.context(&both), &mut out);
        out.len()
    };
    assert_eq!((actions(&mut MinRtt::default()), actions(&mut bare)), (2, 0));
    assert_eq!(bare.probe_patience(), None);
    assert_eq!(MinRtt::default().probe_patience(), Some(Duration::ZERO));
}
