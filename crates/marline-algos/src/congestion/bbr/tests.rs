//! Tests of BBR against a pipe of known rate and RTT.

use marline_policy::Penalty;
use marline_testkit::views::{MSS, ack, ms};

use super::*;

const INITIAL: u64 = 10 * MSS as u64;
/// 80 Mbit/s at 50 ms: 500 segments of 1,000 bytes.
const RATE: Rate = Rate::from_mbit(80);
const RTT: Duration = ms(50);
const BDP: u64 = 500_000;

/// Path that delivers one segment after another, at the sender's pacing rate or its own rate, whichever is lower.
struct Path {
    now: Instant,
    rate: Rate,
    rtt: Duration,
    total: u64,
    app_limited: bool,
}

impl Path {
    fn new() -> Self {
        Path { now: Instant::from_secs(1), rate: RATE, rtt: RTT, total: 0, app_limited: false }
    }

    /// Simulates one round trip: a window's worth of ACKs in eight batches, at the rate that the window, the pacing and
    /// the path allow. Bytes beyond the bandwidth-delay product wait in the queue.
    fn round(&mut self, bbr: &mut Bbr, lost: u64) {
        let window = bbr.window();
        let by_window = Rate::over(window, self.rtt);
        let paced = bbr.pacing_rate().unwrap_or(by_window);
        let rate = by_window.min(paced).min(self.rate);
        let delivered = rate.bytes_in(self.rtt).max(u64::from(MSS)).min(window);
        let began = self.total;
        let queued = window
            .saturating_sub(self.rate.bytes_in(self.rtt))
            .min(paced.bytes_in(self.rtt).saturating_sub(self.rate.bytes_in(self.rtt)));
        for _ in 0..8 {
            self.now += self.rtt / 8;
            self.total += delivered / 8;
            let in_flight = delivered + queued;
            let rtt = self.rtt + self.rate.time_for(queued);
            let mut sample = ack(self.now, delivered / 8, in_flight.min(window), rtt);
            sample.total_delivered = self.total;
            sample.lost = lost / 8;
            sample.rate = Some(RateSample {
                rate,
                delivered,
                interval: self.rtt,
                app_limited: self.app_limited,
                prior_delivered: began,
            });
            bbr.on_sent(delivered / 8, self.now);
            bbr.on_ack(&sample, SubflowId(0), &[]);
        }
    }

    fn rounds(&mut self, bbr: &mut Bbr, count: u32) {
        (0..count).for_each(|_| self.round(bbr, 0));
    }
}

fn controller() -> Bbr {
    Bbr::new(MSS, INITIAL, Instant::from_secs(1))
}

/// Creates a controller that has measured the path.
fn settled(path: &mut Path) -> Bbr {
    let mut bbr = controller();
    path.rounds(&mut bbr, 30);
    assert!(matches!(bbr.state, State::ProbeBw(_)), "{bbr:?}");
    bbr
}

fn signal(bbr: &mut Bbr, path: &Path, signal: CongestionSignal) {
    bbr.on_signal(signal, path.now, SubflowId(0), &[]);
}

#[test]
fn startup_doubles_until_the_rate_grows_no_more_then_drains() {
    let (mut path, mut bbr) = (Path::new(), controller());
    assert_eq!((bbr.window(), bbr.pacing_rate(), bbr.ssthresh()), (INITIAL, None, u64::MAX));
    let mut windows = vec![bbr.window()];
    for _ in 0..4 {
        path.round(&mut bbr, 0);
        windows.push(bbr.window());
        assert_eq!((bbr.state, bbr.ssthresh()), (State::Startup, u64::MAX));
    }
    assert!(windows.windows(2).all(|pair| pair[1] >= pair[0] * 19 / 10), "{windows:?}");
    let mut drained = false;
    for _ in 0..12 {
        path.round(&mut bbr, 0);
        drained |= bbr.state == State::Drain;
    }
    assert!(drained || matches!(bbr.state, State::ProbeBw(_)));
    assert!((BDP * 95 / 100..=BDP * 101 / 100).contains(&bbr.ssthresh()), "{}", bbr.ssthresh());
}

#[test]
fn a_greeting_of_one_byte_does_not_set_the_pace() {
    let mut bbr = controller();
    let mut sample = ack(Instant::from_secs(2), 1, 0, RTT);
    sample.total_delivered = 1;
    sample.rate = Some(RateSample {
        rate: Rate::over(1, RTT),
        delivered: 1,
        interval: RTT,
        app_limited: true,
        prior_delivered: 0,
    });
    bbr.on_ack(&sample, SubflowId(0), &[]);
    let first = Rate::over(2 * INITIAL, RTT);
    assert!(bbr.pacing_rate().is_some_and(|pace| pace > first), "{:?}", bbr.pacing_rate());
}

#[test]
fn the_window_is_twice_and_the_pace_once_the_product() {
    let mut path = Path::new();
    let bbr = settled(&mut path);
    let window = bbr.window();
    assert!((2 * BDP..2 * BDP + 60 * u64::from(MSS)).contains(&window), "{window}");
    let gain = bbr.state.pacing_gain();
    let pace = bbr.pacing_rate().map_or(0.0, |pace| pace.bits_per_s() as f64);
    let expected = RATE.bits_per_s() as f64 * gain * PACING_MARGIN;
    assert!((pace / expected - 1.0).abs() < 0.02, "{pace} {expected}");
}

#[test]
fn one_probe_and_one_drain_in_eight_round_trips() {
    let mut path = Path::new();
    let mut bbr = settled(&mut path);
    let gains: Vec<f64> = (0..80)
        .map(|_| {
            path.round(&mut bbr, 0);
            bbr.state.pacing_gain()
        })
        .collect();
    let share = |wanted: f64| gains.iter().filter(|gain| **gain == wanted).count();
    assert!((6..=14).contains(&share(1.25)), "{gains:?}");
    assert!((3..=14).contains(&share(0.75)), "{gains:?}");
    let after: Vec<_> = gains.windows(2).filter(|pair| pair[0] == 1.25).map(|p| p[1]).collect();
    assert!(after.iter().all(|gain| *gain == 1.25 || *gain == 0.75), "{gains:?}");
}

#[test]
fn a_faster_path_is_found_and_a_slower_one_believed_after_ten_rounds() {
    let mut path = Path::new();
    let mut bbr = settled(&mut path);
    path.rate = Rate::from_mbit(160);
    path.rounds(&mut bbr, 45);
    assert!(bbr.rate.get() > Rate::from_mbit(150), "{}", bbr.rate.get());
    path.rate = Rate::from_mbit(20);
    path.rounds(&mut bbr, 8);
    assert!(bbr.rate.get() > Rate::from_mbit(100), "too soon: {}", bbr.rate.get());
    path.rounds(&mut bbr, 8);
    assert!(bbr.rate.get() < Rate::from_mbit(22), "{}", bbr.rate.get());
}

#[test]
fn app_limited_samples_do_not_shrink_the_model() {
    let mut path = Path::new();
    let mut bbr = settled(&mut path);
    path.rate = Rate::from_mbit(2);
    path.app_limited = true;
    path.rounds(&mut bbr, 60);
    assert!(bbr.rate.get() > Rate::from_mbit(75), "{}", bbr.rate.get());
    path.rate = Rate::from_mbit(120);
    path.rounds(&mut bbr, 10);
    assert!(
        bbr.rate.get() > Rate::from_mbit(90),
        "a larger rate is used for any sender: {:?}",
        bbr.rate
    );
}

#[test]
fn every_ten_seconds_the_queue_runs_empty_and_the_model_survives_it() {
    let mut path = Path::new();
    let mut bbr = settled(&mut path);
    // The path has become longer, so no sample reaches the old minimum.
    path.rtt = ms(60);
    let (mut small, mut before) = (0, 0);
    let started = path.now;
    while path.now < started + Duration::from_secs(12) {
        path.round(&mut bbr, 0);
        if matches!(bbr.state, State::ProbeRtt(_)) {
            small += 1;
            assert_eq!(bbr.window(), 4 * u64::from(MSS));
        } else if small == 0 {
            before = bbr.window();
        }
    }
    assert!((4..=8).contains(&small), "200 ms and a round trip took {small} rounds");
    assert_eq!(bbr.rtt.get(), Some(ms(60)));
    assert!(bbr.rate.get() > Rate::from_mbit(75), "four segments are not the path's rate");
    assert!(bbr.window() >= before * 9 / 10, "{} of {before}", bbr.window());
}

#[test]
fn a_loss_conserves_for_a_round_and_changes_no_model() {
    let mut path = Path::new();
    let mut bbr = settled(&mut path);
    let (window, rate) = (bbr.window(), bbr.rate.get());
    signal(&mut bbr, &path, CongestionSignal::Loss { bytes_in_flight: BDP });
    let mut sample = ack(path.now, 1_000, 400_000, RTT);
    sample.lost = 20_000;
    sample.total_delivered = path.total + 1_000;
    bbr.on_ack(&sample, SubflowId(0), &[]);
    assert_eq!(bbr.window(), 401_000, "as much may be sent as was delivered");
    path.total += 1_000;
    path.rounds(&mut bbr, 4);
    assert!(bbr.window() >= window * 9 / 10, "later rounds grow: {}", bbr.window());
    signal(&mut bbr, &path, CongestionSignal::RecoveryDone);
    assert!(bbr.window() >= window);
    assert_eq!(bbr.rate.get(), rate);
    assert!(bbr.holds_window_in_recovery());
}

#[test]
fn a_timeout_starts_from_one_segment_and_comes_back() {
    let mut path = Path::new();
    let mut bbr = settled(&mut path);
    let window = bbr.window();
    for first in [true, false] {
        signal(&mut bbr, &path, CongestionSignal::Rto { bytes_in_flight: BDP, first });
        assert_eq!(bbr.window(), u64::from(MSS));
    }
    signal(&mut bbr, &path, CongestionSignal::Spurious);
    assert_eq!(bbr.window(), window, "nothing was lost");
    signal(&mut bbr, &path, CongestionSignal::Rto { bytes_in_flight: BDP, first: true });
    path.round(&mut bbr, 0);
    signal(&mut bbr, &path, CongestionSignal::RecoveryDone);
    assert_eq!(bbr.window(), window);
}

#[test]
fn a_penalty_halves_once_and_the_model_grows_it_back() {
    let mut path = Path::new();
    let mut bbr = settled(&mut path);
    let window = bbr.window();
    signal(&mut bbr, &path, CongestionSignal::Penalty(Penalty::Window));
    assert_eq!(bbr.window(), window / 2);
    path.rounds(&mut bbr, 3);
    assert!(bbr.window() >= window * 9 / 10, "{} of {window}", bbr.window());
}

#[test]
fn a_sender_limited_by_its_buffer_leaves_startup_too() {
    let (mut path, mut bbr) = (Path::new(), controller());
    path.app_limited = true;
    path.rounds(&mut bbr, 12);
    assert_ne!(bbr.state, State::Startup, "more was in flight than the path holds");
}

#[test]
fn a_queue_excess_flight_or_loss_proves_a_full_path() {
    let proves = |rtt: Duration, in_flight: u64, lost: u64, delivered: u64| {
        let mut evidence = RoundEvidence::default();
        let mut sample = ack(Instant::ZERO, delivered, 0, rtt);
        (sample.prior_in_flight, sample.lost) = (in_flight, lost);
        evidence.on_ack(&sample);
        evidence.end_round(Some(RTT), BDP, delivered)
    };
    let much = 100_000;
    assert!(!proves(ms(52), BDP, 0, much), "this may be jitter");
    assert!(proves(ms(60), BDP, 0, much), "there was a queue throughout");
    assert!(proves(ms(52), BDP * 2, 0, much), "more was in flight than fits on the path");
    assert!(proves(ms(52), BDP, 3_000, much), "some data was lost");
    assert!(!proves(ms(60), BDP * 2, 3_000, 5_000), "so little data proves nothing");
    // One small RTT in the round shows that the queue was not standing.
    let mut evidence = RoundEvidence::default();
    for rtt in [ms(70), ms(51), ms(70)] {
        evidence.on_ack(&ack(Instant::ZERO, much, 0, rtt));
    }
    assert!(!evidence.end_round(Some(RTT), BDP, much));
}
