use super::*;
use crate::testing::{MSS, Stream, backup, ms, range, view};

const FAST: SubflowId = SubflowId(0);
const SLOW: SubflowId = SubflowId(1);
const BLOCKED: SchedulerEvent = SchedulerEvent::PeerWindowBlocked { picked: FAST };

/// The slow subflow holds the oldest segment.
fn held_up() -> Stream {
    let mut stream = Stream::new(10_000);
    stream.apply(SLOW, stream.unsent());
    stream.apply(FAST, stream.unsent());
    stream
}

fn ask(
    state: &mut Opportunistic,
    event: SchedulerEvent,
    stream: &Stream,
    subflows: &[SubflowView],
    at_ms: u64,
) -> Vec<SchedulerAction> {
    let mut out = Vec::new();
    let mut cx = stream.context(subflows);
    cx.now = Instant::from_millis(at_ms);
    state.on_event(event, &cx, &mut out);
    out
}

const RESEND: SchedulerAction = SchedulerAction::Reinject { range: range_of_first(), on: FAST };

const fn range_of_first() -> marline_policy::DataRange {
    marline_policy::DataRange::new(marline_policy::Dsn(0), marline_policy::Dsn(1_000))
}

#[test]
fn the_segment_that_blocks_is_sent_on_the_fast_path_and_the_slow_one_pays() {
    let (mut state, stream) = (Opportunistic::default(), held_up());
    let subflows = [view(0, 20), view(1, 100)];
    let first = ask(&mut state, BLOCKED, &stream, &subflows, 1_000);
    assert_eq!(first, vec![SchedulerAction::Penalise(SLOW), RESEND]);
    let soon = ask(&mut state, BLOCKED, &stream, &subflows, 1_019);
    assert_eq!(soon, vec![RESEND], "one penalty per fast RTT");
    let later = ask(&mut state, BLOCKED, &stream, &subflows, 1_020);
    assert_eq!(later, vec![SchedulerAction::Penalise(SLOW), RESEND]);
}

#[test]
fn what_the_fast_path_carried_is_not_sent_there_again() {
    let (mut state, mut stream) = (Opportunistic::default(), held_up());
    stream.apply(FAST, range(0, 1_000));
    let subflows = [view(0, 20), view(1, 100)];
    let actions = ask(&mut state, BLOCKED, &stream, &subflows, 1_000);
    assert_eq!(actions, vec![SchedulerAction::Penalise(SLOW)]);
}

#[test]
fn a_path_not_much_slower_is_not_bypassed_unless_its_window_is_tiny() {
    let stream = held_up();
    let mild = [view(0, 20), view(1, 60)];
    let actions = ask(&mut Opportunistic::default(), BLOCKED, &stream, &mild, 1_000);
    assert_eq!(actions, vec![SchedulerAction::Penalise(SLOW)]);
    let tiny = [view(0, 20), SubflowView { cwnd: 4 * u64::from(MSS), ..view(1, 60) }];
    let actions = ask(&mut Opportunistic::default(), BLOCKED, &stream, &tiny, 1_000);
    assert_eq!(actions, vec![SchedulerAction::Penalise(SLOW), RESEND]);
}

#[test]
fn no_penalty_in_the_first_round_trip_in_recovery_or_for_the_send_buffer() {
    let stream = held_up();
    let subflows = [view(0, 20), view(1, 100)];
    let mut young = Opportunistic::default();
    ask(&mut young, SchedulerEvent::SubflowUp(FAST), &stream, &subflows, 990);
    assert_eq!(ask(&mut young, BLOCKED, &stream, &subflows, 1_000), vec![RESEND]);
    let repairing = [view(0, 20), SubflowView { phase: Phase::Recovery, ..view(1, 100) }];
    let mut state = Opportunistic::default();
    assert_eq!(ask(&mut state, BLOCKED, &stream, &repairing, 1_000), vec![RESEND]);
    let event = SchedulerEvent::SendBufferBlocked;
    assert_eq!(ask(&mut state, event, &stream, &subflows, 1_000), vec![RESEND]);
}

#[test]
fn a_backup_does_not_help_out_while_a_regular_subflow_is_there() {
    let stream = held_up();
    let subflows = [backup(view(0, 20)), view(1, 100)];
    let actions = ask(&mut Opportunistic::default(), BLOCKED, &stream, &subflows, 1_000);
    assert_eq!(actions, vec![SchedulerAction::Penalise(SLOW)]);
    let event = SchedulerEvent::SendBufferBlocked;
    assert_eq!(ask(&mut Opportunistic::default(), event, &stream, &subflows, 1_000), vec![]);
}

#[test]
fn nothing_outstanding_means_nothing_to_do() {
    let stream = Stream::new(0);
    let subflows = [view(0, 20), SubflowView { srtt: Some(ms(500)), ..view(1, 1) }];
    assert_eq!(ask(&mut Opportunistic::default(), BLOCKED, &stream, &subflows, 1_000), vec![]);
}
