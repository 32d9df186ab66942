//! Tests of the schedule of attempts.

use core::net::SocketAddr;

use marline_io::LocalEnd;

use super::*;

const STAGGER: Duration = Duration::from_millis(100);

/// Candidate for this path number and a server.
fn candidate_on(path: u32, reserve: bool) -> Candidate {
    let interface = (format!("if{path}"), path);
    let address = format!("10.0.{path}.2").parse().unwrap();
    let remote: SocketAddr = "192.0.2.1:443".parse().unwrap();
    let end = LocalEnd {
        address,
        bound: address,
        interface,
        loopback: false,
        behind_tun: false,
        mark: 0,
    };
    Candidate { path: format!("if{path}"), end, remote, reserve }
}

fn wifi() -> Candidate {
    candidate_on(1, false)
}

fn lte() -> Candidate {
    candidate_on(2, true)
}

/// Runs a race in which an attempt on path `p` fails after `fails(p)` ms, if at all. Returns the start times in ms.
fn run(mut schedule: AttemptSchedule, fails: impl Fn(u32) -> Option<u64>) -> Vec<(u128, String)> {
    let mut running: Vec<(Duration, Candidate)> = Vec::new();
    let (mut now, mut starts) = (Duration::ZERO, Vec::new());
    loop {
        while let Some(candidate) = schedule.take_due(now, running.is_empty()) {
            starts.push((now.as_millis(), candidate.path.clone()));
            let fails = fails(candidate.end.interface.1).map(Duration::from_millis);
            running.push((fails.map_or(Duration::MAX, |after| now + after), candidate));
        }
        let next = running.iter().map(|(at, _)| *at).chain(schedule.time_until_due()).min();
        let Some(at) = next.filter(|at| *at < Duration::MAX) else { return starts };
        now = at;
        if let Some(loser) = running.iter().position(|(fails, _)| *fails <= now) {
            let (_, candidate) = running.remove(loser);
            schedule.failed(now, &candidate);
        }
    }
}

fn never(_: u32) -> Option<u64> {
    None
}

fn names(starts: &[(u128, &str)]) -> Vec<(u128, String)> {
    starts.iter().map(|(at, name)| (*at, (*name).to_owned())).collect()
}

#[test]
fn without_path_health_all_start_a_stagger_apart_and_immediately_when_one_fails() {
    let all = || {
        AttemptSchedule::new_staggered(
            vec![candidate_on(1, false), candidate_on(2, true), candidate_on(3, false)],
            STAGGER,
        )
    };
    assert_eq!(run(all(), never), names(&[(0, "if1"), (100, "if2"), (200, "if3")]));
    let refused = run(all(), |path| (path == 1).then_some(20));
    assert_eq!(refused, names(&[(0, "if1"), (20, "if2"), (120, "if3")]));
}

#[test]
fn a_backup_path_sleeps_until_a_regular_one_was_asked_twice() {
    // This does not depend on the winner of the last race.
    let schedule = AttemptSchedule::order_by_health(vec![lte(), wifi()], STAGGER, |_| false);
    assert_eq!(run(schedule, never), names(&[(0, "if1"), (250, "if1"), (500, "if2")]));
}

#[test]
fn without_a_backup_path_no_path_is_tried_twice() {
    let schedule =
        AttemptSchedule::order_by_health(vec![wifi(), candidate_on(3, false)], STAGGER, |_| false);
    assert_eq!(run(schedule, never), names(&[(0, "if1"), (100, "if3")]));
}

#[test]
fn a_degraded_address_pair_comes_last_and_late() {
    let on_wifi = |candidate: &Candidate| candidate.path == "if1";
    let schedule = AttemptSchedule::order_by_health(vec![wifi(), lte()], STAGGER, on_wifi);
    assert_eq!(run(schedule, never), names(&[(0, "if2"), (1_000, "if1")]));
    // It does not start earlier while another attempt may still be answered,
    let schedule = AttemptSchedule::order_by_health(
        vec![wifi(), lte(), candidate_on(3, true)],
        STAGGER,
        on_wifi,
    );
    let starts = run(schedule, |path| (path == 2).then_some(50));
    assert_eq!(starts, names(&[(0, "if2"), (50, "if3"), (1_050, "if1")]));
    // but starts immediately if none can.
    let schedule = AttemptSchedule::order_by_health(vec![wifi(), lte()], STAGGER, on_wifi);
    let starts = run(schedule, |path| (path == 2).then_some(50));
    assert_eq!(starts, names(&[(0, "if2"), (50, "if1")]));
}

#[test]
fn if_every_pair_is_bad_one_attempt_starts_immediately() {
    let schedule = AttemptSchedule::order_by_health(vec![lte(), wifi()], STAGGER, |_| true);
    assert_eq!(run(schedule, never), names(&[(0, "if1"), (100, "if2")]));
}

#[test]
fn a_refused_path_is_not_tried_again() {
    let schedule = AttemptSchedule::order_by_health(vec![wifi(), lte()], STAGGER, |_| false);
    let starts = run(schedule, |path| (path == 1).then_some(20));
    assert_eq!(starts, names(&[(0, "if1"), (20, "if2")]));
}

#[test]
fn an_empty_schedule_starts_no_attempt() {
    let mut schedule = AttemptSchedule::order_by_health(Vec::new(), STAGGER, |_| true);
    assert_eq!((schedule.take_due(Duration::ZERO, true), schedule.time_until_due()), (None, None));
    assert!(schedule.is_empty());
}
