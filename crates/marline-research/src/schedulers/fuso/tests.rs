use marline_algos::schedulers::{MinRtt, MinRttConfig};
use marline_testkit::views::{Stream, backup, full, range, send, unreachable, view};

use super::*;

fn fuso(found: bool, spare: bool) -> Fuso {
    Fuso::wrap(Box::new(MinRtt::new(MinRttConfig::LOWEST_RTT)), FusoConfig { found, spare })
}

/// Builds two paths: 20 ms and nothing outstanding; 80 ms and much outstanding.
fn pair() -> [SubflowView; 2] {
    [view(0, 20), SubflowView { bytes_in_flight: 2_000, ..view(1, 80) }]
}

/// Four segments: the fast one carried the second, the slow one the others.
fn outstanding() -> Stream {
    let mut stream = Stream::new(4_000);
    for id in [1, 0, 1, 1] {
        stream.apply(SubflowId(id), stream.unsent());
    }
    stream
}

/// Returns the repairs requested when this range was lost on this subflow.
fn repairs(
    fuso: &mut Fuso,
    on: u8,
    lost: DataRange,
    views: &[SubflowView],
) -> Vec<(u8, DataRange)> {
    let (mut out, event) = (Vec::new(), SchedulerEvent::Lost { on: SubflowId(on), range: lost });
    fuso.on_event(event, &outstanding().context(views), &mut out);
    let asked = out.iter().map(|action| match action {
        SchedulerAction::Reinject { range, on } => (on.0, *range),
        other => panic!("{other:?}"),
    });
    asked.collect()
}

#[test]
fn losses_of_the_slow_path_are_repaired_on_the_fast_one() {
    let mut fuso = fuso(true, true);
    assert!(fuso.watches_losses());
    let behind = [(0, range(0, 1_000)), (0, range(2_000, 3_000)), (0, range(3_000, 4_000))];
    assert_eq!(repairs(&mut fuso, 1, range(0, 1_000), &pair()), behind, "and the data behind it");
    assert_eq!(repairs(&mut fuso, 1, range(3_000, 4_000), &pair()), [behind[2]]);
    assert_eq!(repairs(&mut fuso, 0, range(1_000, 2_000), &pair()), []);
    // While new data waits for room, only the gap is repaired.
    let mut stream = outstanding();
    stream.written += 1_000;
    let (mut out, lost) = (Vec::new(), range(0, 1_000));
    let event = SchedulerEvent::Lost { on: SubflowId(1), range: lost };
    fuso.on_event(event, &stream.context(&pair()), &mut out);
    assert_eq!(out, [SchedulerAction::Reinject { range: lost, on: SubflowId(0) }]);
}

#[test]
fn a_lossy_path_is_not_the_better_one() {
    // 20 + 9 * 24 ms, compared with 80 ms.
    let mut fuso = fuso(true, true);
    fuso.losses.set_between(&view(0, 20), 1.0);
    assert_eq!(repairs(&mut fuso, 1, range(0, 1_000), &pair()), []);
    assert_eq!(repairs(&mut fuso, 0, range(1_000, 2_000), &pair()), [(1, range(1_000, 2_000))]);
}

#[test]
fn only_a_healthy_regular_path_with_room_repairs() {
    let [fast, slow] = pair();
    for other in [full(fast), backup(fast), unreachable(fast, 5)] {
        assert_eq!(repairs(&mut fuso(true, true), 1, range(0, 1_000), &[other, slow]), []);
    }
    assert_eq!(repairs(&mut fuso(false, true), 1, range(0, 1_000), &pair()), []);
    assert!(!fuso(false, true).watches_losses());
}

#[test]
fn with_room_to_spare_the_oldest_of_the_worst_path_goes_on_the_best() {
    let (mut stream, mut with, views) = (outstanding(), fuso(true, true), pair());
    assert_eq!(with.next_send(&stream.context(&views)), send(0, 0, 1_000));
    stream.apply(SubflowId(0), range(0, 1_000));
    // SACKed data has arrived.
    stream.deliver(range(2_000, 3_000));
    assert!(with.watches_delivery());
    assert_eq!(with.next_send(&stream.context(&views)), send(0, 3_000, 4_000));
    assert_eq!(fuso(true, false).next_send(&outstanding().context(&views)), Decision::Wait);
    // Nothing is copied while new data waits, even if it waits for the peer's window.
    stream.written = 5_000;
    stream.window = 4_000;
    assert_eq!(with.next_send(&stream.context(&views)), Decision::Wait);
    stream.window = 9_000;
    assert_eq!(with.next_send(&stream.context(&views)), send(0, 4_000, 5_000));
}

#[test]
fn the_best_path_keeps_its_own_data() {
    let mut stream = Stream::new(1_000);
    stream.apply(SubflowId(0), stream.unsent());
    let views = [SubflowView { bytes_in_flight: 1_000, ..view(0, 20) }, view(1, 80)];
    assert_eq!(fuso(true, true).next_send(&stream.context(&views)), Decision::Wait);
}
