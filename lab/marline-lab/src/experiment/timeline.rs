//! Time lines of a simulated run: samples of every subflow, and the copies of each message.
//!
//! *Problem.* A latency shows that a message was late but not why: which path was chosen, what its window and forecast
//! were, whether a copy was sent on another path, and which copy arrived first.
//!
//! *How.* The subflows of both ends are sampled at a fixed interval and whenever the core reports a change (a subflow
//! that opens, closes, falls silent or responds again), between events of the simulation. Segments are recorded when
//! they leave a host and when they arrive. Neither adds an event, draws a random number or wakes a host, so runs with
//! and without time lines are identical bit for bit.
//!
//! *Limits.* Each kind has at most [`TimelineConfig::max_rows`] rows; later rows are only counted. Repairs by coding
//! and data with a SYN do not count as copies: a message that they completed has no winning copy. Behind a middlebox
//! that splits segments, a copy counts as arrived with its first piece; a copy that was merged into another never
//! counts as arrived.

mod copies;
mod samples;

use std::time::Duration;

use marline_sim::Paths;
use marline_time::Instant;

use super::{Experiment, START, Variant};
use crate::results::Table;
use copies::Copies;
use samples::Samples;

/// Settings of time lines.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TimelineConfig {
    /// Interval of the samples, at least [`TimelineConfig::MIN_INTERVAL`].
    pub interval: Duration,
    /// Maximum number of rows of samples, and of copies.
    pub max_rows: usize,
}

impl TimelineConfig {
    /// The minimum interval: ten microseconds.
    pub const MIN_INTERVAL: Duration = Duration::from_micros(10);
    /// Default limit on the rows of each kind.
    pub const MAX_ROWS: usize = 500_000;

    /// Creates settings with this interval.
    ///
    /// # Errors
    /// The interval is shorter than [`TimelineConfig::MIN_INTERVAL`].
    pub fn with_interval(interval: Duration) -> anyhow::Result<TimelineConfig> {
        let least = TimelineConfig::MIN_INTERVAL;
        anyhow::ensure!(
            interval >= least,
            "sample interval {interval:?}: must be at least {least:?}"
        );
        Ok(TimelineConfig { interval, ..TimelineConfig::default() })
    }
}

impl Default for TimelineConfig {
    /// One sample per ten milliseconds.
    fn default() -> Self {
        TimelineConfig { interval: Duration::from_millis(10), max_rows: TimelineConfig::MAX_ROWS }
    }
}

/// Time lines of a run, excluding the columns that identify the run. Times count from the start of the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Samples in order of time.
    pub subflows: Table,
    /// Copies by message, in the order of sending.
    pub copies: Table,
    /// Number of samples beyond the limit.
    pub subflows_left_out: u64,
    /// Number of copies beyond the limit.
    pub copies_left_out: u64,
}

impl Timeline {
    /// Empty time lines with all columns.
    #[must_use]
    pub fn empty() -> Timeline {
        let (subflows, copies) = (samples::table(), copies::table());
        Timeline { subflows, copies, subflows_left_out: 0, copies_left_out: 0 }
    }
}

/// Records time lines during a run.
#[derive(Debug)]
pub(super) struct Recorder {
    samples: Samples,
}

impl Recorder {
    /// Starts recording a staged run.
    pub(super) fn begin(
        paths: &mut Paths,
        experiment: &Experiment,
        variant: &Variant,
        seed: u64,
        config: TimelineConfig,
    ) -> anyhow::Result<Recorder> {
        TimelineConfig::with_interval(config.interval)?;
        let used = experiment.used_paths(variant)?;
        let names: Vec<String> = used.iter().map(|path| path.name.clone()).collect();
        let copies = Copies::new(paths, experiment.workload(), seed, config.max_rows);
        paths.world.observe(Box::new(copies));
        Ok(Recorder { samples: Samples::new(paths, names, config) })
    }

    /// Advances the run.
    pub(super) fn run_until(&mut self, paths: &mut Paths, until: Instant) {
        let samples = &mut self.samples;
        paths.world.run_until_watched(until, |world, next| samples.look(world, next));
    }

    /// Returns the time lines.
    pub(super) fn finish(mut self, paths: &Paths) -> Timeline {
        self.samples.last(&paths.world);
        let (client, server) = (paths.client_report(0), paths.server_report(0));
        let (mut copies, mut copies_left_out) = match paths.world.observer::<Copies>() {
            Some(copies) => (copies.rows(self.samples.names(), client, server), copies.left_out()),
            None => (copies::table(), 0),
        };
        // Messages without a copy also have a row.
        let max_rows = self.samples.max_rows();
        copies_left_out += copies.rows().saturating_sub(max_rows) as u64;
        copies.truncate(max_rows);
        let (subflows, subflows_left_out) = self.samples.into_rows();
        Timeline { subflows, copies, subflows_left_out, copies_left_out }
    }
}

/// A time after the start of the workload in microseconds.
fn after_start_us(at: Instant) -> i64 {
    let micros = |at: Instant| (at.as_nanos() / 1_000) as i64;
    micros(at) - micros(START)
}

#[cfg(test)]
mod tests;
