//! Coding compared with duplication, by message size and kind of loss, with the same number of extra bytes.
//!
//! Every scheduler sends the same messages over the same losses. `coded` sends 30 % (and 10 %) of a message's
//! segments as repairs. `burst-end` may copy the same number of segments. The two therefore have equal cost and differ
//! only in what they send: copies of the end, or combinations of all segments. The results list the cost of the other
//! schedulers.

use marline_lab::experiment::{Experiment, Variant, simulate};
use marline_lab::figure::{Figure, Plot};
use marline_lab::scenario::Event;
use marline_lab::workload::{Gap, Workload};
use marline_time::Rng as _;
use serde::{Deserialize, Serialize};

use super::links::{LTE, WIFI, WIFI_INDEPENDENT, WIFI_SHORT};
use super::measure::{Tail, sorted};
use crate::estimate::Samples;
use crate::paper::Context;
use crate::plain::mptcp;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction};
use crate::value::Value;

/// Message sizes in segments.
const SIZES: [u32; 7] = [1, 2, 4, 7, 20, 40, 100];
/// Segment size in bytes, slightly less than the maximum.
const SEGMENT: u32 = 1_380;
/// Number of messages per run, sent one second apart.
const MESSAGES: usize = 60;
/// Runs per root in which the WiFi dies while a message is in flight.
const WIFI_FAILURES: usize = 5;
/// Repairs per segment of `coded` as shipped, in percent.
const RATE_PERCENT: u32 = 30;

/// Independent losses of 1 %.
const WIFI_ONE_PERCENT: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,loss=1%";
/// Loss of all packets for 15 ms at random times.
const WIFI_INTERRUPTED: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,ge=485ms:15ms:100%:0%";

/// Losses of the WiFi.
const CASES: [(&str, &str); 5] = [
    ("bad periods", WIFI),
    ("bad periods half as long but worse", WIFI_SHORT),
    ("independent, 1 %", WIFI_ONE_PERCENT),
    ("independent, 3 %", WIFI_INDEPENDENT),
    ("all packets for 15 ms, twice a second", WIFI_INTERRUPTED),
];
const WIFI_FAILURE: &str = "the WiFi dies";
/// Index of the message that is in flight when the WiFi dies, from 0.
const MESSAGE_AT_FAILURE: u32 = 6;

/// Schedulers in the comparison. The first is the reference for the extra bytes.
const SCHEDULERS: [&str; 9] = [
    "min-rtt",
    "hedged",
    "auto-redundant",
    "probing",
    "burst-end",
    "redundant-idle",
    "redundant",
    "coded",
    "coded,rate=10%",
];

fn variant(name: &str, packets: u32) -> Variant {
    let segments = (packets * RATE_PERCENT).div_ceil(100);
    let spec = match name {
        "burst-end" => format!("burst-end,segments={segments}"),
        name => name.to_owned(),
    };
    Variant { repair: name.starts_with("coded"), ..mptcp(name).scheduler(&spec) }
}

fn messages(wifi: &str, packets: u32, count: u32) -> Experiment {
    let gap = Gap { least_ms: 1_000.0, most_ms: 1_000.0 };
    let request_bytes = packets * SEGMENT;
    let workload = Workload::Ask { request_bytes, answer_bytes: 1, gap, count };
    Experiment::over(&[("wifi", wifi), ("lte", LTE)], workload)
}

/// The WiFi dies while a message is in flight, up to a tenth of a second after it was written.
fn death(packets: u32, after_s: f64) -> Experiment {
    let mut experiment = messages(WIFI_BEFORE_DEATH, packets, MESSAGE_AT_FAILURE + 1);
    let at = format!("{:.4}s", f64::from(MESSAGE_AT_FAILURE) + after_s);
    let event = Event { at, path: "wifi".to_owned(), command: "down".to_owned() };
    experiment.scenario.events.push(event);
    experiment
}

/// Lossless WiFi until it dies.
const WIFI_BEFORE_DEATH: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms";

/// One cell of the table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Cell {
    /// Completion times, sorted.
    times_ms: Vec<f64>,
    wire_bytes: u64,
}

/// All runs of a root: by WiFi case (the last is its failure), size and scheduler.
type Cells = Vec<Vec<Vec<Cell>>>;

/// Pooled runs of one scheduler.
fn cell(
    runs: &[(Experiment, u64)],
    of_interest_from: usize,
    variant: &Variant,
) -> anyhow::Result<Cell> {
    let (mut times_ms, mut wire_bytes) = (Vec::new(), 0);
    for (experiment, seed) in runs {
        let outcome = simulate(experiment, variant, *seed)?;
        let messages = outcome.messages(experiment.workload());
        times_ms.extend(messages.iter().skip(of_interest_from).map(|message| message.latency_ms));
        wire_bytes += outcome.wire_bytes();
    }
    Ok(Cell { times_ms: sorted(times_ms.into_iter()), wire_bytes })
}

fn measure(context: &Context<'_>, root: &Root) -> anyhow::Result<Cells> {
    let mut rng = root.rng("deaths of the WiFi");
    // Time from writing the message to the death of WiFi, s, and the seed of the run.
    let deaths: Vec<(f64, u64)> = (0..context.count(WIFI_FAILURES))
        .map(|_| (0.1_f64.mul_add(rng.unit(), 0.001), rng.next_u64()))
        .collect();
    let mut all = Vec::new();
    for case in 0..=CASES.len() {
        let mut of_case = Vec::new();
        for packets in SIZES {
            let (runs, from) = match CASES.get(case) {
                Some((_, wifi)) => {
                    let experiment = messages(wifi, packets, context.count(MESSAGES) as u32);
                    (vec![(experiment, root.seed)], 0)
                }
                None => {
                    let run = |(after_s, seed): &(f64, u64)| (death(packets, *after_s), *seed);
                    (deaths.iter().map(run).collect(), MESSAGE_AT_FAILURE as usize)
                }
            };
            let of_scheduler = |name: &&str| cell(&runs, from, &variant(name, packets));
            of_case.push(SCHEDULERS.iter().map(of_scheduler).collect::<anyhow::Result<_>>()?);
        }
        all.push(of_case);
    }
    Ok(all)
}

pub(super) fn run(context: &Context<'_>, result: &mut Reproduction) -> anyhow::Result<()> {
    let samples = context.sample(Part::fixed("coding", 20), |root| measure(context, root))?;
    let columns = [
        ("losses", ""),
        ("scheduler", ""),
        ("segments", ""),
        ("average", "ms"),
        ("median", "ms"),
        ("p95", "ms"),
        ("p99", "ms"),
        ("extra bytes", "%"),
    ];
    let title = "Coding and duplication: time until the whole message arrived, WiFi (95 ms) and LTE (154 ms); \
                 extra bytes as a percentage of min-rtt's (99 % intervals)";
    let mut grid = Grid::new("coding", title, &columns);
    let names = CASES.iter().map(|(name, _)| *name).chain([WIFI_FAILURE]);
    for (case, name) in names.enumerate() {
        for (size, packets) in SIZES.iter().enumerate() {
            for (place, scheduler) in SCHEDULERS.iter().enumerate() {
                let tail = tail(&samples, case, size, place);
                let average =
                    samples.mean(|root| marline_sim::mean(&root[case][size][place].times_ms));
                let extra = samples.ratio(|root| {
                    let bytes = |place: usize| root[case][size][place].wire_bytes as f64;
                    (100.0 * (bytes(place) - bytes(0)), bytes(0))
                });
                grid.rows.push(vec![
                    Value::Text(name.to_owned()),
                    Value::Text((*scheduler).to_owned()),
                    Value::new(f64::from(*packets), ""),
                    Value::from_estimate(&average, ""),
                    Value::new(tail.quantile(0.5), ""),
                    Value::new(tail.quantile(0.95), ""),
                    Value::new(tail.quantile(0.99), ""),
                    Value::new(extra.value, ""),
                ]);
            }
        }
    }
    result.figures.push(figure(&samples));
    result.grids.push(grid);
    Ok(())
}

/// Tail of a scheduler, pooled over the roots.
fn tail(samples: &Samples<Cells>, case: usize, size: usize, place: usize) -> Tail {
    Tail::new(samples.all().iter().map(|root| root[case][size][place].times_ms.as_slice()))
}

/// 99th percentile by message size, in bad periods.
fn figure(samples: &Samples<Cells>) -> Figure {
    let title = "Coding and duplication: 99th percentile by message size, bad periods";
    let mut plot = Plot::new(title, "size (segments)", "time (ms)").log_x();
    for (place, scheduler) in SCHEDULERS.iter().enumerate() {
        if !["min-rtt", "hedged", "burst-end", "redundant", "coded"].contains(scheduler) {
            continue;
        }
        let p99 = |size| tail(samples, 0, size, place).quantile(0.99);
        let sizes = SIZES.iter().enumerate();
        let points: Vec<_> =
            sizes.map(|(size, packets)| (f64::from(*packets), p99(size))).collect();
        plot = plot.line(scheduler, &points);
    }
    plot.figure("coding", "burst-end copies as many segments as coded sends repairs: 30 %.")
}
