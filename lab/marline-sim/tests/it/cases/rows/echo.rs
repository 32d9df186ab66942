//! Row 2a: small echoed messages on two lossy paths.

use marline_algos::Registry;
use marline_core::ConnectionConfig;
use marline_sim::{ExchangeSizes, Pace, Paths, PathsConfig, ResponseServer, Units};
use marline_time::{Duration, SeedTree};

use super::super::{link, parallel};
use super::{
    Claim, START, carried, default_connection, latencies, quantile, redundant_connection, schedule,
};

/// Without and with jitter.
const LINKS: [(&str, [&str; 2]); 2] = [
    ("2a-A", ["rate=20M,delay=45ms,loss=1.5%", "rate=10M,delay=52.5ms,loss=0.1%"]),
    (
        "2a-B",
        [
            "rate=20M,delay=45ms,loss=1.5%,jitter=normal:5ms",
            "rate=10M,delay=52.5ms,loss=0.1%,jitter=normal:12ms",
        ],
    ),
];
/// Number of messages per run, which takes 58 s.
const MESSAGES: usize = 387;
const BYTES: u64 = 200;
/// Time at the start that is not evaluated.
const WARM_UP: Duration = Duration::from_millis(1_500);

/// Latencies of a run, ms, and the bytes on the links. With several `starts`, each message is sent on a separate
/// connection over each of these paths, and the first answer counts.
fn run(
    links: [&str; 2],
    config: &ConnectionConfig,
    starts: &[usize],
    seed: u64,
) -> (Vec<f64>, u64) {
    let scene = PathsConfig::new(links.map(link).to_vec(), config.clone());
    let mut paths = Paths::new(&scene, SeedTree::new(seed));
    let sizes = ExchangeSizes { request_bytes: BYTES, answer_bytes: BYTES };
    paths.listen(Box::new(move |_| Box::new(ResponseServer::new(sizes, 6, 5))));
    let times = schedule(seed, &(100.0..=200.0), MESSAGES);
    let end = times[MESSAGES - 1] + Duration::from_secs(10);
    for path in starts {
        let pace = Pace::At { bytes: BYTES, times: times.clone() };
        paths.connect(*path, Box::new(Units::new(pace, BYTES, 5, 6))).expect("a connection");
    }
    paths.world.run_until(end);
    let of = |index: usize| {
        let report = paths.client_report(index).expect("connected");
        assert_eq!((report.received.len(), report.wrong_at), (MESSAGES, None), "seed {seed}");
        latencies(&report.sent, &report.received, START + WARM_UP)
    };
    let mut best = of(0);
    for index in 1..starts.len() {
        for (best, other) in best.iter_mut().zip(of(index)) {
            *best = best.min(other);
        }
    }
    (best, carried(&paths))
}

/// Latencies of all seeds, and the bytes.
fn pooled(
    links: [&str; 2],
    config: &ConnectionConfig,
    starts: &[usize],
    seeds: u64,
) -> (Vec<f64>, u64) {
    let seeds: Vec<u64> = (1..=seeds).collect();
    let runs = parallel(&seeds, |seed| run(links, config, starts, *seed));
    let bytes = runs.iter().map(|(_, bytes)| bytes).sum();
    (runs.into_iter().flat_map(|(latencies, _)| latencies).collect(), bytes)
}

fn single_path() -> ConnectionConfig {
    let mut config = default_connection();
    config.policies.path_manager = Registry::default().path_manager("manual").expect("built in");
    config
}

/// The mode `redundant` compared with two connections that send all data twice.
pub fn redundant(seeds: u64) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (name, links) in LINKS {
        let (ideal, _) = pooled(links, &single_path(), &[0, 1], seeds);
        let (ours, bytes) = pooled(links, &redundant_connection(), &[0], seeds);
        let (p99, ideal_p99) = (quantile(&ours, 0.99), quantile(&ideal, 0.99));
        claims.push(Claim::at_most(format!("{name} redundant, p99, ms"), p99, ideal_p99 * 1.1));
        claims.push(Claim::shown(format!("{name} ideal duplicate, p99, ms"), ideal_p99));
        claims.push(Claim::shown(format!("{name} redundant, worst, ms"), quantile(&ours, 1.0)));
        claims.push(Claim::shown(format!("{name} redundant, kB"), bytes as f64 / 1e3));
    }
    claims
}

/// The default policy compared with WiFi alone and with a bound.
pub fn default(seeds: u64) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (name, links) in LINKS {
        let (wifi, alone_bytes) = pooled(links, &single_path(), &[0], seeds);
        let (ours, bytes) = pooled(links, &default_connection(), &[0], seeds);
        let p50 = quantile(&ours, 0.5);
        let wifi_p50 = quantile(&wifi, 0.5);
        claims.push(Claim::at_most(format!("{name} default, p50, ms"), p50, wifi_p50 * 1.05));
        let tail = quantile(&ours, 0.99);
        claims.push(Claim::at_most(format!("{name} default, p99, ms"), tail, 300.0));
        for (word, share) in [("p95", 0.95), ("p99.5", 0.995), ("worst", 1.0)] {
            let value = quantile(&ours, share);
            claims.push(Claim::shown(format!("{name} default, {word}, ms"), value));
        }
        let wifi_p99 = quantile(&wifi, 0.99);
        claims.push(Claim::shown(format!("{name} WiFi alone, p99, ms"), wifi_p99));
        let more = (bytes as f64 / alone_bytes as f64 - 1.0) * 100.0;
        claims.push(Claim::shown(format!("{name} default, bytes beyond WiFi alone, %"), more));
    }
    claims
}
