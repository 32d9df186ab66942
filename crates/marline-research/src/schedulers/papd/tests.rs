//! Tests of the scheduling decisions in each mode.

use marline_testkit::views::{MSS, Stream, full, ms, send, unreachable, view};

use super::*;

const BOUND: u64 = 1_000_000;
/// Buffer large enough for everything delivered here, even over the longer path.
const BUFFER: u64 = 4 * BOUND;

/// Builds two paths of equal rate, the second with the longer RTT.
fn pair() -> [SubflowView; 2] {
    let known = |id, srtt| SubflowView {
        ssthresh: 600_000,
        delivery_rate: Some(Rate::from_mbit(90)),
        ..view(id, srtt)
    };
    [known(0, 50), known(1, 200)]
}

/// Connection that always has data, at a given time.
struct BusyConnection {
    papd: Papd,
    stream: Stream,
    now: Instant,
}

impl BusyConnection {
    fn new(config: PapdConfig) -> Self {
        let stream = Stream { window: BUFFER, ..Stream::new(BUFFER) };
        BusyConnection { papd: Papd::new(config), stream, now: Instant::from_secs(1) }
    }

    fn ask(&mut self, views: &[SubflowView]) -> Decision {
        let context = SchedulerContext { now: self.now, ..self.stream.context(views) };
        self.papd.next_send(&context).limited_to_segment()
    }

    /// Makes a decision and sends a segment. Returns the subflow, and whether the data was new.
    fn send(&mut self, views: &[SubflowView]) -> Option<(u8, bool)> {
        let Decision::Send { subflow, range } = self.ask(views) else { return None };
        let new = range.start == self.stream.unsent().start;
        self.stream.apply(subflow, range);
        Some((subflow.0, new))
    }

    /// Advances the time while `rate` bytes per millisecond are delivered and more are written.
    fn pass(&mut self, length_ms: u64, rate: u64, views: &[SubflowView]) {
        for _ in 0..length_ms {
            self.now += ms(1);
            self.stream.data_una += rate;
            self.stream.mappings.clear();
            self.stream.written = self.stream.data_una + BUFFER;
            self.ask(&views.iter().map(|view| full(*view)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn while_paths_look_for_their_rate_both_carry_everything() {
    let mut asked = BusyConnection::new(PapdConfig::default());
    let mut views = pair();
    views[1].ssthresh = u64::MAX;
    let sent: Vec<_> = (0..4).map(|_| asked.send(&views)).collect();
    assert_eq!(sent, [Some((0, true)), Some((1, false)), Some((0, true)), Some((1, false))]);
    assert!(!asked.papd.modes.has_started());
}

#[test]
fn the_multipath_window_spreads_and_the_redundant_one_copies() {
    let mut asked = BusyConnection::new(PapdConfig::default());
    let views = pair();
    asked.pass(805, 10_000, &views);
    assert_eq!(asked.papd.modes.mode(), Mode::Multipath);
    let mut only_slow = views;
    only_slow[0] = full(only_slow[0]);
    assert_eq!(asked.send(&views), Some((0, true)));
    // The second path gets different data: the data after the first segment.
    let start = asked.stream.unsent().start.0;
    assert_eq!(asked.ask(&only_slow), send(1, start, asked.stream.written));
    // The multipath mode delivers less, so the redundant mode returns, and the second path copies.
    asked.pass(805, 2_000, &views);
    assert_eq!(asked.papd.modes.mode(), Mode::Redundant);
    assert_eq!(asked.send(&views), Some((0, true)));
    assert_eq!(asked.send(&only_slow), Some((1, false)));
}

#[test]
fn after_a_window_of_copies_the_best_path_carries_alone() {
    let mut asked = BusyConnection::new(PapdConfig::default());
    let views = pair();
    asked.pass(1_610, 5_000, &views);
    assert_eq!(asked.papd.modes.mode(), Mode::Redundant);
    asked.pass(810, 5_000, &views);
    let alone: Vec<_> = (0..3).map(|_| asked.send(&views)).collect();
    assert_eq!(alone, [Some((0, true)); 3], "of two equal rates, the shorter path's is chosen");
    assert_eq!(asked.ask(&[full(views[0]), views[1]]), asked.ask(&[full(views[0])]));
    let all = PapdConfig { best_path_only: false, ..PapdConfig::default() };
    let mut asked = BusyConnection::new(all);
    asked.pass(2_420, 5_000, &views);
    assert_eq!(asked.papd.modes.mode(), Mode::Redundant);
    assert_eq!([asked.send(&views), asked.send(&views)], [Some((0, true)), Some((1, false))]);
}

#[test]
fn in_turn_each_path_carries_alone_and_the_one_that_brought_more_goes_on() {
    let config = PapdConfig { measure: MeasurementMethod::InTurn, ..PapdConfig::default() };
    let mut asked = BusyConnection::new(config);
    let views = pair();
    asked.pass(1_610, 5_000, &views);
    assert_eq!(asked.papd.modes.mode(), Mode::Redundant);
    // Each path has a window of 800 ms, after a round trip of 200 ms.
    let carrier = |asked: &BusyConnection| asked.papd.single_path(&asked.stream.context(&views));
    assert_eq!(carrier(&asked), Some(SubflowId(0)));
    assert_eq!(asked.send(&views), Some((0, true)));
    assert_eq!(asked.ask(&[full(views[0]), views[1]]), asked.ask(&[full(views[0])]), "no copies");
    asked.pass(1_005, 3_000, &views);
    assert_eq!(carrier(&asked), Some(SubflowId(1)));
    asked.pass(1_005, 5_000, &views);
    match asked.papd.carriers {
        Carriers::Best { path, rate } => {
            assert_eq!(path, SubflowId(1));
            assert!((4.9e6..5.1e6).contains(&rate), "{rate}");
        }
        other => panic!("{other:?}"),
    }
    // Applications that write little get copies on all paths.
    let mut asked = BusyConnection::new(config);
    asked.pass(1_610, 5_000, &views);
    asked.stream.data_una = asked.stream.written;
    for _ in 0..3_000 {
        asked.now += ms(1);
        asked.ask(&views);
    }
    asked.stream.written += u64::from(MSS);
    assert_eq!([asked.send(&views), asked.send(&views)], [Some((0, true)), Some((1, false))]);
}

#[test]
fn a_silent_best_path_is_not_waited_for_and_a_fallen_one_is_measured_again() {
    let mut asked = BusyConnection::new(PapdConfig::default());
    let views = pair();
    asked.pass(2_420, 10_000, &views);
    assert_eq!(asked.papd.single_path(&asked.stream.context(&views)), Some(SubflowId(0)));
    let mut failed = views;
    failed[0] = unreachable(failed[0], 0);
    assert_eq!(asked.send(&failed), Some((1, true)), "immediately");
    // The path returns but delivers a third of what it did: within two windows, all carry data again.
    asked.pass(1_200, 3_000, &views);
    assert_eq!(asked.papd.modes.mode(), Mode::Redundant);
    assert!(matches!(asked.papd.carriers, Carriers::All), "{:?}", asked.papd.carriers);
}

#[test]
fn the_rate_of_a_path_is_limited_by_the_buffer() {
    let mut views = pair();
    views[1].delivery_rate = Some(Rate::from_mbit(150));
    let stream = Stream { window: BOUND, ..Stream::new(BOUND) };
    // 1 MB in 200 ms is 40 Mbit/s, regardless of what the path could do.
    let (path, rate) = best_path(&stream.context(&views)).unwrap();
    assert_eq!((path, rate), (SubflowId(0), 90e6 / 8.0));
    let stream = Stream { window: 10 * BOUND, ..Stream::new(BOUND) };
    assert_eq!(best_path(&stream.context(&views)).unwrap().0, SubflowId(1));
}

#[test]
fn a_slow_application_stays_redundant() {
    let mut asked = BusyConnection::new(PapdConfig::default());
    let views = pair();
    for _ in 0..20_000 {
        asked.now += ms(1);
        asked.stream.data_una += 100;
        asked.stream.mappings.clear();
        asked.stream.written = asked.stream.data_una;
        asked.ask(&views);
    }
    assert_eq!(asked.papd.modes.mode(), Mode::Redundant);
    asked.stream.written += u64::from(MSS);
    assert_eq!([asked.send(&views), asked.send(&views)], [Some((0, true)), Some((1, false))]);
}

#[test]
fn a_new_path_restarts_the_comparison() {
    let mut asked = BusyConnection::new(PapdConfig::default());
    let views = pair();
    asked.pass(805, 10_000, &views);
    assert!(asked.papd.modes.has_started());
    let context = SchedulerContext { now: asked.now, ..asked.stream.context(&views) };
    let mut out = Vec::new();
    asked.papd.on_event(SchedulerEvent::SubflowUp(SubflowId(2)), &context, &mut out);
    assert!(!asked.papd.modes.has_started());
    assert_eq!(asked.papd.modes.mode(), Mode::Redundant);
}

#[test]
fn waiting_ends_with_the_mode() {
    let mut asked = BusyConnection::new(PapdConfig::default());
    let views = pair().map(full);
    asked.ask(&views);
    let Decision::WaitUntil(at) = asked.ask(&views) else { panic!("a time") };
    assert_eq!(Some(at), asked.papd.modes.next_change());
}

#[test]
fn waits_never_end_in_the_past() {
    let mut asked = BusyConnection::new(PapdConfig::default());
    let mut views = pair();
    views[1].ssthresh = u64::MAX;
    asked.ask(&views);
    // The second path goes silent, and the end of the start passes.
    views[1] = unreachable(views[1], 0);
    asked.now += Duration::from_secs(60);
    for view in [full(views[0]), marline_testkit::views::paced(views[0], 70_000)] {
        match asked.ask(&[view, views[1]]) {
            Decision::WaitUntil(at) => assert!(at > asked.now, "{at:?}"),
            decision => assert_eq!(decision, Decision::Wait),
        }
    }
}

/// Scheduler that needs an event for each ACK.
#[derive(Debug)]
struct Watcher;

impl Scheduler for Watcher {
    fn next_send(&mut self, _cx: &SchedulerContext<'_>) -> Decision {
        Decision::Wait
    }

    fn next_reinjection(&mut self, _item: &Reinjection, _cx: &SchedulerContext<'_>) -> Decision {
        Decision::Wait
    }

    fn watches_acks(&self) -> bool {
        true
    }
}

#[test]
fn the_current_mode_receives_ack_events() {
    let mut asked = BusyConnection::new(PapdConfig::default());
    asked.papd = Papd::wrap(Box::new(Watcher), PapdConfig::default());
    assert!(!asked.papd.watches_acks(), "copies do not need it");
    asked.pass(805, 10_000, &pair());
    assert_eq!(asked.papd.modes.mode(), Mode::Multipath);
    assert!(asked.papd.watches_acks());
}
