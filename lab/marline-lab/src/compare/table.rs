//! Table of the comparison: the results of every variant, and the claims that Marline meets or misses.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use marline_sim::{median, quantile};

use super::contestant::Contestant;
use super::row::{Measure, Row};
use super::session::{Bench, Sample};
use crate::provenance;

mod claims;

pub use claims::Claim;

/// The report in Markdown, with its claims.
#[derive(Clone, Debug)]
pub struct Report {
    /// The report in Markdown: the judged rows, then every measurement of each row.
    pub markdown: String,
    /// Only the judged rows, in Markdown.
    pub judged: String,
    /// The claims.
    pub claims: Vec<Claim>,
}

/// All runs of one variant in one row.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    values: BTreeMap<String, Vec<f64>>,
    wire_bytes: Vec<f64>,
    runs: usize,
    doubtful: usize,
    failed: Vec<String>,
}

/// Rows with their measurements.
pub type Pools<'a> = Vec<(&'a Row, BTreeMap<Contestant, Pool>)>;

impl Pool {
    fn add(&mut self, sample: Sample) {
        if let Some(error) = sample.error {
            self.failed.push(error);
            return;
        }
        self.runs += 1;
        self.doubtful += usize::from(!sample.doubts.is_empty());
        self.wire_bytes.push(sample.wire_bytes as f64);
        for (name, values) in sample.values {
            self.values.entry(name).or_default().extend(values);
        }
    }

    /// All values of this name.
    #[must_use]
    pub fn values_named(&self, name: &str) -> &[f64] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// A quantile of these values, from 0 to 1; NaN without values.
    #[must_use]
    pub fn quantile(&self, name: &str, q: f64) -> f64 {
        quantile(self.values_named(name), q)
    }

    /// Numbers of runs, of unreliable runs, and of failed runs.
    #[must_use]
    pub fn runs(&self) -> (usize, usize, usize) {
        (self.runs, self.doubtful, self.failed.len())
    }

    /// Median of these values.
    #[must_use]
    pub fn median(&self, name: &str) -> f64 {
        median(self.values_named(name))
    }

    /// Median, minimum and maximum.
    fn format_spread(&self, name: &str) -> String {
        let values = self.values_named(name);
        if values.is_empty() {
            return "-".to_owned();
        }
        let (least, most) = (quantile(values, 0.0), quantile(values, 1.0));
        format!("{} ({}-{})", number(median(values)), number(least), number(most))
    }
}

/// A number with three significant digits.
pub(super) fn number(value: f64) -> String {
    match value {
        v if v.is_nan() => "-".to_owned(),
        v if v.abs() >= 100.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Reads the stored results of these rows.
#[must_use]
pub fn read_pools<'a>(bench: &Bench, rows: &'a [Row]) -> Pools<'a> {
    let mut pools: Pools<'_> = Vec::new();
    for row in rows {
        let mut by = BTreeMap::new();
        for contestant in &row.contestants {
            let pool: &mut Pool = by.entry(*contestant).or_default();
            for repeat in 0..row.run_count(*contestant) {
                if let Some(sample) = bench.latest(row, *contestant, repeat) {
                    pool.add(sample);
                }
            }
        }
        pools.push((row, by));
    }
    pools
}

/// Makes the table of the stored results.
#[must_use]
pub fn report(bench: &Bench, rows: &[Row]) -> Report {
    let pools = read_pools(bench, rows);
    let claims = claims::claims(&pools);
    let judged = claims::table(&claims);
    let mut markdown = judged.clone();
    for measure in
        [Measure::Answers, Measure::Blocks, Measure::Bursts, Measure::Handover, Measure::Goodput]
    {
        let these: Vec<_> = pools.iter().filter(|(row, _)| row.measure == measure).collect();
        if !these.is_empty() {
            markdown.push_str(&details(measure, &these));
        }
    }
    let kernel = format!("\nKernel {}, cubic.\n", provenance::kernel_release());
    markdown.push_str(&kernel);
    Report { markdown, judged: judged + &kernel, claims }
}

fn columns(measure: Measure) -> &'static [&'static str] {
    match measure {
        Measure::Answers => &["answers", "p50", "p95", "p99", "worst"],
        Measure::Blocks => &["blocks", "p50", "p95", "p99", "worst", "goodput"],
        Measure::Bursts => &["calm p50", "calm worst", "hit", "second", "later p50"],
        Measure::Handover => &["longest gap", "worst delay", "p50"],
        Measure::Goodput => &["goodput"],
    }
}

const fn unit(measure: Measure) -> &'static str {
    match measure {
        Measure::Answers => "ms from request to answer",
        Measure::Blocks => "ms from write to read; Mbit/s",
        Measure::Bursts => "ms from the start of writing to the end of reading; median (range)",
        Measure::Handover => "ms; median (range)",
        Measure::Goodput => "Mbit/s; median (range)",
    }
}

fn cells(measure: Measure, pool: &Pool) -> Vec<String> {
    let four = |name: &str| {
        let quantiles = [0.5, 0.95, 0.99, 1.0].map(|q| number(pool.quantile(name, q)));
        let count = pool.values_named(name).len().to_string();
        std::iter::once(count).chain(quantiles).collect::<Vec<_>>()
    };
    match measure {
        Measure::Answers => four("answer_ms"),
        Measure::Blocks => {
            let mut cells = four("block_ms");
            cells.push(number(pool.median("goodput_mbit_per_s")));
            cells
        }
        Measure::Bursts => vec![
            number(pool.quantile("calm_ms", 0.5)),
            number(pool.quantile("calm_ms", 1.0)),
            pool.format_spread("hit_ms"),
            pool.format_spread("second_ms"),
            number(pool.quantile("later_ms", 0.5)),
        ],
        Measure::Handover => vec![
            pool.format_spread("gap_ms"),
            pool.format_spread("worst_ms"),
            number(pool.quantile("answer_ms", 0.5)),
        ],
        Measure::Goodput => vec![pool.format_spread("goodput_mbit_per_s")],
    }
}

fn details(measure: Measure, rows: &[&(&Row, BTreeMap<Contestant, Pool>)]) -> String {
    let names = columns(measure);
    let mut text = format!(
        "\n| {} | | runs | {} | bytes on the links, per run |\n|---|---|---|{}---|\n",
        unit(measure),
        names.join(" | "),
        "---|".repeat(names.len()),
    );
    for (row, pools) in rows {
        for (number_in_row, (contestant, pool)) in pools.iter().enumerate() {
            let title = if number_in_row == 0 {
                format!("{}: {}", row.key, row.title)
            } else {
                String::new()
            };
            let mut runs = pool.runs.to_string();
            if pool.doubtful > 0 {
                let _ = write!(runs, " ({} unreliable)", pool.doubtful);
            }
            if !pool.failed.is_empty() {
                let _ = write!(runs, " ({} failed)", pool.failed.len());
            }
            let bytes = median(&pool.wire_bytes);
            let bytes = if bytes.is_nan() { "-".into() } else { format!("{:.0} kB", bytes / 1e3) };
            let cells = cells(measure, pool).join(" | ");
            let who = row.title_of(*contestant);
            let _ = writeln!(text, "| {title} | {who} | {runs} | {cells} | {bytes} |");
            if *contestant == Contestant::Duplicate {
                text.push_str(&per_connection_rows(pool, names.len()));
            }
        }
    }
    text
}

/// Results of each of two connections with the same traffic.
fn per_connection_rows(pool: &Pool, columns: usize) -> String {
    let mut text = String::new();
    for (name, title) in [
        ("first_path_ms", "duplicate, first path alone"),
        ("second_path_ms", "duplicate, second path alone"),
    ] {
        let mut cells = vec![pool.values_named(name).len().to_string()];
        cells.extend([0.5, 0.95, 0.99, 1.0].map(|q| number(pool.quantile(name, q))));
        cells.truncate(columns);
        let _ = writeln!(text, "| | {title} | | {} | |", cells.join(" | "));
    }
    text
}
