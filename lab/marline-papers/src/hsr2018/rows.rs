//! Rows and tables on aggregation efficiency: U_c is the goodput of Multipath TCP divided by that of the best carrier
//! alone on the same ride.

use marline_lab::figure::{Figure, Plot, cdf};

use super::contestants::{FITTED_INDEX, FITTED_REASON, MIN_RTT, ORP, PAPD, SCHEDULERS};
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::judge::Row;
use crate::table::Grid;
use crate::value::Value;

/// U_c of the schedulers of [`SCHEDULERS`] on each ride of a root.
pub(super) type Efficiencies = Samples<Vec<Vec<f64>>>;

/// Efficiencies computed from the results of each root.
pub(super) fn efficiencies<T>(
    samples: &Samples<T>,
    master: u64,
    of: impl Fn(&T) -> Vec<Vec<f64>>,
) -> Efficiencies {
    Samples::new(samples.all().iter().map(of).collect(), master)
}

/// U_c of several schedulers on one ride.
pub(super) fn ratios_to_best(bonded: &[f64], alone: &[f64]) -> Vec<f64> {
    let best = alone.iter().copied().fold(f64::NAN, f64::max);
    bonded.iter().map(|goodput| goodput / best).collect()
}

fn share_below_one(rides: &[Vec<f64>], scheduler: usize) -> f64 {
    rides.iter().filter(|ride| ride[scheduler] < 1.0).count() as f64
}

/// Share of rides on which each scheduler is worse than the best carrier. `judged` is the maximum share of PAPD
/// with its defaults, relative to that of min-RTT and of OR&P.
pub(super) fn shares(samples: &Efficiencies, judged: Option<f64>) -> Vec<Row> {
    let count = samples.all().first().and_then(|rides| rides.first()).map_or(0, Vec::len);
    let row = |scheduler: usize| {
        let hits =
            |rides: &Vec<Vec<f64>>| (share_below_one(rides, scheduler) as u64, rides.len() as u64);
        let share = samples.share(hits).percent();
        let row = Row::new(format!("{}: rides with U_c < 1", SCHEDULERS[scheduler].0));
        let row = match scheduler {
            MIN_RTT => row.paper_claim("in many cases"),
            ORP => row.paper_claim("still"),
            _ => row,
        };
        let row = row.estimate(&share, "%");
        match judged {
            Some(most) if scheduler == PAPD => require_share(row, samples, scheduler, most),
            Some(most) if scheduler == FITTED_INDEX => {
                require_share(row, samples, scheduler, most).mark_fitted(FITTED_REASON)
            }
            _ => row,
        }
    };
    (0..count).map(row).collect()
}

/// Adds a requirement, paired by root: the share below 1 is at most `most` times that of another scheduler.
fn require_share(mut row: Row, samples: &Efficiencies, scheduler: usize, most: f64) -> Row {
    let hits = |which| samples.all().iter().map(|rides| share_below_one(rides, which)).sum::<f64>();
    for other in [MIN_RTT, ORP] {
        let mut excess = samples.estimate(|picked| {
            let rides: usize = picked.iter().map(|rides| rides.len()).sum();
            let share =
                |which| picked.iter().map(|rides| share_below_one(rides, which)).sum::<f64>();
            (share(scheduler) - most * share(other)) / rides as f64
        });
        if hits(scheduler) + hits(other) == 0.0 {
            // No ride is below 1 with either scheduler, so there is no spread to resample, but the upper bound is not
            // zero.
            let never = samples
                .share(|rides| (share_below_one(rides, scheduler) as u64, rides.len() as u64));
            excess.high = never.high;
        }
        let text = format!("at most {most} times {}'s", SCHEDULERS[other].0);
        row = row.require_also(&excess, RequiredRange::at_most(0.0), text);
    }
    if hits(scheduler) > 0.0 {
        let worst = samples.all().iter().flatten().map(|ride| ride[scheduler]);
        row = row.with_remark(format!("least U_c {:.2}", worst.fold(f64::INFINITY, f64::min)));
    }
    row
}

/// Mean efficiency, and the mean shortfall where it is below 1, of several sets of rides.
pub(super) fn means(sets: &[(String, &Efficiencies)]) -> Grid {
    let columns =
        [("rides", ""), ("scheduler", ""), ("mean U_c", ""), ("mean shortfall from 1", "%")];
    let mut grid = Grid::new("efficiency", "Mean aggregation efficiency", &columns);
    for (set, samples) in sets {
        let count = samples.all().first().and_then(|rides| rides.first()).map_or(0, Vec::len);
        for (scheduler, (name, _)) in SCHEDULERS.iter().enumerate().take(count) {
            let over = |rides: &[Vec<f64>], of: fn(f64) -> f64| {
                rides.iter().map(|ride| of(ride[scheduler])).sum::<f64>() / rides.len() as f64
            };
            let mean = samples.mean(|rides| over(rides, |u| u));
            let lack = samples.mean(|rides| over(rides, |u| (1.0 - u).max(0.0))).percent();
            let text = |words: &str| Value::Text(words.to_owned());
            let number = |e: Estimate| Value::from_estimate(&e, "");
            grid.rows.push(vec![text(set), text(name), number(mean), number(lack)]);
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
    plot.mark_x(1.0, "better carrier").x_range(0.0, 2.0).figure(key, caption)
}
