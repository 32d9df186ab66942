//! Key `kernel`: Marline compared with the kernel's TCP and Multipath TCP, in real time.
//!
//! The rows are those of [`marline_lab::compare`] in which interactive users have problems with stock Multipath TCP:
//! echoes under loss, blocks over unequal paths, bursts during which a path dies, a window that is too small, a
//! handover to a backup. Each run is stored, so that an interrupted command can continue. Stored runs of Marline are
//! valid for one build, stored runs of the kernel for all.

use std::collections::BTreeMap;

use marline_lab::compare::{
    Bench, Contestant, Extent, Measure, Pool, Pools, Row, read_pools, rows,
};
use marline_lab::figure::{Bars, Figure, number};
use marline_lab::{bound, provenance};
use serde::Deserialize;

use crate::file::PaperFile;
use crate::judge::Row as Line;
use crate::paper::{Context, Paper};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const TEXT: &str = include_str!("../papers/kernel.toml");
/// Rows of the comparison, each with its number of runs.
const ROWS: [(&str, usize); 10] = [
    ("2a-a", 5),
    ("2b", 5),
    ("2c-docs", 10),
    ("2c-maps", 10),
    ("2c-netflix", 10),
    ("2d-alone", 3),
    ("2d-150-0", 3),
    ("2d-200-0", 3),
    ("2d-200-1", 3),
    ("2e", 10),
];

/// Earlier results of the kernel's Multipath TCP.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Baseline {
    echo_p99_ms: f64,
    blocks_p50_ms: f64,
    blocks_p99_ms: f64,
    blocks_goodput_mbit_per_s: f64,
    docs_hit_ms: f64,
    maps_hit_ms: f64,
    maps_calm_ms: f64,
    netflix_hit_ms: f64,
    netflix_calm_ms: f64,
    small_window_goodput_mbit_per_s: BTreeMap<String, f64>,
    handover_gap_ms: f64,
    handover_worst_ms: f64,
}

/// Comparison with the kernel's Multipath TCP over emulated links.
pub(super) struct Kernel;

/// A metric of a row.
struct Number {
    what: &'static str,
    unit: &'static str,
    /// True if larger values are better.
    larger_is_better: bool,
    value: fn(&Pool) -> f64,
    /// Names of the latencies and of their bounds, and the quantile.
    latency: Option<(&'static str, &'static str, f64)>,
    baseline: f64,
}

impl Number {
    fn bound_ratio(&self, pool: &Pool) -> Option<f64> {
        let (latencies, least, share) = self.latency?;
        Some(bound::ratio(pool.values_named(latencies), pool.values_named(least), share))
    }
}

/// Judged metrics of a row.
fn numbers(row: &Row, base: &Baseline) -> Vec<Number> {
    let latency = |what, value, latency, baseline| {
        let (unit, larger_is_better, latency) = ("ms", false, Some(latency));
        Number { what, unit, larger_is_better, value, latency, baseline }
    };
    let plain = |what, value, baseline| Number {
        what,
        unit: "ms",
        larger_is_better: false,
        value,
        latency: None,
        baseline,
    };
    let goodput = |baseline| Number {
        what: "goodput",
        unit: "Mbit/s",
        larger_is_better: true,
        value: |pool| pool.median("goodput_mbit_per_s"),
        latency: None,
        baseline,
    };
    match row.measure {
        Measure::Answers => vec![latency(
            "p99",
            |pool| pool.quantile("answer_ms", 0.99),
            ("answer_ms", "answer_least_ms", 0.99),
            base.echo_p99_ms,
        )],
        Measure::Blocks => {
            let names = |share| ("block_ms", "block_least_ms", share);
            let p50: fn(&Pool) -> f64 = |pool| pool.quantile("block_ms", 0.5);
            let p99: fn(&Pool) -> f64 = |pool| pool.quantile("block_ms", 0.99);
            vec![
                latency("p50", p50, names(0.5), base.blocks_p50_ms),
                latency("p99", p99, names(0.99), base.blocks_p99_ms),
                goodput(base.blocks_goodput_mbit_per_s),
            ]
        }
        Measure::Bursts => {
            let (hit, calm) = match row.key.as_str() {
                "2c-docs" => (base.docs_hit_ms, f64::NAN),
                "2c-maps" => (base.maps_hit_ms, base.maps_calm_ms),
                _ => (base.netflix_hit_ms, base.netflix_calm_ms),
            };
            let hit_names = ("hit_ms", "hit_least_ms", 0.5);
            let mut numbers = vec![latency(
                "the affected burst, median",
                |pool| pool.median("hit_ms"),
                hit_names,
                hit,
            )];
            let calm_names = ("calm_ms", "calm_least_ms", 0.5);
            numbers.push(latency(
                FAILURE_FREE_METRIC,
                |pool| pool.quantile("calm_ms", 0.5),
                calm_names,
                calm,
            ));
            numbers
        }
        Measure::Goodput => {
            let known = base.small_window_goodput_mbit_per_s.get(&row.key);
            vec![goodput(known.copied().unwrap_or(f64::NAN))]
        }
        Measure::Handover => vec![
            plain("longest gap, median", |pool| pool.median("gap_ms"), base.handover_gap_ms),
            plain("worst delay, median", |pool| pool.median("worst_ms"), base.handover_worst_ms),
        ],
    }
}

/// Metric of a burst without a failure.
const FAILURE_FREE_METRIC: &str = "without failures, median";

/// One line of the verdicts.
fn line(row: &Row, by: &BTreeMap<Contestant, Pool>, number: &Number, who: Contestant) -> Line {
    let none = Pool::default();
    let pool = |who: Contestant| by.get(&who).unwrap_or(&none);
    let (ours, kernel) = ((number.value)(pool(who)), (number.value)(pool(Contestant::Kernel)));
    let title = match who {
        Contestant::Best => row.best.name.clone(),
        _ => "default".to_owned(),
    };
    let mut line = Line::new(format!("{}, {}: {title}", row.title, number.what))
        .paper(kernel, number.unit)
        .measured(ours, number.unit)
        .with_remark(format!("{:.2} times the kernel's", ours / kernel));
    if let Some(ratio) = number.bound_ratio(pool(who)) {
        line = line.bound_ratio(ratio);
    }
    line
}

/// Adds the requirements to a line: better than the kernel's Multipath TCP and, without a failure, close to the fast
/// path alone. A one-packet message without a failure takes the same time with every stack.
fn judge_row(
    line: Line,
    row: &Row,
    by: &BTreeMap<Contestant, Pool>,
    number: &Number,
    calm: f64,
) -> Line {
    let none = Pool::default();
    let of = |who| (number.value)(by.get(&who).unwrap_or(&none));
    let (kernel, alone) = (of(Contestant::Kernel), of(Contestant::FirstPath));
    let line = match (number.what == FAILURE_FREE_METRIC, number.larger_is_better) {
        (true, _) => line.at_most(calm * alone),
        (false, true) => line.at_least(kernel),
        (false, false) => line.at_most(kernel),
    };
    if number.what == FAILURE_FREE_METRIC && row.key != "2c-docs" {
        line.at_most(kernel)
    } else {
        line
    }
}

impl Paper for Kernel {
    fn key(&self) -> &'static str {
        "kernel"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn is_virtual_time(&self) -> bool {
        false
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Baseline>::parse(TEXT)?;
        let calm = file.tolerance("calm")?;
        let mut chosen = Vec::new();
        for mut row in rows(Extent::Full) {
            if let Some((_, full)) = ROWS.iter().find(|(key, _)| *key == row.key) {
                row.repeats = context.runs(*full) as u32;
                chosen.push(row);
            }
        }
        let bench = Bench::open(&context.results.join("runs"), false)?;
        let instance = format!("kern-{}", std::process::id());
        bench.run_all(&chosen, context.jobs as u32, &instance, &|(done, of), made| {
            (context.progress)(&format!("{} {}", made.row.key, made.contestant), done, of);
        })?;
        let pools = read_pools(&bench, &chosen);
        let mut verdicts = [Vec::new(), Vec::new()];
        let mut all = Grid::new("all", "all contestants, in the same run", &GRID);
        for (row, by) in &pools {
            if row.key == "2d-alone" {
                fill(&mut all, row, by, &numbers(row, &file.published));
                continue;
            }
            let numbers = numbers(row, &file.published);
            for number in &numbers {
                let both = [Contestant::Marline, Contestant::Best];
                for (lines, who) in verdicts.iter_mut().zip(both) {
                    if by.contains_key(&who) {
                        let line = line(row, by, number, who);
                        lines.push(judge_row(line, row, by, number, calm));
                    }
                }
            }
            fill(&mut all, row, by, &numbers);
        }
        let figure = relative_figure(&pools, &file.published);
        let [default, best] = verdicts;
        let doubtful: usize =
            pools.iter().flat_map(|(_, by)| by.values()).map(|pool| pool.runs().1).sum();
        let runs: usize =
            pools.iter().flat_map(|(_, by)| by.values()).map(|pool| pool.runs().0).sum();
        let notes = vec![
            format!(
                "Kernel {}, CUBIC. The \"paper\" column shows its Multipath TCP.",
                provenance::kernel_release()
            ),
            format!(
                "{runs} runs, {doubtful} of them unreliable (the emulated links were late in all three attempts)."
            ),
        ];
        Ok(Reproduction {
            tables: vec![
                Table::new("default", "Marline, default settings", default),
                Table::new("best", "the best policies for the row", best),
            ],
            grids: vec![all],
            figures: vec![figure],
            notes,
        })
    }
}

/// Every latency relative to that of the kernel's Multipath TCP.
fn relative_figure(pools: &Pools<'_>, base: &Baseline) -> Figure {
    let who = [Contestant::FirstPath, Contestant::Marline, Contestant::Best];
    let names = ["kernel TCP on the fast path (working)", "Marline", "Marline, best policies"];
    let title = "Latency compared with the kernel's Multipath TCP";
    let mut bars =
        Bars::new(title, "latency relative to the kernel's", &names).add_line(1.0, "kernel MPTCP");
    for (row, by) in pools {
        for number in numbers(row, base).iter().filter(|number| !number.larger_is_better) {
            let of = |who| by.get(&who).map_or(f64::NAN, |pool| (number.value)(pool));
            let kernel = of(Contestant::Kernel);
            let name = match number.what.split_once(',') {
                Some((what, _)) => format!("{} {what}", row.key),
                None => format!("{} {}", row.key, number.what),
            };
            bars = bars.group(&name, &who.map(|who| (of(who) / kernel, None)));
        }
    }
    let caption = "Lower is better. 2a: echo under loss, 99th percentile; 2b: blocks over WiFi and 3G; 2c: bursts, \
                   WiFi dies in one of them; 2e: handover to a backup.";
    bars.figure("relative", caption)
}

/// Columns of the table with all contestants.
const GRID: [(&str, &str); 8] = [
    ("row", ""),
    ("measure", ""),
    ("who", ""),
    ("runs", ""),
    ("value", ""),
    ("ratio to kernel MPTCP", ""),
    ("ratio to bound", ""),
    ("kernel MPTCP, previous run", ""),
];

fn fill(grid: &mut Grid, row: &Row, by: &BTreeMap<Contestant, Pool>, numbers: &[Number]) {
    let none = Pool::default();
    let pool = |who: Contestant| by.get(&who).unwrap_or(&none);
    let told = |value: f64| if value.is_nan() { "-".to_owned() } else { number(value) };
    for one in numbers {
        let kernel = (one.value)(pool(Contestant::Kernel));
        for (who, pool) in by {
            let value = (one.value)(pool);
            if value.is_nan() {
                continue;
            }
            let (runs, doubtful, failed) = pool.runs();
            let mut count = runs.to_string();
            for (more, what) in [(doubtful, "unreliable"), (failed, "failed")] {
                if more > 0 {
                    count.push_str(&format!(" ({more} {what})"));
                }
            }
            let bound = one.bound_ratio(pool).map_or("-".to_owned(), told);
            let cells = [
                row.title.clone(),
                one.what.to_owned(),
                row.title_of(*who),
                count,
                Value::new(value, one.unit).to_string(),
                told(value / kernel),
                bound,
                told(one.baseline),
            ];
            grid.rows.push(cells.into_iter().map(Value::Text).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_one_of_the_comparison_and_has_a_baseline() {
        let file = PaperFile::<Baseline>::parse(TEXT).expect("file");
        let rows = rows(Extent::Full);
        for (key, _) in ROWS {
            let row = rows.iter().find(|row| row.key == key).expect(key);
            let numbers = numbers(row, &file.published);
            assert!(!numbers.is_empty(), "{key}");
            let known = numbers.iter().all(|number| !number.baseline.is_nan());
            assert!(known || matches!(key, "2c-docs" | "2d-alone"), "{key}");
        }
    }
}
