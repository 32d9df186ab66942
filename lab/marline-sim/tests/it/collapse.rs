//! Test of a path whose rate collapses step by step: its RTT grows with its queue, so it never
//! times out, and the data on it must not hold up the rest.

use crate::cases::link;
use marline_algos::default_policies;
use marline_core::ConnectionConfig;
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

/// Longest pause of a 20 s bulk transfer over a steady path and one that falls to a packet a second
/// at 5 s.
fn longest_gap(seed: u64) -> (Duration, u64) {
    let steady = "rate=10M,delay=10ms,queue=40ms";
    let fading = "rate=10M,delay=30ms,queue=100ms";
    let links = vec![link(steady), link(fading)];
    let config = PathsConfig::new(links, ConnectionConfig::new(default_policies()));
    let mut paths = Paths::new(&config, SeedTree::new(seed));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    let app = Box::new(Bulk::new(Amount::Until(Instant::from_secs(20)), 1, 2));
    paths.connect(0, app).expect("a connection");
    // Step by step, so that it is never silent for long relative to its RTT.
    let fading = paths.up[1];
    for (at, rate) in
        [(5_000, "1M"), (5_300, "400k"), (6_000, "150k"), (7_000, "50k"), (9_000, "12k")]
    {
        let slower = link(&format!("rate={rate},delay=30ms,queue=200000B")).up;
        paths.world.run_at(Instant::from_millis(at), move |world| world.set_link(fading, slower));
    }
    paths.world.run_until(Instant::from_secs(20));
    let report = paths.server_report(0).expect("a server");
    assert_eq!(report.wrong_at, None);
    (report.longest_gap.length, report.read)
}

#[test]
fn a_collapsing_path_does_not_drag_the_stream_down_with_it() {
    for seed in 1..=5 {
        let (hole, read) = longest_gap(seed);
        println!("seed {seed}: longest gap {hole:?}, {:.1} Mbit/s", read as f64 * 8e-6 / 20.0);
        // Until the send buffer is full, data waits for the fading path; then the steady path helps.
        assert!(hole < Duration::from_millis(800), "seed {seed}: {hole:?}");
        assert!(read > 20_000_000, "seed {seed}: {read} bytes; the steady path alone has 23 MB");
    }
}

/// Mbit/s in the last 8 s of 30, over a steady path of 20 Mbit/s and a path of 50 Mbit/s that was bad for some
/// seconds.
fn after_a_bad_time(seed: u64) -> f64 {
    let links = ["rate=20M,delay=10ms,queue=100ms", "rate=50M,delay=30ms,queue=100ms"].map(link);
    let config = PathsConfig::new(links.to_vec(), ConnectionConfig::new(default_policies()));
    let mut paths = Paths::new(&config, SeedTree::new(seed));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    let app = Box::new(Bulk::new(Amount::Until(Instant::from_secs(30)), 1, 2));
    paths.connect(0, app).expect("a connection");
    let bad = paths.up[1];
    for (at, spec) in
        [(5_000, "rate=500k,delay=30ms,queue=400000B"), (12_000, "rate=50M,delay=30ms,queue=100ms")]
    {
        let changed = link(spec).up;
        paths.world.run_at(Instant::from_millis(at), move |world| world.set_link(bad, changed));
    }
    paths.world.run_until(Instant::from_secs(30));
    let report = paths.server_report(0).expect("a server");
    assert_eq!(report.wrong_at, None);
    let (from, to) = (Instant::from_secs(22), Instant::from_secs(30));
    report.goodput(from, to).bits_per_s() as f64 / 1e6
}

#[test]
fn a_path_that_was_bad_is_used_again_when_it_is_good() {
    for seed in 1..=5 {
        let rate = after_a_bad_time(seed);
        println!("seed {seed}: {rate:.1} Mbit/s");
        assert!(rate > 60.0, "seed {seed}: {rate:.1} Mbit/s of 66 that both have");
    }
}

/// Mbit/s of each of four paths from 15 s to 25 s, after two of them were late for a second.
fn after_a_late_second(seed: u64) -> Vec<f64> {
    let good = ["rate=20M,delay=10ms,queue=100ms", "rate=50M,delay=30ms,queue=100ms"].map(link);
    let late = ["rate=20M,delay=1500ms,queue=100ms", "rate=50M,delay=1500ms,queue=100ms"].map(link);
    let links = [good.clone(), good.clone()].concat();
    let config = PathsConfig::new(links, ConnectionConfig::new(default_policies()));
    let mut paths = Paths::new(&config, SeedTree::new(seed));
    let end = Instant::from_secs(25);
    paths.listen(Box::new(move |_| Box::new(Bulk::new(Amount::Until(end), 2, 1))));
    let app = Box::new(Bulk::new(Amount::Until(end), 1, 2));
    paths.connect(0, app).expect("a connection");
    for (at, links) in [(8, &late), (9, &good)] {
        for (number, duplex) in links.iter().enumerate() {
            let (up, down) = (paths.up[number], paths.down[number]);
            let duplex = duplex.clone();
            paths.world.run_at(Instant::from_secs(at), move |world| {
                world.set_link(up, duplex.up);
                world.set_link(down, duplex.down);
            });
        }
    }
    let mut delivered = |at| {
        paths.world.run_until(Instant::from_secs(at));
        let bytes = |link: &marline_sim::LinkId| paths.world.link(*link).stats().delivered_bytes;
        paths.down.iter().map(bytes).collect::<Vec<u64>>()
    };
    let (before, after) = (delivered(15), delivered(25));
    before.iter().zip(&after).map(|(from, to)| (to - from) as f64 * 8e-6 / 10.0).collect()
}

/// The fast paths filled the buffer within the smoothed RTT of the late paths, so these were never used again.
#[test]
fn two_of_four_paths_that_were_late_are_used_again() {
    for seed in 1..=3 {
        let rates = after_a_late_second(seed);
        println!("seed {seed}: {rates:.0?} Mbit/s");
        let fair = [10.0, 25.0, 10.0, 25.0];
        let used = rates.iter().zip(fair).all(|(rate, least)| *rate > least);
        assert!(used, "seed {seed}: {rates:.0?} Mbit/s");
    }
}
