//! Rows 2b, 2d and bulk: streams under a bounded send buffer, under a bounded window, and without
//! bounds.

use marline_core::ConnectionConfig;
use marline_sim::{Pace, Paths, PathsConfig};
use marline_time::{Duration, SeedTree};

use super::super::{link, parallel};
use super::{Claim, START, default_connection, download, latencies, median, quantile};

/// Blocks written as fast as the connection accepts them.
#[derive(Copy, Clone)]
struct Flood {
    block_bytes: u64,
    lasts: Duration,
    /// Time before measurements count.
    warm_up: Duration,
}

impl Flood {
    const fn from_secs(block_bytes: u64, lasts_s: u64, warm_up_s: u64) -> Self {
        let (lasts, warm_up) = (Duration::from_secs(lasts_s), Duration::from_secs(warm_up_s));
        Flood { block_bytes, lasts, warm_up }
    }
}

/// Goodput and the blocks' latencies after `warm_up`, and bytes delivered by each link.
struct Outcome {
    mbit_per_s: f64,
    latencies: Vec<f64>,
    link_kbytes: Vec<u64>,
}

fn run(links: &[&str], config: &ConnectionConfig, flood: Flood, seed: u64) -> Outcome {
    let Flood { block_bytes, lasts, warm_up } = flood;
    let (from, to) = (START + warm_up, START + lasts);
    let scene = PathsConfig::new(links.iter().map(|text| link(text)).collect(), config.clone());
    let mut paths = Paths::new(&scene, SeedTree::new(seed));
    let pace = Pace::Flood { bytes: block_bytes, from: START, until: to };
    download(&mut paths, pace, block_bytes);
    paths.world.run_until(to + Duration::from_secs(5));
    let (client, server) = (paths.client_report(0), paths.server_report(0));
    let (client, server) = (client.expect("connected"), server.expect("accepted"));
    assert_eq!(client.wrong_at, None);
    let per_link = |link: &marline_sim::LinkId| paths.world.link(*link).stats().delivered_bytes;
    Outcome {
        mbit_per_s: client.goodput(from, to).bits_per_s() as f64 / 1e6,
        latencies: latencies(&server.sent, &client.received, from),
        link_kbytes: paths.down.iter().map(|link| per_link(link) / 1_000).collect(),
    }
}

/// 2b: blocks of 8 KiB behind a small send buffer.
pub fn blocks(seeds: u64) -> Vec<Claim> {
    let links = ["rate=8M,delay=10ms,queue=80ms", "rate=2M,delay=75ms,queue=2s"];
    let mut config = default_connection();
    config.send_buffer = 152_000;
    let flood = Flood::from_secs(8_192, 45, 8);
    let seeds: Vec<u64> = (1..=seeds).collect();
    let outcomes = parallel(&seeds, |seed| run(&links, &config, flood, *seed));
    let alone = run(&links[..1], &config, flood, 1);
    let all = |share| {
        let each: Vec<f64> = outcomes.iter().map(|o| quantile(&o.latencies, share)).collect();
        each.iter().sum::<f64>() / each.len() as f64
    };
    let goodput = median(&outcomes.iter().map(|o| o.mbit_per_s).collect::<Vec<_>>());
    let mut claims = vec![
        Claim::at_most("2b blocks, p95, ms", all(0.95), 252.0),
        Claim::at_least("2b blocks, goodput, Mbit/s", goodput, 8.28),
    ];
    for (word, share) in [("p50", 0.5), ("p99", 0.99), ("worst", 1.0)] {
        claims.push(Claim::shown(format!("2b blocks, {word}, ms"), all(share)));
    }
    for (name, kbytes) in ["WiFi", "3G"].iter().zip(&outcomes[0].link_kbytes) {
        claims.push(Claim::shown(format!("2b blocks, {name} carried, kB"), *kbytes as f64));
    }
    claims.push(Claim::shown("2b WiFi alone, p95, ms", quantile(&alone.latencies, 0.95)));
    claims.push(Claim::shown("2b WiFi alone, goodput, Mbit/s", alone.mbit_per_s));
    claims
}

/// RTT of the second path, ms, and its loss, %.
const SMALL_WINDOWS: [(u32, &str); 10] = [
    (100, "0.1"),
    (100, "1"),
    (150, "0"),
    (150, "0.01"),
    (150, "0.1"),
    (150, "1"),
    (200, "0"),
    (200, "0.01"),
    (200, "0.1"),
    (200, "1"),
];

/// 2d: a receive window that the slow path alone could fill.
pub fn small_windows(seeds: u64) -> Vec<Claim> {
    let first = "rate=100M,delay=25ms,queue=20ms";
    let mut config = default_connection();
    config.receive_buffer = 660 << 10;
    let flood = Flood::from_secs(65_536, 25, 8);
    let best = run(&[first], &config, flood, 1).mbit_per_s;
    let jobs: Vec<((u32, &str), u64)> = SMALL_WINDOWS
        .into_iter()
        .flat_map(|row| (1..=seeds).map(move |seed| (row, seed)))
        .collect();
    let rates = parallel(&jobs, |((rtt_ms, loss), seed)| {
        let second = format!("rate=100M,delay={}us,queue=20ms,loss={loss}%", rtt_ms * 500);
        run(&[first, &second], &config, flood, *seed).mbit_per_s
    });
    let mut claims = vec![Claim::shown("2d better path alone, Mbit/s", best)];
    for (rates, (rtt_ms, loss)) in rates.chunks(seeds as usize).zip(SMALL_WINDOWS) {
        let what = format!("2d second path {rtt_ms} ms, loss {loss} %, Mbit/s");
        claims.push(Claim::at_least(what, median(rates), best * 0.26));
    }
    claims
}

/// Two shaped links, no bounds.
pub fn bulk(seeds: u64) -> Vec<Claim> {
    let links = ["rate=50M,delay=10ms,queue=100ms", "rate=20M,delay=30ms,queue=100ms"];
    let flood = Flood::from_secs(65_536, 15, 3);
    let seeds: Vec<u64> = (1..=seeds).collect();
    let config = default_connection();
    let rates = parallel(&seeds, |seed| run(&links, &config, flood, *seed).mbit_per_s);
    vec![Claim::at_least("bulk over 50 and 20 Mbit/s, Mbit/s", median(&rates), 64.0)]
}
