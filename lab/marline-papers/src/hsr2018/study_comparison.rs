//! The study's own comparison of Multipath TCP with several congestion controls to Reno on one carrier, with its
//! published shares.

use serde::Deserialize;

use super::contestants::{STUDIED_CONTROLS, StudiedRide};
use super::ride::CLASSES;
use crate::estimate::{Estimate, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::table::Grid;
use crate::value::Value;

/// Published shares by class, and shares of flows above 10 Mbit/s by [`STUDIED_CONTROLS`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Published {
    better_than_best: [f64; 3],
    above_three_times_the_worse: [f64; 3],
    above_seven_tenths_of_the_sum: [f64; 3],
    above_10_mbit: [f64; 3],
}

impl Published {
    /// Shares of runs worse than the better carrier, by class.
    fn worse_than_best(&self) -> [f64; 3] {
        self.better_than_best.map(|share| 1.0 - share)
    }
}

/// Condition on the goodput of Multipath TCP and those of both carriers.
type GoodputCondition = fn(f64, [f64; 2]) -> bool;

/// Runs of Reno with which a run of Multipath TCP is compared.
#[derive(Copy, Clone)]
enum ComparedRuns {
    /// Runs on the same ride. The difference is due to Multipath TCP alone.
    SameRide,
    /// Runs on another ride of the class: the study ran its tests one after the other.
    AnotherRide,
}

impl ComparedRuns {
    const ALL: [ComparedRuns; 2] = [ComparedRuns::SameRide, ComparedRuns::AnotherRide];

    const fn reno(self, ride: &StudiedRide) -> [f64; 2] {
        match self {
            ComparedRuns::SameRide => ride.reno,
            ComparedRuns::AnotherRide => ride.later_reno,
        }
    }

    /// Share of the runs of all congestion controls that meet a condition, percent.
    fn share(
        self,
        samples: &Samples<Vec<StudiedRide>>,
        class: usize,
        holds: GoodputCondition,
    ) -> Estimate {
        let share = samples.share(|rides| {
            let (ride, reno) = (&rides[class], self.reno(&rides[class]));
            let hits = ride.studied.iter().filter(|goodput| holds(**goodput, reno)).count();
            (hits as u64, ride.studied.len() as u64)
        });
        share.percent()
    }

    /// Number of runs on a root's ride of this class that are worse than the better carrier.
    fn count_worse(self, rides: &[StudiedRide], class: usize) -> i64 {
        let reno = self.reno(&rides[class]);
        rides[class].studied.iter().filter(|goodput| is_worse(**goodput, reno)).count() as i64
    }

    /// Difference of the shares of worse runs between two classes, percentage points.
    fn worse_share_difference(
        self,
        samples: &Samples<Vec<StudiedRide>>,
        [from, to]: [usize; 2],
    ) -> Estimate {
        samples.estimate(|picked| {
            let hits =
                |class| picked.iter().map(|rides| self.count_worse(rides, class)).sum::<i64>();
            let runs = picked.len() * STUDIED_CONTROLS.len();
            100.0 * (hits(to) - hits(from)) as f64 / runs as f64
        })
    }

    /// Share of worse runs over all classes, percent.
    fn worse_share_overall(self, samples: &Samples<Vec<StudiedRide>>) -> Estimate {
        let share = samples.share(|rides| {
            let hits: i64 = (0..rides.len()).map(|class| self.count_worse(rides, class)).sum();
            (hits as u64, (rides.len() * STUDIED_CONTROLS.len()) as u64)
        });
        share.percent()
    }
}

fn is_worse(goodput: f64, [first, second]: [f64; 2]) -> bool {
    goodput < first.max(second)
}

fn is_above_three_times_worse(goodput: f64, [first, second]: [f64; 2]) -> bool {
    goodput > 3.0 * first.min(second)
}

fn exceeds_share_of_sum(goodput: f64, [first, second]: [f64; 2]) -> bool {
    goodput > 0.7 * (first + second)
}

/// Rows of the study's statements that the model can judge.
pub(super) fn rows(
    samples: &Samples<Vec<StudiedRide>>,
    file: &PaperFile<Published>,
) -> anyhow::Result<Vec<Row>> {
    let worse = file.published.worse_than_best();
    let ours = ComparedRuns::AnotherRide;
    let mean = 100.0 * worse.iter().sum::<f64>() / worse.len() as f64;
    let often = Row::new("all classes: runs worse than the better carrier")
        .statement("study-worse-than-best")
        .paper(mean, "%")
        .estimate(&ours.worse_share_overall(samples), "%")
        .within_of_paper(file.tolerance("worse_share")?);
    let [slowest, _, fastest] = worse;
    let oftener = Row::new("more often worse at 150 to 310 km/h than static")
        .statement("study-handoffs")
        .paper(100.0 * (fastest - slowest), "points")
        .estimate(&ours.worse_share_difference(samples, [0, 2]), "points")
        .within_of_paper(file.tolerance("worse_growth")?);
    Ok(vec![often, oftener])
}

/// The study's shares next to ours.
pub(super) fn grid(samples: &Samples<Vec<StudiedRide>>, published: &Published) -> Grid {
    let columns = [
        ("share of the runs", ""),
        ("paper", "%"),
        ("Reno on the same ride", "%"),
        ("Reno on another ride, as in the study", "%"),
    ];
    let mut grid = Grid::new("as-studied-shares", "Shares that the study published", &columns);
    let worse_than_best = published.worse_than_best();
    let shares: [(&str, &[f64; 3], GoodputCondition); 3] = [
        ("worse than the better carrier", &worse_than_best, is_worse),
        (
            "above 3 times the worse carrier",
            &published.above_three_times_the_worse,
            is_above_three_times_worse,
        ),
        (
            "above 0.7 of the sum of both",
            &published.above_seven_tenths_of_the_sum,
            exceeds_share_of_sum,
        ),
    ];
    for (what, papers, holds) in shares {
        for (class, (of, paper)) in CLASSES.iter().zip(papers).enumerate() {
            let name = Value::Text(format!("{}: {what}", of.name));
            let ours = ComparedRuns::ALL
                .map(|runs| Value::from_estimate(&runs.share(samples, class, holds), ""));
            let paper = Value::new(100.0 * paper, "");
            grid.rows.push([name, paper].into_iter().chain(ours).collect());
        }
    }
    for (number, (name, _)) in STUDIED_CONTROLS.iter().enumerate() {
        let share = samples.share(|rides| {
            let above = rides.iter().filter(|ride| ride.studied[number] > 10.0).count();
            (above as u64, rides.len() as u64)
        });
        let ours = Value::from_estimate(&share.percent(), "");
        let paper = Value::new(100.0 * published.above_10_mbit[number], "");
        let name = Value::Text(format!("{name}: above 10 Mbit/s, all classes"));
        grid.rows.push(vec![name, paper, ours, Value::Text(String::new())]);
    }
    grid
}
