//! Coding compared with duplication, by message size and kind of loss, at equal extra bytes.
//!
//! Every scheduler sends the same messages over the same losses. `coded` sends 30 % (and 10 %) of a message's
//! segments as repairs; `burst-end` is given as many segments to copy, so that the two cost the same
//! and differ only in what the bytes are: copies of the end, or sums of all. The others cost what they
//! cost, which stands beside them.

use marline_lab::experiment::{Experiment, Variant, simulate};
use marline_lab::figure::{Figure, Plot};
use marline_lab::scenario::Event;
use marline_lab::workload::{Gap, Workload};
use marline_sim::quantile;

use super::links::{LTE, WIFI, WIFI_INDEPENDENT, WIFI_SHORT};
use crate::paper::Context;
use crate::table::{Grid, Reproduction};

/// Segments of a message.
const SIZES: [u32; 7] = [1, 2, 4, 7, 20, 40, 100];
/// Bytes of a segment, a little less than fit.
const SEGMENT: u32 = 1_380;
/// Runs, and messages of each, a second apart.
const RUNS: usize = 8;
const MESSAGES: u32 = 200;
/// Runs in which the WiFi dies, each while a message is under way.
const DEATHS: usize = 100;
/// Repairs per segment of `coded` as shipped, in percent.
const RATE_PERCENT: u32 = 30;

/// Losses of 1 %, independent.
const WIFI_ONE_PERCENT: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,loss=1%";
/// Now and then everything is lost for 15 ms.
const WIFI_INTERRUPTED: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,ge=485ms:15ms:100%:0%";

/// What happens to the WiFi.
const CASES: [(&str, &str); 5] = [
    ("bad times", WIFI),
    ("bad times half as long and worse", WIFI_SHORT),
    ("independent, 1 %", WIFI_ONE_PERCENT),
    ("independent, 3 %", WIFI_INDEPENDENT),
    ("all for 15 ms, twice a second", WIFI_INTERRUPTED),
];
const DEATH: &str = "the WiFi dies";
/// The message that is under way then, from 0.
const DOOMED: u32 = 6;

/// What is compared; the first is the measure of bytes.
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
    Variant { repair: name.starts_with("coded"), ..Variant::new(name).scheduler(&spec) }
}

fn messages(wifi: &str, packets: u32, count: u32) -> Experiment {
    let gap = Gap { least_ms: 1_000.0, most_ms: 1_000.0 };
    let request_bytes = packets * SEGMENT;
    let workload = Workload::Ask { request_bytes, answer_bytes: 1, gap, count };
    Experiment::over(&[("wifi", wifi), ("lte", LTE)], workload)
}

/// The WiFi dies while a message is under way, up to a tenth of a second after it was written.
fn death(packets: u32, seed: u64) -> Experiment {
    let mut experiment = messages(WIFI_DYING, packets, DOOMED + 1);
    let at_s = f64::from(DOOMED) + (seed % 10) as f64 * 0.01 + 0.001;
    let at = format!("{at_s:.4}s");
    let event = Event { at, path: "wifi".to_owned(), command: "down".to_owned() };
    experiment.scenario.events.push(event);
    experiment
}

/// A WiFi without losses until then.
const WIFI_DYING: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms";

/// One cell of the table.
#[derive(Clone, Debug, Default)]
struct Cell {
    times_ms: Vec<f64>,
    wire_bytes: u64,
}

/// One run: what happens, segments of a message, place of the scheduler, seed.
type Item = (usize, u32, usize, u64);

fn measure(item: &Item) -> anyhow::Result<Cell> {
    let (case, packets, number, seed) = *item;
    let variant = variant(SCHEDULERS[number], packets);
    let experiment = match CASES.get(case) {
        Some((_, wifi)) => messages(wifi, packets, MESSAGES),
        None => death(packets, seed),
    };
    let outcome = simulate(&experiment, &variant, seed)?;
    let messages = outcome.messages(&experiment.workload);
    let of_interest = messages.iter().skip(if case < CASES.len() { 0 } else { DOOMED as usize });
    let times_ms = of_interest.map(|message| message.latency_ms).collect();
    Ok(Cell { times_ms, wire_bytes: outcome.wire_bytes() })
}

pub(super) fn run(context: &Context<'_>, result: &mut Reproduction) -> anyhow::Result<()> {
    let mut items: Vec<Item> = Vec::new();
    for case in 0..=CASES.len() {
        let runs = context.runs(if case < CASES.len() { RUNS } else { DEATHS }) as u64;
        for packets in SIZES {
            for number in 0..SCHEDULERS.len() {
                items.extend((0..runs).map(|n| (case, packets, number, context.master + n)));
            }
        }
    }
    let cells = context.parallel("coding", &items, measure)?;
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
    let title = "Coding and duplication: time to the whole message, WiFi (95 ms) and LTE (154 ms); \
                 extra bytes in percent of min-rtt's";
    let mut grid = Grid::new("coding", title, &columns);
    let names = CASES.iter().map(|(name, _)| *name).chain([DEATH]);
    for (case, name) in names.enumerate() {
        for packets in SIZES {
            let pooled = pooled(&items, &cells, case, packets);
            for (scheduler, cell) in SCHEDULERS.iter().zip(&pooled) {
                let base = pooled[0].wire_bytes as f64;
                let numbers = [
                    f64::from(packets),
                    cell.times_ms.iter().sum::<f64>() / cell.times_ms.len() as f64,
                    quantile(&cell.times_ms, 0.5),
                    quantile(&cell.times_ms, 0.95),
                    quantile(&cell.times_ms, 0.99),
                    100.0 * (cell.wire_bytes as f64 / base - 1.0),
                ];
                grid.push(&[name, scheduler], &numbers);
            }
        }
        if case == 0 {
            result.figures.push(figure(&items, &cells));
        }
    }
    result.grids.push(grid);
    Ok(())
}

/// All seeds of each scheduler together.
fn pooled(items: &[Item], cells: &[Cell], case: usize, packets: u32) -> Vec<Cell> {
    let mut all = vec![Cell::default(); SCHEDULERS.len()];
    for ((of, size, number, _), cell) in items.iter().zip(cells) {
        if (*of, *size) == (case, packets) {
            all[*number].times_ms.extend(&cell.times_ms);
            all[*number].wire_bytes += cell.wire_bytes;
        }
    }
    all
}

/// The tail by size, in bad times.
fn figure(items: &[Item], cells: &[Cell]) -> Figure {
    let title = "Coding and duplication: 99th percentile by size of the message, bad times";
    let mut plot = Plot::new(title, "size (segments)", "time (ms)").log_x();
    for (number, scheduler) in SCHEDULERS.iter().enumerate() {
        if !["min-rtt", "hedged", "burst-end", "redundant", "coded"].contains(scheduler) {
            continue;
        }
        let p99 = |packets| quantile(&pooled(items, cells, 0, packets)[number].times_ms, 0.99);
        let points: Vec<_> =
            SIZES.iter().map(|packets| (f64::from(*packets), p99(*packets))).collect();
        plot = plot.line(scheduler, &points);
    }
    plot.figure("coding", "burst-end copies as many segments as coded sends repairs: 30 %.")
}
