//! Captures and traces of runs in real time. Such runs are not reproducible, so files are written during the run.
//! A run whose files are missing is repeated, so that its record and its files come from the same run.

use std::path::PathBuf;

use marline_qlog::Vantage;

use super::{Captures, Job, captures, create_directory, qlogs};
use crate::experiment::{CaptureConfig, QlogConfig, RecordingOptions, RunRecords};

/// Files of runs in real time, and their directory.
#[derive(Clone, Debug)]
pub struct RealTimeFiles {
    /// Directory: captures are in its `pcap`, traces and their drawings in its `qlog`.
    pub directory: PathBuf,
    /// Captures of both ends, on all stacks.
    pub captures: Option<CaptureConfig>,
    /// Traces of Marline ends.
    pub traces: Option<QlogConfig>,
}

impl RealTimeFiles {
    /// Default capture settings: [`Captures::MAX_BYTES`] per end, and hidden keys unless `reveal_keys` is true.
    #[must_use]
    pub fn captures(reveal_keys: bool) -> CaptureConfig {
        CaptureConfig { max_bytes: Captures::MAX_BYTES as u64, reveal_keys }
    }

    /// Captures and traces to record of a job.
    pub(super) fn watch(&self, job: &Job) -> RecordingOptions {
        let ours = [Vantage::Client, Vantage::Server].into_iter().any(|end| is_traced(job, end));
        RecordingOptions { captures: self.captures, traces: self.traces.filter(|_| ours) }
    }

    /// Returns true if files of a run are missing.
    pub(super) fn lacks_files(&self, job: &Job) -> bool {
        if !job.lane.stack.is_real_time() {
            return false;
        }
        let (pcap, qlog) = (self.directory.join("pcap"), self.directory.join("qlog"));
        let both = [Vantage::Client, Vantage::Server];
        let captured = both.map(|end| captures::capture_file(&pcap, job, end));
        let begun = |end: &Vantage| {
            let name = format!("{}-{}", qlogs::run_name(job), end.name());
            // If there are several connections, the name ends with the number of the connection.
            [".sqlog", "-0.sqlog"].iter().any(|end| qlog.join(format!("{name}{end}")).exists())
        };
        let mut of_ours = both.iter().filter(|end| is_traced(job, **end));
        (self.captures.is_some() && !captured.iter().all(|file| file.exists()))
            || (self.traces.is_some() && !of_ours.all(begun))
    }

    /// Writes the captures and traces of a run.
    pub(super) fn write_files(&self, job: &Job, watched: &RunRecords) -> anyhow::Result<()> {
        let directory = |name: &str| {
            let directory = self.directory.join(name);
            create_directory(&directory)?;
            anyhow::Ok(directory)
        };
        for capture in &watched.captures {
            captures::write_capture(&directory("pcap")?, job, capture)?;
            if capture.left_out > 0 {
                let (end, left_out) = (capture.vantage.name(), capture.left_out);
                eprintln!(
                    "WARNING: {}-{end}: {left_out} packets were left out of the capture",
                    qlogs::run_name(job)
                );
            }
        }
        for trace in &watched.traces {
            let name = qlogs::file_name(job, trace, watched.traces.len());
            qlogs::write_trace(&directory("qlog")?, &name, trace)?;
        }
        Ok(())
    }
}

/// Returns true if an end of a job writes traces.
fn is_traced(job: &Job, end: Vantage) -> bool {
    use crate::scenario::Side;
    let side = if end == Vantage::Client { Side::Client } else { Side::Server };
    job.lane.stack.at(side).is_marline()
}
