//! Flow completion time by size, loss and degree of redundancy.

use marline_lab::bound::Bound;
use marline_lab::experiment::{Experiment, Variant, simulate};
use marline_lab::figure::{Figure, Plot};
use marline_lab::workload::{Gap, Workload};
use marline_sim::{mean, quantile};

use crate::paper::Context;
use crate::table::{Grid, Reproduction};

/// Bytes, requests of a run, and ms between two.
const SIZES: [(u32, u32, f64); 7] = [
    (1, 200, 1_000.0),
    (100, 200, 1_000.0),
    (1_000, 200, 1_000.0),
    (10_000, 200, 1_000.0),
    (100_000, 100, 3_000.0),
    (300_000, 30, 8_000.0),
    (1_000_000, 15, 20_000.0),
];
const LOSSES_PERCENT: [u32; 2] = [0, 2];
/// What is compared; the first is one path alone.
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
/// What the figures show of them: more than six curves cannot be told apart.
const DRAWN: [&str; 6] =
    ["one path", "min-rtt", "redundant", "redundant-idle", "hedged", "auto-redundant"];
/// Runs of each.
const RUNS: usize = 5;

fn experiment(bytes: u32, loss_percent: u32) -> Experiment {
    // A queue of 1000 packets is 240 ms here.
    let link = format!("rate=50M,delay=50ms,queue=240ms,loss={loss_percent}%");
    let (_, count, gap_ms) =
        SIZES.into_iter().find(|(size, ..)| *size == bytes).unwrap_or(SIZES[0]);
    let gap = Gap { least_ms: gap_ms, most_ms: gap_ms };
    let workload = Workload::Ask { request_bytes: bytes, answer_bytes: 1, gap, count };
    Experiment::over(&[("first", &link), ("second", &link)], workload)
}

/// One cell of the table.
#[derive(Clone, Debug, Default)]
struct Cell {
    times_ms: Vec<f64>,
    wire_bytes: u64,
}

pub(super) fn run(context: &Context<'_>, result: &mut Reproduction) -> anyhow::Result<()> {
    let seeds: Vec<u64> = (0..context.runs(RUNS) as u64).map(|n| context.master + n).collect();
    let mut items = Vec::new();
    for loss in LOSSES_PERCENT {
        for (bytes, ..) in SIZES {
            let all = 0..SCHEDULERS.len();
            items.extend(all.flat_map(|v| seeds.iter().map(move |seed| (loss, bytes, v, *seed))));
        }
    }
    let variants = SCHEDULERS.map(|name| match name {
        "one path" => Variant::alone(name, "first"),
        name => Variant::new(name).scheduler(name),
    });
    let cells = context.parallel("sizes", &items, |(loss, bytes, number, seed)| {
        let experiment = experiment(*bytes, *loss);
        let outcome = simulate(&experiment, &variants[*number], *seed)?;
        let messages = outcome.messages(&experiment.workload);
        let times_ms = messages.iter().map(|message| message.latency_ms).collect();
        anyhow::Ok(Cell { times_ms, wire_bytes: outcome.wire_bytes() })
    })?;
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
    let title = "Flow completion time on two paths of 50 Mbit/s, 100 ms";
    let mut grid = Grid::new("sizes", title, &columns);
    for loss in LOSSES_PERCENT {
        for (bytes, ..) in SIZES {
            let pooled = pooled(&items, &cells, loss, bytes);
            // Losses drawn packet by packet do not move it, and nothing else changes with time.
            let bound_ms = Bound::of(&experiment(bytes, 0), context.master)?.latency_ms(0.0, 1);
            for (name, cell) in SCHEDULERS.iter().zip(&pooled) {
                let average = mean(&cell.times_ms);
                let numbers = [
                    f64::from(bytes),
                    quantile(&cell.times_ms, 0.5),
                    average,
                    quantile(&cell.times_ms, 0.95),
                    quantile(&cell.times_ms, 0.99),
                    average / bound_ms,
                    cell.wire_bytes as f64 / pooled[0].wire_bytes as f64,
                ];
                grid.push(&[&format!("{loss} %"), name], &numbers);
            }
        }
    }
    for (loss, name) in [(0, "sizes-without-loss"), (2, "sizes-with-loss")] {
        result.figures.push(figure(name, loss, &items, &cells));
    }
    result.grids.push(grid);
    Ok(())
}

type Item = (u32, u32, usize, u64);

/// All seeds of each scheduler together.
fn pooled(items: &[Item], cells: &[Cell], loss: u32, bytes: u32) -> Vec<Cell> {
    let mut all = vec![Cell::default(); SCHEDULERS.len()];
    for ((of, size, number, _), cell) in items.iter().zip(cells) {
        if (*of, *size) == (loss, bytes) {
            all[*number].times_ms.extend(&cell.times_ms);
            all[*number].wire_bytes += cell.wire_bytes;
        }
    }
    all
}

fn figure(name: &str, loss: u32, items: &[Item], cells: &[Cell]) -> Figure {
    let title = format!("Flow completion time, average, {loss} % loss");
    let mut plot = Plot::new(&title, "size (bytes)", "time (ms)").log_x().log_y();
    for (number, scheduler) in SCHEDULERS.iter().enumerate() {
        if !DRAWN.contains(scheduler) {
            continue;
        }
        let average = |bytes: u32| mean(&pooled(items, cells, loss, bytes)[number].times_ms);
        let points: Vec<_> =
            SIZES.iter().map(|(bytes, ..)| (f64::from(*bytes), average(*bytes))).collect();
        plot = plot.line(scheduler, &points);
    }
    plot.figure(name, "From writing the request to reading the answer of one byte.")
}
