//! Walks out of WiFi range, one per root: the longest delay of each, compared by decile.

use marline_lab::bound::Bound;
use marline_lab::experiment::START;
use marline_lab::figure::{Figure, Plot, cdf};
use marline_lab::workload::Workload;
use serde::{Deserialize, Serialize};

use super::loads::{ASSISTANT, ECHO};
use super::phone_scenario::{PhoneScenario, WorkloadResult};
use super::published::Published;
use super::quantiles::{RankedSamples, count_where};
use super::radios::{self, CONSTANTS, Metered, cell};
use super::systems::{self, System};
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const WALKS: Part = Part::new("walks", 120, 960);
/// Length of the list of the worst walks.
const LISTED: usize = 20;

/// Loads: key, title and workload.
const LOADS: [(&str, &str, Workload); 2] = [
    ("assistant", "2,500 B in pieces, 750 B back, every 333 ms", ASSISTANT),
    ("echo", "750 B, 750 B back, every 400 ms", ECHO),
];

/// A walk, with the results of each load.
#[derive(Serialize, Deserialize)]
struct Walk {
    /// Seed of the root.
    seed: u64,
    loads: Vec<Load>,
}

/// A walk with one load.
#[derive(Serialize, Deserialize)]
struct Load {
    /// Lower bound of the longest delay, ms.
    bound_ms: Option<f64>,
    /// Results of each of [`systems::all`].
    systems: Vec<Outcome>,
}

/// Results of a system on a walk.
#[derive(Serialize, Deserialize)]
pub(super) struct Outcome {
    /// The longest delay, ms.
    pub(super) worst_ms: f64,
    /// The longest delay around WiFi's silence, ms.
    hole_ms: Option<f64>,
    gap_ms: f64,
    missed: u64,
    unanswered: usize,
    pub(super) opened: usize,
    wifi_j: f64,
    pub(super) lte: Option<Metered>,
}

impl Outcome {
    pub(super) fn from_talk(talk: WorkloadResult) -> Outcome {
        Outcome {
            worst_ms: talk.worst_ms(),
            hole_ms: talk.hole_ms(),
            gap_ms: talk.gap_ms,
            missed: talk.missed,
            unanswered: talk.unanswered,
            opened: talk.opened,
            wifi_j: talk.joules[0].traffic_j(),
            lte: talk.metered,
        }
    }
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let (walks, rows) = context.judge_part(
        WALKS,
        |root| measure(context, root),
        |walks| {
            let rows =
                (0..LOADS.len()).map(|load| Deciles::new(walks, load, context.master).rows(file));
            Ok(rows.collect::<anyhow::Result<Vec<_>>>()?.concat())
        },
    )?;
    let mut rows = rows.into_iter();
    let each = rows.len() / LOADS.len();
    for (load, (key, title, _)) in LOADS.iter().enumerate() {
        let heading = format!(
            "Walks out of WiFi range, {title}: longest delay of a run, one walk per root (99 % intervals)"
        );
        let mine = rows.by_ref().take(each).collect();
        all.tables.push(Table::new(&format!("walks-{key}"), heading, mine));
        let deciles = Deciles::new(&walks, load, context.master);
        all.grids.push(deciles.grid(key, title));
        all.grids.push(deciles.later_walks(key, title));
        all.figures.push(deciles.figure(key, title));
    }
    let title = "Walks, first load: LTE energy by radio constants";
    let drawn: radios::EnergySelector<Walk> =
        |walk, place| walk.loads[0].systems[place].lte.as_ref();
    all.grids.push(radios::sensitivity("walks-constants", title, &walks, drawn));
    Ok(())
}

fn measure(context: &Context<'_>, root: &Root) -> anyhow::Result<Walk> {
    let scenario = PhoneScenario::walk(context.traces()?, root.seed, true)?;
    let load = |(_, _, workload): &(_, _, Workload)| -> anyhow::Result<Load> {
        let talk =
            |system: &System| scenario.talk(system, workload, root.seed).map(Outcome::from_talk);
        let systems = systems::all().iter().map(talk).collect::<anyhow::Result<_>>()?;
        Ok(Load { bound_ms: bound_ms(&scenario, workload, root.seed), systems })
    };
    let loads = LOADS.iter().map(load).collect::<anyhow::Result<_>>()?;
    Ok(Walk { seed: root.seed, loads })
}

/// Lower bound of the longest delay, ms. `None` if some request cannot be answered at all.
fn bound_ms(scenario: &PhoneScenario, workload: &Workload, seed: u64) -> Option<f64> {
    let end = START + scenario.duration(workload, seed);
    let bound = Bound::for_links(&scenario.named(), workload, seed, end);
    let answer = workload.sizes(seed).size_of(0);
    let due = workload.times_ns(seed).into_iter();
    let least = due.map(|ns| bound.latency_ms(ns as f64 / 1e6, answer));
    Some(least.fold(0.0, f64::max)).filter(|ms| ms.is_finite())
}

/// The longest delays of all walks with one load.
struct Deciles<'a> {
    walks: &'a Samples<Walk>,
    load: usize,
    master: u64,
    /// Longest delays of each of [`systems::all`].
    worst: Vec<RankedSamples>,
    holes: Vec<RankedSamples>,
    bounds: RankedSamples,
}

impl<'a> Deciles<'a> {
    fn new(walks: &'a Samples<Walk>, load: usize, master: u64) -> Deciles<'a> {
        let of = |number: fn(&Outcome) -> Option<f64>| {
            let ranked = |place: usize| {
                RankedSamples::rank_samples(walks, move |walk| {
                    number(&walk.loads[load].systems[place])
                })
            };
            (0..systems::all().len()).map(ranked).collect()
        };
        Deciles {
            walks,
            load,
            master,
            worst: of(|outcome| Some(outcome.worst_ms)),
            holes: of(|outcome| outcome.hole_ms),
            bounds: RankedSamples::rank_samples(walks, |walk| walk.loads[load].bound_ms),
        }
    }

    /// Ratio of a quantile of one distribution to that of another.
    fn ratio(&self, ours: &RankedSamples, theirs: &RankedSamples, share: f64) -> Estimate {
        count_where(self.walks, self.master, |drawn| {
            ours.quantile(drawn, share) / theirs.quantile(drawn, share)
        })
    }

    /// Largest ratio over the nine deciles.
    fn worst_ratio(&self, ours: &RankedSamples, theirs: &RankedSamples) -> Estimate {
        count_where(self.walks, self.master, |drawn| {
            let shares = (1..=9).map(|decile| f64::from(decile) / 10.0);
            let ratio = |share| ours.quantile(drawn, share) / theirs.quantile(drawn, share);
            shares.map(ratio).fold(0.0, f64::max)
        })
    }

    fn quantile(&self, of: &RankedSamples, share: f64) -> Estimate {
        count_where(self.walks, self.master, |drawn| of.quantile(drawn, share))
    }

    fn outcome<'b>(&self, walk: &'b Walk, place: usize) -> &'b Outcome {
        &walk.loads[self.load].systems[place]
    }

    fn rows(&self, file: &PaperFile<Published>) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for system in systems::multimob() {
            self.compare_with_vanilla(&system, 1.0 + file.tolerance("decile")?, &mut rows);
            self.compare_with_kernel(&system, file.tolerance("median")?, &mut rows);
            let drawn: radios::EnergySelector<Walk> = match self.load {
                0 => |walk, place| walk.loads[0].systems[place].lte.as_ref(),
                _ => |walk, place| walk.loads[1].systems[place].lte.as_ref(),
            };
            rows.extend(radios::rows(self.walks, drawn, &system, None));
        }
        Ok(rows)
    }

    fn compare_with_vanilla(&self, system: &System, most: f64, rows: &mut Vec<Row>) {
        let (place, mesh) =
            (systems::index_of(system), systems::index_of(&systems::vanilla_full_mesh()));
        let (ours, theirs) = (&self.worst[place], &self.worst[mesh]);
        let asked = format!("at most {most:.3}");
        for decile in 1..=9 {
            let share = f64::from(decile) / 10.0;
            let what = format!("{}: {decile}0th percentile, ratio to full mesh", system.name);
            let row = Row::new(what).paper_claim("not worse");
            rows.push(
                row.estimate(&self.ratio(ours, theirs, share), "")
                    .require_range(RequiredRange::at_most(most), asked.as_str())
                    .with_remark(format!(
                        "{:.0} and {:.0} ms",
                        self.quantile(ours, share).value,
                        self.quantile(theirs, share).value
                    )),
            );
        }
        for other in [systems::vanilla_full_mesh(), systems::vanilla_backup()] {
            let theirs = &self.worst[systems::index_of(&other)];
            let what = format!("{}: worst decile, ratio to {}", system.name, other.name);
            let ratio = self.worst_ratio(ours, theirs);
            let row = Row::new(what)
                .paper_claim("not worse")
                .estimate(&ratio, "")
                .require_range(RequiredRange::at_most(most), asked.as_str());
            rows.push(row.with_remark("the largest of nine ratios, so chance alone raises it"));
        }
        let held = |walk: &Walk| {
            self.outcome(walk, place).worst_ms <= most * self.outcome(walk, mesh).worst_ms
        };
        let share = self.walks.share(|walk| (u64::from(held(walk)), 1));
        let what = format!("{}: walks with a delay no longer than full mesh's", system.name);
        let row = Row::new(what).paper_claim("not worse (distributions)");
        rows.push(
            row.estimate(&share.percent(), "%")
                .at_least(95.0)
                .with_remark("walk by walk, which is stricter than the slides' figure"),
        );
    }

    fn compare_with_kernel(&self, system: &System, most: f64, rows: &mut Vec<Row>) {
        let kernel = systems::kernel_backup();
        let (place, theirs) = (systems::index_of(system), systems::index_of(&kernel));
        let whole = self.ratio(&self.worst[place], &self.worst[theirs], 0.5);
        let (ours, bound) =
            (self.quantile(&self.worst[place], 0.5), self.quantile(&self.bounds, 0.5));
        let what = format!("{}: median longest delay, ratio to {}", system.name, kernel.name);
        let row = Row::new(what).estimate(&whole, "").bound_ratio(ours.value / bound.value);
        rows.push(row.at_most(most).with_remark(format!(
            "{:.0} and {:.0} ms; including LTE's own pauses, bound {:.0} ms; the slides have no \
             such system",
            ours.value,
            self.quantile(&self.worst[theirs], 0.5).value,
            bound.value
        )));
        let hole = self.ratio(&self.holes[place], &self.holes[theirs], 0.5);
        let what = format!("{}: median gap when WiFi goes silent, ratio to kernel", system.name);
        let row = Row::new(what).estimate(&hole, "").at_most(most).with_remark(format!(
            "{:.0} and {:.0} ms",
            self.quantile(&self.holes[place], 0.5).value,
            self.quantile(&self.holes[theirs], 0.5).value
        ));
        rows.push(row.mark_fitted(
            "the window of 5 s around WiFi's silence, chosen after this ratio and that of whole runs were known",
        ));
    }

    fn grid(&self, key: &str, title: &str) -> Grid {
        let mut columns = vec![("system", "")];
        const SHARES: [&str; 10] =
            ["10 %", "20 %", "30 %", "40 %", "50 %", "60 %", "70 %", "80 %", "90 %", "100 %"];
        columns.extend(SHARES.map(|share| (share, "ms")));
        columns.extend([
            ("50 % / bound", ""),
            ("median gap when WiFi goes silent", "ms"),
            ("median gap between answers", "ms"),
            ("missed", "per run"),
            ("unanswered", "per run"),
            ("cellular subflows", "per run"),
            ("WiFi", "J"),
            ("LTE", "J"),
        ]);
        let heading =
            format!("Deciles of the longest delay of a walk, {title}; joules: {CONSTANTS}");
        let mut grid = Grid::new(&format!("deciles-{key}"), heading, &columns);
        for (place, system) in systems::all().iter().enumerate() {
            let worst = &self.worst[place];
            let mean = |of: fn(&Outcome) -> f64| {
                cell(self.walks.mean(|walk| of(self.outcome(walk, place))))
            };
            let decile = |decile: u32| cell(self.quantile(worst, f64::from(decile) / 10.0));
            let gaps = RankedSamples::rank_samples(self.walks, |walk| {
                Some(self.outcome(walk, place).gap_ms)
            });
            let mut cells = vec![Value::Text(system.name.to_owned())];
            cells.extend((1..=9).map(decile));
            cells.extend([
                Value::new(worst.values().last().copied().unwrap_or(f64::NAN), ""),
                cell(self.ratio(worst, &self.bounds, 0.5)),
                cell(self.quantile(&self.holes[place], 0.5)),
                cell(self.quantile(&gaps, 0.5)),
                mean(|outcome| outcome.missed as f64),
                mean(|outcome| outcome.unanswered as f64),
                mean(|outcome| outcome.opened as f64),
                mean(|outcome| outcome.wifi_j),
                mean(|outcome| outcome.lte.as_ref().map_or(0.0, |lte| lte.model)),
            ]);
            grid.rows.push(cells);
        }
        grid
    }

    /// Walks in which tuned MultiMob's longest delay exceeds full mesh's, the worst first.
    fn later_walks(&self, key: &str, title: &str) -> Grid {
        let all = systems::all();
        let mut columns = vec![("root", ""), ("tuned, ratio to full mesh", "")];
        columns.extend(all.iter().map(|system| (system.name, "ms")));
        columns.push(("bound", "ms"));
        let heading =
            format!("Worst walks in which tuned has a longer delay than full mesh, {title}");
        let mut grid = Grid::new(&format!("later-{key}"), heading, &columns);
        let (tuned, mesh) = (
            systems::index_of(&systems::tuned()),
            systems::index_of(&systems::vanilla_full_mesh()),
        );
        let ratio =
            |walk: &Walk| self.outcome(walk, tuned).worst_ms / self.outcome(walk, mesh).worst_ms;
        let mut later: Vec<&Walk> =
            self.walks.all().iter().filter(|walk| ratio(walk) > 1.001).collect();
        later.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
        for walk in later.into_iter().take(LISTED) {
            let mut numbers = vec![ratio(walk)];
            numbers.extend((0..all.len()).map(|place| self.outcome(walk, place).worst_ms));
            numbers.push(walk.loads[self.load].bound_ms.unwrap_or(f64::NAN));
            grid.push(&[&walk.seed.to_string()], &numbers);
        }
        grid
    }

    fn figure(&self, key: &str, title: &str) -> Figure {
        let heading = format!("Longest delay of a walk, {title}");
        let mut plot = Plot::new(&heading, "longest delay (ms)", "share of the walks").log_x();
        for (system, worst) in systems::all().iter().zip(&self.worst) {
            plot = plot.steps(system.name, &cdf(&worst.values()));
        }
        let caption = "Each system runs on the same walks. A request that was never answered counts as the time until \
                       the run ended.";
        plot.figure(&format!("cdf-{key}"), caption)
    }
}
