//! One run of the comparison, and its result files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::contestant::Contestant;
use super::row::Row;
use super::statistics::measure_values;
use crate::provenance;
use crate::runs::{check_real_time, run_weighted};

/// Maximum number of attempts at a run with late links.
const MAX_ATTEMPTS: u32 = 3;

/// Results of a run by name; each name ends with the unit of its values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Values.
    pub values: BTreeMap<String, Vec<f64>>,
    /// Bytes offered to the links in both directions, including IP headers.
    pub wire_bytes: u64,
    /// Reasons why the last attempt may be unreliable.
    pub doubts: Vec<String>,
    /// Error, if there is no result.
    pub error: Option<String>,
}

/// A completed run.
#[derive(Copy, Clone, Debug)]
pub struct CompletedRun<'a> {
    /// Row of the comparison.
    pub row: &'a Row,
    /// Compared variant.
    pub contestant: Contestant,
    /// Run number.
    pub repeat: u32,
    /// Result.
    pub sample: &'a Sample,
}

#[derive(Serialize, Deserialize)]
struct StoredSample {
    program: String,
    sample: Sample,
}

/// Directory in which runs are made and stored.
#[derive(Debug)]
pub struct Bench {
    place: PathBuf,
    program: String,
    ignores_stored: bool,
}

impl Bench {
    /// Opens this directory of results. If `ignores_stored` is true, stored results are ignored.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn open(place: &Path, fresh: bool) -> anyhow::Result<Bench> {
        std::fs::create_dir_all(place).with_context(|| place.display().to_string())?;
        Ok(Bench {
            place: place.to_owned(),
            program: provenance::program_hash()?,
            ignores_stored: fresh,
        })
    }

    fn file(&self, row: &Row, contestant: Contestant, repeat: u32) -> PathBuf {
        self.place.join(format!("{}-{}-{repeat}.json", row.key, contestant.key()))
    }

    fn read(&self, row: &Row, contestant: Contestant, repeat: u32) -> Option<StoredSample> {
        let text = std::fs::read_to_string(self.file(row, contestant, repeat)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The stored result or failure of a run with this build. Results of the kernel's stacks are valid for any build.
    #[must_use]
    pub fn latest(&self, row: &Row, contestant: Contestant, repeat: u32) -> Option<Sample> {
        let kept = self.read(row, contestant, repeat)?;
        let holds = !contestant.is_marline() || kept.program == self.program;
        holds.then_some(kept.sample)
    }

    /// Runs of a row that have not been made.
    #[must_use]
    pub fn missing_runs(&self, row: &Row) -> Vec<(Contestant, u32)> {
        let all = row.contestants.iter().flat_map(|contestant| {
            (0..row.run_count(*contestant)).map(|repeat| (*contestant, repeat))
        });
        let good = |sample: &Sample| sample.error.is_none();
        let there = |(c, repeat): &(Contestant, u32)| {
            !self.ignores_stored && self.latest(row, *c, *repeat).as_ref().is_some_and(good)
        };
        all.filter(|run| !there(run)).collect()
    }

    /// Makes the missing runs, as many in parallel as these processors can run. `told` is called after each run with
    /// the number of completed runs, the total, and the run.
    ///
    /// # Errors
    /// Namespaces are not permitted, or a result cannot be stored.
    pub fn run_all(
        &self,
        rows: &[Row],
        processors: u32,
        instance: &str,
        told: &(dyn Fn((usize, usize), &CompletedRun<'_>) + Sync),
    ) -> anyhow::Result<()> {
        let waiting: Vec<(&Row, Contestant, u32)> = rows
            .iter()
            .flat_map(|row| self.missing_runs(row).into_iter().map(move |(c, n)| (row, c, n)))
            .collect();
        if !waiting.is_empty() {
            check_real_time()?;
        }
        let done = AtomicUsize::new(0);
        let run = |(row, contestant, repeat): &(&Row, Contestant, u32), worker: u32| {
            let instance = format!("{instance}-{worker}");
            let sample = self.run(row, *contestant, *repeat, &instance)?;
            let done = 1 + done.fetch_add(1, Ordering::Relaxed);
            let made =
                CompletedRun { row, contestant: *contestant, repeat: *repeat, sample: &sample };
            told((done, waiting.len()), &made);
            anyhow::Ok(())
        };
        let all = run_weighted(2 * processors.max(1), &waiting, |(row, ..)| row.weight, run);
        all.into_iter().collect()
    }

    /// Makes a run and stores it.
    ///
    /// # Errors
    /// The result cannot be stored; a failed run is reported in its sample.
    pub fn run(
        &self,
        row: &Row,
        contestant: Contestant,
        repeat: u32,
        instance: &str,
    ) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for attempt in 0..MAX_ATTEMPTS {
            sample = match run_once(row, contestant, repeat + 1_000 * attempt, instance) {
                Ok(sample) => sample,
                Err(error) => Sample { error: Some(format!("{error:#}")), ..Sample::default() },
            };
            if sample.error.is_none() && sample.doubts.is_empty() {
                break;
            }
        }
        let kept = StoredSample { program: self.program.clone(), sample };
        let file = self.file(row, contestant, repeat);
        std::fs::write(&file, serde_json::to_string(&kept)?)
            .with_context(|| file.display().to_string())?;
        Ok(kept.sample)
    }
}

fn run_once(
    row: &Row,
    contestant: Contestant,
    seed: u32,
    instance: &str,
) -> anyhow::Result<Sample> {
    let (stack, variant, experiment) = row.variant_setup(contestant);
    let outcome = experiment.run(stack, &variant, u64::from(seed) + 1, instance)?;
    if let Some(why) = &outcome.incomplete {
        bail!("{why}");
    }
    let wire_bytes = outcome.wire_bytes();
    let values = measure_values(row, &experiment, &outcome)?;
    Ok(Sample { values, wire_bytes, doubts: outcome.doubts, error: None })
}
