//! Estimate of the benefit of coding: bursts of 1 to 70 packets on the link models, repaired by different methods with
//! the same number of extra bytes. docs/decisions/coding.md is based on its output.
//!
//! `cargo run --release -p marline-sim --example coding [BURSTS]` (default: 1000 bursts of each kind).
//!
//! The links are those of the simulator (`marline-link`: queue, rate, loss, delay, jitter, outages). The sender is a
//! model that favors coding: an ideal code (any n of n + k packets are enough), a window that is always open, a peer
//! that immediately reports the missing packets, and repair packets without headers or computing time. Every method
//! uses the same recovery: a segment counts as lost, and is sent again, when three later ones are acknowledged or 1.25
//! RTT have passed; unacknowledged data is sent over the other path after 1.25 RTT.

mod burst;

use std::env;
use std::fmt::Write as _;

use burst::{Burst, Paths, Protection};
use marline_link::DuplexSpec;
use marline_sim::quantile;
use marline_time::{Duration, Instant, SeedTree};

type Setup = (&'static str, &'static str, &'static str, bool);

/// Pairs of paths: name, first and second path, and true if the first fails during each burst.
const SETUPS: [Setup; 5] = [
    ("losses 1 %", "rate=20M,delay=47.5ms,jitter=uniform:6ms,loss=1%", LTE, false),
    ("losses 3 %", "rate=20M,delay=47.5ms,jitter=uniform:6ms,loss=3%", LTE, false),
    (
        "home: bad periods",
        "rate=20M,delay=47.5ms,jitter=uniform:6ms,ge=60s:9s:20%:0.1%",
        LTE,
        false,
    ),
    ("bursts of loss", "rate=20M,delay=47.5ms,jitter=uniform:6ms,ge=500ms:15ms:100%:0", LTE, false),
    ("the path dies", "rate=20M,delay=47.5ms,jitter=uniform:6ms", LTE, true),
];
const LTE: &str = "rate=10M,delay=77ms,jitter=uniform:33ms,loss=0.1%";
/// Numbers of packets per burst.
const BURST_SIZES: [usize; 6] = [1, 3, 7, 20, 40, 70];
/// Extra packets that are always sent, as a share of the burst (at least one).
const EXTRA_SHARES: [f64; 2] = [0.1, 0.3];
/// Interval of bursts.
const BURST_INTERVAL: Duration = Duration::from_millis(2_000);

struct Tally {
    times_ms: Vec<f64>,
    /// Number of packets in addition to those of the burst.
    extra: f64,
}

fn main() {
    let bursts = env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1_000);
    println!("time to complete a burst (ms) and extra packets (%); {bursts} bursts of each kind\n");
    let scenes: Vec<String> = std::thread::scope(|scope| {
        let each = |setup: &'static Setup| scope.spawn(move || table(setup, bursts));
        let running: Vec<_> = SETUPS.iter().map(each).collect();
        running.into_iter().map(|setup| setup.join().expect("a setup")).collect()
    });
    scenes.iter().for_each(|setup| println!("{setup}"));
}

fn table((name, first, second, dies): &Setup, bursts: u32) -> String {
    let mut text = String::new();
    for packets in BURST_SIZES {
        let _ = writeln!(text, "{name}, {packets} packets");
        for (what, protection) in protections(packets) {
            let tally = run([first, second], *dies, packets, protection, bursts);
            let at = |share| quantile(&tally.times_ms, share);
            let extra = 100.0 * tally.extra / packets as f64;
            let [p50, p90, p95, p99] = [0.5, 0.9, 0.95, 0.99].map(at);
            let _ = writeln!(
                text,
                "  {what:28} median {p50:5.0}  p90 {p90:5.0}  p95 {p95:5.0}  p99 {p99:5.0}  \
                 extra {extra:5.1}",
            );
        }
    }
    text
}

fn protections(packets: usize) -> Vec<(String, Protection)> {
    let mut protections = vec![
        ("reinjection".to_owned(), Protection::Plain),
        ("hedged".to_owned(), Protection::Hedged),
    ];
    protections.push(("redundant after losses".to_owned(), Protection::Selective));
    for share in EXTRA_SHARES {
        let extra = ((packets as f64 * share).round() as usize).max(1);
        let told = |what: &str| format!("{what}, {extra} of {packets}");
        protections.push((told("copies of the tail"), Protection::Tail(extra)));
        protections.push((told("parities (XOR)"), Protection::Xor(extra)));
        protections.push((told("ideal code"), Protection::Ideal(extra)));
    }
    protections.push(("full redundancy".to_owned(), Protection::Tail(packets)));
    protections
}

fn run(links: [&str; 2], dies: bool, packets: usize, protection: Protection, bursts: u32) -> Tally {
    let seeds = SeedTree::new(1);
    let specs = links.map(|text| text.parse::<DuplexSpec>().expect("a link"));
    let mut paths = Paths::new(specs, &seeds);
    let mut moments = seeds.stream("deaths");
    let mut tally = Tally { times_ms: Vec::new(), extra: 0.0 };
    for number in 0..bursts {
        let start = Instant::from_secs(1) + BURST_INTERVAL * number;
        let death = dies.then(|| start + burst::moment(packets, &mut moments));
        let (took, sent) = Burst::new(packets, protection, start, death).run(&mut paths);
        tally.times_ms.push(took.as_secs_f64() * 1e3);
        tally.extra += (sent - packets) as f64 / f64::from(bursts);
    }
    tally
}
