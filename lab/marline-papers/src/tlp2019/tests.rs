//! Unit tests of the components behind the table.

use std::time::Duration;

use super::campaign::Case;
use super::contestants::{Windows, both_variants, multipath, standard};
use super::single_burst::{BURSTS_BEFORE, BurstExperiment};
use super::traffic::{App, DEATH, FailurePlacement, LTE, Trace};
use crate::roots::Root;

const KEPT: Windows = Windows::Kept;
const SOON: Duration = Duration::from_secs(20);
const ROOT: Root = Root { number: 0, seed: 77 };

#[test]
fn a_trace_is_the_same_for_the_same_seed_and_has_the_sizes_of_its_application() {
    let apps = [App::NetflixSmall, App::NetflixLarge].into_iter().chain(App::STUDIED);
    for app in apps {
        let of = |seed| Trace::new(app, 3, seed, DEATH, false);
        assert_eq!((&of(1).bursts, of(1).rtts_ms), (&of(1).bursts, of(1).rtts_ms));
        assert_ne!(of(1).bursts, of(2).bursts);
        assert!(of(1).bursts.is_sorted_by_key(|(at, _)| *at));
        let (wlan, lte) = of(1).rtts_ms;
        assert!((10.0..15.0).contains(&wlan) && (70.0..100.0).contains(&lte));
        let sizes = match app {
            App::Docs => 300..=500,
            App::Maps => 80_000..=120_000,
            App::Netflix => 500_000..=1_500_000,
            App::NetflixSmall => 500_000..=500_000,
            App::NetflixLarge => 1_500_000..=1_500_000,
        };
        assert!(of(1).bursts.iter().all(|(_, bytes)| sizes.contains(bytes)), "{app:?}");
        let within = Trace::new(app, 3, 1, DEATH, true);
        assert!(within.bursts.iter().any(|(at, _)| *at == DEATH), "{app:?}");
    }
}

#[test]
fn wlan_dies_where_it_is_meant_to() {
    let dies = |place, app, repetition| {
        let case = Case::new(app, place, 1);
        case.spot(&ROOT, 0, repetition, KEPT, SOON).unwrap().repetition.death_time
    };
    let free = [0, 1].map(|number| dies(FailurePlacement::Independent, App::Maps, number));
    assert_ne!(free[0], free[1]);
    assert!(free.iter().all(|at| at.abs_diff(SOON) <= Duration::from_millis(100)));
    for windows in Windows::ALL {
        for (place, most) in [(FailurePlacement::Within, 1.0), (FailurePlacement::AsObserved, 0.1)]
        {
            let case = Case::new(App::Netflix, place, 1);
            let spot = case.spot(&ROOT, 0, 0, windows, SOON).unwrap();
            assert!(spot.repetition.death_time > SOON);
            let hit = spot.run(&multipath(windows)).unwrap();
            // Packets on the way when WLAN dies may still arrive.
            assert!(hit.position <= most + 0.02, "{place:?}: {hit:?}");
        }
    }
}

#[test]
fn a_lone_packet_costs_tlp_std_one_timeout_more() {
    let spot = Case::new(App::Docs, FailurePlacement::Independent, 1)
        .spot(&ROOT, 1, 0, KEPT, SOON)
        .unwrap();
    let [slow, fast] = both_variants(KEPT).map(|variant| spot.run(&variant).unwrap());
    assert!(slow.lost && fast.lost);
    let saved = slow.completion_ms - fast.completion_ms;
    // RTO = SRTT + 200 ms. Each copy has its own jitter on 4G.
    let (wlan_ms, lte_ms) = spot.trace.rtts_ms;
    let timeout = 200.0 + wlan_ms;
    assert!((saved - timeout).abs() < 8.0, "{saved} ms, RTO {timeout} ms");
    assert!(fast.completion_ms > fast.bound_ms && fast.bound_ms > lte_ms / 2.0 - 3.0);
    assert!(fast.air_packets >= 3, "the packet, its probe, its copy: {fast:?}");
    let (slow, fast) = (slow.repeats, fast.repeats);
    assert!(slow.probe_ms < slow.copy_ms && slow.copy_ms == slow.timer_ms, "{slow:?}");
    assert!(fast.copy_ms == fast.probe_ms && fast.wlan_after_copy > 0, "{fast:?}");
}

#[test]
fn a_burst_of_maps_is_hit_as_a_whole_between_two() {
    let spot = Case::new(App::Maps, FailurePlacement::Independent, 1)
        .spot(&ROOT, 2, 1, KEPT, SOON)
        .unwrap();
    let hit = spot.run(&multipath(KEPT)).unwrap();
    assert!(hit.lost && hit.position == 1.0, "{hit:?}");
}

#[test]
fn a_drill_drops_the_given_packets() {
    let drill = BurstExperiment::with_bursts_before(BURSTS_BEFORE, 20 * 1_428, 1);
    let calm = drill.run(&standard(KEPT), &[]).unwrap();
    assert_eq!((calm.segments(), calm.sent.len()), (20, 20), "all on WLAN, once");
    assert_eq!(calm.repeat_of(19), None);
    let lossy = drill.run(&standard(KEPT), &[10]).unwrap();
    let repeat = lossy.repeat_of(10).expect("it was retransmitted");
    assert_eq!((lossy.sent.len(), lossy.duplicate_bytes), (21, 0));
    let twice = drill.run(&standard(KEPT), &[10, repeat]).unwrap();
    assert!(twice.completion_ms > lossy.completion_ms + 100.0, "the timer last");
    let tail = drill.run(&multipath(KEPT), &[19, 20]).unwrap();
    let copies = tail.sent.iter().filter(|sent| sent.path == LTE);
    assert_eq!(copies.map(|copy| copy.place).collect::<Vec<_>>(), [19 * 1_428], "the last segment");
}

#[test]
fn a_burst_of_maps_uses_one_path_unless_windows_restart() {
    let case = Case::new(App::Maps, FailurePlacement::Independent, 1);
    let hits = Windows::ALL.map(|windows| {
        let spot = case.spot(&ROOT, 0, 0, windows, SOON).unwrap();
        both_variants(windows).map(|variant| spot.run(&variant).unwrap())
    });
    let [[kept_slow, kept_fast], [slow, _]] = hits;
    assert!(kept_fast.completion_ms < kept_slow.completion_ms - 50.0);
    assert_eq!(kept_slow.lte_share, 0.0);
    assert!(slow.lte_share > 0.0, "{slow:?}");
}
