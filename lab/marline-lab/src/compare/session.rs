//! One run of the comparison, and its result files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::contestant::Contestant;
use super::row::Row;
use super::statistics::look;
use crate::keep;
use crate::runs::{check_real_time, weighted};

/// Runs over links that were late are repeated so often.
const ATTEMPTS: u32 = 3;

/// Results of a run by name; every value in the unit that its name ends with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Values.
    pub values: BTreeMap<String, Vec<f64>>,
    /// Bytes offered to the links, both ways, IP headers included.
    pub wire_bytes: u64,
    /// Reasons to doubt it, even after repetition.
    pub doubts: Vec<String>,
    /// Error, if there is no result.
    pub error: Option<String>,
}

/// A run that has just been made.
#[derive(Copy, Clone, Debug)]
pub struct Made<'a> {
    /// What was done.
    pub row: &'a Row,
    /// By whom.
    pub contestant: Contestant,
    /// Which of its runs.
    pub repeat: u32,
    /// What it showed.
    pub sample: &'a Sample,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    program: String,
    sample: Sample,
}

/// The place where runs are made and stored.
#[derive(Debug)]
pub struct Bench {
    place: PathBuf,
    program: String,
    fresh: bool,
}

impl Bench {
    /// Results in this directory; `fresh`: those that are there are not looked at.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(place: &Path, fresh: bool) -> anyhow::Result<Bench> {
        std::fs::create_dir_all(place).with_context(|| place.display().to_string())?;
        Ok(Bench { place: place.to_owned(), program: keep::program()?, fresh })
    }

    fn file(&self, row: &Row, contestant: Contestant, repeat: u32) -> PathBuf {
        self.place.join(format!("{}-{}-{repeat}.json", row.key, contestant.key()))
    }

    fn read(&self, row: &Row, contestant: Contestant, repeat: u32) -> Option<Kept> {
        let text = std::fs::read_to_string(self.file(row, contestant, repeat)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// What a run of this very program showed, or failed of; the kernel's results hold for any.
    #[must_use]
    pub fn latest(&self, row: &Row, contestant: Contestant, repeat: u32) -> Option<Sample> {
        let kept = self.read(row, contestant, repeat)?;
        let holds = !contestant.is_marline() || kept.program == self.program;
        holds.then_some(kept.sample)
    }

    /// The runs of a row that have not been made.
    #[must_use]
    pub fn missing(&self, row: &Row) -> Vec<(Contestant, u32)> {
        let all = row.contestants.iter().flat_map(|contestant| {
            (0..row.repeats_of(*contestant)).map(|repeat| (*contestant, repeat))
        });
        let good = |sample: &Sample| sample.error.is_none();
        let there = |(c, repeat): &(Contestant, u32)| {
            !self.fresh && self.latest(row, *c, *repeat).as_ref().is_some_and(good)
        };
        all.filter(|run| !there(run)).collect()
    }

    /// Makes the runs that are missing, so many at once as fit on these processors. `told` hears of
    /// each: how many are done, of how many, and what it was.
    ///
    /// # Errors
    /// There is no right to make namespaces, or a result cannot be kept.
    pub fn run_all(
        &self,
        rows: &[Row],
        processors: u32,
        instance: &str,
        told: &(dyn Fn((usize, usize), &Made<'_>) + Sync),
    ) -> anyhow::Result<()> {
        let waiting: Vec<(&Row, Contestant, u32)> = rows
            .iter()
            .flat_map(|row| self.missing(row).into_iter().map(move |(c, n)| (row, c, n)))
            .collect();
        if !waiting.is_empty() {
            check_real_time()?;
        }
        let done = AtomicUsize::new(0);
        let run = |(row, contestant, repeat): &(&Row, Contestant, u32), worker: u32| {
            let instance = format!("{instance}-{worker}");
            let sample = self.run(row, *contestant, *repeat, &instance)?;
            let done = 1 + done.fetch_add(1, Ordering::Relaxed);
            let made = Made { row, contestant: *contestant, repeat: *repeat, sample: &sample };
            told((done, waiting.len()), &made);
            anyhow::Ok(())
        };
        let all = weighted(2 * processors.max(1), &waiting, |(row, ..)| row.weight, run);
        all.into_iter().collect()
    }

    /// Makes a run and keeps it.
    ///
    /// # Errors
    /// It cannot be written down; a run that fails says so in its sample.
    pub fn run(
        &self,
        row: &Row,
        contestant: Contestant,
        repeat: u32,
        instance: &str,
    ) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for attempt in 0..ATTEMPTS {
            sample = match one(row, contestant, repeat + 1_000 * attempt, instance) {
                Ok(sample) => sample,
                Err(error) => Sample { error: Some(format!("{error:#}")), ..Sample::default() },
            };
            if sample.error.is_none() && sample.doubts.is_empty() {
                break;
            }
        }
        let kept = Kept { program: self.program.clone(), sample };
        let file = self.file(row, contestant, repeat);
        std::fs::write(&file, serde_json::to_string(&kept)?)
            .with_context(|| file.display().to_string())?;
        Ok(kept.sample)
    }
}

fn one(row: &Row, contestant: Contestant, seed: u32, instance: &str) -> anyhow::Result<Sample> {
    let (stack, variant, experiment) = row.setup_of_contestant(contestant);
    let outcome = experiment.run(stack, &variant, u64::from(seed) + 1, instance)?;
    if let Some(why) = &outcome.incomplete {
        bail!("{why}");
    }
    let wire_bytes = outcome.wire_bytes();
    let values = look(row, &experiment, &outcome)?;
    Ok(Sample { values, wire_bytes, doubts: outcome.doubts, error: None })
}
