//! Key `live`: validation of the simulator. One experiment of each family runs in virtual time and
//! with real processes over emulated links, with the same seeds.

use marline_lab::experiment::Stack;
use marline_lab::experiment::file::{ExperimentFile, Lane};
use marline_lab::figure::{Figure, Plot, cdf, number};
use marline_lab::provenance;
use marline_lab::runs::{Job, Record, Series, Store, Summary};

use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::{Context, Paper};
use crate::table::{Grid, Reproduction, Table};

const TEXT: &str = include_str!("../papers/live.toml");

/// An experiment of each family, and its number of runs on each side.
const FILES: [(&str, &str, usize); 5] = [
    ("echo-loss", include_str!("../scenarios/echo-loss.toml"), 5),
    ("blocks-wifi-3g", include_str!("../scenarios/blocks-wifi-3g.toml"), 3),
    ("maps-wifi-dies", include_str!("../scenarios/maps-wifi-dies.toml"), 10),
    ("small-buffer", include_str!("../scenarios/small-buffer.toml"), 2),
    ("handover-backup", include_str!("../scenarios/handover-backup.toml"), 5),
];

/// Published values. There are none.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoPublishedValues {}

/// Comparison of live runs with runs in virtual time.
pub(super) struct Live;

impl Paper for Live {
    fn key(&self) -> &'static str {
        "live"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn is_virtual_time(&self) -> bool {
        false
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<NoPublishedValues>::parse(TEXT)?;
        let (median, p95) = (file.tolerance("median")?, file.tolerance("p95")?);
        let store = Store::open(&context.results.join("runs"), false)?;
        let instance = format!("agree-{}", std::process::id());
        let series = Series { store: &store, jobs: context.jobs, instance, files: None };
        let mut families = Vec::new();
        let (mut jobs, mut ends) = (Vec::new(), vec![0]);
        for (name, text, full) in FILES {
            let experiment = ExperimentFile::from_toml(name, text)?;
            // The first variant is Marline as shipped.
            let lanes = experiment.lanes(&[Stack::Sim, Stack::Live])?;
            let first = lanes[0].variant.name.clone();
            let mine = |lane: &Lane| lane.variant.name == first;
            let lanes: Vec<Lane> = lanes.into_iter().filter(mine).collect();
            let seeds = context.runs(full) as u32;
            jobs.extend(Job::series(&experiment.experiment, &lanes, seeds));
            ends.push(jobs.len());
            families.push(experiment.title);
        }
        let (done, of) = (std::sync::atomic::AtomicUsize::new(0), series.missing_jobs(&jobs).len());
        let records = series.run(&jobs, &|progress| {
            let done = 1 + done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            (context.progress)(&progress.job.lane.stack.to_string(), done, of);
        })?;
        let (mut rows, mut figures) = (Vec::new(), Vec::new());
        let columns = [
            ("what", ""),
            ("stack", ""),
            ("runs", ""),
            ("unreliable", ""),
            ("p50", "ms"),
            ("p95", "ms"),
            ("p99", "ms"),
            ("goodput", "Mbit/s"),
            ("p99, ratio to bound", ""),
        ];
        let mut grid = Grid::new("both", "both sides", &columns);
        for (title, range) in families.iter().zip(ends.windows(2)) {
            let these = range[0]..range[1];
            let summary = Summary::from_runs(&jobs[these.clone()], &records[these.clone()]);
            for warning in summary.warnings() {
                anyhow::ensure!(!warning.contains("FAILED"), "{warning}");
            }
            rows.extend(judged_rows(title, &summary, median, p95));
            figures.push(latency_figure(title, &jobs[these.clone()], &records[these]));
            for lane in &summary.lanes {
                let names = [
                    title.as_str(),
                    lane.stack.word(),
                    &lane.runs.to_string(),
                    &number(lane.doubtful as f64),
                ];
                let of = &lane.latency;
                grid.push(
                    &names,
                    &[of.p50_ms, of.p95_ms, of.p99_ms, lane.goodput_mbit_per_s, lane.p99_to_bound],
                );
            }
        }
        let kernel = provenance::kernel_release();
        Ok(Reproduction {
            tables: vec![Table::new("agreement", "live compared with virtual time", rows)],
            grids: vec![grid],
            figures,
            notes: vec![format!("Kernel {kernel}. The \"paper\" column shows virtual time.")],
        })
    }
}

/// Both distributions in one figure.
fn latency_figure(title: &str, jobs: &[Job], records: &[Record]) -> Figure {
    let of = |stack: Stack| {
        let mine = jobs.iter().zip(records).filter(|(job, _)| job.lane.stack == stack);
        cdf(&mine.flat_map(|(_, record)| record.latencies_ms()).collect::<Vec<f64>>())
    };
    let name: String = title.chars().filter(char::is_ascii_alphanumeric).take(24).collect();
    Plot::new(title, "latency (ms)", "share of the messages")
        .steps("virtual time", &of(Stack::Sim))
        .steps("live", &of(Stack::Live))
        .log_x()
        .figure(&name.to_lowercase(), "The same experiment with the same seeds.")
}

fn judged_rows(title: &str, summary: &Summary<'_>, median: f64, p95: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for agreement in summary.agreement() {
        for (what, (sim, live), tolerance) in
            [("median", agreement.p50_ms, median), ("p95", agreement.p95_ms, p95)]
        {
            let row = Row::new(format!("{title}: {what}")).paper(sim, "ms").measured(live, "ms");
            rows.push(row.within_of(tolerance, sim, "virtual time"));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_lane_on_both_sides() {
        PaperFile::<NoPublishedValues>::parse(TEXT).expect("file");
        for (name, text, _) in FILES {
            let file = ExperimentFile::from_toml(name, text).unwrap_or_else(|e| panic!("{e:#}"));
            let lanes = file.lanes(&[Stack::Sim, Stack::Live]).expect("lanes");
            assert_eq!(lanes[0].variant.name, "default", "{name}");
            assert!(
                lanes
                    .iter()
                    .any(|lane| lane.stack == Stack::Live && lane.variant == lanes[0].variant)
            );
        }
    }
}
