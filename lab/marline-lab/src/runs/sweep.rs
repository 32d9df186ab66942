//! Sweep: every combination of a file's values, run and read back in pieces, so that memory holds the runs of only one
//! combination.

use std::ops::Range;
use std::path::Path;

use anyhow::bail;

use super::stored_runs::RunListWriter;
use super::temporary_tables::TemporaryTables;
use super::{Job, LaneSummary, Progress, Record, Series, Shard, Store, Summary};
use crate::experiment::file::{ExperimentFile, Lane};
use crate::experiment::{Experiment, Stack};
use crate::figure::number;
use crate::results::{self, Format, RunColumns, Sheets};

/// Number of runs in a batch. Each needs a few kilobytes of memory, and at the end of a batch some processors may be
/// idle.
const RUNS_PER_BATCH: usize = 4_096;
/// Maximum number of stored warnings.
const MAX_STORED_WARNINGS: usize = 100;

/// Seeds of a lane's runs.
#[derive(Clone, Debug)]
pub enum Seeds {
    /// This many seeds, starting with the experiment's own.
    Own(u32),
    /// These seeds.
    List(Vec<u64>),
}

impl Seeds {
    fn count(&self) -> usize {
        match self {
            Seeds::Own(count) => *count as usize,
            Seeds::List(seeds) => seeds.len(),
        }
    }
}

/// A combination of the sweep.
#[derive(Clone, Debug)]
struct Part {
    point: Vec<(String, String)>,
    experiment: Experiment,
    lanes: Vec<Lane>,
    /// Number of runs of this and all earlier combinations.
    end: usize,
}

/// The plan of a sweep: combinations in order, for each combination all variants, and for each variant all seeds.
#[derive(Clone, Debug)]
pub struct Sweep {
    parts: Vec<Part>,
    seeds: Seeds,
}

/// Summary of one combination.
#[derive(Clone, Debug)]
pub struct PointSummary {
    /// Keys with their values.
    pub values: Vec<(String, String)>,
    /// Lanes.
    pub lanes: Vec<LaneSummary>,
}

/// Summary of a sweep, excluding its runs.
#[derive(Clone, Debug, Default)]
pub struct SweepSummary {
    /// Combinations, in the order of the plan.
    pub points: Vec<PointSummary>,
    /// Paths with a radio.
    pub radios: Vec<String>,
    /// The first warnings about unreliable or failed runs.
    pub warnings: Vec<String>,
    /// Number of warnings.
    pub warnings_count: usize,
    /// Number of failed runs.
    pub failed: usize,
}

impl Sweep {
    /// Plans every combination of a file on these stacks. Without a table `sweep`, plans the file itself.
    ///
    /// # Errors
    /// A combination is not a valid experiment, or no variant runs on a stack.
    pub fn from_file(
        file: &ExperimentFile,
        stacks: &[Stack],
        seeds: Seeds,
    ) -> anyhow::Result<Sweep> {
        let (mut parts, mut end) = (Vec::new(), 0);
        for point in file.points()? {
            let lanes = point.file.lanes(stacks)?;
            end += lanes.len() * seeds.count();
            let experiment = point.file.experiment;
            parts.push(Part { point: point.values, experiment, lanes, end });
        }
        Ok(Sweep { parts, seeds })
    }

    /// Number of runs.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// Keys and values of each combination.
    pub fn points(&self) -> impl Iterator<Item = &[(String, String)]> + Clone {
        self.parts.iter().map(|part| part.point.as_slice())
    }

    /// The runs at these indexes of the plan.
    #[must_use]
    pub fn jobs(&self, places: Range<usize>) -> Vec<Job> {
        let places = places.start..places.end.min(self.runs());
        places.filter_map(|place| self.job(place)).collect()
    }

    fn job(&self, place: usize) -> Option<Job> {
        let number = self.parts.partition_point(|part| part.end <= place);
        let part = self.parts.get(number)?;
        let seeds = self.seeds.count();
        let within = place - (part.end - part.lanes.len() * seeds);
        let seed = match &self.seeds {
            Seeds::Own(_) => part.experiment.scenario.seed + (within % seeds) as u64,
            Seeds::List(these) => *these.get(within % seeds)?,
        };
        let mut experiment = part.experiment.clone();
        experiment.scenario.seed = seed;
        let lane = part.lanes.get(within / seeds)?.clone();
        Some(Job { point: part.point.clone(), experiment, lane, seed })
    }

    /// Divides the plan into pieces of at most `most` runs, each of one variant at one combination.
    #[must_use]
    pub fn pieces(&self, most: usize) -> Vec<Range<usize>> {
        let (seeds, most) = (self.seeds.count(), most.max(1));
        let mut pieces = Vec::new();
        // Lanes have equal numbers of runs, and each combination consists of whole lanes.
        for lane in (0..self.runs()).step_by(seeds.max(1)) {
            let end = lane + seeds;
            pieces.extend((lane..end).step_by(most).map(|start| start..end.min(start + most)));
        }
        pieces
    }

    /// Calls `each` for batches, small enough for memory, of all runs or those of a shard.
    ///
    /// # Errors
    /// Returns the first error of `each`.
    pub fn run_selected(
        &self,
        shard: Option<Shard>,
        mut each: impl FnMut(&[Job]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let all = 0..self.runs();
        let mut mine = all.filter(|place| shard.is_none_or(|shard| shard.has(*place))).peekable();
        while mine.peek().is_some() {
            let places = mine.by_ref().take(RUNS_PER_BATCH);
            each(&places.filter_map(|place| self.job(place)).collect::<Vec<Job>>())?;
        }
        Ok(())
    }

    /// Makes all runs that are missing in the store, or those of a shard.
    ///
    /// # Errors
    /// The same as [`Series::run`].
    pub fn run(
        &self,
        series: &Series<'_>,
        shard: Option<Shard>,
        progress: &(dyn Fn(&Progress<'_>) + Sync),
    ) -> anyhow::Result<()> {
        self.run_selected(shard, |jobs| series.run(jobs, progress).map(drop))
    }

    /// Writes the tables `messages` and `runs`, for a sweep also `sweep`, and the list of the runs, from the store.
    /// The files do not depend on which process made the runs, or when. On an error, earlier files remain.
    ///
    /// # Errors
    /// A run is missing, or a file cannot be written.
    pub fn collect(
        &self,
        store: &Store,
        place: &Path,
        formats: &[Format],
    ) -> anyhow::Result<SweepSummary> {
        let apart = TemporaryTables::create(place)?;
        let swept = self.write(store, apart.path(), formats)?;
        apart.move_into_place()?;
        Ok(swept)
    }

    fn write(
        &self,
        store: &Store,
        place: &Path,
        formats: &[Format],
    ) -> anyhow::Result<SweepSummary> {
        let columns = RunColumns::over(self.points());
        let columns = match self.parts.first() {
            Some(part) => columns.with_workloads(&part.experiment),
            None => columns,
        };
        let like = results::messages(&columns, &[]);
        let mut messages = Sheets::create(place, &like, formats, u64::MAX)?;
        let mut noting = RunListWriter::begin(place)?;
        let mut swept = SweepSummary::default();
        let mut paths: Vec<String> = Vec::new();
        for number in 0..self.parts.len() {
            let (jobs, records) = self.stored_runs(store, number)?;
            for run in jobs.iter().zip(&records) {
                messages.append(&results::messages(&columns, &[run]), 0)?;
            }
            noting.add(store, &jobs)?;
            swept.add_summary(&Summary::from_runs(&jobs, &records), &mut paths);
        }
        messages.close()?;
        noting.end()?;
        self.write_runs(store, place, formats, &columns, &paths)?;
        Ok(swept)
    }

    /// Writes tables with columns for each path, which are known only when all runs have been read.
    fn write_runs(
        &self,
        store: &Store,
        place: &Path,
        formats: &[Format],
        columns: &RunColumns,
        paths: &[String],
    ) -> anyhow::Result<()> {
        let like = results::runs_table(columns, paths, &[]);
        let mut runs = Sheets::create(place, &like, formats, u64::MAX)?;
        let is_one = self.points().any(|values| !values.is_empty());
        let long = results::sweep_table(columns, &like);
        let mut long =
            is_one.then(|| Sheets::create(place, &long, formats, u64::MAX)).transpose()?;
        for number in 0..self.parts.len() {
            let (jobs, records) = self.stored_runs(store, number)?;
            let these: Vec<(&Job, &Record)> = jobs.iter().zip(&records).collect();
            let table = results::runs_table(columns, paths, &these);
            runs.append(&table, 0)?;
            if let Some(long) = &mut long {
                long.append(&results::sweep_table(columns, &table), 0)?;
            }
        }
        runs.close()?;
        long.map_or(Ok(()), |long| long.close().map(drop))
    }

    /// The stored runs of a combination.
    fn stored_runs(&self, store: &Store, number: usize) -> anyhow::Result<(Vec<Job>, Vec<Record>)> {
        let start = number.checked_sub(1).map_or(0, |before| self.parts[before].end);
        let jobs = self.jobs(start..self.parts[number].end);
        let records: Vec<Option<Record>> = jobs.iter().map(|job| store.last(job)).collect();
        let missing = records.iter().filter(|record| record.is_none()).count();
        let gone = |(job, record): (_, &Option<Record>)| record.is_none().then_some(job);
        if let Some(job) = jobs.iter().zip(&records).find_map(gone) {
            let values = job.point.iter().map(|(key, value)| format!("{key} = {value}, "));
            let (point, lane) = (values.collect::<String>(), &job.lane);
            let which = format!("{point}{} {} seed {}", lane.stack, lane.variant.name, job.seed);
            bail!(
                "{missing} runs of this combination are not in {}, the first: {which}. Were they \
                    made by another build, or in another directory?",
                store.directory().display()
            );
        }
        Ok((jobs, records.into_iter().flatten().collect()))
    }
}

impl SweepSummary {
    /// The table as text, header first, with a line for each variant at each combination.
    #[must_use]
    pub fn table(&self) -> Vec<Vec<String>> {
        let Some(first) = self.points.first() else { return Vec::new() };
        let keys = first.values.iter().map(|(key, _)| key.clone());
        let several = first.lanes.iter().any(|lane| lane.number > 0);
        let lane = ["stack", "variant"].into_iter().chain(several.then_some("workload"));
        let rest = lane.chain(["p50 ms", "p95", "p99", "Mbit/s"]).map(str::to_owned);
        let joules = self.radios.iter().map(|path| format!("J {path} (idle)"));
        let mut table = vec![keys.chain(rest).chain(joules).collect()];
        for PointSummary { values, lanes } in &self.points {
            for lane in lanes {
                let mut row: Vec<String> = values.iter().map(|(_, value)| value.clone()).collect();
                row.extend([lane.stack.to_string(), lane.variant.clone()]);
                row.extend(several.then(|| lane.workload.clone()));
                let of = &lane.latency;
                let shown = [of.p50_ms, of.p95_ms, of.p99_ms, lane.goodput_mbit_per_s];
                row.extend(shown.map(number));
                row.extend(self.radios.iter().map(|path| lane.joules(path)));
                table.push(row);
            }
        }
        table
    }

    fn add_summary(&mut self, summary: &Summary<'_>, paths: &mut Vec<String>) {
        let (names, radios) = (summary.path_names(), summary.radio_names());
        for (known, found) in [(&mut *paths, names), (&mut self.radios, radios)] {
            for name in found {
                if known.iter().all(|other| other != name) {
                    known.push(name.to_owned());
                }
            }
        }
        let values = summary.runs().first().map(|(job, _)| job.point.clone()).unwrap_or_default();
        let each_run = summary.lanes.iter().filter(|lane| lane.number == 0);
        self.failed += each_run.map(|lane| lane.failed).sum::<usize>();
        self.points.push(PointSummary { values, lanes: summary.lanes.clone() });
        let warnings = summary.warnings();
        self.warnings_count += warnings.len();
        let room = MAX_STORED_WARNINGS - self.warnings.len();
        self.warnings.extend(warnings.into_iter().take(room));
    }
}
