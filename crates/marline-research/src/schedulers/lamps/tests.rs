use marline_policy::{Phase, SubflowId};
use marline_testkit::views::{Stream, backup, drain, full, range, unreachable, view};

use super::*;

/// Creates a scheduler that has seen several losses on each path, with this many segments between them.
fn lamps_with_losses(config: LampsConfig, between: &[f64]) -> Lamps {
    let mut lamps = Lamps::new(config);
    for (id, between) in (0..).zip(between) {
        lamps.losses.set_between(&view(id, 20), *between);
    }
    lamps
}

/// Returns the decisions for a stream of `bytes` bytes.
fn sent(lamps: &mut Lamps, bytes: u64, subflows: &[SubflowView]) -> Vec<(u8, u64, u64)> {
    drain(lamps, &mut Stream::new(bytes), subflows)
}

#[test]
fn without_losses_it_is_lowest_rtt_without_copies() {
    let subflows = [view(0, 40), view(1, 20)];
    assert_eq!(sent(&mut Lamps::default(), 1_500, &subflows), [(1, 0, 1_000), (1, 1_000, 1_500)]);
    assert_eq!(sent(&mut Lamps::default(), 500, &[full(view(1, 20)), subflows[0]]), [(0, 0, 500)]);
}

#[test]
fn a_fast_path_that_loses_much_is_left_for_a_slower_one() {
    // One loss in two: 20 + 1 * (20 + 4) = 44 ms; one in twenty: 21.3 ms.
    let subflows = [view(0, 20), view(1, 40)];
    let first = |between: f64| {
        let unsure = LampsConfig { sure: 0.0, ..LampsConfig::default() };
        sent(&mut lamps_with_losses(unsure, &[between]), 500, &subflows)
    };
    assert_eq!(first(20.0), [(0, 0, 500)]);
    assert_eq!(first(2.0), [(1, 0, 500)]);
}

#[test]
fn copies_are_made_until_delivery_is_likely_enough() {
    let subflows = [view(0, 20), view(1, 30), view(2, 40)];
    let carriers = |sure: f64, between: [f64; 3]| {
        let config = LampsConfig { sure, ..LampsConfig::default() };
        sent(&mut lamps_with_losses(config, &between), 500, &subflows).len()
    };
    // Each path loses 5 %: one path delivers 95 %, two deliver 99.75 %, and three deliver 99.9875 %.
    let alike = [20.0; 3];
    assert_eq!([0.9, 0.99, 0.999].map(|sure| carriers(sure, alike)), [1, 2, 3]);
    // With one loss in a hundred, the required certainty is reached without a copy.
    assert_eq!(carriers(0.99, [100.0; 3]), 1);
    // An unreachable certainty uses all paths.
    assert_eq!(carriers(1.0, alike), 3);
}

#[test]
fn a_path_that_repairs_counts_as_within_its_burst() {
    let repairing = SubflowView { phase: Phase::Recovery, ..view(0, 20) };
    // 20 + 0.43 * 24 = 30.3 ms: the path is still the fastest, but not certain enough.
    assert_eq!(
        sent(&mut Lamps::default(), 500, &[repairing, view(1, 40)]),
        [(0, 0, 500), (1, 0, 500)]
    );
    assert_eq!(sent(&mut Lamps::default(), 500, &[repairing, view(1, 25)]), [(1, 0, 500)]);
}

#[test]
fn the_loss_chance_is_the_lost_share_of_sent_segments() {
    let mut lamps = Lamps::default();
    let mut stream = Stream::new(10_000);
    let seen = |acked: u64| [SubflowView { bytes_since_loss: acked, ..view(0, 20) }];
    assert_eq!(drain(&mut lamps, &mut stream, &seen(9_000)).len(), 10);
    stream.written += 1_000;
    drain(&mut lamps, &mut stream, &seen(0));
    assert_eq!(lamps.losses.chance(&view(0, 20), 0.0), 0.1, "one of ten lost");
    // A reused slot begins without losses.
    let (event, subflows) = (SchedulerEvent::SubflowUp(SubflowId(0)), [view(0, 20)]);
    lamps.on_event(event, &Stream::new(0).context(&subflows), &mut Vec::new());
    assert_eq!(lamps.losses.chance(&view(0, 20), 0.0), 0.0);
}

#[test]
fn backups_silent_and_full_ones_carry_no_copies() {
    let (fast, other) = (view(0, 20), view(1, 20));
    for other in [backup(other), unreachable(other, 5), full(other)] {
        let mut lamps = lamps_with_losses(LampsConfig::default(), &[10.0, 10.0]);
        assert_eq!(sent(&mut lamps, 500, &[fast, other]), [(0, 0, 500)], "{other:?}");
    }
    // Only backups are left: each byte once.
    let mut lamps = lamps_with_losses(LampsConfig::default(), &[10.0, 10.0]);
    assert_eq!(sent(&mut lamps, 500, &[backup(fast), backup(other)]), [(0, 0, 500)]);
    let silent = [unreachable(fast, 3), unreachable(other, 5)];
    let decision = Lamps::default().next_send(&Stream::new(500).context(&silent));
    assert_eq!(
        decision.data(),
        Some((SubflowId(1), range(0, 500))),
        "the one that received something last"
    );
}
