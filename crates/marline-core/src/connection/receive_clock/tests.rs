//! Unit tests of the receive timer, with times and conditions as plain numbers.

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// The peer marks its last segment; its timeout is 500 ms; no probes.
fn seed(heard_ms: u64) -> Conditions {
    Conditions { stall: Some(MS(500)), probing: None, last_rx_at: at(heard_ms) }
}

fn probing(stall_ms: Option<u64>, heard_ms: u64) -> Conditions {
    let probing = Probing { after: MS(50), wait: MS(50), count: 3 };
    Conditions { stall: stall_ms.map(MS), probing: Some(probing), last_rx_at: at(heard_ms) }
}

/// All actions of the timer until `end`, with their times.
fn run(
    clock: &mut ReceiveTimerState,
    end: u64,
    cond: impl Fn(Instant) -> Conditions,
) -> Vec<(u64, ClockAction)> {
    let mut said = Vec::new();
    for _ in 0..1_000 {
        let Some(due) = clock.next_timeout().filter(|due| *due <= at(end)) else { return said };
        let verdict = clock.on_timeout(due, &cond(due));
        if verdict != ClockAction::Nothing {
            said.push((due.as_millis(), verdict));
        }
    }
    panic!("a timer that never advances: {clock:?}");
}

fn data(clock: &mut ReceiveTimerState, ms: u64, next: u64, cond: &Conditions) {
    clock.on_data(at(ms), Dsn(next), Dsn(next), cond);
}

#[test]
fn silence_after_data_without_the_mark_is_a_stall() {
    let mut clock = ReceiveTimerState::default();
    for turn in 0..10 {
        data(&mut clock, turn * 100, (turn + 1) * 1_000, &seed(turn * 100));
        assert!(clock.is_running());
    }
    assert_eq!(run(&mut clock, 10_000, |_| seed(900)), [(1_400, ClockAction::Stalled)]);
    assert!(!clock.is_running(), "there is one verdict");
}

#[test]
fn the_mark_stops_it_and_more_data_starts_it_again() {
    let mut clock = ReceiveTimerState::default();
    data(&mut clock, 0, 1_000, &seed(0));
    clock.on_idle(Dsn(2_000));
    data(&mut clock, 10, 2_000, &seed(10));
    assert_eq!(clock.next_timeout(), None);
    data(&mut clock, 5_000, 3_000, &seed(5_000));
    assert_eq!(run(&mut clock, 60_000, |_| seed(5_000)), [(5_500, ClockAction::Stalled)]);
}

#[test]
fn a_mark_that_overtook_stops_it_once_the_rest_is_here() {
    let mut clock = ReceiveTimerState::default();
    data(&mut clock, 0, 1_000, &seed(0));
    clock.on_idle(Dsn(3_000));
    clock.on_out_of_order(at(10), Dsn(1_000), Dsn(3_000), &seed(10));
    assert!(clock.is_running(), "the middle is missing");
    data(&mut clock, 20, 3_000, &seed(20));
    assert!(!clock.is_running());
}

#[test]
fn a_mark_that_comes_again_stops_one_that_runs() {
    let mut clock = ReceiveTimerState::default();
    data(&mut clock, 0, 1_000, &seed(0));
    clock.on_idle(Dsn(1_000));
    clock.on_out_of_order(at(10), Dsn(1_000), Dsn(1_000), &seed(10));
    assert!(!clock.is_running());
}

#[test]
fn an_old_mark_stops_nothing() {
    let mut clock = ReceiveTimerState::default();
    // Data ended at 2,000 when the mark was sent. Later data has already arrived, and has its own gap.
    clock.on_idle(Dsn(2_000));
    clock.on_data(at(0), Dsn(2_000), Dsn(5_000), &seed(0));
    assert!(clock.is_running());
    data(&mut clock, 10, 4_000, &seed(10));
    clock.on_idle(Dsn(2_000));
    clock.on_out_of_order(at(20), Dsn(4_000), Dsn(5_000), &seed(20));
    assert!(clock.is_running());
}

#[test]
fn data_behind_a_gap_starts_the_timer_and_does_not_restart_it() {
    let mut clock = ReceiveTimerState::default();
    clock.on_idle(Dsn(1_000));
    data(&mut clock, 0, 1_000, &seed(0));
    assert!(!clock.is_running());
    clock.on_out_of_order(at(100), Dsn(1_000), Dsn(3_000), &seed(100));
    clock.on_out_of_order(at(400), Dsn(1_000), Dsn(4_000), &seed(400));
    assert_eq!(run(&mut clock, 60_000, |_| seed(400)), [(600, ClockAction::Stalled)]);
}

#[test]
fn a_data_ack_restarts_it_and_starts_nothing() {
    let mut clock = ReceiveTimerState::default();
    clock.on_data_ack(at(0), &seed(0));
    assert!(!clock.is_running());
    data(&mut clock, 0, 1_000, &seed(0));
    clock.on_data_ack(at(300), &seed(300));
    assert_eq!(run(&mut clock, 60_000, |_| seed(300)), [(800, ClockAction::Stalled)]);
}

#[test]
fn a_shorter_wait_counts_from_the_next_data_on() {
    let mut clock = ReceiveTimerState::default();
    let unknown = Conditions { stall: Some(MS(1_500)), ..seed(0) };
    data(&mut clock, 0, 1_000, &unknown);
    data(&mut clock, 100, 2_000, &seed(100));
    assert_eq!(run(&mut clock, 60_000, |_| seed(100)), [(600, ClockAction::Stalled)]);
}

#[test]
fn three_unanswered_probes_prove_silence() {
    let mut clock = ReceiveTimerState::default();
    data(&mut clock, 0, 1_000, &probing(Some(500), 0));
    let said = run(&mut clock, 60_000, |_| probing(Some(500), 0));
    let probe = |ms| (ms, ClockAction::Probe);
    assert_eq!(said, [probe(50), probe(100), probe(150), (200, ClockAction::Unanswered)]);
}

#[test]
fn an_answer_resets_the_probes_but_not_the_stall() {
    let mut clock = ReceiveTimerState::default();
    data(&mut clock, 0, 1_000, &probing(Some(500), 0));
    // Each probe is answered within 10 ms, but no data arrives.
    let heard = |now: Instant| now.as_millis().saturating_sub(40);
    let said = run(&mut clock, 60_000, |now| probing(Some(500), heard(now)));
    assert_eq!(said.last(), Some(&(500, ClockAction::Stalled)), "{said:?}");
    assert!(said.iter().all(|(_, due)| *due != ClockAction::Unanswered), "{said:?}");
}

#[test]
fn a_peer_without_marks_is_probed_once_and_believed() {
    let mut clock = ReceiveTimerState::default();
    data(&mut clock, 0, 1_000, &probing(None, 0));
    let heard = |now: Instant| if now > at(60) { 60 } else { 0 };
    let said = run(&mut clock, 60_000, |now| probing(None, heard(now)));
    assert_eq!(said, [(50, ClockAction::Probe)]);
    assert!(!clock.is_running(), "no probes on an idle path");
    data(&mut clock, 9_000, 2_000, &probing(None, 9_000));
    let said = run(&mut clock, 60_000, |_| probing(None, 9_000));
    assert_eq!(said.last(), Some(&(9_200, ClockAction::Unanswered)), "{said:?}");
}

#[test]
fn without_marks_and_probes_no_timer_runs() {
    let mut clock = ReceiveTimerState::default();
    let nothing = Conditions { stall: None, probing: None, last_rx_at: at(0) };
    data(&mut clock, 0, 1_000, &nothing);
    assert!(!clock.is_running());
}

#[test]
fn a_flow_with_pauses_is_probed_later() {
    let mut clock = ReceiveTimerState::default();
    let cond = |ms| probing(Some(2_000), ms);
    let mut now = 0;
    for turn in 0..20 {
        now = turn * 100;
        // Two segments each time: the short pause must not hide the long one.
        data(&mut clock, now, turn * 2_000 + 1_000, &cond(now));
        data(&mut clock, now + 1, turn * 2_000 + 2_000, &cond(now + 1));
    }
    let first = run(&mut clock, 60_000, |_| cond(now + 1))[0];
    assert_eq!(first, (now + 1 + 2 * 99, ClockAction::Probe));
    // The pauses are forgotten in two to three seconds of steady data.
    for step in 0..400 {
        data(&mut clock, now + 200 + step * 10, 100_000 + step, &cond(now + 200 + step * 10));
    }
    now += 200 + 399 * 10;
    let first = run(&mut clock, 60_000, |_| cond(now))[0];
    assert_eq!(first, (now + 50, ClockAction::Probe));
}

#[test]
fn steady_data_rarely_wakes_the_clock() {
    let mut clock = ReceiveTimerState::default();
    let mut wakes = 0;
    for step in 0..10_000u64 {
        while let Some(due) = clock.next_timeout().filter(|due| *due <= at(step)) {
            assert_eq!(clock.on_timeout(due, &seed(step)), ClockAction::Nothing);
            wakes += 1;
        }
        data(&mut clock, step, (step + 1) * 1_000, &seed(step));
    }
    assert!(wakes <= 21, "{wakes} in ten seconds");
}

#[test]
fn an_excused_silence_restarts_the_whole_wait() {
    let mut clock = ReceiveTimerState::default();
    data(&mut clock, 0, 1_000, &seed(0));
    clock.restart_wait(at(500), &seed(0));
    assert_eq!(clock.next_timeout(), Some(at(1_000)));
}

/// The process was not scheduled when the timer was due: segments that arrived in the meantime have not been read.
#[test]
fn a_late_verdict_waits_for_segments_in_the_socket() {
    let mut clock = ReceiveTimerState::default();
    data(&mut clock, 0, 1_000, &seed(0));
    assert_eq!(clock.on_timeout(at(800), &seed(0)), ClockAction::Nothing);
    assert_eq!(clock.next_timeout(), Some(at(820)));
    // A segment was read, so the wait restarts.
    data(&mut clock, 801, 2_000, &seed(801));
    assert_eq!(run(&mut clock, 10_000, |_| seed(801)), [(1_301, ClockAction::Stalled)]);
    // No segment was waiting.
    data(&mut clock, 2_000, 3_000, &seed(2_000));
    assert_eq!(clock.on_timeout(at(3_000), &seed(2_000)), ClockAction::Nothing);
    assert_eq!(
        clock.on_timeout(at(3_010), &seed(2_000)),
        ClockAction::Nothing,
        "before the grace is over"
    );
    assert_eq!(clock.on_timeout(at(3_020), &seed(2_000)), ClockAction::Stalled);
}

#[test]
fn a_timer_that_is_always_late_still_reaches_a_verdict() {
    let mut clock = ReceiveTimerState::default();
    data(&mut clock, 0, 1_000, &seed(0));
    let mut said = Vec::new();
    while let Some(due) = clock.next_timeout() {
        let late = due + MS(100);
        said.push((late.as_millis(), clock.on_timeout(late, &seed(0))));
    }
    assert_eq!(said.last(), Some(&(960, ClockAction::Stalled)), "{said:?}");
}
