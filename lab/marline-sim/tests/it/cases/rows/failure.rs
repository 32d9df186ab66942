//! Rows 2c and 2e: death of the fast path, without notification.

use std::ops::RangeInclusive;

use marline_sim::{ExchangeSizes, Pace, Paths, ResponseServer, Units};
use marline_time::{Duration, SeedTree};

use super::super::parallel;
use super::{
    Claim, START, between, default_connection, download, latencies, median, ms, scene, schedule,
};

const LINKS: [&str; 2] = ["rate=50M,delay=6.5ms,queue=100ms", "rate=20M,delay=42.5ms,queue=300ms"];

/// Bursts of one size, and the time at which WiFi dies.
struct Bursts {
    name: &'static str,
    bytes: u64,
    gap_ms: RangeInclusive<f64>,
    /// The affected burst, and the latest failure in ms after its start; 0: up to the next burst.
    hit: (usize, f64),
    /// Limits on the medians of the affected and of other bursts, ms.
    limits: (f64, f64),
    /// Result of the kernel's TCP over WiFi alone, ms.
    alone: f64,
}

const BURSTS: [Bursts; 3] = [
    Bursts {
        name: "Docs",
        bytes: 400,
        gap_ms: 300.0..=1_000.0,
        hit: (8, 0.0),
        limits: (244.0, 7.0),
        alone: 6.7,
    },
    Bursts {
        name: "Maps",
        bytes: 100_000,
        gap_ms: 1_000.0..=1_000.0,
        hit: (6, 45.0),
        limits: (300.0, 137.0),
        alone: 42.6,
    },
    Bursts {
        name: "Netflix",
        bytes: 1_000_000,
        gap_ms: 2_000.0..=2_000.0,
        hit: (4, 180.0),
        limits: (1_200.0, 341.0),
        alone: 195.7,
    },
];
/// Numbers of bursts after the affected one, and of bursts at the start that are not evaluated.
const AFTER: usize = 5;
const FIRST: usize = 2;

/// Completion times, ms: before the fault, of the affected burst, and after the fault.
fn run(bursts: &Bursts, seed: u64) -> (Vec<f64>, f64, Vec<f64>) {
    let (hit, within_ms) = bursts.hit;
    let times = schedule(seed, &bursts.gap_ms, hit + AFTER);
    let mut rng = SeedTree::new(seed).stream("fault");
    let next_ms = ms(times[hit + 1].since(times[hit]));
    let most_ms = if within_ms > 0.0 { within_ms } else { next_ms };
    let fault = times[hit] + between(&mut rng, 0.0, most_ms);
    let mut paths = scene(LINKS, default_connection(), false, seed);
    let end = times[times.len() - 1] + Duration::from_secs(20);
    download(&mut paths, Pace::At { bytes: bursts.bytes, times }, bursts.bytes);
    paths.schedule_path_change(fault, 0, false);
    paths.world.run_until(end);
    let (client, server) = (paths.client_report(0), paths.server_report(0));
    let (client, server) = (client.expect("connected"), server.expect("accepted"));
    assert_eq!((client.received.len(), client.wrong_at), (hit + AFTER, None));
    let all = latencies(&server.sent, &client.received, START);
    let first_hit = client.received.partition_point(|at| *at < fault);
    (all[FIRST..first_hit].to_vec(), all[first_hit], all[first_hit + 1..].to_vec())
}

/// 2c: bursts from the server.
pub fn bursts(seeds: u64) -> Vec<Claim> {
    let seeds: Vec<u64> = (1..=seeds).collect();
    let mut claims = Vec::new();
    for bursts in &BURSTS {
        let name = bursts.name;
        let runs = parallel(&seeds, |seed| run(bursts, *seed));
        let calm: Vec<f64> = runs.iter().flat_map(|run| run.0.clone()).collect();
        let hit: Vec<f64> = runs.iter().map(|run| run.1).collect();
        let later: Vec<f64> = runs.iter().flat_map(|run| run.2.clone()).collect();
        claims.push(Claim::at_most(format!("2c {name}, hit, ms"), median(&hit), bursts.limits.0));
        let calm = median(&calm);
        claims.push(Claim::at_most(format!("2c {name}, no failure, ms"), calm, bursts.limits.1));
        let goal = bursts.alone * 1.25;
        claims.push(Claim::shown(format!("2c {name}, 1.25 times WiFi alone, ms"), goal));
        let worst = hit.iter().copied().fold(0.0, f64::max);
        claims.push(Claim::shown(format!("2c {name}, worst hit, ms"), worst));
        claims.push(Claim::shown(format!("2c {name}, later, ms"), median(&later)));
    }
    claims
}

/// Longest gap between answers and worst delay, ms.
fn hand_over(seed: u64) -> (f64, f64) {
    let times = schedule(seed, &(100.0..=100.0), 200);
    let mut rng = SeedTree::new(seed).stream("fault");
    let fault = START + between(&mut rng, 7_000.0, 8_000.0);
    let mut paths: Paths = scene(LINKS, default_connection(), true, seed);
    let sizes = ExchangeSizes { request_bytes: 100, answer_bytes: 1_000 };
    paths.listen(Box::new(move |_| Box::new(ResponseServer::new(sizes, 6, 5))));
    let end = times[times.len() - 1] + Duration::from_secs(15);
    let pace = Pace::At { bytes: 100, times };
    paths.connect(0, Box::new(Units::new(pace, 1_000, 5, 6))).expect("a connection");
    paths.schedule_path_change(fault, 0, false);
    paths.world.run_until(end);
    let report = paths.client_report(0).expect("connected");
    assert_eq!((report.received.len(), report.wrong_at), (200, None), "seed {seed}");
    let from = START + Duration::from_millis(1_500);
    let delays = latencies(&report.sent, &report.received, from);
    let gaps = report.received.windows(2).map(|pair| ms(pair[1].since(pair[0])));
    (gaps.fold(0.0, f64::max), delays.into_iter().fold(0.0, f64::max))
}

/// 2e: requests and responses, the slow path is a backup.
pub fn handover(seeds: u64) -> Vec<Claim> {
    let seeds: Vec<u64> = (1..=seeds).collect();
    let runs = parallel(&seeds, |seed| hand_over(*seed));
    let (gaps, delays): (Vec<f64>, Vec<f64>) = runs.into_iter().unzip();
    vec![
        Claim::at_most("2e handover, longest gap, ms", median(&gaps), 450.0),
        Claim::at_most("2e handover, worst delay, ms", median(&delays), 600.0),
        Claim::shown("2e handover, longest gap of all, ms", gaps.into_iter().fold(0.0, f64::max)),
        Claim::shown("2e handover, worst of all, ms", delays.into_iter().fold(0.0, f64::max)),
    ]
}
