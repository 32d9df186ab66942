//! Captures of a series: pcapng files of each simulated run at either end.
//!
//! Runs are made for them again, as for [time lines](super::Timelines).

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use marline_qlog::Vantage;

use super::again::{run_again, simulated};
use super::qlogs::run_name;
use super::{Job, make_directory};
use crate::experiment::{EndCapture, simulate_captured};

/// How captures are written.
#[derive(Copy, Clone, Debug)]
pub struct Captures {
    /// Runs at once, at least 1.
    pub jobs: usize,
    /// Most bytes of a file.
    pub max_bytes: usize,
}

/// What was written.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureFiles {
    /// Files.
    pub files: usize,
    /// Packets there was no room for.
    pub left_out: u64,
    /// Runs there was no room for: a series has files of [`Captures::MAX_RUNS`].
    pub runs_left_out: usize,
}

impl CaptureFiles {
    /// In words what there was no room for, a line each.
    #[must_use]
    pub fn cut(&self) -> Vec<String> {
        let (mib, most) = (Captures::MAX_BYTES >> 20, Captures::MAX_RUNS);
        let packets =
            format!("{} packets are left out of captures: each has {mib} MiB", self.left_out);
        let runs =
            format!("{} runs have no captures: a series has those of {most}", self.runs_left_out);
        let both = [(self.left_out > 0, packets), (self.runs_left_out > 0, runs)];
        both.into_iter().filter(|(is_so, _)| *is_so).map(|(_, text)| text).collect()
    }
}

impl Captures {
    /// Most bytes of a file without a word to the contrary.
    pub const MAX_BYTES: usize = 64 << 20;
    /// Most runs of a series that have files.
    pub const MAX_RUNS: usize = 200;

    /// Writes `VARIANT-SEED-END.pcapng` of the jobs on stack `sim` into a directory. Runs that fail have none. Those in
    /// real time are written while they are made ([`RealTimeFiles`](super::RealTimeFiles)).
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, jobs: &[Job], directory: &Path) -> anyhow::Result<CaptureFiles> {
        self.write_while(jobs, directory, &|| true)
    }

    /// The same for a caller who may change his mind: asked before each few runs, `go_on` says whether to make them.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_while(
        &self,
        jobs: &[Job],
        directory: &Path,
        go_on: &dyn Fn() -> bool,
    ) -> anyhow::Result<CaptureFiles> {
        make_directory(directory)?;
        let mut mine = simulated(jobs);
        let runs_left_out = mine.len().saturating_sub(Captures::MAX_RUNS);
        let mut files = CaptureFiles { runs_left_out, ..CaptureFiles::default() };
        mine.truncate(Captures::MAX_RUNS);
        let run = |job: &Job| {
            simulate_captured(&job.experiment, &job.lane.variant, job.seed, self.max_bytes)
        };
        run_again(self.jobs, &mine, go_on, run, |job, (_, captures)| {
            for capture in captures {
                put(directory, job, &capture)?;
                files.files += 1;
                files.left_out += capture.left_out;
            }
            Ok(())
        })?;
        Ok(files)
    }
}

/// The file of a run's capture at an end.
pub(super) fn capture_file(directory: &Path, job: &Job, vantage: Vantage) -> PathBuf {
    directory.join(format!("{}-{}.pcapng", run_name(job), vantage.name()))
}

/// Writes a capture.
pub(super) fn put(directory: &Path, job: &Job, capture: &EndCapture) -> anyhow::Result<()> {
    let file = capture_file(directory, job, capture.vantage);
    std::fs::write(&file, &capture.bytes).with_context(|| file.display().to_string())
}
