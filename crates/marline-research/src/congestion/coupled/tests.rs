//! Tests of the properties common to all coupled controllers.

use marline_testkit::views::{MSS, ack, gone, ms, unreachable, view};

use super::*;

/// Builds a member of a group.
pub(super) fn member(window: f64, rtt: f64) -> Member {
    Member { window, rtt, between_losses: 0.0, is_own: false }
}

/// Builds a group in which the first member is the controller's own.
pub(super) fn group<const N: usize>(mut members: [Member; N]) -> Group {
    members[0].is_own = true;
    Group { members: members.to_vec() }
}

fn views(windows: [u64; 2]) -> Vec<SubflowView> {
    let [first, second] = windows;
    let with = |id, window: u64| SubflowView {
        cwnd: window * u64::from(MSS),
        ssthresh: 1,
        ..view(id, 100)
    };
    vec![with(0, first), with(1, second)]
}

/// Brings a controller into congestion avoidance with a window of 10.
fn settled(cc: &mut dyn CongestionController) {
    cc.on_signal(
        CongestionSignal::Loss { bytes_in_flight: 20_000 },
        Instant::ZERO,
        SubflowId(0),
        &[],
    );
    cc.on_signal(CongestionSignal::RecoveryDone, Instant::ZERO, SubflowId(0), &[]);
    assert_eq!(cc.window(), 10_000);
}

fn controllers() -> [Box<dyn CongestionController>; 3] {
    [
        Box::new(Lia::new(MSS, 20_000)),
        Box::new(Olia::new(MSS, 20_000)),
        Box::new(Balia::new(MSS, 20_000)),
    ]
}

/// Returns the growth of a window of 10, in segments per round trip, with these other subflows.
fn growth(cc: &mut dyn CongestionController, views: &[SubflowView]) -> f64 {
    settled(cc);
    for _ in 0..10 {
        cc.on_ack(&ack(Instant::ZERO, 1_000, 9_000, ms(100)), SubflowId(0), views);
    }
    (cc.window() as f64 - 10_000.0) / f64::from(MSS)
}

#[test]
fn a_lone_subflow_grows_like_reno_and_one_of_two_by_a_quarter() {
    for mut cc in controllers() {
        let alone = growth(cc.as_mut(), &views([10, 10])[..1]);
        assert!((alone - 1.0).abs() < 0.06, "{alone} {cc:?}");
    }
    for mut cc in controllers() {
        // alpha is 1/2: all windows together grow by half a segment per round trip.
        let coupled = growth(cc.as_mut(), &views([10, 10]));
        assert!((coupled - 0.25).abs() < 0.02, "{coupled} {cc:?}");
    }
}

#[test]
fn idle_siblings_do_not_count() {
    let silent = [
        unreachable(view(1, 100), 0),
        gone(view(1, 100)),
        SubflowView { srtt: None, ..view(1, 100) },
    ];
    for other in silent {
        for mut cc in controllers() {
            let grown = growth(cc.as_mut(), &[views([10, 10])[0], other]);
            assert!((grown - 1.0).abs() < 0.06, "{grown} {other:?} {cc:?}");
        }
    }
}

#[test]
fn slow_start_is_not_coupled_and_nothing_grows_in_recovery() {
    for mut cc in controllers() {
        let views = views([20, 50]);
        cc.on_ack(&ack(Instant::ZERO, 1_000, 19_000, ms(100)), SubflowId(0), &views);
        assert_eq!(cc.window(), 21_000, "{cc:?}");
        let mut sample = ack(Instant::ZERO, 1_000, 19_000, ms(100));
        sample.in_recovery = true;
        cc.on_ack(&sample, SubflowId(0), &views);
        assert_eq!(cc.window(), 21_000, "{cc:?}");
        assert!(cc.wants_group());
    }
}

#[test]
fn a_sibling_in_recovery_counts_with_its_ssthresh() {
    let repairing =
        SubflowView { phase: Phase::Recovery, cwnd: 3_000, ssthresh: 8_000, ..view(1, 100) };
    assert_eq!(Member::from_view(&repairing).map(|member| member.window), Some(8.0));
}
