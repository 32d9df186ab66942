//! Unit tests of the components behind the table.

use std::time::Duration;

use super::contestants::{multipath, standard};
use super::drill::Drill;
use super::run::run;
use super::traffic::{App, DEATH, TRACE, Trace};

#[test]
fn a_trace_is_the_same_for_the_same_seed_and_has_the_sizes_of_its_application() {
    for app in App::ALL {
        let (one, again) = (Trace::new(app, 3, 1), Trace::new(app, 3, 1));
        assert_eq!((&one.bursts, one.rtts_ms), (&again.bursts, again.rtts_ms));
        assert_ne!(one.bursts, Trace::new(app, 4, 1).bursts);
        assert!(one.bursts.is_sorted_by_key(|(at, _)| *at));
        assert!(one.bursts.iter().all(|(at, _)| *at < TRACE));
        let (wlan, lte) = one.rtts_ms;
        assert!((10.0..15.0).contains(&wlan) && (70.0..100.0).contains(&lte));
        let least = match app {
            App::Docs => 300..=500,
            App::Maps => 80_000..=120_000,
            App::Netflix => 500_000..=1_500_000,
        };
        assert!(one.bursts.iter().all(|(_, bytes)| least.contains(bytes)), "{app:?}");
    }
}

#[test]
fn repetitions_differ_in_their_moment_and_some_traces_are_hit_within_a_burst() {
    for app in App::ALL {
        let trace = Trace::new(app, 0, 1);
        let dies: Vec<Duration> = (0..5).map(|n| trace.repetition(n, 1).dies).collect();
        assert!(dies.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(dies.iter().all(|at| at.abs_diff(DEATH) <= Duration::from_millis(100)));
        if app != App::Docs {
            let begins = trace.bursts.iter().rfind(|(at, _)| *at <= DEATH).unwrap().0;
            assert!(dies.iter().all(|at| *at > begins && *at - begins < Duration::from_millis(30)));
        }
    }
}

#[test]
fn a_lone_packet_costs_tlp_std_one_timeout_more() {
    let trace = Trace::new(App::Docs, 1, 1);
    let repetition = trace.repetition(0, 1);
    let slow = run(&trace, &repetition, &standard()).unwrap();
    let fast = run(&trace, &repetition, &multipath()).unwrap();
    assert!(slow.lost && fast.lost);
    let saved = slow.completion_ms - fast.completion_ms;
    // RTO = SRTT + 200 ms; both copies meet a jitter of their own on 4G.
    let timeout = 200.0 + trace.rtts_ms.0;
    assert!((saved - timeout).abs() < 8.0, "{saved} ms, RTO {timeout} ms");
    assert!(fast.completion_ms > fast.bound_ms && fast.bound_ms > trace.rtts_ms.1 / 2.0 - 3.0);
    assert_eq!((slow.duplicate_bytes, fast.duplicate_bytes), (0, 0));
    assert_eq!((slow.lte_bytes, fast.lte_bytes), (slow.bytes, fast.bytes));
}

#[test]
fn a_burst_of_maps_keeps_to_wlan_and_is_hit_as_a_whole() {
    let trace = Trace::new(App::Maps, 2, 1);
    let hit = run(&trace, &trace.repetition(1, 1), &multipath()).unwrap();
    assert!(hit.lost && hit.position == 1.0, "{hit:?}");
    assert_eq!(hit.lte_bytes, hit.bytes, "each byte went on 4G once");
}

#[test]
fn a_drill_loses_what_it_is_told_to() {
    let drill = Drill::new(20 * 1_428, 1);
    let calm = drill.run(&standard(), &[]).unwrap();
    assert_eq!((calm.segments(), calm.sent.len()), (20, 20), "all on WLAN, once");
    assert_eq!(calm.repeat_of(19), None);
    let lossy = drill.run(&standard(), &[10]).unwrap();
    let repeat = lossy.repeat_of(10).expect("it was sent again");
    assert_eq!((lossy.sent.len(), lossy.duplicate_bytes), (21, 0));
    let twice = drill.run(&standard(), &[10, repeat]).unwrap();
    assert!(twice.completion_ms > lossy.completion_ms + 100.0, "the timer, at last");
    let tail = drill.run(&multipath(), &[19, 20]).unwrap();
    let copies = tail.sent.iter().filter(|sent| sent.path == super::traffic::LTE);
    assert_eq!(copies.map(|copy| copy.place).collect::<Vec<_>>(), [19 * 1_428], "the last segment");
}
