use marline_algos::schedulers::MinRtt;
use marline_policy::Health;
use marline_testkit::views::{
    Stream, UNREACHABLE, backup, full, gone, ms, paced, range, send, set, unreachable, view,
};
use proptest::prelude::*;

use super::*;

const NOW: Instant = Instant::from_secs(1);

/// Creates TLP-MP around min-rtt, with `count` segments sent on subflow 0.
fn sent(after: SilentOriginalAction, count: u64) -> (TailProbes, Stream) {
    let mut scheduler = TailProbes::across_paths(Box::<MinRtt>::default(), after);
    let mut stream = Stream::new(count * 1_000);
    let views = [view(0, 13)];
    for _ in 0..count {
        let (subflow, range) =
            scheduler.next_send(&stream.context(&views)).data().expect("it has room");
        stream.apply(subflow, range);
    }
    (scheduler, stream)
}

fn probe(scheduler: &mut TailProbes, stream: &Stream, views: &[SubflowView], last: DataRange) {
    let mut out = Vec::new();
    let event = SchedulerEvent::ProbeRepeated { on: SubflowId(0), range: last };
    scheduler.on_event(event, &stream.context(views), &mut out);
    assert_eq!(out, []);
}

fn acked(
    scheduler: &mut TailProbes,
    stream: &Stream,
    views: &[SubflowView],
    on: u8,
    acked: DataRange,
) -> Vec<SchedulerAction> {
    let mut out = Vec::new();
    let event = SchedulerEvent::Acked { on: SubflowId(on), range: acked };
    scheduler.on_event(event, &stream.context(views), &mut out);
    out
}

/// Returns everything that the scheduler sends now.
fn drain(scheduler: &mut TailProbes, stream: &mut Stream, views: &[SubflowView]) -> Vec<Decision> {
    let mut all = Vec::new();
    while let decision @ Decision::Send { subflow, range } =
        scheduler.next_send(&stream.context(views)).limited_to_segment()
    {
        stream.apply(subflow, range);
        all.push(decision);
    }
    all
}

#[test]
fn the_probed_segment_goes_once_on_every_healthy_subflow() {
    let (mut scheduler, mut stream) = sent(SilentOriginalAction::Reinject, 3);
    let views = [
        view(0, 13),
        view(1, 85),
        full(view(2, 40)),
        unreachable(view(3, 20), 10),
        gone(view(4, 20)),
        backup(view(5, 20)),
        view(6, 300),
    ];
    assert!(!scheduler.watches_acks());
    probe(&mut scheduler, &stream, &views, range(2_000, 3_000));
    let copies = drain(&mut scheduler, &mut stream, &views);
    assert_eq!(copies, [send(1, 2_000, 3_000), send(6, 2_000, 3_000)]);
    assert!(scheduler.watches_acks());
    // Another probe during this silence: nothing is repeated twice.
    probe(&mut scheduler, &stream, &views, range(2_000, 3_000));
    assert_eq!(drain(&mut scheduler, &mut stream, &views), []);
    // The copy on the full subflow waits for room, and goes ahead of new data.
    stream.written += 1_000;
    let views = [view(0, 13), view(1, 85), view(2, 40)];
    let sent = drain(&mut scheduler, &mut stream, &views);
    assert_eq!(sent, [send(2, 2_000, 3_000), send(0, 3_000, 4_000)]);
}

#[test]
fn a_copy_that_waits_for_room_is_dropped_when_its_subflow_becomes_unreachable() {
    let (mut scheduler, mut stream) = sent(SilentOriginalAction::Reinject, 1);
    probe(&mut scheduler, &stream, &[view(0, 13), full(view(1, 85))], range(0, 1_000));
    let views = [view(0, 13), unreachable(full(view(1, 85)), 10)];
    assert_eq!(drain(&mut scheduler, &mut stream, &views), []);
    assert_eq!(drain(&mut scheduler, &mut stream, &[view(0, 13), view(1, 85)]), []);
}

#[test]
fn a_backup_gets_the_copy_only_if_no_regular_subflow_is_there() {
    let (mut scheduler, mut stream) = sent(SilentOriginalAction::Reinject, 1);
    let views = [view(0, 13), backup(view(1, 85))];
    probe(&mut scheduler, &stream, &views, range(0, 1_000));
    assert_eq!(drain(&mut scheduler, &mut stream, &views), [send(1, 0, 1_000)]);
    let (mut scheduler, mut stream) = sent(SilentOriginalAction::Reinject, 1);
    let views = [view(0, 13), backup(view(1, 85)), full(view(2, 50))];
    probe(&mut scheduler, &stream, &views, range(0, 1_000));
    assert_eq!(drain(&mut scheduler, &mut stream, &views), [], "a regular subflow is only full");
}

#[test]
fn a_copy_waits_for_the_pacer_but_not_beyond_the_data() {
    let (mut scheduler, mut stream) = sent(SilentOriginalAction::Reinject, 1);
    probe(&mut scheduler, &stream, &[view(0, 13), paced(view(1, 85), 1_001)], range(0, 1_000));
    assert_eq!(drain(&mut scheduler, &mut stream, &[view(0, 13), paced(view(1, 85), 1_001)]), []);
    let mut late = stream.clone();
    let views = [view(0, 13), view(1, 85)];
    assert_eq!(drain(&mut scheduler, &mut stream, &views), [send(1, 0, 1_000)]);
    let (mut scheduler, _) = sent(SilentOriginalAction::Reinject, 1);
    probe(&mut scheduler, &late, &[view(0, 13), paced(view(1, 85), 1_001)], range(0, 1_000));
    late.ack(1_000);
    assert_eq!(drain(&mut scheduler, &mut late, &views), []);
}

#[test]
fn an_answered_copy_of_a_silent_original_raises_suspicion_once() {
    for (after, expected) in [
        (SilentOriginalAction::Reinject, vec![SchedulerAction::Suspect(SubflowId(0))]),
        (SilentOriginalAction::Rto, vec![]),
    ] {
        let (mut scheduler, mut stream) = sent(after, 3);
        let views = [view(0, 13), view(1, 85)];
        probe(&mut scheduler, &stream, &views, range(2_000, 3_000));
        drain(&mut scheduler, &mut stream, &views);
        // Other data that this subflow delivers is not evidence.
        assert_eq!(acked(&mut scheduler, &stream, &views, 1, range(0, 1_000)), []);
        assert_eq!(acked(&mut scheduler, &stream, &views, 1, range(2_000, 3_000)), expected);
        assert_eq!(acked(&mut scheduler, &stream, &views, 1, range(2_000, 3_000)), []);
        assert!(!scheduler.watches_acks(), "{after:?}");
    }
}

#[test]
fn an_original_path_that_was_heard_is_not_suspected() {
    let (mut scheduler, mut stream) = sent(SilentOriginalAction::Reinject, 3);
    let mut views = [view(0, 13), view(1, 85)];
    probe(&mut scheduler, &stream, &views, range(2_000, 3_000));
    drain(&mut scheduler, &mut stream, &views);
    views[0].last_rx_at = NOW + ms(1);
    assert_eq!(acked(&mut scheduler, &stream, &views, 1, range(2_000, 3_000)), []);
    assert!(!scheduler.watches_acks());
    // A later silence is a new episode. The segment was already carried on the other subflow, so it is not copied.
    probe(&mut scheduler, &stream, &views, range(2_000, 3_000));
    assert_eq!(drain(&mut scheduler, &mut stream, &views), []);
    assert!(!scheduler.watches_acks());
}

#[test]
fn data_that_is_carried_elsewhere_or_acknowledged_is_not_copied() {
    let (mut scheduler, mut stream) = sent(SilentOriginalAction::Reinject, 2);
    let views = [view(0, 13), view(1, 85)];
    stream.mappings[1].carried_by = set(&[0, 1]);
    probe(&mut scheduler, &stream, &views, range(1_000, 2_000));
    assert_eq!(drain(&mut scheduler, &mut stream, &views), []);
    stream.ack(2_000);
    probe(&mut scheduler, &stream, &views, range(1_000, 2_000));
    assert_eq!(drain(&mut scheduler, &mut stream, &views), []);
}

#[test]
fn the_timer_and_the_end_of_a_subflow_end_an_episode() {
    for event in
        [SchedulerEvent::SubflowRto(SubflowId(0)), SchedulerEvent::SubflowDown(SubflowId(0))]
    {
        let (mut scheduler, mut stream) = sent(SilentOriginalAction::Reinject, 1);
        let views = [view(0, 13), view(1, 85)];
        probe(&mut scheduler, &stream, &views, range(0, 1_000));
        drain(&mut scheduler, &mut stream, &views);
        scheduler.on_event(event, &stream.context(&views), &mut Vec::new());
        assert!(!scheduler.watches_acks());
        assert_eq!(acked(&mut scheduler, &stream, &views, 1, range(0, 1_000)), []);
    }
}

#[test]
fn the_standard_only_leaves_everything_to_the_timer() {
    let mut scheduler = TailProbes::standard(Box::<MinRtt>::default());
    let mut stream = Stream::new(1_000);
    let views = [view(0, 13), view(1, 85)];
    assert_eq!(drain(&mut scheduler, &mut stream, &views), [send(0, 0, 1_000)]);
    probe(&mut scheduler, &stream, &views, range(0, 1_000));
    assert_eq!(drain(&mut scheduler, &mut stream, &views), []);
    assert_eq!((scheduler.probe_patience(), scheduler.watches_acks()), (None, false));
}

/// Event of a connection with three subflows.
#[derive(Clone, Debug)]
enum Step {
    Write(u64),
    DataAck(u64),
    /// The newest data that this subflow carries is probed.
    Probe(u8),
    /// This subflow delivers the newest data that it carries.
    Deliver(u8),
    Hear(u8),
    Timeout(u8),
    Fill(u8, bool),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..4_000u64).prop_map(Step::Write),
        2 => (1..4_000u64).prop_map(Step::DataAck),
        4 => (0..3u8).prop_map(Step::Probe),
        3 => (0..3u8).prop_map(Step::Deliver),
        2 => (0..3u8).prop_map(Step::Hear),
        1 => (0..3u8).prop_map(Step::Timeout),
        2 => (0..3u8, any::<bool>()).prop_map(|(id, full)| Step::Fill(id, full)),
    ]
}

/// Returns the newest data that a subflow carries, at most a segment.
fn newest_on(stream: &Stream, id: u8) -> Option<DataRange> {
    let mine = stream.mappings.iter().rfind(|m| m.carried_by.contains(SubflowId(id)))?;
    Some(mine.range)
}

proptest! {
    /// No data is sent twice on one subflow (the stream would panic), or on one that is full or suspected, and only
    /// silent subflows that were probed are suspected.
    #[test]
    fn tail_probes_stay_valid_in_any_sequence_of_events(steps in proptest::collection::vec(any_step(), 1..120)) {
        let mut scheduler = TailProbes::across_paths(Box::<MinRtt>::default(), SilentOriginalAction::Reinject);
        let mut stream = Stream::new(0);
        let mut views = vec![view(0, 13), view(1, 85), view(2, 40)];
        let mut probed = [false; 3];
        for step in steps {
            let mut out = Vec::new();
            let mut tell = |scheduler: &mut TailProbes, event, stream: &Stream, views: &[SubflowView]| {
                scheduler.on_event(event, &stream.context(views), &mut out);
            };
            match step {
                Step::Write(bytes) => stream.written += bytes,
                Step::DataAck(bytes) => stream.ack(stream.data_una + bytes),
                Step::Probe(id) => if let Some(range) = newest_on(&stream, id) {
                    probed[usize::from(id)] = true;
                    let event = SchedulerEvent::ProbeRepeated { on: SubflowId(id), range };
                    tell(&mut scheduler, event, &stream, &views);
                },
                Step::Deliver(id) => if let Some(range) = newest_on(&stream, id) {
                    let event = SchedulerEvent::Acked { on: SubflowId(id), range };
                    tell(&mut scheduler, event, &stream, &views);
                },
                Step::Hear(id) => {
                    let view = &mut views[usize::from(id)];
                    (view.last_rx_at, view.health) = (NOW + ms(1), Health::Usable);
                    probed[usize::from(id)] = false;
                }
                Step::Timeout(id) => {
                    views[usize::from(id)].health = UNREACHABLE;
                    let event = SchedulerEvent::SubflowRto(SubflowId(id));
                    tell(&mut scheduler, event, &stream, &views);
                }
                Step::Fill(id, is_full) => {
                    let view = views[usize::from(id)];
                    let empty = marline_testkit::views::view(id, 1).eligibility;
                    let eligibility = if is_full { full(view).eligibility } else { empty };
                    views[usize::from(id)].eligibility = eligibility;
                }
            }
            for action in out {
                let SchedulerAction::Suspect(id) = action else { continue };
                prop_assert!(probed[usize::from(id.0)], "{id} received something, or was never probed");
                views[usize::from(id.0)].health = UNREACHABLE;
            }
            let any_healthy = views.iter().any(|view| view.health.is_usable());
            while let Some((subflow, range)) = scheduler.next_send(&stream.context(&views)).data() {
                let view = &views[usize::from(subflow.0)];
                prop_assert!(view.is_ready());
                prop_assert!(!any_healthy || view.health.is_usable(), "{subflow} is silent");
                stream.apply(subflow, range);
            }
        }
    }
}
