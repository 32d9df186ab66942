use marline_testkit::views::{Stream, backup, full, gone, ms, paced, send, unreachable, view};

use super::*;

const START_MS: u64 = 1_000;

/// Builds two paths: 20 ms and full, and 100 ms; both have a steady RTT.
fn pair() -> [SubflowView; 2] {
    let steady = |view: SubflowView| SubflowView { rttvar: ms(0), cwnd: 10_000, ..view };
    let fast = SubflowView { bytes_in_flight: 10_000, ..full(view(0, 20)) };
    [steady(fast), steady(view(1, 100))]
}

fn ask(peekaboo: &mut Peekaboo, pair: &[SubflowView], stream: &Stream, at_ms: u64) -> Decision {
    let now = Instant::from_millis(at_ms);
    peekaboo.next_send(&SchedulerContext { now, ..stream.context(pair) })
}

/// Events after a decision.
#[derive(Copy, Clone)]
struct Outcome {
    passed_ms: u64,
    /// Number of segments of 1,000 bytes that are DATA_ACKed.
    segments: u64,
}

const fn outcome(passed_ms: u64, segments: u64) -> Outcome {
    Outcome { passed_ms, segments }
}

/// Requests 200 decisions, with these outcomes for waiting and for sending. Returns true for each decision to wait.
fn train(
    peekaboo: &mut Peekaboo,
    pair: &[SubflowView],
    waited: Outcome,
    sent: Outcome,
) -> Vec<bool> {
    let (mut now_ms, mut acked) = (START_MS, 0);
    let mut waits = Vec::new();
    for _ in 0..200 {
        let unsent = |data_una| Stream { data_una, ..Stream::new(data_una + 100_000) };
        let decision = ask(peekaboo, pair, &unsent(acked), now_ms);
        waits.push(decision.data().is_none());
        let Outcome { passed_ms, segments } = if decision.data().is_none() { waited } else { sent };
        now_ms += passed_ms;
        acked += segments * 1_000;
        // The fast path has room again, which ends the wait.
        let open = [view(0, 20), pair[1]];
        let decision = ask(peekaboo, &open, &unsent(acked), now_ms);
        assert_eq!(decision.data().map(|(id, _)| id), Some(SubflowId(0)));
    }
    waits
}

fn last_waits(waits: &[bool]) -> usize {
    waits[100..].iter().filter(|waited| **waited).count()
}

#[test]
fn the_fastest_path_with_room_takes_everything() {
    let stream = Stream::new(3_000);
    let subflows = [view(0, 20), view(1, 10), full(view(2, 5))];
    let stuck = [full(view(0, 20)), paced(view(1, 10), 1_007)];
    assert_eq!(ask(&mut Peekaboo::default(), &subflows[..2], &stream, 1_000), send(1, 0, 3_000));
    let until = Decision::WaitUntil(Instant::from_millis(1_007));
    assert_eq!(ask(&mut Peekaboo::default(), &stuck, &stream, 1_000), until);
}

#[test]
fn peekaboo_learns_to_wait_if_the_next_path_blocks() {
    let waits = train(&mut Peekaboo::default(), &pair(), outcome(20, 10), outcome(200, 10));
    assert!(waits[..10].contains(&true) && waits[..10].contains(&false), "both actions are tried");
    assert!(last_waits(&waits) >= 90, "{}", last_waits(&waits));
}

#[test]
fn peekaboo_learns_to_send_if_both_paths_are_faster() {
    let waits = train(&mut Peekaboo::default(), &pair(), outcome(20, 10), outcome(20, 25));
    assert!(last_waits(&waits) <= 10, "{}", last_waits(&waits));
}

#[test]
fn peekaboo_forgets_a_network_that_is_gone() {
    let mut peekaboo = Peekaboo::new(PeekabooConfig { memory: 50, ..PeekabooConfig::default() });
    train(&mut peekaboo, &pair(), outcome(20, 10), outcome(200, 10));
    let stream = Stream::new(0);
    let cx = stream.context(&[]);
    peekaboo.on_event(SchedulerEvent::SubflowUp(SubflowId(2)), &cx, &mut Vec::new());
    peekaboo.acked = None;
    let waits = train(&mut peekaboo, &pair(), outcome(200, 10), outcome(20, 10));
    assert!(last_waits(&waits) <= 10, "{}", last_waits(&waits));
}

#[test]
fn varying_delays_reverse_some_decisions_the_same_ones_with_the_same_seed() {
    let varying = pair().map(|view| SubflowView { rttvar: ms(60), ..view });
    let run = |seed, adjusts| {
        let config = PeekabooConfig { seed, adjusts, ..PeekabooConfig::default() };
        train(&mut Peekaboo::new(config), &varying, outcome(20, 10), outcome(200, 10))
    };
    let (first, again, other) = (run(1, true), run(1, true), run(2, true));
    assert_eq!(first, again);
    assert_ne!(first, other);
    // 30 % of the decisions to wait are not kept.
    assert!((55..=85).contains(&last_waits(&first)), "{}", last_waits(&first));
    assert!(last_waits(&run(1, false)) >= 90);
}

#[test]
fn peekaboo_waits_for_at_most_two_round_trips() {
    let mut peekaboo = Peekaboo::default();
    let waits = train(&mut peekaboo, &pair(), outcome(20, 10), outcome(200, 10));
    assert!(last_waits(&waits) >= 90);
    let acked = peekaboo.acked.expect("it waited").0;
    let stream = Stream { data_una: acked, ..Stream::new(acked + 9_000) };
    let until = Decision::WaitUntil(Instant::from_millis(90_040));
    assert_eq!(ask(&mut peekaboo, &pair(), &stream, 90_000), until);
    assert_eq!(ask(&mut peekaboo, &pair(), &stream, 90_039), until, "the decision remains valid");
    let [fast, next] = pair();
    let soon = Decision::WaitUntil(Instant::from_millis(90_039));
    assert_eq!(ask(&mut peekaboo, &[paced(fast, 90_039), next], &stream, 90_020), soon);
    assert_eq!(ask(&mut peekaboo, &pair(), &stream, 90_040), send(1, acked, acked + 9_000));
}

#[test]
fn the_memory_of_the_scheduler_is_bounded() {
    let mut peekaboo = Peekaboo::default();
    let mut stream = Stream::new(500_000);
    for step in 0..2_000 {
        if let Some((id, range)) = ask(&mut peekaboo, &pair(), &stream, START_MS + step / 10).data()
        {
            stream.apply(id, range);
        }
    }
    assert!(stream.mappings.len() > MAX_EPISODES);
    assert!(peekaboo.episodes.len() <= MAX_EPISODES);
    // If the decision is refused, the scheduler is consulted again about this segment.
    let mut refused = Peekaboo::default();
    let stream = Stream::new(5_000);
    for _ in 0..5 {
        assert_eq!(ask(&mut refused, &pair(), &stream, START_MS), send(1, 0, 5_000));
    }
    assert_eq!(refused.episodes.len(), 1);
}

#[test]
fn odd_paths_are_used_as_lowest_rtt_would() {
    let [fast, next] = pair();
    let stream = Stream::new(1_000);
    let young = |view: SubflowView| SubflowView { srtt: None, min_rtt: None, ..view };
    let empty = |view: SubflowView| SubflowView { srtt: Some(ms(0)), cwnd: 0, ..view };
    for views in [
        [young(fast), young(next)],
        [empty(fast), empty(next)],
        [gone(fast), next],
        [unreachable(fast, 3), next],
        [unreachable(fast, 5), unreachable(next, 3)],
        [backup(fast), next],
    ] {
        let decision = ask(&mut Peekaboo::default(), &views, &stream, 1_000);
        assert_eq!(decision, send(1, 0, 1_000), "{views:?}");
    }
    assert_eq!(ask(&mut Peekaboo::default(), &[fast, backup(next)], &stream, 1), Decision::Wait);
    assert_eq!(ask(&mut Peekaboo::default(), &[next], &stream, 1), send(1, 0, 1_000));
    assert_eq!(ask(&mut Peekaboo::default(), &[], &stream, 1), Decision::Wait);
}
