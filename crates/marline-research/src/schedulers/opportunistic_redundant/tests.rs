use marline_policy::{SubflowId, SubflowView};
use marline_testkit::views::{Stream, backup, drain, full, set, unreachable, view};

use super::*;

fn sent(stream: &mut Stream, subflows: &[SubflowView]) -> Vec<(u8, u64, u64)> {
    drain(&mut OpportunisticRedundant::default(), stream, subflows)
}

#[test]
fn a_new_segment_goes_on_all_paths_with_room_segment_by_segment() {
    let mut stream = Stream::new(2_500);
    let sent = sent(&mut stream, &[view(0, 20), view(1, 90)]);
    let expected = [(0, 0, 1000), (1, 0, 1000), (0, 1000, 2000), (1, 1000, 2000), (0, 2000, 2500)];
    assert_eq!(sent[..5], expected);
    assert_eq!(sent[5..], [(1, 2000, 2500)]);
}

#[test]
fn a_path_without_room_does_not_get_older_segments_later() {
    let mut stream = Stream::new(2_000);
    let mut scheduler = OpportunisticRedundant::default();
    drain(&mut scheduler, &mut stream, &[view(0, 20), full(view(1, 90))]);
    // The path now has room, but there is nothing new.
    assert!(drain(&mut scheduler, &mut stream, &[view(0, 20), view(1, 90)]).is_empty());
    stream.written = 2_300;
    let sent = drain(&mut scheduler, &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(sent, [(0, 2000, 2300), (1, 2000, 2300)], "only new data");
    assert!(stream.mappings[0].carried_by == set(&[0]));
}

#[test]
fn a_path_that_fills_up_in_between_is_passed_over() {
    let (mut stream, mut scheduler) = (Stream::new(1_000), OpportunisticRedundant::default());
    let (fast, slow) = (view(0, 20), view(1, 90));
    let first = scheduler.next_send(&stream.context(&[fast, slow]));
    assert_eq!(first, marline_testkit::views::send(0, 0, 1000));
    stream.apply(SubflowId(0), marline_testkit::views::range(0, 1000));
    assert_eq!(scheduler.next_send(&stream.context(&[fast, full(slow)])), Decision::Wait);
    assert_eq!(scheduler.next_send(&stream.context(&[fast, slow])), Decision::Wait);
}

#[test]
fn backups_and_silent_ones_carry_no_copies() {
    for other in [backup(view(1, 30)), unreachable(view(1, 30), 5)] {
        let mut stream = Stream::new(1_000);
        assert_eq!(sent(&mut stream, &[view(0, 20), other]), [(0, 0, 1000)]);
    }
    // Only backups are left: each byte once.
    let mut stream = Stream::new(1_000);
    let backups = [backup(view(0, 20)), backup(view(1, 30))];
    assert_eq!(sent(&mut stream, &backups), [(0, 0, 1000)]);
}
