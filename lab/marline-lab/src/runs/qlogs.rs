//! Traces of a series: a qlog for each connection of each simulated run at either end, and a drawing of each
//! connection that sent data.
//!
//! Runs are repeated for them, as for [time lines](super::Timelines), because stored runs have no traces.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use marline_qlog::{Course, read};

use super::repetition::{run_again, simulated_jobs};
use super::{Job, create_directory};
use crate::experiment::{EndTrace, QlogConfig, Stack, simulate_traced};
use crate::figure::SequencePlot;

/// Settings of traces.
#[derive(Copy, Clone, Debug)]
pub struct Qlogs {
    /// Number of parallel runs, at least 1.
    pub jobs: usize,
    /// Limits on each run's traces.
    pub config: QlogConfig,
}

/// Numbers of written files and of omitted traces.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct QlogFiles {
    /// Traces.
    pub traces: usize,
    /// Number of drawings.
    pub drawings: usize,
    /// Number of traces beyond the limit [`Qlogs::MAX_FILES`].
    pub left_out: usize,
}

impl QlogFiles {
    /// Notes about omitted data, one line each.
    #[must_use]
    pub fn omission_notes(&self) -> Vec<String> {
        let (left_out, most) = (self.left_out, Qlogs::MAX_FILES);
        let text = format!(
            "{left_out} traces were left out, because a series is limited to {most}. Use fewer \
                seeds"
        );
        if left_out > 0 { vec![text] } else { Vec::new() }
    }
}

impl Qlogs {
    /// Maximum number of traces of a series.
    pub const MAX_FILES: usize = 1_000;

    /// Writes `VARIANT-SEED-END.sqlog` and `VARIANT-SEED-END.svg` for the jobs on stack `sim` into a directory,
    /// with the number of the connection after the end if there are several. The files are always identical. Failed
    /// runs have no files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, jobs: &[Job], directory: &Path) -> anyhow::Result<QlogFiles> {
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
    ) -> anyhow::Result<QlogFiles> {
        create_directory(directory)?;
        let mut files = QlogFiles::default();
        let run =
            |job: &Job| simulate_traced(&job.experiment, &job.lane.variant, job.seed, self.config);
        run_again(self.jobs, &simulated_jobs(jobs), go_on, run, |job, (_, traces)| {
            for trace in &traces {
                if files.traces == Self::MAX_FILES {
                    files.left_out += 1;
                    continue;
                }
                files.traces += 1;
                let name = file_name(job, trace, traces.len());
                files.drawings += usize::from(write_trace(directory, &name, trace)?);
            }
            Ok(())
        })?;
        Ok(files)
    }
}

/// Base name of a trace's files. `traces` is the number of traces of the run.
pub(super) fn file_name(job: &Job, trace: &EndTrace, traces: usize) -> String {
    let several = if traces > 2 { format!("-{}", trace.connection) } else { String::new() };
    format!("{}-{}{several}", run_name(job), trace.vantage.name())
}

/// Prefix of a run's file names. In virtual time, it contains only the variant and the seed.
pub(super) fn run_name(job: &Job) -> String {
    let run = format!("{}-{}", file_name_part(&job.lane.variant.name), job.seed);
    match job.lane.stack {
        Stack::Sim => run,
        stack => format!("{stack}-{run}"),
    }
}

/// Converts a name for use in a file name.
pub(super) fn file_name_part(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// Writes a trace, and a drawing unless it is empty.
pub(super) fn write_trace(directory: &Path, name: &str, trace: &EndTrace) -> anyhow::Result<bool> {
    let write = |ending: &str, text: &str| {
        let file = directory.join(format!("{name}.{ending}"));
        std::fs::write(&file, text).with_context(|| file.display().to_string())
    };
    write("sqlog", &trace.text)?;
    let recording = read(&trace.text).map_err(|error| anyhow!("{name}: {error}"))?;
    let course = Course::from_recording(&recording);
    if course.carried.is_empty() {
        return Ok(false);
    }
    let title = format!("{}, sent by the {}", recording.title, trace.vantage.name());
    write("svg", &SequencePlot::new(&title, &course).svg())?;
    Ok(true)
}
