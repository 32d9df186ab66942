use marline_testkit::views::{MSS, Stream, backup, ms, range, view};

use super::*;

const FAST: SubflowId = SubflowId(0);
const SLOW: SubflowId = SubflowId(1);
const BLOCKED: SchedulerEvent = SchedulerEvent::PeerWindowBlocked { picked: FAST };

/// Builds a stream whose oldest segment is held by the slow subflow.
fn blocked_stream() -> Stream {
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

const PENALTY: SchedulerAction =
    SchedulerAction::Penalize { subflow: SLOW, penalty: Penalty::Window };
const RESEND: SchedulerAction = SchedulerAction::Reinject { range: range_of_first(), on: FAST };

const fn range_of_first() -> marline_policy::DataRange {
    marline_policy::DataRange::new(marline_policy::Dsn(0), marline_policy::Dsn(1_000))
}

#[test]
fn the_segment_that_blocks_is_sent_on_the_fast_path_and_the_slow_one_pays() {
    let (mut state, stream) = (Opportunistic::new(OpportunisticRules::WIDE), blocked_stream());
    let subflows = [view(0, 20), view(1, 100)];
    let first = ask(&mut state, BLOCKED, &stream, &subflows, 1_000);
    assert_eq!(first, vec![PENALTY, RESEND]);
    let soon = ask(&mut state, BLOCKED, &stream, &subflows, 1_019);
    assert_eq!(soon, vec![RESEND], "one penalty per fast RTT");
    let later = ask(&mut state, BLOCKED, &stream, &subflows, 1_020);
    assert_eq!(later, vec![PENALTY, RESEND]);
}

#[test]
fn data_the_fast_path_carried_is_not_sent_there_again() {
    let (mut state, mut stream) = (Opportunistic::new(OpportunisticRules::WIDE), blocked_stream());
    stream.apply(FAST, range(0, 1_000));
    let subflows = [view(0, 20), view(1, 100)];
    let actions = ask(&mut state, BLOCKED, &stream, &subflows, 1_000);
    assert_eq!(actions, vec![PENALTY]);
}

#[test]
fn a_path_not_much_slower_is_not_bypassed_unless_its_window_is_tiny() {
    let stream = blocked_stream();
    let mild = [view(0, 20), view(1, 60)];
    let actions =
        ask(&mut Opportunistic::new(OpportunisticRules::WIDE), BLOCKED, &stream, &mild, 1_000);
    assert_eq!(actions, vec![PENALTY]);
    let tiny = [view(0, 20), SubflowView { cwnd: 4 * u64::from(MSS), ..view(1, 60) }];
    let actions =
        ask(&mut Opportunistic::new(OpportunisticRules::WIDE), BLOCKED, &stream, &tiny, 1_000);
    assert_eq!(actions, vec![PENALTY, RESEND]);
}

#[test]
fn no_penalty_in_the_first_round_trip_in_recovery_or_for_the_send_buffer() {
    let stream = blocked_stream();
    let subflows = [view(0, 20), view(1, 100)];
    let mut young = Opportunistic::new(OpportunisticRules::WIDE);
    ask(&mut young, SchedulerEvent::SubflowUp(FAST), &stream, &subflows, 990);
    assert_eq!(ask(&mut young, BLOCKED, &stream, &subflows, 1_000), vec![RESEND]);
    let repairing = [view(0, 20), SubflowView { phase: Phase::Recovery, ..view(1, 100) }];
    let mut state = Opportunistic::new(OpportunisticRules::WIDE);
    assert_eq!(ask(&mut state, BLOCKED, &stream, &repairing, 1_000), vec![RESEND]);
    let event = SchedulerEvent::SendBufferBlocked;
    assert_eq!(ask(&mut state, event, &stream, &subflows, 1_000), vec![RESEND]);
}

#[test]
fn a_backup_does_not_help_out_while_a_regular_subflow_is_there() {
    let stream = blocked_stream();
    let subflows = [backup(view(0, 20)), view(1, 100)];
    let actions =
        ask(&mut Opportunistic::new(OpportunisticRules::WIDE), BLOCKED, &stream, &subflows, 1_000);
    assert_eq!(actions, vec![PENALTY]);
    let event = SchedulerEvent::SendBufferBlocked;
    assert_eq!(
        ask(&mut Opportunistic::new(OpportunisticRules::WIDE), event, &stream, &subflows, 1_000),
        vec![]
    );
}

#[test]
fn nothing_outstanding_means_nothing_to_do() {
    let stream = Stream::new(0);
    let subflows = [view(0, 20), SubflowView { srtt: Some(ms(500)), ..view(1, 1) }];
    assert_eq!(
        ask(&mut Opportunistic::new(OpportunisticRules::WIDE), BLOCKED, &stream, &subflows, 1_000),
        vec![]
    );
}

fn rules(retransmit: Retransmit, penalize: Penalize) -> Opportunistic {
    Opportunistic::new(OpportunisticRules { retransmit, penalize, ..OpportunisticRules::KERNEL })
}

#[test]
fn each_mechanism_is_switched_by_itself() {
    let stream = blocked_stream();
    let subflows = [view(0, 20), view(1, 100)];
    let asked = |retransmit, penalize| {
        ask(&mut rules(retransmit, penalize), BLOCKED, &stream, &subflows, 1_000)
    };
    assert_eq!(asked(Retransmit::Kernel, Penalize::Off), [RESEND]);
    assert_eq!(asked(Retransmit::Off, Penalize::Kernel), [PENALTY]);
    assert_eq!(asked(Retransmit::Off, Penalize::Off), []);
}

#[test]
fn only_the_paper_variant_repeats_from_a_slightly_slower_path() {
    let stream = blocked_stream();
    let mild = [view(0, 20), view(1, 30)];
    let asked =
        |retransmit| ask(&mut rules(retransmit, Penalize::Off), BLOCKED, &stream, &mild, 1_000);
    assert_eq!(asked(Retransmit::Paper), [RESEND]);
    assert_eq!(asked(Retransmit::Kernel), []);
}

#[test]
fn linux_repeats_one_segment_min_rtt_all_that_the_slow_one_holds() {
    let mut stream = Stream::new(5_000);
    (0..3).for_each(|_| _ = stream.apply(SLOW, stream.unsent()));
    stream.apply(FAST, stream.unsent());
    stream.apply(SLOW, stream.unsent());
    let subflows = [view(0, 20), view(1, 100)];
    let repeated = |retransmit| -> Vec<(u64, u64)> {
        let actions = ask(&mut rules(retransmit, Penalize::Off), BLOCKED, &stream, &subflows, 9);
        let range = |action: &SchedulerAction| match action {
            SchedulerAction::Reinject { range, on: FAST } => (range.start.0, range.end.0),
            other => panic!("{other:?}"),
        };
        actions.iter().map(range).collect()
    };
    assert_eq!(repeated(Retransmit::Kernel), [(0, 1_000)]);
    assert_eq!(repeated(Retransmit::Paper), [(0, 1_000)]);
    let wide = [(0, 1_000), (1_000, 2_000), (2_000, 3_000), (4_000, 5_000)];
    assert_eq!(repeated(Retransmit::Wide), wide);
}

#[test]
fn paper_penalty_applies_once_per_slow_rtt_and_ends_slow_start() {
    let hard = SchedulerAction::Penalize { subflow: SLOW, penalty: Penalty::WindowAndThreshold };
    let (mut state, stream) = (rules(Retransmit::Off, Penalize::Paper), blocked_stream());
    let subflows = [view(0, 20), view(1, 100)];
    ask(&mut state, SchedulerEvent::SubflowUp(SLOW), &stream, &subflows, 990);
    assert_eq!(ask(&mut state, BLOCKED, &stream, &subflows, 1_000), [hard], "immediately");
    assert_eq!(ask(&mut state, BLOCKED, &stream, &subflows, 1_099), []);
    assert_eq!(ask(&mut state, BLOCKED, &stream, &subflows, 1_100), [hard]);
}

#[test]
fn in_2012_throughput_decided_later_the_round_trip() {
    let stream = blocked_stream();
    // Five times the RTT, but six times the window: the throughput is higher.
    let subflows = [view(0, 20), SubflowView { cwnd: 600 * u64::from(MSS), ..view(1, 100) }];
    let asked =
        |penalize| ask(&mut rules(Retransmit::Off, penalize), BLOCKED, &stream, &subflows, 1_000);
    assert_eq!(asked(Penalize::Paper), []);
    assert_eq!(asked(Penalize::Kernel), [PENALTY]);
}

#[test]
fn an_exhausted_send_buffer_penalizes_only_if_it_cannot_grow() {
    let mut stream = blocked_stream();
    let subflows = [view(0, 20), view(1, 100)];
    let event = SchedulerEvent::SendBufferBlocked;
    let mut asked = |window: u64| {
        stream.window = window;
        let mut state = rules(Retransmit::Kernel, Penalize::Kernel);
        ask(&mut state, event, &stream, &subflows, 1_000)
    };
    assert_eq!(asked(10_001), [RESEND]);
    assert_eq!(asked(10_000), [PENALTY, RESEND]);
}
