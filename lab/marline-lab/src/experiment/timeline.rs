//! Time lines of a simulated run: samples of every subflow, and where the copies of each message went.
//!
//! *Problem.* A latency says that a message was late, and not why: which path it was given to, what that
//! path's window and forecast were then, whether a copy went elsewhere, and which of them won.
//!
//! *How.* The subflows of both ends are looked at on a grid of time and whenever the core reports a
//! change (a subflow that opens, closes, falls silent or is heard again), between events of the
//! simulation; segments are noted where they leave a host and where they arrive. Neither adds an event,
//! draws a random number or wakes a host, so a run with time lines is the run without, bit for bit.
//!
//! *Limits.* At most [`TimelineConfig::max_rows`] rows of each kind; what comes later is counted and
//! left out. Repairs by coding and data with a SYN are no copies: a message that they completed has
//! none that won. Behind a middlebox that cuts segments, a copy has arrived with its first piece; one
//! that was merged into another has not arrived.

mod copies;
mod samples;

use std::time::Duration;

use marline_sim::Paths;
use marline_time::Instant;

use super::{Experiment, START, Variant};
use crate::results::Table;
use copies::Copies;
use samples::Samples;

/// What is recorded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TimelineConfig {
    /// From one sample of the subflows to the next, from [`TimelineConfig::MIN_INTERVAL`] on.
    pub interval: Duration,
    /// Most rows of samples, and most rows of copies.
    pub max_rows: usize,
}

impl TimelineConfig {
    /// The shortest interval: ten microseconds.
    pub const MIN_INTERVAL: Duration = Duration::from_micros(10);
    /// Rows of each kind that a run may have without a word to the contrary.
    pub const MAX_ROWS: usize = 500_000;

    /// With a sample so often.
    ///
    /// # Errors
    /// That is less than [`TimelineConfig::MIN_INTERVAL`].
    pub fn with_interval(interval: Duration) -> anyhow::Result<TimelineConfig> {
        let least = TimelineConfig::MIN_INTERVAL;
        anyhow::ensure!(
            interval >= least,
            "a sample each {interval:?}: must be at least {least:?}"
        );
        Ok(TimelineConfig { interval, ..TimelineConfig::default() })
    }
}

impl Default for TimelineConfig {
    /// A sample each ten milliseconds.
    fn default() -> Self {
        TimelineConfig { interval: Duration::from_millis(10), max_rows: TimelineConfig::MAX_ROWS }
    }
}

/// Time lines of a run, without the columns that tell runs apart. Times are after the start of the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Samples in the order of time.
    pub subflows: Table,
    /// Copies by message, and of each message in the order of sending.
    pub copies: Table,
    /// Samples that were left out because there were too many.
    pub subflows_left_out: u64,
    /// Copies that were left out because there were too many.
    pub copies_left_out: u64,
}

impl Timeline {
    /// Time lines of nothing: which columns there are.
    #[must_use]
    pub fn empty() -> Timeline {
        let (subflows, copies) = (samples::table(), copies::table());
        Timeline { subflows, copies, subflows_left_out: 0, copies_left_out: 0 }
    }
}

/// Records a run while it goes on.
#[derive(Debug)]
pub(super) struct Recorder {
    samples: Samples,
}

impl Recorder {
    /// For a run that is staged and has not begun.
    pub(super) fn begin(
        paths: &mut Paths,
        (experiment, variant, seed): (&Experiment, &Variant, u64),
        config: TimelineConfig,
    ) -> anyhow::Result<Recorder> {
        TimelineConfig::with_interval(config.interval)?;
        let used = experiment.used(variant)?;
        let names: Vec<String> = used.iter().map(|path| path.name.clone()).collect();
        let copies = Copies::new(paths, &experiment.workload, seed, config.max_rows);
        paths.world.observe(Box::new(copies));
        Ok(Recorder { samples: Samples::new(paths, names, config) })
    }

    /// Runs on until then.
    pub(super) fn run_until(&mut self, paths: &mut Paths, until: Instant) {
        let samples = &mut self.samples;
        paths.world.run_until_watched(until, |world, next| samples.look(world, next));
    }

    /// What was recorded.
    pub(super) fn finish(mut self, paths: &Paths) -> Timeline {
        self.samples.last(&paths.world);
        let reports = (paths.client_report(0), paths.server_report(0));
        let (mut copies, mut copies_left_out) = match paths.world.observer::<Copies>() {
            Some(copies) => (copies.rows(self.samples.names(), reports), copies.left_out()),
            None => (copies::table(), 0),
        };
        // Messages without a copy have a row each as well.
        let max_rows = self.samples.max_rows();
        copies_left_out += copies.rows().saturating_sub(max_rows) as u64;
        copies.truncate(max_rows);
        let (subflows, subflows_left_out) = self.samples.into_rows();
        Timeline { subflows, copies, subflows_left_out, copies_left_out }
    }
}

/// A time after the start of the workload, microseconds.
fn after_start_us(at: Instant) -> i64 {
    let micros = |at: Instant| (at.as_nanos() / 1_000) as i64;
    micros(at) - micros(START)
}

#[cfg(test)]
mod tests;
