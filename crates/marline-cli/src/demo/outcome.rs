//! Results of the demo: table, failures, JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::application::{Download, EchoResult};
use super::columns::wrap_line;
use super::plan::Setup;
use crate::path_table::{align, bytes};

/// Results of one compared variant.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The compared variant.
    pub way: Setup,
    /// Result of the echo.
    pub echo: EchoResult,
    /// Result of the download.
    pub file: Download,
    /// Bytes the WiFi-like link delivered, both directions.
    pub wifi_bytes: u64,
    /// Bytes the LTE-like link delivered, both directions.
    pub lte_bytes: u64,
}

/// Percentiles of the echo's latency. A missing answer counts as later than all others.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Latency {
    /// Median; `None` if it was not answered.
    pub p50: Option<Duration>,
    /// 95th percentile.
    pub p95: Option<Duration>,
    /// 99th percentile.
    pub p99: Option<Duration>,
    /// Largest.
    pub max: Option<Duration>,
    /// Messages without an answer.
    pub unanswered: usize,
}

impl Latency {
    /// Computes the percentiles of these latencies.
    #[must_use]
    pub fn from_samples(latencies: &[Option<Duration>]) -> Latency {
        let mut sorted = latencies.to_vec();
        sorted.sort_by_key(|latency| latency.unwrap_or(Duration::MAX));
        // Smallest value that at least the given share of the values does not exceed.
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().flatten()
        };
        let unanswered = latencies.iter().filter(|latency| latency.is_none()).count();
        Latency { p50: at(50), p95: at(95), p99: at(99), max: at(100), unanswered }
    }
}

impl Outcome {
    fn row(&self) -> [String; 9] {
        let latency = Latency::from_samples(&self.echo.latencies);
        let cell = |value: Option<Duration>| value.map_or_else(|| "never".to_owned(), millis);
        let link = |has: bool, count: u64| if has { bytes(count) } else { "-".to_owned() };
        [
            self.way.name.to_owned(),
            cell(latency.p50),
            cell(latency.p95),
            cell(latency.p99),
            cell(latency.max),
            millis(self.echo.longest_pause),
            link(self.way.wifi, self.wifi_bytes),
            link(self.way.lte, self.lte_bytes),
            self.file_cell(),
        ]
    }

    fn file_cell(&self) -> String {
        let took_s = self.file.took.as_secs_f64();
        match (&self.file.sha256, self.file.intact) {
            (Some(_), true) => format!("{took_s:.1} s ok"),
            (Some(_), false) => "WRONG".to_owned(),
            (None, _) => "incomplete".to_owned(),
        }
    }

    /// Returns the results that do not fit in the table's row.
    fn remarks(&self) -> Vec<String> {
        let name = self.way.name;
        let mut remarks = Vec::new();
        let unanswered = Latency::from_samples(&self.echo.latencies).unanswered;
        if unanswered > 0 {
            remarks.push(format!("{name}: {unanswered} echoes unanswered"));
        }
        if self.file.sha256.is_none() {
            remarks.push(format!("{name}: received {} of the file", bytes(self.file.bytes)));
        }
        let errors = [&self.echo.error, &self.file.error].into_iter().flatten();
        remarks.extend(errors.map(|error| format!("{name}: {error}")));
        remarks
    }
}

/// Returns the table, followed by errors as text. No line is longer than [`COLUMNS`](super::columns::COLUMNS).
#[must_use]
pub fn table(outcomes: &[Outcome]) -> String {
    let header = ["echo, ms", "p50", "p95", "p99", "max", "pause", "WiFi", "LTE", "file"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(outcomes.iter().map(Outcome::row));
    let mut text = align(&rows, &[0]);
    for remark in outcomes.iter().flat_map(Outcome::remarks) {
        text.push_str(&wrap_line(&remark));
    }
    text
}

/// Returns the reasons why the demo failed; empty on success. A single path that stalls while its link is down is
/// expected, not a failure.
#[must_use]
pub fn failures(outcomes: &[Outcome]) -> Vec<String> {
    let mut failures = Vec::new();
    let hole = |o: &Outcome| o.echo.longest_pause;
    let worst_single = outcomes.iter().filter(|o| !o.way.is_multipath()).map(hole).max();
    for outcome in outcomes {
        let name = outcome.way.name;
        if outcome.file.sha256.is_some() && !outcome.file.intact {
            failures.push(format!("{name}: the file's hash is wrong"));
        }
        if !outcome.way.is_multipath() {
            continue;
        }
        if outcome.file.sha256.is_none() {
            failures.push(format!("{name}: the file is incomplete"));
        }
        if worst_single.is_some_and(|worst| hole(outcome) > worst) {
            failures.push(format!(
                "{name}: its longest pause is longer than those of both single paths"
            ));
        }
    }
    failures
}

/// Returns a warning about a long pause on LTE alone. Its link does not fail, so the cause is a busy machine or the
/// chosen link.
#[must_use]
pub fn describe_unreliable_run(outcomes: &[Outcome]) -> Option<String> {
    const LONG_PAUSE: Duration = Duration::from_secs(1);
    let lte = outcomes.iter().find(|outcome| outcome.way.lte && !outcome.way.wifi)?;
    let pause = lte.echo.longest_pause;
    (pause > LONG_PAUSE).then(|| {
        format!(
            "WARNING: unreliable results: {} paused for {:.1} s although its link did not fail, so this \
             machine was probably busy",
            lte.way.name,
            pause.as_secs_f64()
        )
    })
}

/// Returns the result of one variant as JSON.
#[must_use]
pub fn to_json(outcome: &Outcome) -> Value {
    let latency = Latency::from_samples(&outcome.echo.latencies);
    let ms = |value: Option<Duration>| value.map(|value| value.as_secs_f64() * 1e3);
    let all: Vec<Option<f64>> = outcome.echo.latencies.iter().map(|value| ms(*value)).collect();
    json!({
        "name": outcome.way.name,
        "scheduler": outcome.way.scheduler,
        "echo": {
            "p50_ms": ms(latency.p50),
            "p95_ms": ms(latency.p95),
            "p99_ms": ms(latency.p99),
            "max_ms": ms(latency.max),
            "unanswered": latency.unanswered,
            "longest_hole_ms": ms(Some(outcome.echo.longest_pause)),
            "latencies_ms": all,
            "error": outcome.echo.error,
        },
        "wifi_bytes": outcome.wifi_bytes,
        "lte_bytes": outcome.lte_bytes,
        "file": {
            "bytes": outcome.file.bytes,
            "took_s": outcome.file.took.as_secs_f64(),
            "sha256": outcome.file.sha256,
            "intact": outcome.file.intact,
            "error": outcome.file.error,
        },
    })
}

fn millis(value: Duration) -> String {
    let ms = value.as_secs_f64() * 1e3;
    if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}
