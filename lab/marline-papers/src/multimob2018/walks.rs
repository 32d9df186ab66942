//! Walks out of WiFi range, one per root: the longest delay of each, compared by decile.

use marline_lab::bound::Bound;
use marline_lab::experiment::START;
use marline_lab::figure::{Figure, Plot, cdf};
use marline_lab::workload::Workload;
use serde::{Deserialize, Serialize};

use super::loads::{ASSISTANT, ECHO};
use super::ours::ParameterComparison;
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

/// Index of the judged load. The other one is shown.
const JUDGED_LOAD: usize = 0;
/// A longest delay up to this multiple of another does not count as longer.
const NOT_LATER: f64 = 1.001;

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
    lte_awake_s: f64,
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
            lte_awake_s: talk.lte_awake_s,
            lte: talk.metered,
        }
    }
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
    ours: &mut ParameterComparison,
) -> anyhow::Result<()> {
    let (walks, rows) = context.judge_part(
        WALKS,
        |root| measure(context, root),
        |walks| Deciles::new(walks, JUDGED_LOAD, context.master).rows(file),
    )?;
    let heading = format!(
        "Walks out of WiFi range, {}: one walk per root (99 % intervals)",
        LOADS[JUDGED_LOAD].1
    );
    all.tables.push(Table::new("walks", heading, rows));
    for (load, (key, title, _)) in LOADS.iter().enumerate() {
        let deciles = Deciles::new(&walks, load, context.master);
        all.grids.extend([deciles.grid(key, title), deciles.ratios(key, title)]);
        all.grids.push(deciles.later_walks(key, title));
        all.figures.push(deciles.figure(key, title));
        if load == JUDGED_LOAD {
            deciles.compare_parameters(ours);
        }
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

    /// Largest ratio over the nine deciles of two systems.
    fn worst_ratio(&self, ours: usize, theirs: usize) -> Estimate {
        let (ours, theirs) = (&self.worst[ours], &self.worst[theirs]);
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

    fn energy_selector(&self) -> radios::EnergySelector<Walk> {
        match self.load {
            0 => |walk, place| walk.loads[0].systems[place].lte.as_ref(),
            _ => |walk, place| walk.loads[1].systems[place].lte.as_ref(),
        }
    }

    fn rows(&self, file: &PaperFile<Published>) -> anyhow::Result<Vec<Row>> {
        let less = 1.0 - file.tolerance("benefit")?;
        let most = 1.0 + file.tolerance("decile")?;
        Ok(vec![self.judge_resilience(), self.judge_delays(most, less), self.judge_lte_use(less)])
    }

    fn judge_resilience(&self) -> Row {
        let mesh = systems::index_of(&systems::vanilla_full_mesh());
        let alone = systems::index_of(&systems::plain_tcp());
        let share = self.walks.share(|walk| {
            let lost = self.outcome(walk, alone).unanswered > 0;
            let kept = self.outcome(walk, mesh).unanswered == 0;
            (u64::from(lost && kept), u64::from(lost))
        });
        let lost =
            self.walks.share(|walk| (u64::from(self.outcome(walk, alone).unanswered > 0), 1));
        Row::new("full mesh answers every request, among walks on which TCP over WiFi does not")
            .statement("resilient-under-mobility")
            .paper_claim("network resiliency under mobility")
            .estimate(&share.percent(), "%")
            .at_least(95.0)
            .with_remark(format!("{:.0} % of all walks", 100.0 * lost.value))
    }

    /// A copy of full mesh would not have longer delays either, so an energy gain is required as well.
    fn judge_delays(&self, most: f64, less: f64) -> Row {
        let authors = systems::index_of(&systems::authors());
        let [mesh, backup] = [systems::vanilla_full_mesh(), systems::vanilla_backup()]
            .map(|system| self.worst_ratio(authors, systems::index_of(&system)));
        let energy = self.energy_ratio(authors);
        let limit = RequiredRange::at_most(most);
        Row::new("authors' parameters: worst decile of the longest delay, ratio to full mesh")
            .statement("not-worse-than-vanilla")
            .paper_claim("not worse")
            .estimate(&mesh, "")
            .at_most(most)
            .require_also(&backup, limit, format!("to vanilla with backup flag at most {most:.3}"))
            .require_also(
                &energy,
                RequiredRange::at_most(less),
                format!("cellular joules at most {less:.2} of full mesh's"),
            )
            .with_remark(format!(
                "the largest of nine ratios, so chance alone raises it; to backup flag {:.2}; joules {:.2}",
                backup.value, energy.value
            ))
    }

    fn judge_lte_use(&self, less: f64) -> Row {
        let authors = systems::index_of(&systems::authors());
        Row::new("authors' parameters: time with the LTE radio awake, ratio to full mesh")
            .statement("less-lte-use")
            .paper_claim("lower")
            .estimate(&self.awake_ratio(authors), "")
            .at_most(less)
    }

    fn energy_ratio(&self, place: usize) -> Estimate {
        radios::ratio_to_mesh(self.walks, self.energy_selector(), place, |lte| lte.model)
    }

    fn awake_ratio(&self, place: usize) -> Estimate {
        let mesh = systems::index_of(&systems::vanilla_full_mesh());
        let awake = |walk: &Walk, place| self.outcome(walk, place).lte_awake_s;
        self.walks.ratio(|walk| (awake(walk, place), awake(walk, mesh)))
    }

    /// Share of the walks on which a system's longest delay does not exceed full mesh's.
    fn no_later_share(&self, place: usize) -> Estimate {
        let mesh = systems::index_of(&systems::vanilla_full_mesh());
        let worst = |walk: &Walk, place| self.outcome(walk, place).worst_ms;
        let held = |walk: &Walk| worst(walk, place) <= NOT_LATER * worst(walk, mesh);
        self.walks.share(|walk| (u64::from(held(walk)), 1))
    }

    fn compare_parameters(&self, ours: &mut ParameterComparison) {
        let mesh = systems::index_of(&systems::vanilla_full_mesh());
        ours.push("walks: worst decile of the longest delay, ratio to full mesh", "", |place| {
            self.worst_ratio(place, mesh)
        });
        ours.push("walks: cellular joules, ratio to full mesh", "", |place| {
            self.energy_ratio(place)
        });
        ours.push("walks: time with the LTE radio awake, ratio to full mesh", "", |place| {
            self.awake_ratio(place)
        });
    }

    /// Ratios of both variants of MultiMob to vanilla and to today's kernel.
    fn ratios(&self, key: &str, title: &str) -> Grid {
        let mut columns = vec![("system", "")];
        const SHARES: [&str; 9] =
            ["10 %", "20 %", "30 %", "40 %", "50 %", "60 %", "70 %", "80 %", "90 %"];
        columns.extend(SHARES.map(|share| (share, "")));
        columns.extend([
            ("worst decile", ""),
            ("worst decile, ratio to backup flag", ""),
            ("walks without a longer delay", "%"),
            ("cellular joules", ""),
            ("50 %, ratio to kernel", ""),
            ("median gap when WiFi goes silent, ratio to kernel", ""),
        ]);
        let heading = format!("Longest delay of a walk, {title}: ratio to full mesh by decile");
        let mut grid = Grid::new(&format!("ratios-{key}"), heading, &columns);
        let [mesh, backup, kernel] =
            [systems::vanilla_full_mesh(), systems::vanilla_backup(), systems::kernel_backup()]
                .map(|system| systems::index_of(&system));
        for system in systems::multimob() {
            let place = systems::index_of(&system);
            let (worst, holes) = (&self.worst, &self.holes);
            let decile = |n: u32| self.ratio(&worst[place], &worst[mesh], f64::from(n) / 10.0);
            let mut cells = vec![Value::Text(system.name.to_owned())];
            cells.extend((1..=9).map(|n| cell(decile(n))));
            let rest = [
                self.worst_ratio(place, mesh),
                self.worst_ratio(place, backup),
                self.no_later_share(place).percent(),
                self.energy_ratio(place),
                self.ratio(&worst[place], &worst[kernel], 0.5),
                self.ratio(&holes[place], &holes[kernel], 0.5),
            ];
            cells.extend(rest.map(cell));
            grid.rows.push(cells);
        }
        grid
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
            self.walks.all().iter().filter(|walk| ratio(walk) > NOT_LATER).collect();
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
