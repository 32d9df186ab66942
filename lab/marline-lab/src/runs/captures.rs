//! Captures of a series: pcapng files of each simulated run at either end.
//!
//! Runs are repeated for them, as for [time lines](super::Timelines).

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use marline_qlog::Vantage;

use super::qlogs::run_name;
use super::repetition::{run_again, simulated_jobs};
use super::{Job, create_directory};
use crate::experiment::{EndCapture, simulate_captured};

/// Settings of captures.
#[derive(Copy, Clone, Debug)]
pub struct Captures {
    /// Number of parallel runs, at least 1.
    pub jobs: usize,
    /// Maximum file size in bytes.
    pub max_bytes: usize,
}

/// Numbers of written files and omitted data.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureFiles {
    /// Number of written files.
    pub files: usize,
    /// Number of packets beyond the size limit.
    pub left_out: u64,
    /// Number of runs beyond the limit [`Captures::MAX_RUNS`].
    pub runs_left_out: usize,
}

impl CaptureFiles {
    /// Notes about omitted data, one line each.
    #[must_use]
    pub fn omission_notes(&self) -> Vec<String> {
        let (mib, most) = (Captures::MAX_BYTES >> 20, Captures::MAX_RUNS);
        let packets = format!(
            "{} packets were left out of captures, which are limited to {mib} MiB each",
            self.left_out
        );
        let runs =
            format!("{} runs have no captures: a series is limited to {most}", self.runs_left_out);
        let both = [(self.left_out > 0, packets), (self.runs_left_out > 0, runs)];
        both.into_iter().filter(|(is_so, _)| *is_so).map(|(_, text)| text).collect()
    }
}

impl Captures {
    /// Default size limit of a file in bytes.
    pub const MAX_BYTES: usize = 64 << 20;
    /// Maximum number of runs of a series with capture files.
    pub const MAX_RUNS: usize = 200;

    /// Writes `VARIANT-SEED-END.pcapng` for the jobs on stack `sim` into a directory. Failed runs have no file.
    /// Files of runs in real time are written during the run ([`RealTimeFiles`](super::RealTimeFiles)).
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, jobs: &[Job], directory: &Path) -> anyhow::Result<CaptureFiles> {
        self.write_while(jobs, directory, &|| true)
    }

    /// Like [`write`](Self::write), but can be canceled: `go_on` is called before each small batch of runs, and false
    /// ends the work.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_while(
        &self,
        jobs: &[Job],
        directory: &Path,
        go_on: &dyn Fn() -> bool,
    ) -> anyhow::Result<CaptureFiles> {
        create_directory(directory)?;
        let mut mine = simulated_jobs(jobs);
        let runs_left_out = mine.len().saturating_sub(Captures::MAX_RUNS);
        let mut files = CaptureFiles { runs_left_out, ..CaptureFiles::default() };
        mine.truncate(Captures::MAX_RUNS);
        let run = |job: &Job| {
            simulate_captured(&job.experiment, &job.lane.variant, job.seed, self.max_bytes)
        };
        run_again(self.jobs, &mine, go_on, run, |job, (_, captures)| {
            for capture in captures {
                write_capture(directory, job, &capture)?;
                files.files += 1;
                files.left_out += capture.left_out;
            }
            Ok(())
        })?;
        Ok(files)
    }
}

/// Path of a run's capture file for one end.
pub(super) fn capture_file(directory: &Path, job: &Job, vantage: Vantage) -> PathBuf {
    directory.join(format!("{}-{}.pcapng", run_name(job), vantage.name()))
}

/// Writes a capture.
pub(super) fn write_capture(
    directory: &Path,
    job: &Job,
    capture: &EndCapture,
) -> anyhow::Result<()> {
    let file = capture_file(directory, job, capture.vantage);
    std::fs::write(&file, &capture.bytes).with_context(|| file.display().to_string())
}
