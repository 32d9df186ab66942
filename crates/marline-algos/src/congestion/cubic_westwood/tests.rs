use marline_policy::RateSample;
use marline_testkit::views::{MSS, ack};

use super::*;
use crate::slow_start::SlowStartKind;

const MS: fn(u64) -> Duration = Duration::from_millis;
const ME: SubflowId = SubflowId(0);

/// Path of 40 ms that delivers 100 segments in this time.
struct Path {
    cc: CubicWestwood,
    now: Instant,
    /// Deviation of each RTT from the average one.
    jitter: Duration,
}

impl Path {
    fn new() -> Path {
        let cc = CubicWestwood::new(MSS, 100 * u64::from(MSS), SlowStartKind::Classic);
        let mut path = Path { cc, now: Instant::from_secs(1), jitter: Duration::ZERO };
        // Slow start ends at the first congestion. The tests start after that.
        path.round(MS(80), 0, false);
        path.signal(CongestionSignal::Loss { bytes_in_flight: 0 });
        path.signal(CongestionSignal::RecoveryDone);
        for _ in 0..40 {
            path.round(MS(40), 0, false);
        }
        path
    }

    /// Simulates a round trip with this average RTT, in which `lost` segments are lost.
    fn round(&mut self, rtt: Duration, lost: u64, in_recovery: bool) {
        for segment in 0..100 {
            self.now += rtt / 100;
            let window = self.cc.window();
            let is_late = segment % 2 == 0;
            let sampled = if is_late { rtt + self.jitter } else { rtt - self.jitter };
            let sample = AckSample {
                srtt: Some(rtt),
                min_rtt: Some(MS(40)),
                lost: if segment < lost { MSS.into() } else { 0 },
                in_recovery,
                rate: Some(RateSample {
                    rate: Rate::over(100 * u64::from(MSS), MS(40)),
                    delivered: 100 * u64::from(MSS),
                    interval: MS(40),
                    app_limited: false,
                    prior_delivered: 0,
                }),
                ..ack(self.now, MSS.into(), window - u64::from(MSS), sampled)
            };
            self.cc.on_ack(&sample, ME, &[]);
        }
    }

    /// Processes one ACK, with `in_flight` bytes in flight before it.
    fn round_in_flight(&mut self, rtt: Duration, in_flight: u64) {
        self.now += rtt;
        let min_rtt = Some(MS(40));
        let sample = AckSample { srtt: Some(rtt), min_rtt, ..ack(self.now, 0, in_flight, rtt) };
        self.cc.on_ack(&sample, ME, &[]);
    }

    fn signal(&mut self, signal: CongestionSignal) {
        self.cc.on_signal(signal, self.now, ME, &[]);
    }

    fn lose(&mut self) {
        self.signal(CongestionSignal::Loss { bytes_in_flight: self.cc.window() });
    }
}

#[test]
fn only_a_loss_with_a_queue_reduces_the_window() {
    let mut path = Path::new();
    let before = path.cc.window();
    path.lose();
    assert_eq!(path.cc.window(), before);
    assert!(path.cc.holds_window_in_recovery());
    path.round(MS(40), 1, true);
    assert!(path.cc.window() >= before, "growth continues");
    path.signal(CongestionSignal::RecoveryDone);
    assert!(!path.cc.holds_window_in_recovery());
    // The RTT is twice its minimum: the window falls to seven tenths, as with CUBIC.
    path.round(MS(80), 0, false);
    let before = path.cc.window() as f64;
    path.lose();
    let left = path.cc.window() as f64 / before;
    let floor = 100.0 * f64::from(MSS) / before;
    assert!((left - 0.7_f64.max(floor)).abs() < 0.02, "{left} of {before}, floor {floor}");
}

/// The bytes in flight fit on the path at the rate measured when the RTT was small, so the RTT varies without a queue.
#[test]
fn a_varying_round_trip_does_not_count_as_a_queue() {
    let mut path = Path::new();
    let cut = path.cc.window();
    path.cc.cubic.limit_window_to(100.0 * f64::from(MSS));
    assert!(path.cc.window() <= cut);
    path.round(MS(80), 0, false);
    let fits = 100 * u64::from(MSS) * 9 / 8;
    path.cc.cubic.limit_window_to(fits as f64);
    path.round_in_flight(MS(80), fits);
    let before = path.cc.window();
    path.lose();
    assert_eq!(path.cc.window(), before, "no more is in flight than fits");
    path.signal(CongestionSignal::RecoveryDone);
    path.round_in_flight(MS(80), fits + u64::from(MSS));
    path.lose();
    assert!(path.cc.window() < before, "one more segment waits in a queue");
}

#[test]
fn jitter_is_neither_a_queue_nor_does_it_lower_the_rate() {
    for (jitter_ms, floor_ms) in [(0, 40), (2, 48), (5, 55)] {
        let mut path = Path { jitter: MS(jitter_ms), ..Path::new() };
        path.round(MS(52), 0, false);
        let before = path.cc.window();
        path.lose();
        assert_eq!(path.cc.window() == before, jitter_ms >= 2, "{jitter_ms} ms");
        path.signal(CongestionSignal::RecoveryDone);
        // Behind a queue, a window is left that delivers as much at the average RTT.
        for _ in 0..10 {
            path.round(MS(80), 0, false);
            path.lose();
            path.signal(CongestionSignal::RecoveryDone);
        }
        let floor = floor_ms * 100 * u64::from(MSS) / 40;
        let left = path.cc.window();
        assert!((floor * 97 / 100..=floor * 110 / 100).contains(&left), "{left} of {floor}");
    }
}

#[test]
fn a_reduction_stops_at_the_delivery_rate_of_the_path() {
    let mut path = Path::new();
    path.round(MS(55), 0, false);
    let mut last = path.cc.window();
    for _ in 0..10 {
        path.lose();
        path.signal(CongestionSignal::RecoveryDone);
        assert!(path.cc.window() <= last);
        last = path.cc.window();
    }
    assert!((98_000..=102_000).contains(&last), "{last}: rate x smallest RTT");
}

#[test]
fn losses_that_are_many_or_meet_a_queue_in_the_end_are_congestion() {
    let mut path = Path::new();
    path.lose();
    let before = path.cc.window();
    path.round(MS(80), 1, true);
    assert!(path.cc.window() < before, "another loss in the episode, with a queue");
    let mut path = Path::new();
    for _ in 0..10 {
        path.round(MS(40), 25, false);
    }
    let before = path.cc.window();
    path.lose();
    assert!(path.cc.window() < before, "a fifth of the data is lost");
}

#[test]
fn a_pause_costs_nothing_where_the_window_was_used() {
    let mut path = Path::new();
    let before = path.cc.window();
    path.now += Duration::from_secs(20);
    path.signal(CongestionSignal::Idle);
    assert_eq!(path.cc.window(), before);
    // After five minutes, the path is unknown.
    path.now += Duration::from_secs(400);
    path.signal(CongestionSignal::Idle);
    assert!(path.cc.window() <= 100 * u64::from(MSS));
}

#[test]
fn pacing_is_set_only_without_a_queue() {
    let mut path = Path::new();
    let twice = Rate::over(2 * path.cc.window(), MS(40));
    assert_eq!(path.cc.pacing_rate(), Some(twice));
    path.round(MS(80), 0, false);
    assert_eq!(path.cc.pacing_rate(), None);
}
