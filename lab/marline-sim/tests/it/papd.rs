//! Tests of PAPD on emulated links: it settles on the better mode for these paths and this buffer, and uses the other
//! only for its share of the time.

use crate::cases::{link, parallel};
use marline_core::ConnectionConfig;
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Instant, SeedTree};

const PLAIN: &str = "lowest-rtt+orp";
const PAPD: &str = "lowest-rtt+orp+papd";
/// Without the rule.
const MEASURING: &str = "lowest-rtt+orp+papd,rule=off";
const NEAR: &str = "rate=50M,delay=25ms,queue=50ms";
const FAR: &str = "rate=50M,delay=75ms,queue=100ms";

fn scene(links: &[&str], scheduler: &str, buffer: u64) -> Paths {
    let set = marline_research::registry().policy_set(scheduler, "full-mesh", "bbr", "rack-tlp");
    let mut config = ConnectionConfig::new(set.expect("built-in names"));
    (config.send_buffer, config.receive_buffer) = (buffer, buffer);
    let links = links.iter().map(|text| link(text)).collect();
    let mut paths = Paths::new(&PathsConfig::new(links, config), SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Endless, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    paths
}

fn mbit(paths: &Paths, from: u64, to: u64) -> f64 {
    let report = paths.client_report(0).expect("connected");
    assert_eq!(report.wrong_at, None);
    report.goodput(Instant::from_secs(from), Instant::from_secs(to)).bits_per_s() as f64 / 1e6
}

fn steady(links: &[&str], scheduler: &str, buffer: u64) -> f64 {
    let mut paths = scene(links, scheduler, buffer);
    paths.world.run_until(Instant::from_secs(30));
    mbit(&paths, 6, 30)
}

#[test]
fn papd_bonds_only_with_a_large_buffer() {
    // Bonding cannot win below RTT_max x best rate: 150 ms x 47.6 Mbit/s = 890 kB.
    let runs = [
        (vec![NEAR], PLAIN, 4_000_000),
        (vec![NEAR, FAR], PLAIN, 450_000),
        (vec![NEAR, FAR], PAPD, 450_000),
        (vec![NEAR, FAR], PLAIN, 4_000_000),
        (vec![NEAR, FAR], PAPD, 4_000_000),
    ];
    let [best, plain_small, papd_small, plain_large, papd_large] =
        parallel(&runs, |(links, scheduler, buffer)| steady(links, scheduler, *buffer))
            .try_into()
            .expect("five runs");
    println!("best path {best:.1}; 450 kB: lowest RTT {plain_small:.1}, PAPD {papd_small:.1}");
    println!("4 MB: lowest RTT {plain_large:.1}, PAPD {papd_large:.1} Mbit/s");
    assert!(plain_small < 0.85 * best, "the test proves nothing: {plain_small} {best}");
    assert!(papd_small >= 0.9 * best, "{papd_small} {best}");
    assert!(plain_large > 1.7 * best, "{plain_large} {best}");
    let mixed = 0.9 * plain_large + 0.1 * best;
    assert!((papd_large / mixed - 1.0).abs() < 0.05, "{papd_large} for {mixed}");
}

/// Share of the time in which the far path is in use, after the start.
fn far_path_in_use(scheduler: &str) -> f64 {
    let mut paths = scene(&[NEAR, FAR], scheduler, 450_000);
    let mut far = Vec::new();
    let mut before = 0;
    for tick in 1..=300_u64 {
        paths.world.run_until(Instant::from_millis(tick * 100));
        let bytes = paths.world.link(paths.down[1]).stats().delivered_bytes;
        far.push(bytes - before > 10_000);
        before = bytes;
    }
    assert!(far[10..20].iter().any(|busy| *busy), "the start is redundant");
    far[100..].iter().filter(|busy| **busy).count() as f64 / 200.0
}

#[test]
fn papd_uses_only_the_best_path_except_to_measure() {
    // Of ten windows of 600 ms one is bonded and one redundant on both; their packets take 150 ms.
    let measuring = far_path_in_use(MEASURING);
    // 450 kB in 150 ms are 24 Mbit/s, half of the near path's rate, so bonding need not be tried.
    let knowing = far_path_in_use(PAPD);
    println!("the far path is in use {:.1} % of the time, {knowing:.3}", measuring * 100.0);
    assert!((0.1..=0.35).contains(&measuring), "{measuring}");
    assert!(knowing < measuring / 2.0, "{knowing}");
}

/// The method that the slides rejected: each window in which the poor path is measured runs at its rate.
#[test]
fn measuring_one_path_after_the_other_costs_the_windows_of_the_poor_one() {
    let in_turn = format!("{PAPD},measure=in-turn");
    let runs = [(vec![NEAR], PLAIN), (vec![NEAR, FAR], PAPD), (vec![NEAR, FAR], in_turn.as_str())];
    let [best, at_once, in_turn] =
        parallel(&runs, |(links, scheduler)| steady(links, scheduler, 450_000))
            .try_into()
            .expect("three runs");
    println!("best path {best:.1}; at once {at_once:.1}, in turn {in_turn:.1} Mbit/s");
    assert!(in_turn < 0.97 * at_once, "{in_turn} {at_once}");
    assert!(in_turn > 0.7 * best, "it also finds the best path: {in_turn} {best}");
}

#[test]
fn when_the_best_path_dies_the_other_carries_on() {
    let mut paths = scene(&[NEAR, FAR], PAPD, 450_000);
    paths.schedule_path_change(Instant::from_secs(12), 0, false);
    paths.world.run_until(Instant::from_secs(25));
    let report = paths.client_report(0).expect("connected");
    let hole = report.longest_gap_within(Instant::from_secs(12), Instant::from_secs(20));
    println!("a gap of {:?}; after it {:.1} Mbit/s", hole.length, mbit(&paths, 15, 25));
    assert!(hole.length.as_millis() < 600, "{hole:?}");
    // 450 kB in 150 ms are 24 Mbit/s.
    assert!(mbit(&paths, 15, 25) > 18.0);
}
