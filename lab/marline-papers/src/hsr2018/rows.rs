//! Rows and grids on aggregation efficiency: U_c is the goodput of Multipath TCP divided by that of the best carrier
//! alone on the same ride.

use marline_lab::figure::{Figure, Plot, cdf};

use super::contestants::{MIN_RTT, ORP, SCHEDULERS};
use super::ride::CLASSES;
use crate::estimate::{Estimate, Samples};
use crate::judge::Row;
use crate::table::Grid;
use crate::value::Value;

/// U_c of the schedulers of [`SCHEDULERS`] on each ride of a root.
pub(super) type Efficiencies = Samples<Vec<Vec<f64>>>;

/// Efficiencies of a set of rides, such as those of a class.
pub(super) struct RideSet {
    pub(super) name: String,
    pub(super) efficiencies: Efficiencies,
}

/// The rides of each class as a set of its own. `suffix` is added to the names of the classes.
pub(super) fn sets_by_class<T>(
    samples: &Samples<Vec<T>>,
    suffix: &str,
    of: impl Fn(&T) -> Vec<f64>,
) -> Vec<RideSet> {
    let set = |class: usize| RideSet {
        name: format!("{}, {suffix}", CLASSES[class].name),
        efficiencies: samples.map(|rides| vec![of(&rides[class])]),
    };
    (0..CLASSES.len()).map(set).collect()
}

/// U_c of several schedulers on one ride.
pub(super) fn ratios_to_best(bonded: &[f64], alone: &[f64]) -> Vec<f64> {
    let best = alone.iter().copied().fold(f64::NAN, f64::max);
    bonded.iter().map(|goodput| goodput / best).collect()
}

/// Share of the rides on which a scheduler is worse than the best carrier, percent.
fn share_below_one(samples: &Efficiencies, scheduler: usize) -> Estimate {
    let hits = |rides: &Vec<Vec<f64>>| {
        let below = rides.iter().filter(|ride| ride[scheduler] < 1.0).count();
        (below as u64, rides.len() as u64)
    };
    samples.share(hits).percent()
}

/// Rows of the slides: bonding is often worse than the best carrier, also with OR&P. `many` is the smallest share that
/// counts as often, percent.
pub(super) fn degradations(samples: &Efficiencies, many: f64) -> Vec<Row> {
    let row = |scheduler: usize, statement: &'static str, claim: &str| {
        Row::new(format!("{}: rides with U_c < 1", SCHEDULERS[scheduler].0))
            .statement(statement)
            .paper_claim(claim)
            .estimate(&share_below_one(samples, scheduler), "%")
            .at_least(many)
    };
    vec![
        row(MIN_RTT, "bonding-degrades", "in many cases"),
        row(ORP, "orp-is-not-enough", "still exists"),
    ]
}

/// For several sets of rides: share with an efficiency below 1, mean efficiency, and mean shortfall where it is below
/// 1.
pub(super) fn efficiency_grid(sets: &[RideSet]) -> Grid {
    let columns = [
        ("rides", ""),
        ("scheduler", ""),
        ("rides with U_c < 1", "%"),
        ("mean U_c", ""),
        ("mean shortfall from 1", "%"),
    ];
    let title = "Aggregation efficiency of the kernel's schedulers and of PAPD";
    let mut grid = Grid::new("ours", title, &columns);
    for RideSet { name: set, efficiencies } in sets {
        let first = efficiencies.all().first().and_then(|rides| rides.first());
        for (scheduler, (name, _)) in SCHEDULERS.iter().enumerate().take(first.map_or(0, Vec::len))
        {
            let over = |rides: &[Vec<f64>], of: fn(f64) -> f64| {
                rides.iter().map(|ride| of(ride[scheduler])).sum::<f64>() / rides.len() as f64
            };
            let mean = efficiencies.mean(|rides| over(rides, |u| u));
            let lack = efficiencies.mean(|rides| over(rides, |u| (1.0 - u).max(0.0))).percent();
            let numbers = [share_below_one(efficiencies, scheduler), mean, lack];
            let words = [set.as_str(), *name].map(|words| Value::Text(words.to_owned()));
            let numbers = numbers.map(|number| Value::from_estimate(&number, ""));
            grid.rows.push(words.into_iter().chain(numbers).collect());
        }
    }
    grid
}

/// Distribution of the efficiencies of a class with two carriers.
pub(super) fn figure(key: &str, class: &str, samples: &Efficiencies) -> Figure {
    let title = format!("Aggregation efficiency, {class}");
    let mut plot = Plot::new(&title, "U_c = MPTCP / better carrier alone", "share of the rides");
    for (number, (name, _)) in SCHEDULERS.iter().enumerate() {
        let rides = samples.all().iter().flatten();
        plot = plot.steps(name, &cdf(&rides.map(|ride| ride[number]).collect::<Vec<_>>()));
    }
    let caption = "Left of 1, bonding was worse than the better of the two carriers alone.";
    plot.add_vertical_line(1.0, "better carrier").x_range(0.0, 2.0).figure(key, caption)
}
