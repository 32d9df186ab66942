//! Tests of hedged copies: the delay before a copy, and the cases without one.

use marline_time::Duration;

use super::{Sent, bursts, ms, offered_by, scene};

const WIFI: &str = "rate=50M,delay=20ms,queue=50ms";
const LTE: &str = "rate=20M,delay=40ms,queue=100ms";

fn every_100_ms(count: u64) -> Vec<u64> {
    (0..count).map(|n| n * 100).collect()
}

/// The segments that carried message `number` of 200 bytes.
fn of(sent: &[Sent], number: u64) -> Vec<(usize, Duration)> {
    let start = number * 200;
    let after = |s: &Sent| s.at.saturating_sub(ms(number * 100));
    sent.iter().filter(|s| s.start == start).map(|s| (s.path, after(s))).collect()
}

#[test]
fn a_message_that_is_answered_in_time_is_not_copied() {
    let result = bursts(&mut scene(&[WIFI, LTE], "hedged", 1), 200, &every_100_ms(100));
    for number in 10..100 {
        let carried = of(&result.sent, number);
        assert_eq!(carried, [(0, Duration::ZERO)], "message {number}");
    }
}

/// Messages 50 and 70 are lost: their copies are sent when the answer is overdue, slightly more than the RTT of 40 ms
/// later, and nothing else is sent twice before the path repairs the loss itself.
#[test]
fn a_lost_message_is_copied_as_soon_as_its_answer_is_overdue() {
    // The handshake and the join are also packets, so the packet numbers of the messages are looked up.
    let mut paths = scene(&[WIFI, LTE], "hedged", 1);
    let by = offered_by(&mut paths, 200, &every_100_ms(100), &[5_001, 7_001]);
    // The repair of the first message is also a packet.
    let lossy = format!("{WIFI},down.drop={}+{}", by[0], by[1] + 1);
    let result = bursts(&mut scene(&[&lossy, LTE], "hedged", 1), 200, &every_100_ms(100));
    for number in [50, 70] {
        let carried = of(&result.sent, number);
        let (path, at) = carried[1];
        assert_eq!((carried[0], path), ((0, Duration::ZERO), 1), "message {number}: {carried:?}");
        assert!(at >= ms(40) && at <= ms(50), "message {number}: copied after {at:?}");
        let latency = result.latencies[number as usize];
        assert!(latency <= ms(92), "message {number}: {latency:?}");
    }
    let copies = result.sent.iter().filter(|s| s.path == 1 && s.at > ms(1_000)).count();
    assert_eq!(copies, 2, "nothing else was copied");
}

#[test]
fn copies_are_immediate_only_while_a_path_loses_much() {
    let paths = |text: &str| scene(&[text, LTE], "auto-redundant", 4);
    let at_once = |result: &super::Bursts, from: u64, to: u64| {
        let copied = |number: &u64| of(&result.sent, *number).contains(&(1, Duration::ZERO));
        (from..to).filter(copied).count()
    };
    // From 20 s to 30 s a fifth of the packets is lost.
    let mut world = paths(WIFI);
    let down = world.down[0];
    for (at_s, loss) in [(20, "20%"), (30, "0")] {
        let link = crate::cases::link(&format!("{WIFI},loss={loss}")).down;
        let when = super::START + Duration::from_secs(at_s);
        world.world.run_at(when, move |world| world.set_link(down, link));
    }
    let result = bursts(&mut world, 200, &every_100_ms(600));
    let [begin, good, bad, after] =
        [(0, 50), (100, 200), (205, 300), (400, 600)].map(|(from, to)| at_once(&result, from, to));
    println!(
        "copied immediately: {begin} of 50, {good} of 100, {bad} of 95 in the bad period, {after} of 200"
    );
    assert!(begin >= 5 && good <= 10, "trust is earned: {begin}, {good}");
    assert!(bad >= 80, "the bad period is detected: {bad}");
    assert!(after <= 20, "its end is detected: {after}");
    let slow = result.latencies[205..300].iter().filter(|latency| **latency > ms(60)).count();
    assert!(slow <= 4, "{slow} messages waited for a copy although the path was known to be bad");
}

/// The path dies between two messages. Its data is copied, and later messages use the other path.
#[test]
fn a_dying_path_costs_a_few_messages_one_round_trip() {
    let mut paths = scene(&[WIFI, LTE], "auto-redundant", 1);
    paths.schedule_path_change(super::START + ms(10_010), 0, false);
    let result = bursts(&mut paths, 200, &every_100_ms(200));
    let late: Vec<_> = result.latencies.iter().filter(|latency| **latency > ms(60)).collect();
    println!("late: {late:?}");
    assert!(late.len() <= 2, "{late:?}");
    assert!(result.latencies.iter().all(|latency| *latency <= ms(120)), "{late:?}");
}

/// The application's deadline decides what is copied: answers that vary by 20 ms are too late for 35 ms but in time
/// for 200 ms.
#[test]
fn a_deadline_is_met_by_copies_and_one_that_is_met_anyway_costs_few() {
    let links = ["rate=50M,delay=20ms,queue=50ms,jitter=20ms", "rate=20M,delay=30ms,queue=100ms"];
    let run = |scheduler: &str| {
        let result = bursts(&mut scene(&links, scheduler, 1), 200, &every_100_ms(600));
        let late = result.latencies[50..].iter().filter(|latency| **latency > ms(35)).count();
        let copies = (50..600).filter(|number| of(&result.sent, *number).len() > 1).count();
        (late, copies)
    };
    let [hedged, strict, lax] =
        ["hedged", "deadline,within=35ms", "deadline,within=200ms"].map(run);
    println!("late and copied of 550: hedged {hedged:?}, 35 ms {strict:?}, 200 ms {lax:?}");
    assert!(hedged.0 > 30, "the test proves nothing: {hedged:?}");
    assert!(strict.0 * 4 < hedged.0 && strict.1 > 400, "{strict:?}");
    assert!(lax.1 < 150, "{lax:?}");
}
