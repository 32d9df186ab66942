//! Key `matrix`: every policy on the links of every study.
//!
//! Each study has a policy that is good on its own links. This key checks whether one policy, the default, is good on
//! all of them. In each row it is compared with the best contestant within the same budget of copies and, without a
//! budget, with the best of all.

mod beside;
mod ground;
mod measure;
mod scenes;

use marline_lab::experiment::Variant;
use serde::Deserialize;

use crate::estimate::{RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::{Context, Effort, Paper};
use crate::roots::Part;
use crate::table::{Grid, Reproduction, Table};
use measure::{Cell, Ride, SceneCells};
use scenes::{SCENES, Scene};

pub use ground::default_on_seed_ground;

const TEXT: &str = include_str!("../papers/matrix.toml");
const PART: Part = Part::new("scenes", 20, 40);
const RIDES: Part = Part::fixed("rides", 60);
/// Indexes of the contestants.
const AUTO: usize = 0;
const REDUNDANT: usize = 1;

/// Comparison of all schedulers in the scenes of all papers.
pub(super) struct Matrix;

/// Contestants, and the budget of the default.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    contestant: Vec<Contestant>,
    budget: Budget,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contestant {
    name: String,
    #[serde(default)]
    scheduler: Option<String>,
    #[serde(default)]
    congestion: Option<String>,
    /// Mode, instead of a scheduler.
    #[serde(default)]
    mode: Option<String>,
    /// True if the contestant sends repairs, which exceed the budget and are not counted as copies.
    #[serde(default)]
    repairs: bool,
}

impl Contestant {
    fn variant(&self) -> Variant {
        let variant = Variant::new(&self.name);
        Variant {
            scheduler: self.scheduler.clone(),
            congestion: self.congestion.clone(),
            mode: self.mode.clone(),
            repair: self.repairs,
            ..variant
        }
    }
}

#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    share: f64,
    kb_per_s: f64,
}

impl Budget {
    /// True if the copies of a cell are within the budget, for its payload and its sending time at both ends.
    fn allows(self, cell: &Cell) -> bool {
        let free = self.kb_per_s * 1e3 * cell.sending_s;
        cell.extra_bytes <= (self.share * cell.payload_bytes).max(free)
    }
}

impl Paper for Matrix {
    fn key(&self) -> &'static str {
        "matrix"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Setup>::parse(TEXT)?;
        let setup = &file.published;
        let variants: Vec<Variant> = setup.contestant.iter().map(Contestant::variant).collect();
        let margin = file.tolerance("of_best")?;
        let (samples, rows) = context.judge_part(
            PART,
            |root| measure::all(context, &variants, root),
            |samples| Ok(View { setup, samples }.rows(margin)),
        )?;
        let mut result = Reproduction::default();
        let title = "The default scheduler compared with the best within its budget, or with the best overall if \
                     there is no budget";
        result.tables.push(Table::new("matrix", title, rows));
        let rides = match context.effort {
            Effort::Quick => Part::fixed(RIDES.name, 4),
            _ => RIDES,
        };
        let rides = context.sample(rides, |root| measure::ride(&variants[AUTO], root))?;
        let (below, least) = (file.tolerance("rides_below")?, file.tolerance("rides_least")?);
        let title = "Rides by train at 150 to 310 km/h: goodput of the default relative to the best carrier alone";
        result.tables.push(Table::new("rides", title, ride_rows(&rides, below, least)));
        let range = |least: &str, most: &str| {
            anyhow::Ok(RequiredRange { least: file.tolerance(least)?, most: file.tolerance(most)? })
        };
        let fair = range("share_least", "share_most")?;
        let ever = range("share_never_below", "share_never_above")?;
        let (rows, shares) = beside::judge_shares(context, &variants[AUTO], fair, ever)?;
        let title = "Fairness: a bottleneck of 10 or 50 Mbit/s, 20 or 80 ms, with a buffer of \
             1, 2 or 4 bandwidth-delay products";
        result.tables.push(Table::new("beside", title, rows));
        result.grids.push(shares);
        result.grids.push(View { setup, samples: &samples }.grid());
        Ok(result)
    }
}

fn ride_rows(rides: &Samples<Ride>, below: f64, least: f64) -> Vec<Row> {
    let share = rides.share(|ride| (u64::from(ride.ratio_to_best_carrier() < 1.0), 1));
    let row =
        Row::new("rides on which auto is below the best carrier").estimate(&share.percent(), "%");
    let asked = format!("at most {} %", 100.0 * below);
    let shares = row.require_also(&share, RequiredRange::at_most(below), asked);
    let worst = rides.estimate(|picked| {
        picked.iter().map(|ride| ride.ratio_to_best_carrier()).fold(f64::INFINITY, f64::min)
    });
    let worst = Row::new("worst ride").estimate(&worst, "").at_least(least);
    let mean = rides.mean(Ride::ratio_to_best_carrier);
    vec![shares, worst, Row::new("mean ride").estimate(&mean, "")]
}

/// Results of all contestants in all scenes.
struct View<'a> {
    setup: &'a Setup,
    samples: &'a Samples<Vec<SceneCells>>,
}

/// Mean over roots of one measure of one contestant.
fn mean(picked: &[&Vec<SceneCells>], scene: usize, contestant: usize, measure: usize) -> f64 {
    let values = picked.iter().map(|root| root[scene][contestant].values[measure]);
    values.sum::<f64>() / picked.len() as f64
}

impl View<'_> {
    /// Factor by which this contestant's mean is worse than the best of the others. 1: none is better.
    fn worse_factor(
        picked: &[&Vec<SceneCells>],
        scene: usize,
        measure: usize,
        contestant: usize,
        among: &[usize],
    ) -> f64 {
        let is_lower_better = SCENES[scene].measures[measure].is_lower_better();
        let of = |contestant: usize| mean(picked, scene, contestant, measure);
        let own = of(contestant);
        let ratio = |other: usize| if is_lower_better { own / of(other) } else { of(other) / own };
        among.iter().map(|other| ratio(*other)).fold(1.0, f64::max)
    }

    /// Contestants whose copies stay within the budget in a scene.
    fn variants_within_budget(&self, scene: usize) -> Vec<usize> {
        let all = 0..self.setup.contestant.len();
        all.filter(|contestant| {
            let cells = self.samples.all().iter().map(|root| &root[scene][*contestant]);
            !self.setup.contestant[*contestant].repairs
                && self.setup.budget.allows(&Cell::sum(cells))
        })
        .collect()
    }

    fn rows(&self, margin: f64) -> Vec<Row> {
        let everybody: Vec<usize> = (0..self.setup.contestant.len()).collect();
        let mut rows = Vec::new();
        for (number, Scene { name, measures, .. }) in SCENES.iter().enumerate() {
            let mut frugal = self.variants_within_budget(number);
            frugal.push(AUTO);
            for (place, measure) in measures.iter().enumerate() {
                let mut row = |who: &str, contestant: usize, among: &[usize]| {
                    let worse = |picked: &[&Vec<SceneCells>]| {
                        View::worse_factor(picked, number, place, contestant, among)
                    };
                    let estimate = self.samples.estimate(worse);
                    let what = format!("{name}, {}: {who}", measure.name());
                    rows.push(Row::new(what).estimate(&estimate, "").at_most(1.0 + margin));
                };
                row("auto, ratio to the best within its budget", AUTO, &frugal);
                row("mode redundant, ratio to the best of all", REDUNDANT, &everybody);
            }
        }
        rows
    }

    /// Means of all contestants.
    fn grid(&self) -> Grid {
        let names = self.setup.contestant.iter().map(|contestant| (&*contestant.name, ""));
        let columns: Vec<_> =
            [("scene", ""), ("from key", ""), ("measure", "")].into_iter().chain(names).collect();
        let title = "Every contestant in every scene: means over the roots (ms; goodput Mbit/s), and copies as a \
                     percentage of the payload";
        let mut grid = Grid::new("contestants", title, &columns);
        let picked: Vec<&Vec<SceneCells>> = self.samples.all().iter().collect();
        for (number, scene) in SCENES.iter().enumerate() {
            let words = |measure| [scene.name, scene.key, measure];
            let contestants = 0..self.setup.contestant.len();
            for (place, measure) in scene.measures.iter().enumerate() {
                let of = |contestant| mean(&picked, number, contestant, place);
                let numbers: Vec<f64> = contestants.clone().map(of).collect();
                grid.push(&words(measure.name()), &numbers);
            }
            let extra = |contestant: usize| {
                let sum = Cell::sum(picked.iter().map(|root| &root[number][contestant]));
                100.0 * sum.extra_bytes / sum.payload_bytes
            };
            let extra: Vec<f64> = contestants.clone().map(extra).collect();
            grid.push(&words("extra bytes (%)"), &extra);
            let joules = |contestant: usize| {
                let cells = picked.iter().map(|root| &root[number][contestant]);
                Cell::sum(cells).cellular_j / picked.len() as f64
            };
            let joules: Vec<f64> = contestants.map(joules).collect();
            if joules.iter().any(|joules| *joules > 0.0) {
                grid.push(&words("cellular radio (J)"), &joules);
            }
        }
        grid
    }
}
