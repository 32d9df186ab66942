//! Progress bar for a series of runs.

use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use marline_lab::runs::{Job, Progress, Series};

/// Units of the bar per second of estimated run time.
const MS: f64 = 1e3;

/// Cost of the runs of a series.
#[derive(Debug, Default)]
pub(crate) struct SeriesWork {
    runs: usize,
    missing: usize,
    cost_s: f64,
}

impl SeriesWork {
    /// Adds jobs of a series.
    pub(crate) fn add(&mut self, series: &Series<'_>, jobs: &[Job]) {
        let missing = series.missing_jobs(jobs);
        self.runs += jobs.len();
        self.missing += missing.len();
        self.cost_s += missing.iter().map(|job| job.cost_s()).sum::<f64>();
    }

    /// Prints the number of stored runs, and draws the bar.
    pub(crate) fn begin(self) -> Bar {
        let there = self.runs - self.missing;
        if there > 0 {
            eprintln!("{there} of {} runs already exist", self.runs);
        }
        Bar { bar: bar(self.cost_s), total: self.missing, state: Mutex::default() }
    }
}

/// Progress bar.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    total: usize,
    state: Mutex<ProgressState>,
}

#[derive(Debug, Default)]
struct ProgressState {
    cost_s: f64,
    runs: usize,
    failed: usize,
}

impl Bar {
    /// Counts a completed run.
    pub(crate) fn record_run(&self, progress: &Progress<'_>) {
        let mut so_far = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        so_far.cost_s += progress.job.cost_s();
        so_far.runs += 1;
        self.bar.set_position((so_far.cost_s * MS) as u64);
        let lane = &progress.job.lane;
        let what = format!("{} {}", lane.stack, lane.variant.name);
        self.bar.set_message(format!("{}/{} {what}", so_far.runs, self.total));
        if let Some(error) = &progress.record.error {
            so_far.failed += 1;
            self.bar.suspend(|| eprintln!("{what} seed {}: {error}", progress.job.seed));
        }
    }

    /// Ends the bar.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Number of failed runs.
    pub(crate) fn failed(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).failed
    }
}

fn bar(cost_s: f64) -> ProgressBar {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new((cost_s * MS) as u64),
        false => ProgressBar::hidden(),
    };
    let style =
        ProgressStyle::with_template("{bar:30} {percent} % {msg}, {elapsed} elapsed, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
