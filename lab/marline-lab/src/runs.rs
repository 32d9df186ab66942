//! Series of runs of an experiment: their order, storage and results.
//!
//! A run is identified by the hash of everything that determines it: experiment, stack, variant, seed, and the
//! program (for the kernel's stacks: the kernel). Results are stored under that hash, so an interrupted series can be
//! resumed, and two series share common runs. Results are in the order of the plan, regardless of the order of
//! completion.

mod captures;
mod comparison;
mod figures;
mod measurements;
mod qlogs;
mod queue;
mod real_time;
mod record;
mod repetition;
mod shard;
mod store;
mod stored_runs;
mod summary;
mod sweep;
mod temporary_tables;
#[cfg(test)]
mod tests;
mod timelines;

use anyhow::{Context, ensure};

use crate::experiment::file::Lane;
use crate::experiment::{
    Experiment, RecordingOptions, RunRecords, Stack, run_live_recorded, simulate, weight,
};

pub use captures::{CaptureFiles, Captures};
pub use comparison::{ComparedMeasure, Comparison, Outcome, Selection};
pub use figures::Figures;
pub use measurements::{MIN_RUNS, Measure, Measurements};
pub use qlogs::{QlogFiles, Qlogs};
pub use queue::run_weighted;
pub use real_time::RealTimeFiles;
pub use record::{PathBytes, RadioJoules, Record, Statistics};
pub use shard::Shard;
pub use store::Store;
pub use stored_runs::{StoredLane, StoredRuns};
pub use summary::{Agreement, LaneSummary, Summary};
pub use sweep::{PointSummary, Seeds, Sweep, SweepSummary};
pub use timelines::{Timelines, WrittenSizes};

/// Number of half processors that one simulation keeps busy.
const SIMULATION_WEIGHT: u32 = 2;
/// Maximum number of attempts at a run with late links.
const MAX_ATTEMPTS: u32 = 3;

/// One planned run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Values of a sweep.
    pub point: Vec<(String, String)>,
    /// Experiment.
    pub experiment: Experiment,
    /// Stack and variant.
    pub lane: Lane,
    /// Seed.
    pub seed: u64,
}

impl Job {
    /// Plans runs of all lanes with `seeds` seeds, starting with the experiment's own.
    #[must_use]
    pub fn series(experiment: &Experiment, lanes: &[Lane], seeds: u32) -> Vec<Job> {
        let first = experiment.scenario.seed;
        Job::with_seeds(experiment, lanes, (0..seeds).map(|number| first + u64::from(number)))
    }

    /// Plans runs of all lanes with these seeds: all seeds of the first lane, then those of the next.
    #[must_use]
    pub fn with_seeds(
        experiment: &Experiment,
        lanes: &[Lane],
        seeds: impl Iterator<Item = u64> + Clone,
    ) -> Vec<Job> {
        let job = |lane: &Lane, seed: u64| {
            let mut experiment = experiment.clone();
            experiment.scenario.seed = seed;
            Job { point: Vec::new(), experiment, lane: lane.clone(), seed }
        };
        lanes.iter().flat_map(|lane| seeds.clone().map(move |seed| job(lane, seed))).collect()
    }

    /// Estimated duration in seconds, for showing the progress of a series.
    #[must_use]
    pub fn cost_s(&self) -> f64 {
        // Connecting and closing also take time. A simulation is about fifty times as fast.
        let lasts = self.experiment.duration(self.seed).as_secs_f64();
        if self.lane.stack.is_real_time() { lasts + 5.0 } else { lasts / 50.0 + 0.02 }
    }

    fn weight(&self) -> u32 {
        match self.lane.stack {
            Stack::Sim => SIMULATION_WEIGHT,
            _ => weight(&self.experiment),
        }
    }

    /// Makes the run, and repeats it if its links were late. Captures and traces are those of the last attempt.
    fn run(&self, instance: &str, watch: &RecordingOptions) -> (Record, RunRecords) {
        let (experiment, stack, variant) = (&self.experiment, self.lane.stack, &self.lane.variant);
        let mut last = (Record::default(), RunRecords::default());
        for _ in 0..MAX_ATTEMPTS {
            let made = match stack {
                Stack::Sim => simulate(experiment, variant, self.seed)
                    .map(|outcome| (outcome, RunRecords::default())),
                _ => run_live_recorded(experiment, stack, variant, self.seed, instance, watch),
            };
            let looked_at = made.and_then(|(outcome, seen)| {
                Ok((Record::from_outcome(experiment, &outcome)?, seen))
            });
            last = looked_at.unwrap_or_else(|error| {
                (Record::failed(format!("{error:#}")), RunRecords::default())
            });
            if last.0.doubts.is_empty() || last.0.error.is_some() {
                break;
            }
        }
        last
    }
}

/// Options for running a series.
#[derive(Debug)]
pub struct Series<'a> {
    /// Store of the runs. Stored runs are not repeated.
    pub store: &'a Store,
    /// Number of processors.
    pub jobs: usize,
    /// Instance name, which distinguishes the namespaces of this series from others on the machine.
    pub instance: String,
    /// Captures and traces of runs in real time.
    pub files: Option<RealTimeFiles>,
}

/// Creates a directory of run files, if necessary.
fn create_directory(directory: &std::path::Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())
}

impl Series<'_> {
    /// The stored record of a run.
    fn stored_record(&self, job: &Job) -> Option<Record> {
        let lacking = self.files.as_ref().is_some_and(|files| files.lacks_files(job));
        if lacking { None } else { self.store.read(job) }
    }

    /// Makes the missing runs and returns all runs in order. `progress` is called after every run with the completed
    /// part of the cost, the total cost, and the run.
    ///
    /// # Errors
    /// Real time was requested without the necessary permissions, or a result cannot be stored.
    pub fn run(
        &self,
        jobs: &[Job],
        progress: &(dyn Fn(&Progress<'_>) + Sync),
    ) -> anyhow::Result<Vec<Record>> {
        let mut records: Vec<Option<Record>> = Vec::new();
        for job in jobs {
            records.push(self.stored_record(job));
        }
        let missing: Vec<(usize, &Job)> =
            jobs.iter().enumerate().filter(|(at, _)| records[*at].is_none()).collect();
        if missing.iter().any(|(_, job)| job.lane.stack.is_real_time()) {
            check_real_time()?;
        }
        // Runs in virtual time come first, so that they do not take processors from runs in real time.
        for real_time in [false, true] {
            let now: Vec<(usize, &Job)> = missing
                .iter()
                .copied()
                .filter(|(_, job)| job.lane.stack.is_real_time() == real_time)
                .collect();
            let run = |(at, job): &(usize, &Job), worker: u32| {
                let watch = self
                    .files
                    .as_ref()
                    .map_or_else(RecordingOptions::default, |files| files.watch(job));
                let (record, watched) = job.run(&format!("{}-{worker}", self.instance), &watch);
                let put =
                    self.files.as_ref().map_or(Ok(()), |files| files.write_files(job, &watched));
                let kept = put.and_then(|()| self.store.save(job, &record));
                progress(&Progress { job, record: &record });
                kept.map(|()| (*at, record))
            };
            let halves = 2 * self.jobs.max(1) as u32;
            for done in run_weighted(halves, &now, |(_, job)| job.weight(), run) {
                let (at, record) = done?;
                records[at] = Some(record);
            }
        }
        let records: Option<Vec<Record>> = records.into_iter().collect();
        records.context("a run is missing")
    }

    /// The jobs that have not been run yet.
    #[must_use]
    pub fn missing_jobs<'a>(&self, jobs: &'a [Job]) -> Vec<&'a Job> {
        jobs.iter().filter(|job| self.stored_record(job).is_none()).collect()
    }
}

/// A completed run.
#[derive(Copy, Clone, Debug)]
pub struct Progress<'a> {
    /// Job.
    pub job: &'a Job,
    /// Record.
    pub record: &'a Record,
}

/// Checks the permissions for runs in real time, and removes the remains of killed runs.
pub(crate) fn check_real_time() -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the stacks live, tcp, mptcp and duplicate run real programs in network namespaces, which \
            needs root: use sudo, or virtual time (`--stack sim`)"
    );
    let swept = crate::net::remove_remains();
    if !swept.is_empty() {
        eprintln!("removed remains of earlier runs: {}", swept.join(", "));
    }
    Ok(())
}
