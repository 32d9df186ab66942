//! Test of echoes over WiFi that loses single packets, and LTE that is four times as slow.

use marline_core::ConnectionConfig;
use marline_sim::{Echo, EchoServer, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases::link;

const WIFI: &str = "rate=30M,up.rate=15M,delay=8ms,loss=0.5%";
const LTE: &str = "rate=15M,up.rate=6M,delay=30ms,loss=0.02%";
const SECONDS: u64 = 120;

/// Latency that one echo in a hundred exceeds, ms, and the rate in both directions of LTE, kbit/s.
fn echoes(every_ms: u64, scheduler: &str, seed: u64) -> (f64, f64) {
    let mut policies = marline_algos::default_policies();
    let registry = marline_algos::Registry::default();
    policies.scheduler = registry.scheduler(scheduler).expect("a built-in scheduler");
    let config = PathsConfig::new(vec![link(WIFI), link(LTE)], ConnectionConfig::new(policies));
    let mut paths = Paths::new(&config, SeedTree::new(seed));
    let echo = Echo::new(100, Duration::from_millis(every_ms), SECONDS * 1_000 / every_ms, 7);
    paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
    paths.connect(0, Box::new(echo)).expect("a connection");
    paths.world.run_until(Instant::from_secs(SECONDS + 5));
    let report = paths.client_report(0).expect("connected");
    assert_eq!(report.wrong_at, None);
    let mut latencies = report.latencies.clone();
    // The first seconds measure WiFi.
    latencies.drain(..latencies.len() / 12);
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100].as_secs_f64() * 1e3;
    let bytes = |link| paths.world.link(link).stats().offered_bytes;
    let lte = bytes(paths.up[1]) + bytes(paths.down[1]);
    (p99, lte as f64 * 8.0 / 1e3 / SECONDS as f64)
}

#[test]
fn echoes_over_lossy_wifi_are_on_time_although_lte_is_slow() {
    for every_ms in [20, 50, 200] {
        for seed in 1..=5 {
            let (p99_ms, lte_kbit_per_s) = echoes(every_ms, "auto", seed);
            let (plain_ms, _) = echoes(every_ms, "min-rtt", seed);
            println!(
                "every {every_ms} ms, seed {seed}: p99 {p99_ms:.1} ms (min-rtt {plain_ms:.1}), LTE \
                 {lte_kbit_per_s:.1} kbit/s"
            );
            assert!(p99_ms <= 25.0, "every {every_ms} ms, seed {seed}: {p99_ms} ms");
            assert!(lte_kbit_per_s <= 45.0, "every {every_ms} ms, seed {seed}: {lte_kbit_per_s}");
        }
    }
}
