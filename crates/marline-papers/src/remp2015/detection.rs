//! Adaptive redundancy compared with constant redundancy.

use links::Farewell;
use marline_lab::experiment::{Experiment, Variant};
use marline_lab::figure::{Figure, Plot};

use super::links;
use super::measure::{Echoes, echoes};
use super::published::Published;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};

/// Runs of each variant.
const RUNS: usize = 100;
/// All that make copies, and what they stand on.
const SCHEDULERS: [&str; 8] = [
    "min-rtt",
    "redundant",
    "opportunistic-redundant",
    "redundant-idle",
    "burst-end",
    "probing",
    "hedged",
    "auto-redundant",
];
/// Places of those that are compared.
const NONE: usize = 0;
const FULL: usize = 1;
const HEDGED: usize = 6;
const AUTO: usize = 7;

/// A situation.
struct Case {
    name: &'static str,
    experiment: fn(u64) -> Experiment,
    /// Whether it is one that the rows are about.
    judged: bool,
}

const CASES: [Case; 6] = [
    Case { name: "home", experiment: |_| links::home(links::WIFI), judged: true },
    Case { name: "train", experiment: links::train, judged: true },
    Case {
        name: "home, WiFi dies abruptly",
        experiment: |_| links::leaving(Farewell::Abrupt),
        judged: true,
    },
    Case {
        name: "home, WiFi fades and dies",
        experiment: |_| links::leaving(Farewell::Fading),
        judged: true,
    },
    Case {
        name: "home, independent losses of 3 %",
        experiment: |_| links::home(links::WIFI_INDEPENDENT),
        judged: false,
    },
    Case {
        name: "home, bad times half as long and worse",
        experiment: |_| links::home(links::WIFI_SHORT),
        judged: false,
    },
];

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    result: &mut Reproduction,
) -> anyhow::Result<()> {
    let variants = SCHEDULERS.map(|name| Variant::new(name).scheduler(name));
    let columns = [
        ("case", ""),
        ("scheduler", ""),
        ("average", "ms"),
        ("p50", "ms"),
        ("p99", "ms"),
        ("p99.9", "ms"),
        ("average / bound", ""),
        ("extra bytes", "%"),
        ("p99 / full", ""),
    ];
    let title = "Degrees of redundancy: extra bytes are those beyond min-rtt's, in percent of full \
                 redundancy's";
    let mut grid = Grid::new("degrees", title, &columns);
    let mut rows = Vec::new();
    for case in &CASES {
        let ours = echoes(context, case.name, RUNS, case.experiment, &variants)?;
        for (name, echoes) in SCHEDULERS.iter().zip(&ours) {
            let numbers = [
                echoes.average_ms(),
                echoes.quantile_ms(0.5),
                echoes.quantile_ms(0.99),
                echoes.quantile_ms(0.999),
                echoes.bound_ratio(),
                extra_percent(echoes, &ours),
                echoes.quantile_ms(0.99) / ours[FULL].quantile_ms(0.99),
            ];
            grid.push(&[case.name, name], &numbers);
        }
        rows.extend(judge(file, case, &ours)?);
        if case.name == "home" {
            result.figures.push(figure(&ours));
        }
    }
    let title = "Automatic detection (auto-redundant) against full redundancy";
    result.tables.push(Table::new("detection", title, rows));
    result.grids.push(grid);
    Ok(())
}

/// Bytes beyond those of no redundancy, in percent of full redundancy's.
fn extra_percent(echoes: &Echoes, all: &[Echoes]) -> f64 {
    let none = all[NONE].wire_bytes();
    100.0 * (echoes.wire_bytes() - none) / (all[FULL].wire_bytes() - none)
}

fn judge(file: &PaperFile<Published>, case: &Case, ours: &[Echoes]) -> anyhow::Result<Vec<Row>> {
    let (none, full, auto) = (&ours[NONE], &ours[FULL], &ours[AUTO]);
    let [p99, of_none, of_full] = [auto, none, full].map(|echoes| echoes.quantile_ms(0.99));
    let p99_row = Row::new(format!("{}: p99 over full redundancy's", case.name))
        .ours(p99 / of_full, "")
        .bound_ratio(auto.bound_ratio())
        .remark(format!("p99 {p99:.0} ms; full {of_full:.0} ms; none {of_none:.0} ms"));
    let payload = 100.0 * auto.copied_bytes() / full.copied_bytes();
    let bytes_row = Row::new(format!("{}: extra bytes of full redundancy's", case.name))
        .ours(extra_percent(auto, ours), "%")
        .remark(format!("of the payload sent twice {payload:.0} %"));
    let (ratio, percent) =
        (file.tolerance("detection_p99_ratio")?, file.tolerance("detection_bytes_percent")?);
    let mut rows = match case.judged {
        true => vec![p99_row.at_most(ratio), bytes_row.at_most(percent)],
        false => vec![p99_row, bytes_row],
    };
    if case.name.contains("dies") {
        // Ten seconds around the death, of which no run has enough for a percentile of its own.
        let (from_s, to_s) = (links::DEATH_S - 5.0, links::DEATH_S + 5.0);
        let [auto, full, none] = [auto, full, none].map(|echoes| {
            let near = echoes.within_ms(from_s, to_s);
            marline_sim::quantile(&near, 0.99)
        });
        let row = Row::new(format!("{}: p99 within 5 s of the death", case.name))
            .ours(auto, "ms")
            .remark(format!("full {full:.0} ms; none {none:.0} ms"));
        rows.push(row);
    }
    Ok(rows)
}

/// The share of messages that take longer.
fn figure(ours: &[Echoes]) -> Figure {
    let tail = |echoes: &Echoes| -> Vec<(f64, f64)> {
        let share = |ms: f64| {
            let longer = echoes.latencies_ms.iter().filter(|latency| **latency > ms).count();
            longer as f64 / echoes.latencies_ms.len() as f64
        };
        (80..=600).step_by(2).map(|ms| (f64::from(ms), share(f64::from(ms)))).collect()
    };
    let shown = [NONE, FULL, HEDGED, AUTO];
    let plot = Plot::new(
        "What redundancy is for: the tail, at home",
        "round trip (ms)",
        "share of messages that take longer",
    )
    .log_y()
    .y_range(1e-4, 1.0);
    let plot = shown.iter().fold(plot, |plot, number| {
        let points: Vec<_> = tail(&ours[*number]).into_iter().filter(|(_, y)| *y > 0.0).collect();
        plot.line(SCHEDULERS[*number], &points)
    });
    plot.figure("tails", "Degrees of redundancy under today's loss recovery.")
}
