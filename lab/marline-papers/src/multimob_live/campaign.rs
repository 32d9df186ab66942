//! Measurement campaign: walks, stationary runs and downloads, of every system.

use marline_lab::experiment::Experiment;
use marline_lab::runs::{Job, Record, Series, Store};
use marline_lab::wifi_mobility::{self, mobility_run};
use marline_lab::workload::Workload;
use marline_sim::quantile;

use super::systems::{self, System};
use crate::estimate::Samples;
use crate::multimob2018::loads::ASSISTANT;
use crate::paper::Context;

/// Time to wait for answers after the last request.
const PATIENCE_S: u64 = 20;
/// Download: blocks of this size, as fast as they are read.
const DOWNLOAD: Workload = Workload::Blocks { bytes: 16_384, lasts_ms: 12_000 };
/// When WiFi dies during a download.
const DEATH_TIME: &str = "1.5s";
/// Links of a download: WiFi with 20 Mbit/s until it dies, and LTE.
const DOWNLOAD_LINKS: [(&str, &str); 2] = [
    ("wifi", "rate=20M,delay=10ms,queue=100ms,radio=wifi"),
    ("lte", "rate=20M,up.rate=8M,delay=30ms,queue=200ms,radio=lte"),
];
/// Numbers of runs at scale 1.
const WALKS: usize = 60;
const STATICS: usize = 20;
const DOWNLOADS: usize = 20;

/// Table `[published]` of the file.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedValues {
    /// Round-trip time of the LTE link, ms.
    pub(super) lte_rtt_ms: f64,
}

/// All runs of a system in one of the three experiments.
#[derive(Debug)]
pub(super) struct Runs {
    pub(super) system: System,
    pub(super) records: Vec<Record>,
}

impl Runs {
    pub(super) fn good_records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| record.error.is_none())
    }

    /// The longest delay of each run, ms.
    pub(super) fn holes_ms(&self) -> Vec<f64> {
        self.good_records().map(hole_ms).collect()
    }

    pub(super) fn decile_ms(&self, decile: u32) -> f64 {
        quantile(&self.holes_ms(), f64::from(decile) / 10.0)
    }

    /// Mean energy of the traffic on a path, J.
    pub(super) fn joules(&self, path: &str) -> f64 {
        let all: Vec<f64> = self.good_records().filter_map(|record| joules(record, path)).collect();
        all.iter().sum::<f64>() / all.len() as f64
    }

    /// Bytes sent over LTE, all runs together.
    pub(super) fn lte_bytes(&self) -> u64 {
        self.good_records().map(lte_bytes).sum()
    }
}

/// The longest delay of a run, ms.
pub(super) fn hole_ms(record: &Record) -> f64 {
    let over_ms = ASSISTANT.duration(0).as_secs_f64() * 1e3 + PATIENCE_S as f64 * 1e3;
    record.worst_ms(over_ms)
}

/// Bytes sent over LTE in a run.
pub(super) fn lte_bytes(record: &Record) -> u64 {
    let lte = record.paths.iter().filter(|path| path.name == wifi_mobility::PATHS[1]);
    lte.map(|path| path.up_bytes + path.down_bytes).sum()
}

/// Energy of the traffic on a path, J.
pub(super) fn joules(record: &Record, path: &str) -> Option<f64> {
    let path = record.paths.iter().find(|one| one.name == path)?;
    Some(path.radio.as_ref()?.traffic_j)
}

/// Measurements of the roots for which the runs of both systems succeeded, paired.
pub(super) fn pair_runs<T>(
    ours: &Runs,
    theirs: &Runs,
    master: u64,
    of: impl Fn(&Record) -> T,
) -> Samples<(T, T)> {
    let good = |record: &&Record| record.error.is_none();
    let both = ours.records.iter().zip(&theirs.records);
    let both = both.filter(|(ours, theirs)| good(ours) && good(theirs));
    Samples::new(both.map(|(ours, theirs)| (of(ours), of(theirs))).collect(), master)
}

/// Runs of the campaign: walks, runs that stay in range, downloads.
pub(super) struct Campaign {
    pub(super) walks: Vec<Runs>,
    pub(super) statics: Vec<Runs>,
    pub(super) downloads: Vec<Runs>,
}

/// Experiment of a walk, or of a run that stays in range, with the assistant.
fn assistant_experiment(
    context: &Context<'_>,
    seed: u64,
    leaves: bool,
) -> anyhow::Result<Experiment> {
    let mut experiment = Experiment::over(&[], ASSISTANT);
    experiment.scenario.paths = mobility_run(seed, leaves, true).paths();
    experiment.scenario.seed = seed;
    experiment.patience = std::time::Duration::from_secs(PATIENCE_S);
    experiment.trace_dir = Some(context.traces()?.to_path_buf());
    Ok(experiment)
}

fn download(seed: u64) -> Experiment {
    let mut experiment = Experiment::over(&DOWNLOAD_LINKS, DOWNLOAD);
    experiment.scenario.seed = seed;
    let (at, path) = (DEATH_TIME.to_owned(), wifi_mobility::PATHS[0].to_owned());
    let event = marline_lab::scenario::Event { at, path, command: "set loss=100%".to_owned() };
    experiment.scenario.events = vec![event];
    experiment.patience = std::time::Duration::from_secs(5);
    experiment
}

impl Campaign {
    pub(super) fn run(context: &Context<'_>) -> anyhow::Result<Campaign> {
        let (mut jobs, mut plan) = (Vec::new(), Vec::new());
        let mut add = |kind: usize, system: System, experiments: Vec<Experiment>| {
            let lane = system.lane();
            let job = |experiment: Experiment| {
                let seed = experiment.scenario.seed;
                Job { point: Vec::new(), experiment, lane: lane.clone(), seed }
            };
            plan.push((kind, system, experiments.len()));
            jobs.extend(experiments.into_iter().map(job));
        };
        let seeds = |full| {
            let roots = context.roots(context.runs(full));
            roots.into_iter().map(|root| root.seed).collect::<Vec<u64>>()
        };
        let talks = |full, leaves| -> anyhow::Result<Vec<Experiment>> {
            seeds(full)
                .into_iter()
                .map(|seed| assistant_experiment(context, seed, leaves))
                .collect()
        };
        for system in systems::walkers() {
            add(0, system, talks(WALKS, true)?);
        }
        for system in systems::other_systems() {
            add(1, system, talks(STATICS, false)?);
        }
        for system in systems::other_systems() {
            add(2, system, seeds(DOWNLOADS).into_iter().map(download).collect());
        }
        let store = Store::open(&context.results.join("runs"), false)?;
        let instance = format!("mob-{}", std::process::id());
        let series = Series { store: &store, jobs: context.jobs, instance, files: None };
        let (done, of) = (std::sync::atomic::AtomicUsize::new(0), series.missing_jobs(&jobs).len());
        let records = series.run(&jobs, &|progress| {
            let done = 1 + done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            (context.progress)(&progress.job.lane.variant.name, done, of);
        })?;
        let mut records = records.into_iter();
        let mut kinds = [Vec::new(), Vec::new(), Vec::new()];
        for (kind, system, count) in plan {
            let records = records.by_ref().take(count).collect();
            kinds[kind].push(Runs { system, records });
        }
        let [walks, statics, downloads] = kinds;
        Ok(Campaign { walks, statics, downloads })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Runs> {
        self.walks.iter().chain(&self.statics).chain(&self.downloads)
    }
}

#[cfg(test)]
mod tests {
    use marline::policy::Role;

    use super::*;
    use crate::file::PaperFile;

    #[test]
    fn every_system_can_be_run() {
        PaperFile::<PublishedValues>::parse(crate::multimob_live::TEXT).expect("file");
        for system in systems::walkers().into_iter().chain(systems::other_systems()) {
            system.lane().variant.end(Role::Client).unwrap_or_else(|e| panic!("{system:?}: {e:#}"));
            download(1).used_paths(&system.lane().variant).expect("paths");
        }
        download(3).check().expect("an experiment");
    }

    #[test]
    fn unanswered_messages_count_as_a_gap() {
        let mut record = Record { unanswered_ms: vec![70_000.0], ..Record::default() };
        assert_eq!(record.worst_ms(100_000.0), 30_000.0);
        record.unanswered_ms.clear();
        assert_eq!(record.worst_ms(100_000.0), 0.0);
    }
}
