use marline_policy::Penalty;
use marline_testkit::views::{BulkSender, MSS, ack, ms};

use super::*;

const SEGMENT: u64 = MSS as u64;
const ME: SubflowId = SubflowId(0);

fn reno() -> Reno {
    Reno::new(MSS, 10 * SEGMENT, SlowStartKind::Classic)
}

fn signal(cc: &mut Reno, signal: CongestionSignal) {
    cc.on_signal(signal, Instant::from_secs(2), ME, &[]);
}

const LOSS: CongestionSignal = CongestionSignal::Loss { bytes_in_flight: 0 };
const FIRST_RTO: CongestionSignal = CongestionSignal::Rto { bytes_in_flight: 0, first: true };
const NEXT_RTO: CongestionSignal = CongestionSignal::Rto { bytes_in_flight: 0, first: false };

#[test]
fn slow_start_doubles_and_avoidance_adds_one_segment_per_round() {
    let mut cc = reno();
    let mut bulk = BulkSender::new(50);
    bulk.round(&mut cc);
    assert_eq!(cc.window(), 20 * SEGMENT);
    bulk.round(&mut cc);
    assert_eq!(cc.window(), 40 * SEGMENT);
    signal(&mut cc, LOSS);
    assert_eq!((cc.window(), cc.ssthresh()), (20 * SEGMENT, 20 * SEGMENT));
    signal(&mut cc, CongestionSignal::RecoveryDone);
    for round in 1..=10 {
        bulk.round(&mut cc);
        assert_eq!(cc.window(), (20 + round) * SEGMENT);
    }
}

#[test]
fn bytes_count_not_acks() {
    let (mut many, mut few) = (reno(), reno());
    let now = Instant::from_secs(1);
    for _ in 0..100 {
        many.on_ack(&ack(now, 100, 9 * SEGMENT, ms(10)), ME, &[]);
    }
    few.on_ack(&ack(now, 10_000, 0, ms(10)), ME, &[]);
    assert_eq!(many.window(), few.window());
}

#[test]
fn nothing_grows_in_recovery_or_when_the_application_is_the_limit() {
    let mut cc = reno();
    let now = Instant::from_secs(1);
    let mut sample = ack(now, SEGMENT, 0, ms(10));
    sample.cwnd_limited = false;
    cc.on_ack(&sample, ME, &[]);
    assert_eq!(cc.window(), 10 * SEGMENT);
    let mut half_full = ack(now, SEGMENT, 4 * SEGMENT, ms(10));
    half_full.cwnd_limited = false;
    cc.on_ack(&half_full, ME, &[]);
    assert_eq!(cc.window(), 10 * SEGMENT, "half a window in flight is not enough");
    let mut fuller = ack(now, SEGMENT, 5 * SEGMENT, ms(10));
    fuller.cwnd_limited = false;
    cc.on_ack(&fuller, ME, &[]);
    assert_eq!(cc.window(), 11 * SEGMENT, "more than half is in slow start");
    let mut recovering = ack(now, SEGMENT, 9 * SEGMENT, ms(10));
    recovering.in_recovery = true;
    cc.on_ack(&recovering, ME, &[]);
    assert_eq!(cc.window(), 11 * SEGMENT);
}

#[test]
fn a_timeout_leaves_one_segment_and_repeated_ones_keep_ssthresh() {
    let mut cc = reno();
    signal(&mut cc, FIRST_RTO);
    assert_eq!((cc.window(), cc.ssthresh()), (SEGMENT, 5 * SEGMENT));
    signal(&mut cc, NEXT_RTO);
    assert_eq!((cc.window(), cc.ssthresh()), (SEGMENT, 5 * SEGMENT));
    // Slow start reaches ssthresh but does not exceed it within one ACK.
    let now = Instant::from_secs(3);
    cc.on_ack(&ack(now, 20 * SEGMENT, 0, ms(10)), ME, &[]);
    assert_eq!(cc.window(), 6 * SEGMENT, "5 from slow start, 1 for the remaining window's worth");
}

#[test]
fn a_timeout_in_recovery_reduces_only_once() {
    let mut cc = reno();
    signal(&mut cc, LOSS);
    signal(&mut cc, FIRST_RTO);
    assert_eq!((cc.window(), cc.ssthresh()), (SEGMENT, 5 * SEGMENT));
    signal(&mut cc, CongestionSignal::Spurious);
    assert_eq!(
        (cc.window(), cc.ssthresh()),
        (5 * SEGMENT, 5 * SEGMENT),
        "the timeout was spurious, but the loss before it was not"
    );
    signal(&mut cc, CongestionSignal::Penalty(Penalty::Window));
    assert_eq!(cc.window(), 2_500, "the episode has ended");
}

#[test]
fn undo_restores_once_and_ecn_is_not_undone() {
    let mut cc = reno();
    signal(&mut cc, LOSS);
    signal(&mut cc, CongestionSignal::RecoveryDone);
    signal(&mut cc, CongestionSignal::Spurious);
    assert_eq!((cc.window(), cc.ssthresh()), (10 * SEGMENT, u64::MAX));
    signal(&mut cc, CongestionSignal::Ecn { bytes_in_flight: 0 });
    signal(&mut cc, CongestionSignal::Spurious);
    assert_eq!((cc.window(), cc.ssthresh()), (5 * SEGMENT, 5 * SEGMENT));
}

#[test]
fn penalty_halves_and_spares_ssthresh_in_slow_start() {
    let mut cc = reno();
    signal(&mut cc, CongestionSignal::Penalty(Penalty::Window));
    assert_eq!((cc.window(), cc.ssthresh()), (5 * SEGMENT, u64::MAX));
    signal(&mut cc, LOSS);
    signal(&mut cc, CongestionSignal::Penalty(Penalty::Window));
    assert_eq!(cc.window(), 2_500, "not in addition to a reduction in progress");
    signal(&mut cc, CongestionSignal::RecoveryDone);
    signal(&mut cc, CongestionSignal::Penalty(Penalty::Window));
    assert_eq!((cc.window(), cc.ssthresh()), (1_250, 2 * SEGMENT));
    signal(&mut cc, CongestionSignal::Penalty(Penalty::Window));
    assert_eq!(cc.window(), SEGMENT, "never below one segment");
}

#[test]
fn idle_restarts_from_the_initial_window_and_keeps_ssthresh() {
    let mut cc = reno();
    let mut bulk = BulkSender::new(50);
    (0..3).for_each(|_| bulk.round(&mut cc));
    signal(&mut cc, LOSS);
    signal(&mut cc, CongestionSignal::RecoveryDone);
    (0..20).for_each(|_| bulk.round(&mut cc));
    assert_eq!(cc.window(), 60 * SEGMENT);
    signal(&mut cc, CongestionSignal::Idle);
    assert_eq!((cc.window(), cc.ssthresh()), (10 * SEGMENT, 45 * SEGMENT));
}

#[test]
fn windows_count_segments_when_the_mss_changes() {
    let mut cc = reno();
    signal(&mut cc, LOSS);
    cc.on_mss_change(MSS / 2);
    assert_eq!((cc.window(), cc.ssthresh()), (2_500, 2_500));
}

#[test]
fn the_penalty_of_2012_ends_slow_start() {
    let hard = CongestionSignal::Penalty(Penalty::WindowAndThreshold);
    let mut cc = reno();
    signal(&mut cc, hard);
    assert_eq!((cc.window(), cc.ssthresh()), (5 * SEGMENT, 5 * SEGMENT));
    for _ in 0..3 {
        signal(&mut cc, hard);
    }
    assert_eq!((cc.window(), cc.ssthresh()), (SEGMENT, 2 * SEGMENT), "the minimum values");
}
