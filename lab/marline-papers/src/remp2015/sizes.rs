//! Flow completion time by size, loss and degree of redundancy.

use marline_lab::bound::Bound;
use marline_lab::experiment::{Experiment, simulate};
use marline_lab::figure::{Figure, Plot};
use marline_lab::workload::{Gap, Workload};
use serde::{Deserialize, Serialize};

use super::echo::remp_scheduler;
use super::measure::{Tail, sorted};
use super::published::Published;
use crate::estimate::Samples;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::plain::{mptcp, tcp};
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction};
use crate::value::Value;

/// Bytes, number of requests in a run, and ms between two requests.
const SIZES: [(u32, usize, f64); 7] = [
    (1, 40, 1_000.0),
    (100, 40, 1_000.0),
    (1_000, 40, 1_000.0),
    (10_000, 40, 1_000.0),
    (100_000, 20, 3_000.0),
    (300_000, 8, 8_000.0),
    (1_000_000, 4, 20_000.0),
];
const LOSSES_PERCENT: [u32; 2] = [0, 2];
/// Schedulers in the comparison. The first is one path alone.
const SCHEDULERS: [&str; 9] = [
    "one path",
    "min-rtt",
    "redundant",
    "opportunistic-redundant",
    "redundant-idle",
    "burst-end",
    "probing",
    "hedged",
    "auto-redundant",
];
/// Indexes of the judged size and schedulers.
const MAX_ONE_PACKET_PAYLOAD: usize = 1;
const ONE_PATH: usize = 0;
const REDUNDANT: usize = 2;
/// Schedulers in the figures. More than six curves are hard to distinguish.
const FIGURE_SCHEDULERS: [&str; 6] =
    ["one path", "min-rtt", "redundant", "redundant-idle", "hedged", "auto-redundant"];

fn experiment(bytes: u32, loss_percent: u32, count: usize, gap_ms: f64) -> Experiment {
    // A queue of 1000 packets is 240 ms here.
    let link = format!("rate=50M,delay=50ms,queue=240ms,loss={loss_percent}%");
    let gap = Gap { least_ms: gap_ms, most_ms: gap_ms };
    let count = count as u32;
    let workload = Workload::Ask { request_bytes: bytes, answer_bytes: 1, gap, count };
    Experiment::over(&[("first", &link), ("second", &link)], workload)
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Cell {
    /// Completion times, sorted.
    times_ms: Vec<f64>,
    wire_bytes: u64,
}

/// All runs of a root, by loss, size and scheduler.
type Cells = Vec<Vec<Vec<Cell>>>;

fn measure(context: &Context<'_>, root: &Root) -> anyhow::Result<Cells> {
    let cell = |loss: u32, (bytes, count, gap_ms): (u32, usize, f64), scheduler: &str| {
        let experiment = experiment(bytes, loss, context.count(count), gap_ms);
        let variant = match scheduler {
            "one path" => tcp(scheduler, "first"),
            "redundant" => mptcp(scheduler).scheduler(remp_scheduler()),
            name => mptcp(name).scheduler(name),
        };
        let outcome = simulate(&experiment, &variant, root.seed)?;
        let messages = outcome.messages(experiment.workload());
        let times_ms = sorted(messages.iter().map(|message| message.latency_ms));
        anyhow::Ok(Cell { times_ms, wire_bytes: outcome.wire_bytes() })
    };
    let of_size =
        |loss, size| SCHEDULERS.iter().map(|scheduler| cell(loss, size, scheduler)).collect();
    let of_loss = |loss: u32| SIZES.iter().map(|size| of_size(loss, *size)).collect();
    LOSSES_PERCENT.iter().map(|loss| of_loss(*loss)).collect()
}

/// The row of small messages with losses, and the grid of all sizes.
pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    result: &mut Reproduction,
) -> anyhow::Result<Row> {
    let samples = context.sample(Part::fixed("sizes", 20), |root| measure(context, root))?;
    let columns = [
        ("loss", ""),
        ("scheduler", ""),
        ("size", "B"),
        ("median", "ms"),
        ("average", "ms"),
        ("p95", "ms"),
        ("p99", "ms"),
        ("average / bound", ""),
        ("bytes / one path", ""),
    ];
    let title = "Flow completion time on two paths of 50 Mbit/s, 100 ms (99 % intervals)";
    let mut grid = Grid::new("sizes", title, &columns);
    for (at, loss) in LOSSES_PERCENT.iter().enumerate() {
        for (size, (bytes, count, gap_ms)) in SIZES.iter().enumerate() {
            // Losses drawn per packet do not change the bound, and the links are otherwise constant.
            let lossless = experiment(*bytes, 0, *count, *gap_ms);
            let bound_ms = Bound::for_experiment(&lossless, context.master)?.latency_ms(0.0, 1);
            for (place, name) in SCHEDULERS.iter().enumerate() {
                let runs = samples.all().iter().map(|root| &root[at][size][place]);
                let tail = Tail::new(runs.map(|cell| cell.times_ms.as_slice()));
                let average = samples.mean(|root| mean(&root[at][size][place]));
                let bytes_ratio = samples.ratio(|root| {
                    let bytes = |place: usize| root[at][size][place].wire_bytes as f64;
                    (bytes(place), bytes(0))
                });
                grid.rows.push(vec![
                    Value::Text(format!("{loss} %")),
                    Value::Text((*name).to_owned()),
                    Value::new(f64::from(*bytes), ""),
                    Value::new(tail.quantile(0.5), ""),
                    Value::from_estimate(&average, ""),
                    Value::new(tail.quantile(0.95), ""),
                    Value::new(tail.quantile(0.99), ""),
                    Value::new(average.value / bound_ms, ""),
                    Value::new(bytes_ratio.value, ""),
                ]);
            }
        }
    }
    for (at, name) in ["sizes-without-loss", "sizes-with-loss"].into_iter().enumerate() {
        result.figures.push(figure(name, at, &samples));
    }
    result.grids.push(grid);
    Ok(losses_row(&samples, context.master, file.tolerance("average")?))
}

/// Tail of small messages with losses and without.
fn losses_row(samples: &Samples<Cells>, master: u64, share: f64) -> Row {
    let tail = |loss: usize, scheduler: usize| {
        let runs = samples.all().iter().map(|root| &root[loss][MAX_ONE_PACKET_PAYLOAD][scheduler]);
        Tail::new(runs.map(|cell| cell.times_ms.as_slice()))
    };
    let ratio = |scheduler: usize| tail(1, scheduler).ratio(&tail(0, scheduler), master, 0.99);
    Row::new("100 B, ReMP: p99 with 2 % loss, ratio to that without")
        .statement("drops-cost-nothing")
        .estimate(&ratio(REDUNDANT), "")
        .within_of(share, 1.0, "that without loss")
        .with_remark(format!("one path: {:.2}", ratio(ONE_PATH).value))
}

fn mean(cell: &Cell) -> f64 {
    marline_sim::mean(&cell.times_ms)
}

fn figure(name: &str, loss: usize, samples: &Samples<Cells>) -> Figure {
    let title = format!("Flow completion time, average, {} % loss", LOSSES_PERCENT[loss]);
    let mut plot = Plot::new(&title, "size (bytes)", "time (ms)").log_x().log_y();
    for (place, scheduler) in SCHEDULERS.iter().enumerate() {
        if !FIGURE_SCHEDULERS.contains(scheduler) {
            continue;
        }
        let average = |size: usize| {
            let of_roots: Vec<f64> =
                samples.all().iter().map(|root| mean(&root[loss][size][place])).collect();
            marline_sim::mean(&of_roots)
        };
        let sizes = SIZES.iter().enumerate();
        let points: Vec<_> =
            sizes.map(|(size, (bytes, ..))| (f64::from(*bytes), average(size))).collect();
        plot = plot.line(scheduler, &points);
    }
    plot.figure(name, "Time from writing the request to reading the one-byte response.")
}
