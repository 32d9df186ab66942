//! The simulator's rows of the table of figures, in full: `cargo run --release -p marline-sim --example numbers [ROW
//! ...]`. Rows: speed, cost, crowd, clean, loss, death, sleep, pairs, worlds, and, on request, anchors (published
//! schedulers compared with ours) and digests. `SEED=n` replays one random world, and `CAPTURE=file` keeps its
//! packets. `MARLINE_WORLDS=n` sets the number of worlds and `MARLINE_WORLDS_FROM=n` the first seed;
//! `MARLINE_TRACE_DIR` is the directory of the traces.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "measures the cost of simulation; the simulation itself reads no clock"
)]

#[path = "../tests/it/cases/mod.rs"]
mod cases;

use std::env;
use std::time::Instant as Clock;

use cases::{anchors, bulk, crowd, death, link, pairs, parallel, sleep, speed, worlds};
use marline_sim::digest::Digest;
use marline_sim::median;
use marline_time::{Duration, Instant, Rate};
use rustix::time::{ClockId, clock_gettime};

/// Rows that run only on request.
const ON_REQUEST: [&str; 2] = ["anchors", "digests"];

fn main() {
    let wanted: Vec<String> = env::args().skip(1).collect();
    let rows: [(&str, fn()); 11] = [
        ("speed", speed_row),
        ("cost", cost_row),
        ("crowd", crowd_row),
        ("clean", clean_row),
        ("loss", loss_row),
        ("death", death_row),
        ("sleep", sleep_row),
        ("pairs", pairs_row),
        ("worlds", worlds_row),
        ("anchors", schedulers_row),
        // Figures that only `cargo xtask digests` needs.
        ("digests", digests_row),
    ];
    for (name, row) in rows {
        if wanted.is_empty() && !ON_REQUEST.contains(&name)
            || wanted.iter().any(|word| word == name)
        {
            println!("== {name}");
            let begun = Clock::now();
            row();
            println!("   ({:.1} s)", begun.elapsed().as_secs_f64());
        }
    }
}

fn speed_row() {
    for description in ["rate=100M,delay=10ms", "rate=100M,delay=10ms,loss=1%,jitter=2ms"] {
        let begun = Clock::now();
        let got = speed::run(2_000_000, description);
        let ns = begun.elapsed().as_nanos() as f64 / 2e6;
        println!("{description}: {ns:.0} ns per packet, {got} arrived");
    }
}

/// Repetitions with one path and with two paths.
const COST_ROUNDS: usize = 7;

/// Cost of simulating a bulk transfer: the whole core at both ends, every byte written and checked. Measured as CPU
/// time, so that other load on the machine has little effect.
fn cost_row() {
    let link_text = "rate=100M,delay=10ms,queue=20ms";
    let length = Duration::from_secs(20);
    let mut costs = [Vec::new(), Vec::new()];
    for round in 0..COST_ROUNDS {
        for paths in [1, 2] {
            let links = vec![link(link_text); paths];
            let (begun, wall) = (cpu_s(), Clock::now());
            let outcome = bulk::run(links, "min-rtt", length, 1);
            let (cpu_s, wall_s) = (cpu_s() - begun, wall.elapsed().as_secs_f64());
            let sent: u64 = outcome.sent.iter().sum();
            let data_packets = sent as f64 / f64::from(outcome.mss[0]);
            costs[paths - 1].push(cpu_s * 1e6 / data_packets);
            if round == 0 {
                println!(
                    "{paths} times {link_text}: {}, {:.0} simulated s per s of CPU time ({:.0} of \
                        wall time), {:.2} us per data packet or acknowledgment",
                    outcome.goodput,
                    length.as_secs_f64() / cpu_s,
                    length.as_secs_f64() / wall_s,
                    cpu_s * 1e6 / outcome.packets as f64,
                );
            }
        }
    }
    for (name, costs) in ["one-path", "two-paths"].iter().zip(&costs) {
        println!("figure cost-{name}-us {:.2}", median(costs));
    }
}

/// CPU time of this thread so far.
fn cpu_s() -> f64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn print_bulk(name: &str, outcome: &bulk::Outcome, rates: &[Rate], took: f64) {
    println!(
        "{name}: {} = {:.1} % of the links' goodput (after the first fifth {} = {:.1} %), sent \
            {:?}, retransmitted {:?}, {:.2} us per packet",
        outcome.goodput,
        outcome.share(rates) * 100.0,
        outcome.steady,
        outcome.steady_share(rates) * 100.0,
        outcome.sent,
        outcome.again,
        took * 1e6 / outcome.packets as f64,
    );
}

const FAST: &str = "rate=50M,delay=10ms,queue=20ms";
const SLOW: &str = "rate=50M,delay=30ms,queue=60ms";

/// CPU time per packet in a world with many connections.
fn crowd_row() {
    let links = ["rate=400M,delay=10ms,queue=50ms", "rate=200M,delay=30ms,queue=50ms"];
    for connections in [1, 10, 100, 1_000] {
        let mut costs = Vec::new();
        let mut outcome = None;
        for _ in 0..COST_ROUNDS {
            let begin = cpu_s();
            let ran = crowd::run(connections, 50_000_000 / connections, &links, 1);
            costs.push(1e6 * (cpu_s() - begin) / ran.packets as f64);
            outcome = Some(ran);
        }
        let ran = outcome.expect("rounds");
        println!(
            "{connections:5} connections: {:.2} us of CPU time per packet, {} packets, {} \
                dropped, {} completed after \
             {:.1} s",
            median(&costs),
            ran.packets,
            ran.dropped,
            ran.whole,
            ran.done.as_secs_f64(),
        );
    }
}

fn clean_row() {
    let length = Duration::from_secs(30);
    let rate = Rate::from_mbit(50);
    let mut plain_bits_per_s = 0;
    for (name, text) in [("20 ms", FAST), ("60 ms", SLOW)] {
        let begun = Clock::now();
        let outcome = bulk::run_plain(link(text), length, 1);
        plain_bits_per_s += outcome.goodput.bits_per_s();
        let took = begun.elapsed().as_secs_f64();
        print_bulk(&format!("plain TCP, {name}"), &outcome, &[rate], took);
    }
    let (mut steady, mut whole) = (f64::MAX, f64::MAX);
    for scheduler in ["min-rtt", "round-robin", "redundant"] {
        for (name, texts) in [
            ("20 ms alone", vec![FAST]),
            ("60 ms alone", vec![SLOW]),
            ("20 + 60 ms", vec![FAST, SLOW]),
            ("60 + 20 ms", vec![SLOW, FAST]),
        ] {
            let begun = Clock::now();
            let links = texts.iter().map(|text| link(text)).collect();
            let outcome = bulk::run(links, scheduler, length, 1);
            let rates = vec![rate; texts.len()];
            let name = format!("{scheduler}, {name}");
            print_bulk(&name, &outcome, &rates, begun.elapsed().as_secs_f64());
            if scheduler == "min-rtt" && rates.len() == 2 {
                steady = steady.min(outcome.steady_share(&rates));
                let goodput = outcome.goodput.bits_per_s() as f64;
                whole = whole.min(goodput / plain_bits_per_s as f64);
            }
        }
    }
    println!(
        "min-rtt from the first SYN: {:.1} % of the goodput of plain TCP over both links",
        whole * 100.0
    );
    println!("figure two-clean-links-percent {:.2}", steady * 100.0);
}

fn loss_row() {
    let text = "rate=50M,delay=10ms,queue=20ms,down.loss=0.1%";
    for seed in 1..=5 {
        let begun = Clock::now();
        let outcome = bulk::run(vec![link(text)], "min-rtt", Duration::from_secs(30), seed);
        let took = begun.elapsed().as_secs_f64();
        print_bulk(&format!("0.1 % loss, seed {seed}"), &outcome, &[Rate::from_mbit(50)], took);
    }
}

fn death_row() {
    let mut worst = 0.0f64;
    for way in [death::Transfer::Upload, death::Transfer::Download] {
        for dying in [0, 1] {
            for (seed, at_ms) in (1..=5).zip([1_000, 1_733, 2_011, 2_507, 3_000]) {
                let outcome = death::run(way, dying, Instant::from_millis(at_ms), "min-rtt", seed);
                let ratio = outcome.hole.as_secs_f64() / outcome.allowed.as_secs_f64();
                worst = worst.max(ratio);
                println!(
                    "{way:?}, path {dying} dies at {at_ms} ms: gap {:?} of {:?} allowed, srtt \
                        {:?}, finished at {}",
                    outcome.hole, outcome.allowed, outcome.srtt, outcome.finished
                );
            }
        }
    }
    println!("worst: {worst:.2} of the allowed value");
}

fn sleep_row() {
    for (gone, seed) in [(600, 1), (600, 2), (601, 3), (3_000, 4)] {
        let outcome = sleep::run(Duration::from_secs(gone), "min-rtt", seed);
        let (after, messages) = (outcome.resumed_after, outcome.messages);
        println!("gone for {gone} s: first byte {after:?} after the return, {messages} messages");
    }
}

fn pairs_row() {
    let Some(dir) = marline_testkit::need::trace_dir() else { return };
    let runs: Vec<(pairs::Pair, u64)> = pairs::all()
        .into_iter()
        .flat_map(|pair| pairs::OFFSETS_S.map(|offset| (pair.clone(), offset)))
        .collect();
    let length = Duration::from_secs(30);
    let outcomes =
        parallel(&runs, |(pair, offset)| pairs::run(pair, *offset, "min-rtt", length, &dir));
    for outcomes in outcomes.chunks(pairs::OFFSETS_S.len()) {
        let ratios: Vec<String> = outcomes
            .iter()
            .map(|o| format!("{:.2}{}", o.ratio(), if o.ratio() < 0.95 { "!" } else { "" }))
            .collect();
        println!("{:28} {}", outcomes[0].name, ratios.join("  "));
    }
    println!("below 0.95 of the best path:");
    for outcome in outcomes.iter().filter(|outcome| outcome.ratio() < 0.95) {
        println!(
            "  {} at {} s: {:.2} alone {:.2?} Mbit/s, together {:.2}",
            outcome.name,
            outcome.offset_s,
            outcome.ratio(),
            outcome.alone_mbit,
            outcome.together_mbit
        );
    }
}

/// Messages and a download with each scheduler. `SEED=n` selects other losses, and `SCHEDULERS=paaf;xlink,near=0`
/// other schedulers.
fn schedulers_row() {
    let words = env::var("SCHEDULERS").ok();
    let schedulers: Vec<&str> =
        words.as_ref().map_or(anchors::SCHEDULERS.to_vec(), |words| words.split(';').collect());
    let seed = env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for (name, links) in anchors::SCENES {
        println!("{name}: {links:?}");
        println!("  scheduler          p50     p95     p99     max  near   far  download of 10 MB");
        let rows = parallel(&schedulers, |scheduler| {
            let messages = anchors::messages(&links, scheduler, 2_400, seed);
            (messages, anchors::download(&links, scheduler, 10_000_000, seed))
        });
        for (scheduler, (messages, download)) in schedulers.iter().zip(&rows) {
            let [p50, p95, p99, most] = [0.5, 0.95, 0.99, 1.0].map(|q| messages.delay_ms(q));
            let [near, far] = messages.shares;
            println!(
                "  {scheduler:15} {p50:6.1}  {p95:6.1}  {p99:6.1}  {most:6.1}  {near:.2}  \
                    {far:.2}  {:.2} s",
                download.as_secs_f64()
            );
        }
    }
}

/// Runs `MARLINE_WORLDS` worlds, starting with seed `MARLINE_WORLDS_FROM`.
fn world_seeds(count: u64) -> Vec<u64> {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let from = number("MARLINE_WORLDS_FROM").unwrap_or(1);
    (from..from.saturating_add(number("MARLINE_WORLDS").unwrap_or(count))).collect()
}

/// One digest over the random worlds of each family, in the order of their seeds.
fn digests_row() {
    let seeds = world_seeds(5_000);
    let count = seeds.len();
    for (name, family) in [
        ("shipped", worlds::Family::Shipped),
        ("plain", worlds::Family::Plain),
        ("any", worlds::Family::Any),
        ("coded", worlds::Family::Coded),
        ("mobile", worlds::Family::Mobile),
        ("published", worlds::Family::Published),
        ("auto", worlds::Family::Auto),
    ] {
        let outcomes = parallel(&seeds, |seed| worlds::run(*seed, family));
        let mut all = Digest::default();
        for outcome in &outcomes {
            all.number(outcome.digest);
            all.time(outcome.finished);
        }
        let failed = outcomes.iter().filter(|outcome| outcome.complaint.is_some()).count();
        println!("{:016x}  {count} worlds, {name}, {failed} failed", all.value());
        for outcome in &outcomes {
            if let Some(complaint) = &outcome.complaint {
                println!("  SEED={} ({}): {complaint}", outcome.seed, outcome.plan);
            }
        }
    }
}

fn worlds_row() {
    let seeds: Vec<u64> = match env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => {
            if let Some(file) = env::var_os("CAPTURE") {
                let bytes = worlds::capture(seed, worlds::Family::Shipped, Duration::from_secs(30));
                std::fs::write(file, bytes).expect("the capture");
            }
            vec![seed]
        }
        None => world_seeds(2_000),
    };
    let outcomes = parallel(&seeds, |seed| {
        let run = || worlds::run(*seed, worlds::Family::Shipped);
        (run(), run().digest)
    });
    let mut failed = 0;
    for (outcome, again) in &outcomes {
        let differs = (outcome.digest != *again).then(|| "a second run differs".to_owned());
        if let Some(complaint) = outcome.complaint.clone().or(differs) {
            failed += 1;
            println!("SEED={} ({}): {complaint}", outcome.seed, outcome.plan);
        }
    }
    let worst = outcomes.iter().map(|(outcome, _)| outcome.stall).max().unwrap_or_default();
    println!("{} worlds, {failed} failed, longest stall {worst:?}", outcomes.len());
}
