use marline_policy::Scheduler as _;
use marline_testkit::views::{Stream, drain, full, range, view};

use super::*;

/// Repair: its path and the data that it covers.
type Sum = (u8, DataRange);

/// Returns what the scheduler does with a stream: data and repairs, in order.
fn run(
    scheduler: &mut Coded,
    stream: &mut Stream,
    subflows: &[SubflowView],
) -> (Vec<(u8, u64, u64)>, Vec<Sum>) {
    let (mut data, mut repairs) = (Vec::new(), Vec::new());
    loop {
        match scheduler.next_send(&stream.context(subflows)).limited_to_segment() {
            Decision::Send { subflow, range } => {
                let cut = stream.apply(subflow, range);
                data.push((subflow.0, cut.start.0, cut.end.0));
            }
            Decision::Repair { subflow, range } => repairs.push((subflow.0, range)),
            _ => return (data, repairs),
        }
        assert!(data.len() + repairs.len() < 10_000, "it never waits: the scheduler loops");
    }
}

fn agreed(written: u64) -> Stream {
    Stream { repairs: true, ..Stream::new(written) }
}

#[test]
fn a_burst_gets_its_share_of_repairs_on_the_other_path() {
    let mut stream = agreed(20_000);
    let (data, repairs) = run(&mut Coded::default(), &mut stream, &[view(0, 20), view(1, 90)]);
    assert!(data.len() == 20 && data.iter().all(|(path, ..)| *path == 0), "{data:?}");
    assert_eq!(repairs, [(1, range(0, 20_000)); 6], "30 % of 20");
}

#[test]
fn a_message_of_one_segment_gets_one_and_the_next_one_its_own() {
    let (mut stream, mut scheduler) = (agreed(200), Coded::default());
    let paths = [view(0, 20), view(1, 90)];
    assert_eq!(run(&mut scheduler, &mut stream, &paths).1, [(1, range(0, 200))]);
    stream.written = 500;
    assert_eq!(run(&mut scheduler, &mut stream, &paths).1, [(1, range(200, 500))]);
}

#[test]
fn saved_repairs_cover_all_unacknowledged_data() {
    let mut scheduler = Coded::new(CodedConfig { every: false, ..CodedConfig::default() });
    let (mut stream, paths) = (agreed(0), [view(0, 20), view(1, 90)]);
    let mut repairs = Vec::new();
    for message in 1..=10 {
        stream.written = message * 100;
        repairs.extend(run(&mut scheduler, &mut stream, &paths).1);
        if message == 5 {
            stream.ack(350);
        }
    }
    assert_eq!(repairs, [(1, range(0, 400)), (1, range(350, 700)), (1, range(350, 1_000))]);
}

#[test]
fn a_long_burst_is_repaired_window_by_window() {
    let mut scheduler = Coded::new(CodedConfig { window: 10, ..CodedConfig::default() });
    let mut stream = agreed(25_000);
    let (_, repairs) = run(&mut scheduler, &mut stream, &[view(0, 20), view(1, 90)]);
    let mut expected = vec![(1, range(0, 10_000)); 3];
    expected.extend(vec![(1, range(10_000, 20_000)); 3]);
    expected.extend(vec![(1, range(20_000, 25_000)); 2]);
    assert_eq!(repairs, expected);
}

#[test]
fn repairs_wait_for_room_and_for_nothing_that_has_arrived() {
    let (mut stream, mut scheduler) = (agreed(4_000), Coded::default());
    let (_, repairs) = run(&mut scheduler, &mut stream, &[view(0, 20), full(view(1, 90))]);
    assert!(repairs.is_empty(), "{repairs:?}");
    stream.ack(3_000);
    let (_, repairs) = run(&mut scheduler, &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(repairs, [(1, range(3_000, 4_000)); 2]);
    let (mut stream, mut scheduler) = (agreed(4_000), Coded::default());
    run(&mut scheduler, &mut stream, &[view(0, 20), full(view(1, 90))]);
    stream.ack(4_000);
    let (_, repairs) = run(&mut scheduler, &mut stream, &[view(0, 20), view(1, 90)]);
    assert!(repairs.is_empty(), "{repairs:?}");
}

#[test]
fn a_single_path_gets_no_repairs() {
    let (mut stream, mut scheduler) = (agreed(4_000), Coded::default());
    let (data, repairs) = run(&mut scheduler, &mut stream, &[view(0, 20)]);
    assert_eq!((data.len(), repairs.len()), (4, 0));
}

#[test]
fn a_path_of_small_segments_gets_more_of_them() {
    let small = SubflowView { mss: 600, ..view(1, 90) };
    let (mut stream, mut scheduler) = (agreed(4_000), Coded::default());
    let (_, repairs) = run(&mut scheduler, &mut stream, &[view(0, 20), small]);
    assert_eq!(repairs.len(), 4, "two repairs of two halves each");
}

#[test]
fn a_peer_that_does_not_understand_gets_copies_of_the_end_or_nothing() {
    let (mut stream, paths) = (Stream::new(10_000), [view(0, 20), view(1, 90)]);
    let sent = drain(&mut Coded::default(), &mut stream, &paths);
    assert_eq!(sent[10..], [(1, 7_000, 8_000), (1, 8_000, 9_000), (1, 9_000, 10_000)]);
    let config = CodedConfig { without: WithoutRepairs::Nothing, ..CodedConfig::default() };
    let mut stream = Stream::new(10_000);
    assert_eq!(drain(&mut Coded::new(config), &mut stream, &paths).len(), 10);
}
