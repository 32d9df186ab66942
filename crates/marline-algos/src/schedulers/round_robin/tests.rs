use marline_testkit::views::{Stream, backup, full, gone, unreachable, view};

use super::*;

/// Settings with turns of one segment.
const ONE: RoundRobinConfig = RoundRobinConfig { segments: 1, skips_full: true };

/// Returns the subflows that take the next segments.
fn turns(subflows: &[SubflowView], count: usize) -> Vec<u8> {
    turns_of(RoundRobin::new(ONE), subflows, count)
}

fn turns_of(mut scheduler: RoundRobin, subflows: &[SubflowView], count: usize) -> Vec<u8> {
    let mut stream = Stream::new(1_000_000);
    let mut order = Vec::new();
    while order.len() < count {
        let decision = scheduler.next_send(&stream.context(subflows)).data();
        let Some((subflow, range)) = decision else { break };
        assert_eq!(range.len() % 1_000, 0, "full segments");
        stream.apply(subflow, range);
        order.extend((0..range.len() / 1_000).map(|_| subflow.0));
    }
    order
}

#[test]
fn turns_go_round_in_slot_order() {
    let all = [view(0, 500), view(1, 5), view(4, 50)];
    assert_eq!(turns(&all, 7), [0, 1, 4, 0, 1, 4, 0]);
}

#[test]
fn full_gone_silent_and_backup_subflows_are_passed_over() {
    let all = [view(0, 10), full(view(1, 10)), view(2, 10), gone(view(3, 10))];
    assert_eq!(turns(&all, 4), [0, 2, 0, 2]);
    let all = [view(0, 10), unreachable(view(1, 10), 5), backup(view(2, 10))];
    assert_eq!(turns(&all, 3), [0, 0, 0]);
    let all = [unreachable(view(0, 10), 5), backup(view(1, 10)), backup(view(2, 10))];
    assert_eq!(turns(&all, 4), [1, 2, 1, 2]);
}

#[test]
fn all_full_waits() {
    assert!(turns(&[full(view(0, 10)), backup(view(1, 10))], 1).is_empty());
}

#[test]
fn a_turn_may_have_more_segments() {
    let three = || RoundRobin::new(RoundRobinConfig { segments: 3, ..RoundRobinConfig::default() });
    let all = [view(0, 10), view(1, 10)];
    assert_eq!(turns_of(three(), &all, 9), [0, 0, 0, 1, 1, 1, 0, 0, 0]);
    // A full subflow loses the rest of its turn.
    let mut scheduler = three();
    let stream = Stream::new(1_000_000);
    let mut next = |subflows: &[SubflowView]| {
        let (subflow, range) = scheduler.next_send(&stream.context(subflows)).data()?;
        Some((subflow.0, range.len() / 1_000))
    };
    let narrow =
        |id| SubflowView { eligibility: Eligibility::Ready { room: 1_000 }, ..view(id, 10) };
    assert_eq!(next(&[narrow(0), view(1, 10)]), Some((0, 1)));
    assert_eq!(next(&[full(view(0, 10)), view(1, 10)]), Some((1, 3)));
    // A subflow that gets room again during its turn continues.
    assert_eq!(next(&[narrow(0), view(1, 10)]), Some((0, 1)));
    assert_eq!(next(&all), Some((0, 2)));
}

#[test]
fn a_full_one_may_be_waited_for() {
    let strict = || RoundRobin::new(RoundRobinConfig { skips_full: false, ..ONE });
    let all = [view(0, 10), full(view(1, 10)), view(2, 10)];
    assert_eq!(turns_of(strict(), &all, 4), [0], "all wait for the second");
    let all = [view(0, 10), gone(view(1, 10)), view(2, 10)];
    assert_eq!(turns_of(strict(), &all, 4), [0, 2, 0, 2], "none waits for an unreachable one");
}
