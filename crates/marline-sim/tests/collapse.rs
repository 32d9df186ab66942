//! A path whose rate collapses step by step: its RTT grows with its queue, so it never times out, and
//! what lies on it must not hold up the rest.

use marline_algos::default_policies;
use marline_core::ConnectionConfig;
use marline_link::{DuplexConfig, DuplexSpec};
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

fn link(spec: &str) -> DuplexConfig {
    let spec: DuplexSpec = spec.parse().expect("a link");
    spec.resolve(&SeedTree::new(1), &mut |_| None).expect("no traces")
}

/// Longest pause of a 20 s bulk transfer over a steady path and one that falls to a packet a second
/// at 5 s.
fn longest_hole(seed: u64) -> (Duration, u64) {
    let steady = "rate=10M,delay=10ms,queue=40ms";
    let fading = "rate=10M,delay=30ms,queue=100ms";
    let links = vec![link(steady), link(fading)];
    let config = PathsConfig::new(links, ConnectionConfig::new(default_policies()));
    let mut paths = Paths::new(&config, SeedTree::new(seed));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    let app = Box::new(Bulk::new(Amount::Until(Instant::from_secs(20)), 1, 2));
    paths.connect(0, app).expect("a connection");
    // Step by step, so that it is never silent for long compared with its RTT so far.
    let fading = paths.up[1];
    for (at, rate) in
        [(5_000, "1M"), (5_300, "400k"), (6_000, "150k"), (7_000, "50k"), (9_000, "12k")]
    {
        let slower = link(&format!("rate={rate},delay=30ms,queue=200000B")).up;
        paths.world.at(Instant::from_millis(at), move |world| world.set_link(fading, slower));
    }
    paths.world.run_until(Instant::from_secs(20));
    let report = paths.server_report(0).expect("a server");
    assert_eq!(report.wrong_at, None);
    (report.longest_hole.length, report.read)
}

#[test]
fn a_collapsing_path_does_not_drag_the_stream_down_with_it() {
    for seed in 1..=5 {
        let (hole, read) = longest_hole(seed);
        println!("seed {seed}: longest hole {hole:?}, {:.1} Mbit/s", read as f64 * 8e-6 / 20.0);
        // Until the send buffer is full the fading path is waited for; then the steady one helps.
        assert!(hole < Duration::from_millis(800), "seed {seed}: {hole:?}");
        assert!(read > 20_000_000, "seed {seed}: {read} bytes; the steady path alone has 23 MB");
    }
}
