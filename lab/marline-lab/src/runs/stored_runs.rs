//! Stored results of earlier series, found by their directory.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::record::Record;
use super::{Job, Store};
use crate::experiment::Stack;

/// File that lists a series' runs in the store.
const FILE: &str = "series.json";

/// A run of a series, with its file name in the directory `runs`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    point: Vec<(String, String)>,
    stack: Stack,
    variant: String,
    seed: u64,
    key: String,
}

/// A lane of a series: the runs of a variant on a stack, for one combination of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLane {
    /// Values of the sweep. Empty without a sweep.
    pub point: Vec<(String, String)>,
    /// Stack.
    pub stack: Stack,
    /// Variant.
    pub variant: String,
}

/// A stored series.
#[derive(Clone, Debug)]
pub struct StoredRuns {
    place: PathBuf,
    runs: Vec<Run>,
}

/// Writer of the list of a series' runs: a JSON array, written run by run.
pub(super) struct RunListWriter {
    file: PathBuf,
    writer: BufWriter<File>,
    empty: bool,
}

impl RunListWriter {
    pub(super) fn begin(place: &Path) -> anyhow::Result<RunListWriter> {
        let file = place.join(FILE);
        let writer = File::create(&file).with_context(|| file.display().to_string())?;
        Ok(RunListWriter { file, writer: BufWriter::new(writer), empty: true })
    }

    pub(super) fn add(&mut self, store: &Store, jobs: &[Job]) -> anyhow::Result<()> {
        for job in jobs {
            let run = Run {
                point: job.point.clone(),
                stack: job.lane.stack,
                variant: job.lane.variant.name.clone(),
                seed: job.seed,
                key: store.key(job),
            };
            let before: &[u8] = if self.empty { b"[" } else { b"," };
            self.empty = false;
            let written = self.writer.write_all(before).map_err(anyhow::Error::from);
            let written = written.and_then(|()| Ok(serde_json::to_writer(&mut self.writer, &run)?));
            written.with_context(|| self.file.display().to_string())?;
        }
        Ok(())
    }

    pub(super) fn end(mut self) -> anyhow::Result<()> {
        let last: &[u8] = if self.empty { b"[]\n" } else { b"]\n" };
        let written = self.writer.write_all(last).and_then(|()| self.writer.flush());
        written.with_context(|| self.file.display().to_string())
    }
}

impl StoredRuns {
    /// Writes a list of these runs into a directory of results.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_list(place: &Path, store: &Store, jobs: &[Job]) -> anyhow::Result<()> {
        let mut noting = RunListWriter::begin(place)?;
        noting.add(store, jobs)?;
        noting.end()
    }

    /// Returns true if a directory has results of `marline-lab run` or `sweep`.
    #[must_use]
    pub fn has_results(place: &Path) -> bool {
        place.join(FILE).is_file()
    }

    /// Opens the series whose results are in a directory.
    ///
    /// # Errors
    /// There is no series, or its list cannot be read.
    pub fn open(place: &Path) -> anyhow::Result<StoredRuns> {
        let file = place.join(FILE);
        let text = std::fs::read_to_string(&file).with_context(|| {
            let place = place.display();
            format!("{place} has no results of `marline-lab run` or `sweep` ({FILE})")
        })?;
        let runs: Vec<Run> =
            serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        let named = |run: &Run| run.key.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure!(runs.iter().all(named), "{}: the name of a run is not a hash", file.display());
        Ok(StoredRuns { place: place.to_owned(), runs })
    }

    /// Lanes of the series, in the order of the plan.
    #[must_use]
    pub fn lanes(&self) -> Vec<StoredLane> {
        let mut lanes: Vec<StoredLane> = Vec::new();
        for Run { point, stack, variant, .. } in &self.runs {
            let last = lanes.last();
            let same = |lane: &StoredLane| {
                lane.stack == *stack && lane.variant == *variant && lane.point == *point
            };
            // Runs of a lane are adjacent.
            if !last.is_some_and(same) {
                let (point, variant) = (point.clone(), variant.clone());
                lanes.push(StoredLane { point, stack: *stack, variant });
            }
        }
        lanes
    }

    /// The completed runs of a lane, with their seeds.
    ///
    /// # Errors
    /// A run is missing or cannot be read.
    pub fn records(&self, lane: &StoredLane) -> anyhow::Result<Vec<(u64, Record)>> {
        let mine = self.runs.iter().filter(|run| {
            run.stack == lane.stack && run.variant == lane.variant && run.point == lane.point
        });
        let mut records = Vec::new();
        for run in mine {
            let file = self.place.join("runs").join(format!("{}.json", run.key));
            let named = || file.display().to_string();
            let text = std::fs::read_to_string(&file).with_context(named)?;
            let record: Record = serde_json::from_str(&text).with_context(named)?;
            if record.error.is_none() {
                records.push((run.seed, record));
            }
        }
        Ok(records)
    }
}
