use marline_policy::Penalty;
use marline_testkit::views::{BulkSender, MSS, ack, ms};

use super::*;

const SEGMENT: u64 = MSS as u64;
const ME: SubflowId = SubflowId(0);

fn signal(cc: &mut Cubic, signal: CongestionSignal) {
    cc.on_signal(signal, Instant::from_secs(2), ME, &[]);
}

const LOSS: CongestionSignal = CongestionSignal::Loss { bytes_in_flight: 0 };

/// Creates a controller that has recovered from a loss at `segments`.
fn after_loss_at(segments: u64) -> Cubic {
    let mut cc = Cubic::new(MSS, segments * SEGMENT, SlowStartKind::Classic);
    signal(&mut cc, LOSS);
    signal(&mut cc, CongestionSignal::RecoveryDone);
    cc
}

fn segments(cc: &Cubic) -> f64 {
    cc.window() as f64 / SEGMENT as f64
}

fn curve(cc: &Cubic) -> Curve {
    cc.curve.as_deref().copied().unwrap_or_default()
}

#[test]
fn the_cube_root_is_exact_to_the_last_bits() {
    for x in [1e-9, 0.001, 0.5, 1.0, 2.0, 27.0, 750.0, 1e6, 1e12] {
        let root = cube_root(x);
        let error = (root * root * root - x).abs() / x;
        assert!(error < 1e-14, "cube root of {x} is {root}: {error}");
    }
    assert_eq!(cube_root(0.0), 0.0);
    assert_eq!(cube_root(-1.0), 0.0);
    assert_eq!(cube_root(27.0), 3.0);
}

/// With a short path and a small window, Reno's estimate is the larger of the two.
#[test]
fn beyond_the_last_loss_the_estimate_grows_as_its_source_says() {
    for (estimate, per_round) in [(RenoEstimate::Rfc9438, 1.0), (RenoEstimate::Linux, ALPHA)] {
        let mut cc = after_loss_at(40).with_reno_estimate(estimate);
        let mut bulk = BulkSender::new(10);
        while segments(&cc) < 41.0 {
            bulk.round(&mut cc);
        }
        let before = segments(&cc);
        (0..10).for_each(|_| bulk.round(&mut cc));
        let grown = (segments(&cc) - before) / 10.0;
        assert!((grown - per_round).abs() < 0.05, "{estimate:?}: {grown} segments a round");
    }
}

#[test]
fn growth_follows_the_closed_formula() {
    // The path is long, so that the cubic region applies throughout.
    let mut cc = after_loss_at(1_000);
    assert_eq!(cc.window(), 700 * SEGMENT);
    let mut bulk = BulkSender::new(100);
    let begin = bulk.now;
    let k = cube_root(1_000.0 * (1.0 - BETA) / C);
    assert!((k - 9.0856).abs() < 1e-3, "{k}");
    let mut checked = 0;
    while seconds(bulk.now - begin) < 14.0 {
        bulk.round(&mut cc);
        let t = seconds(bulk.now - begin);
        let formula = C * (t - k).powi(3) + 1_000.0;
        let error = (segments(&cc) - formula).abs() / formula;
        assert!(error < 0.01, "after {t:.1} s: {} against {formula}", segments(&cc));
        checked += 1;
    }
    assert!(checked > 100);
    assert!(segments(&cc) > 1_040.0, "beyond the old maximum it grows again");
}

#[test]
fn on_a_short_path_it_is_as_fast_as_reno_of_the_same_fairness() {
    let mut cc = after_loss_at(20);
    let mut bulk = BulkSender::new(10);
    // Below the old window, growth is 0.53 segments per round trip; beyond it, one. CUBIC alone would stay below 20 for
    // 2.5 s.
    (0..12).for_each(|_| bulk.round(&mut cc));
    let early = segments(&cc);
    assert!((early - (14.0 + 12.0 * ALPHA)).abs() < 0.6, "{early}");
    (0..30).for_each(|_| bulk.round(&mut cc));
    assert!(segments(&cc) > 40.0, "{}", segments(&cc));
}

#[test]
fn fast_convergence_aims_lower_after_a_second_loss() {
    let mut cc = after_loss_at(1_000);
    signal(&mut cc, LOSS);
    assert_eq!(cc.window(), 490 * SEGMENT);
    assert!((curve(&cc).w_max - 700.0 * 0.85).abs() < 1e-9, "{}", curve(&cc).w_max);
}

#[test]
fn a_spurious_loss_is_undone_with_the_curve() {
    let mut cc = after_loss_at(500);
    let mut bulk = BulkSender::new(50);
    (0..20).for_each(|_| bulk.round(&mut cc));
    let before = (cc.window(), cc.ssthresh(), curve(&cc).w_max, curve(&cc).k, curve(&cc).elapsed);
    signal(&mut cc, LOSS);
    assert!(cc.window() < before.0);
    signal(&mut cc, CongestionSignal::Spurious);
    let after = (cc.window(), cc.ssthresh(), curve(&cc).w_max, curve(&cc).k, curve(&cc).elapsed);
    assert_eq!(before, after);
}

#[test]
fn a_timeout_starts_flat_where_slow_start_ends() {
    let mut cc = Cubic::new(MSS, 100 * SEGMENT, SlowStartKind::Classic);
    signal(&mut cc, CongestionSignal::Rto { bytes_in_flight: 0, first: true });
    assert_eq!((cc.window(), cc.ssthresh()), (SEGMENT, 70 * SEGMENT));
    signal(&mut cc, CongestionSignal::RecoveryDone);
    let mut bulk = BulkSender::new(100);
    (0..8).for_each(|_| bulk.round(&mut cc));
    assert_eq!(curve(&cc).k, 0.0);
    assert!(curve(&cc).origin >= 70.0 && curve(&cc).origin < 72.0, "{}", curve(&cc).origin);
    signal(&mut cc, CongestionSignal::Spurious);
    assert!(cc.window() >= 100 * SEGMENT);
}

#[test]
fn pauses_of_the_application_earn_no_growth() {
    let mut busy = after_loss_at(1_000);
    let mut pausing = after_loss_at(1_000);
    let (mut a, mut b) = (BulkSender::new(100), BulkSender::new(100));
    for _ in 0..10 {
        a.round(&mut busy);
        b.round(&mut pausing);
        // The application sends a little for 5 s, far below the window.
        for _ in 0..50 {
            b.now += ms(100);
            let mut sample = ack(b.now, SEGMENT, 0, ms(100));
            sample.cwnd_limited = false;
            pausing.on_ack(&sample, ME, &[]);
        }
    }
    let gain = segments(&pausing) - 700.0;
    let fair = segments(&busy) - 700.0;
    assert!(gain <= fair && gain > 0.8 * fair, "{gain} against {fair}");
}

#[test]
fn a_penalty_is_not_given_back_within_a_round_trip() {
    let mut cc = after_loss_at(100);
    let mut bulk = BulkSender::new(100);
    (0..40).for_each(|_| bulk.round(&mut cc));
    signal(&mut cc, CongestionSignal::Penalty(Penalty::Window));
    let reduced = segments(&cc);
    bulk.round(&mut cc);
    assert!(segments(&cc) < reduced * 1.15, "{} from {reduced}", segments(&cc));
}

#[test]
fn hystart_leaves_slow_start_when_the_queue_grows() {
    // 100 segments fit on the path. The rest waits in an unlimited queue, 1 ms per segment.
    let run = |kind| {
        let mut cc = Cubic::new(MSS, 10 * SEGMENT, kind);
        let mut bulk = BulkSender::new(100);
        for _ in 0..10 {
            let queued = (segments(&cc) - 100.0).max(0.0) as u64;
            bulk.rtt = ms(100 + queued);
            bulk.round(&mut cc);
        }
        cc
    };
    let (plain, careful) = (run(SlowStartKind::Classic), run(SlowStartKind::HyStart));
    assert_eq!(plain.ssthresh(), u64::MAX, "nothing was lost, so it still doubles");
    assert!(careful.ssthresh() < 600 * SEGMENT, "{}", careful.ssthresh());
    assert!(careful.window() < plain.window() / 10);
}
