//! Benchmark of two endpoints in memory, on one CPU: the throughput of the core alone, compared with another TCP, and
//! the memory of idle connections. No sockets and no link: a batch sent by one endpoint is passed to the other
//! immediately.
//!
//! `cargo bench -p marline-core --bench memory` prints
//! - bulk goodput (MTU 1500, IPv4, TCP checksums computed and verified) of smoltcp's plain TCP, of one subflow, and
//!   of two with `round-robin` and `min-rtt`;
//! - bulk goodput of two shards, each a server's endpoint on its own thread with one path health monitor for both,
//!   relative to one shard;
//! - memory per established idle connection in an endpoint with 10,000 of them.
//!
//! CPU time is measured. The cases take turns within a run, and medians are printed, also of ratios, so that other
//! load on the machine, which slows all cases, has little effect.
//!
//! `-- bulk [CASE] [MEGABYTES]`, `-- shards` and `-- idle [CONNECTIONS]` run one of them, for a profiler.

#[path = "../counting.rs"]
mod counting;
#[path = "../streams/mod.rs"]
#[expect(dead_code, unused_imports, reason = "other benches use the rest")]
mod streams;

use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;

use counting::{ALLOCATIONS, LIVE_BYTES};
use marline_core::PathHealthMonitor;
use marline_policy::PathHealthConfig;
use rustix::time::{ClockId, clock_gettime};
use streams::{BY_TURNS, CHUNK, MIN_RTT, ONE, Pair, PlainTcp, Setting, chunk};

const MEGABYTE: u64 = 1_000_000;
/// Number of bytes compared before the measurement.
const CHECKED_BYTES: u64 = 16 << 20;
/// Turns of each case, and megabytes that it transfers in each.
const ROUNDS: usize = 11;
const ROUND_MEGABYTES: u64 = 300;

/// Cases: name on the command line, name in the output, and setting. `None` is smoltcp.
const CASES: [(&str, &str, Option<Setting>); 4] = [
    ("smoltcp", "smoltcp 0.14, plain TCP", None),
    ("one", "1 subflow", Some(ONE)),
    ("by-turns", "2 subflows, round-robin", Some(BY_TURNS)),
    ("min-rtt", "2 subflows, min-rtt", Some(MIN_RTT)),
];

fn main() {
    // Cargo adds `--bench`; names and numbers are ours.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let number = |at: usize, default: u64| {
        words.get(at).map_or(default, |word| word.parse().expect("a number"))
    };
    match words.first().map(String::as_str) {
        Some("bulk") => match words.get(1) {
            Some(name) => bulk(&[case(name)], 1, number(2, 4_000)),
            None => bulk(&[0, 1, 2, 3], ROUNDS, ROUND_MEGABYTES),
        },
        Some("shards") => shards(),
        Some("idle") => idle(number(1, 10_000)),
        Some(other) => panic!("unknown benchmark `{other}` (expected bulk, shards or idle)"),
        None => {
            bulk(&[0, 1, 2, 3], ROUNDS, ROUND_MEGABYTES);
            shards();
            idle(10_000);
        }
    }
}

fn case(name: &str) -> usize {
    let found = CASES.iter().position(|case| case.0 == name);
    found.unwrap_or_else(|| {
        panic!("unknown case `{name}` (expected one of {:?})", CASES.map(|case| case.0))
    })
}

/// One stream from client to server, over either stack.
enum Stream {
    PlainTcp(Box<PlainTcp>),
    Ours(Box<Pair>),
}

impl Stream {
    fn open(setting: Option<Setting>) -> Self {
        let mut stream = match setting {
            None => Stream::PlainTcp(Box::new(PlainTcp::connect())),
            Some(setting) => Stream::Ours(Box::new(Pair::connect(1, setting))),
        };
        let chunk = chunk();
        let check = |at: u64, bytes: &[u8]| {
            for (offset, byte) in bytes.iter().enumerate() {
                let wanted = chunk[(at as usize + offset) % CHUNK];
                assert_eq!(*byte, wanted, "byte {}", at + offset as u64);
            }
        };
        stream.transfer(CHECKED_BYTES, check);
        stream
    }

    fn transfer(&mut self, bytes: u64, check: impl FnMut(u64, &[u8])) {
        match self {
            Stream::PlainTcp(pair) => pair.transfer(bytes, check),
            Stream::Ours(pair) => pair.transfer(bytes, check),
        }
    }

    fn segments(&self) -> u64 {
        match self {
            Stream::PlainTcp(pair) => pair.segments(),
            Stream::Ours(pair) => pair.segments(),
        }
    }

    /// Share of the payload, in percent, of the subflow that sent the least.
    fn least_share(&self) -> u64 {
        let Stream::Ours(pair) = self else { return 100 };
        let sent = pair.sent_per_subflow();
        let least = sent.iter().min().copied().unwrap_or(0);
        100 * least / sent.iter().sum::<u64>().max(1)
    }
}

/// Cost of one round of a case.
#[derive(Copy, Clone, Default)]
struct Round {
    cpu_ns: f64,
    segments: f64,
    allocations: f64,
}

fn measure(stream: &mut Stream, bytes: u64) -> Round {
    let (segments, allocations) = (stream.segments(), ALLOCATIONS.load(Relaxed));
    let begun = cpu_ns();
    stream.transfer(bytes, |_, _| ());
    Round {
        cpu_ns: cpu_ns() - begun,
        segments: (stream.segments() - segments) as f64,
        allocations: (ALLOCATIONS.load(Relaxed) - allocations) as f64,
    }
}

fn bulk(cases: &[usize], rounds: usize, megabytes: u64) {
    let bytes = megabytes * MEGABYTE;
    let mut streams: Vec<Stream> = cases.iter().map(|case| Stream::open(CASES[*case].2)).collect();
    // Windows and the memory kept for reuse grow for a while.
    streams.iter_mut().for_each(|stream| stream.transfer(bytes, |_, _| ()));
    let mut measured = vec![[Round::default(); CASES.len()]; rounds];
    for (number, round) in measured.iter_mut().enumerate() {
        // The order of cases changes between rounds.
        for turn in 0..cases.len() {
            let at = (turn + number) % cases.len();
            round[cases[at]] = measure(&mut streams[at], bytes);
        }
    }
    println!(
        "bulk in memory on one CPU: medians of {rounds} rounds of {megabytes} MB each, per second of \
         CPU time\n{:28} {:>7} {:>10} {:>12} {:>11} {:>10} {:>12}",
        "", "Gbit/s", "ns/segment", "allocs/seg", "vs. smoltcp", "vs. one", "min. share"
    );
    for (at, stream) in cases.iter().zip(&streams) {
        let over = |value: fn(&Round) -> f64| median(measured.iter().map(|r| value(&r[*at])));
        let beside = |other: usize| ratio(&measured, *at, other);
        println!(
            "{:28} {:7.1} {:10.0} {:12.4} {:>11} {:>10} {:>10} %",
            CASES[*at].1,
            bytes as f64 * 8.0 / over(|round| round.cpu_ns),
            over(|round| round.cpu_ns / round.segments),
            over(|round| round.allocations / round.segments),
            cell(beside(0)),
            cell(beside(1)),
            stream.least_share(),
        );
    }
    if cases.len() == CASES.len() {
        print_figures(&measured);
    }
}

/// Prints the figures that `cargo xtask figures` compares with the goals.
fn print_figures(measured: &[[Round; CASES.len()]]) {
    for (name, of, to) in
        [("one-to-smoltcp", 1, 0), ("by-turns-to-one", 2, 1), ("min-rtt-to-one", 3, 1)]
    {
        println!("figure {name} {:.3}", ratio(measured, of, to));
    }
    // Once, after 2 GiB, 64-bit DSNs are used, segments hold less, and a buffer grows by some chunks.
    let sum = |value: fn(&Round) -> f64| -> f64 {
        measured.iter().flat_map(|round| &round[1..]).map(value).sum()
    };
    let each = sum(|round| round.allocations) / sum(|round| round.segments);
    println!("figure allocations-per-segment {each:.4}");
}

/// Median ratio of goodputs within a round.
fn ratio(measured: &[[Round; CASES.len()]], of: usize, to: usize) -> f64 {
    median(measured.iter().map(|round| round[to].cpu_ns / round[of].cpu_ns))
}

fn cell(ratio: f64) -> String {
    if ratio > 0.0 { format!("{ratio:.2}") } else { "-".to_owned() }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Throughput of two concurrent shards relative to one shard alone, per CPU time of each.
fn shards() {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let alone: f64 = side_by_side(1).iter().sum();
        let both: f64 = side_by_side(2).iter().sum();
        rounds.push((alone, both));
    }
    let ratio = median(rounds.iter().map(|(alone, both)| both / alone));
    println!(
        "two shards: {:.1} Gbit per second of CPU time each; one alone: {:.1}; together {ratio:.2} \
         times as much as one\nfigure two-shards-to-one {ratio:.2}",
        median(rounds.iter().map(|(_, both)| both / 2.0)),
        median(rounds.iter().map(|(alone, _)| *alone)),
    );
}

/// Throughput of each of `count` shards, in Gbit per second of its CPU time. They share a path health monitor.
fn side_by_side(count: usize) -> Vec<f64> {
    let monitor = PathHealthMonitor::new(PathHealthConfig::prompt());
    let together = Barrier::new(count);
    std::thread::scope(|scope| {
        let shard = || {
            let mut pair = Pair::connect(1, ONE);
            pair.set_path_health_monitor(&monitor);
            pair.transfer(ROUND_MEGABYTES * MEGABYTE, |_, _| ());
            together.wait();
            let begun = cpu_ns();
            pair.transfer(ROUND_MEGABYTES * MEGABYTE, |_, _| ());
            let spent = cpu_ns() - begun;
            (ROUND_MEGABYTES * MEGABYTE) as f64 * 8.0 / spent
        };
        let shards: Vec<_> = (0..count).map(|_| scope.spawn(shard)).collect();
        shards.into_iter().map(|shard| shard.join().expect("it ends")).collect()
    })
}

/// Measures established connections that are idle on both sides.
fn idle(connections: u64) {
    let before = LIVE_BYTES.load(Relaxed);
    let pair = Pair::connect(connections as usize, ONE);
    let both = LIVE_BYTES.load(Relaxed) - before;
    let each = both / connections / 2;
    println!(
        "{connections} idle connections: {each} bytes per connection and end ({:.1} MB for both \
         ends)\nfigure idle-bytes {each}",
        both as f64 / 1e6,
    );
    drop(pair);
}

/// CPU time of this thread so far.
fn cpu_ns() -> f64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.tv_sec as f64 * 1e9 + spent.tv_nsec as f64
}
