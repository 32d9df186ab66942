//! Captures of a series: pcapng files of each simulated run at either end.
//!
//! Runs are made for them again, as for [time lines](super::Timelines).

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use marline_qlog::Vantage;

use super::Job;
use super::again::{run_again, simulated};
use super::qlogs::run_name;
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
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let mut mine = simulated(jobs);
        let runs_left_out = mine.len().saturating_sub(Captures::MAX_RUNS);
        let mut files = CaptureFiles { runs_left_out, ..CaptureFiles::default() };
        mine.truncate(Captures::MAX_RUNS);
        let run = |job: &Job| {
            simulate_captured(&job.experiment, &job.lane.variant, job.seed, self.max_bytes)
        };
        run_again(self.jobs, &mine, run, |job, (_, captures)| {
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
