//! Tests of repairs for bursts.

use super::{bursts, config, ms, offered_by};
use crate::cases::scene_of_full_segments as scene;

/// A burst of nine segments takes 42 ms on this path; a loss costs two more round trips.
const FAST: &str = "rate=50M,delay=40ms,queue=100ms";
/// A repair arrives after 52 ms.
const SLOW: &str = "rate=20M,delay=50ms,queue=100ms";
/// Index of the affected burst. Earlier bursts open the windows.
const FIFTH_MS: u64 = 2_000;

fn times() -> Vec<u64> {
    (0..6).map(|n| n * 500).collect()
}

/// The fifth burst of `bytes` loses the packets with these numbers (0 is its first) on the fast path.
fn harmed(scheduler: &str, bytes: u64, lost: &[u64]) -> super::Bursts {
    let mut whole = scene(&[FAST, SLOW], config(scheduler), 1);
    let before = offered_by(&mut whole, bytes, &times(), &[FIFTH_MS - 1])[0];
    let drops: Vec<String> = lost.iter().map(|n| (before + 1 + n).to_string()).collect();
    let lossy = format!("{FAST},down.drop={}", drops.join("+"));
    let mut paths = scene(&[&lossy, SLOW], config(scheduler), 1);
    let result = bursts(&mut paths, bytes, &times());
    let dropped = paths.world.link(paths.down[0]).stats().dropped_loss;
    assert_eq!(dropped, lost.len() as u64);
    result
}

/// Wherever the loss is, the burst is complete when the slow path's repair arrives.
#[test]
fn one_repair_makes_good_any_one_loss_of_a_burst() {
    for lost in 0..7 {
        let result = harmed("coded,rate=10%", 9_800, &[lost]);
        println!("{lost}: {:?} {:?}", result.latencies, result.client);
        assert_eq!(result.server.repair_tx, 6, "one for each burst");
        assert!(result.client.repaired_bytes >= 1_200, "{:?}", result.client);
        let took = result.latencies[4];
        assert!(took >= ms(50) && took <= ms(53), "segment {lost}: {took:?}");
        assert!(result.latencies[3] <= ms(43) && result.latencies[5] <= ms(43));
    }
}

#[test]
fn as_many_repairs_as_losses_are_enough() {
    for lost in [&[0, 1, 2][..], &[3, 5, 8], &[6, 7, 8], &[0, 4, 8]] {
        let result = harmed("coded", 12_600, lost);
        println!("{lost:?}: {:?}", result.latencies);
        assert_eq!(result.server.repair_tx, 18, "three for each burst");
        let took = result.latencies[4];
        assert!(took >= ms(50) && took <= ms(54), "{lost:?}: {took:?}");
    }
}

#[test]
fn more_losses_than_repairs_cost_as_much_as_without_coding() {
    let lost = [4, 5, 6, 7, 8];
    let without = harmed("coded,rate=0", 12_600, &lost).latencies[4];
    let with = harmed("coded", 12_600, &lost).latencies[4];
    println!("{with:?} {without:?}");
    assert!(with > ms(54) && with <= without + ms(1), "{with:?} against {without:?}");
}

/// A lost repair is repeated but then useless. It delays neither its own burst nor later ones.
#[test]
fn lost_repairs_do_no_harm() {
    let lossy = format!("{SLOW},down.loss=30%");
    let mut paths = scene(&[FAST, &lossy], config("coded"), 1);
    let at: Vec<u64> = (0..200).map(|n| n * 100).collect();
    let result = bursts(&mut paths, 9_800, &at);
    let worst = result.latencies.iter().max().copied().unwrap_or_default();
    println!("{worst:?} {:?}", result.server.repair_tx);
    assert!(worst <= ms(44), "{worst:?}");
    assert!(result.server.repair_tx > 250, "{:?}", result.server);
}

/// Random and bursty losses: the tail falls to about the slow path's delay.
#[test]
fn the_tail_of_bursts_is_cut() {
    for (loss, share) in [("loss=2%", 0.5), ("ge=200ms:20ms:50%:0.1%", 0.9)] {
        let lossy = format!("{FAST},down.{loss}");
        let at: Vec<u64> = (0..600).map(|n| n * 300).collect();
        let p99 = |scheduler: &str| {
            let mut paths = scene(&[&lossy, SLOW], config(scheduler), 3);
            let mut latencies = bursts(&mut paths, 12_600, &at).latencies;
            latencies.sort_unstable();
            latencies[latencies.len() * 99 / 100]
        };
        let (with, without) = (p99("coded"), p99("coded,rate=0"));
        println!("{loss}: p99 {with:?} for {without:?}");
        assert!(with <= without.mul_f64(share), "{loss}: {with:?} against {without:?}");
    }
}
