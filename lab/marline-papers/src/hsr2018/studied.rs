//! The study's own comparison of Multipath TCP with several congestion controls to Reno on one carrier, with its
//! published shares.

use super::contestants::{STUDIED_CONTROLS, StudiedRide};
use super::ride::CLASSES;
use crate::estimate::{Estimate, Samples};
use crate::judge::Row;
use crate::table::Table;

/// Published shares by class, and shares of flows above 10 Mbit/s by [`STUDIED_CONTROLS`].
pub(super) struct Shares<'a> {
    pub(super) better_than_best: &'a [f64; 3],
    pub(super) exceeds_three_worst: &'a [f64; 3],
    pub(super) exceeds_share_of_sum: &'a [f64; 3],
    pub(super) above_10_mbit: &'a [f64; 3],
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

    const fn name(self) -> &'static str {
        match self {
            ComparedRuns::SameRide => "same ride",
            ComparedRuns::AnotherRide => "Reno on another ride, as in the study",
        }
    }

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

    /// Number of runs of a root's ride of a class that are worse than the better carrier.
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

pub(super) fn table(rows: Vec<Row>) -> Table {
    let title =
        "As the study ran it: Multipath TCP (LIA, OLIA, Reno on each path) against Reno alone";
    Table::new("as-studied", title, rows)
}

pub(super) fn rows(samples: &Samples<Vec<StudiedRide>>, published: &Shares<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    let worse_than_best = published.better_than_best.map(|share| 1.0 - share);
    let shares: [(&str, &[f64; 3], GoodputCondition); 3] = [
        ("worse than the better carrier", &worse_than_best, is_worse),
        (
            "above 3 times the worse carrier",
            published.exceeds_three_worst,
            is_above_three_times_worse,
        ),
        ("above 0.7 of the sum of both", published.exceeds_share_of_sum, exceeds_share_of_sum),
    ];
    for (what, papers, holds) in shares {
        for (class, (of, paper)) in CLASSES.iter().zip(papers).enumerate() {
            for against in ComparedRuns::ALL {
                let share = against.share(samples, class, holds);
                let row = Row::new(format!("{}: {what} ({})", of.name, against.name()));
                rows.push(row.paper(100.0 * paper, "%").estimate(&share, "%"));
            }
        }
    }
    for against in ComparedRuns::ALL {
        let name = format!("all classes: worse than the better carrier ({})", against.name());
        let row = Row::new(name).paper_claim("most of the time");
        let row = row.estimate(&against.worse_share_overall(samples), "%");
        rows.push(match against {
            ComparedRuns::SameRide => row,
            ComparedRuns::AnotherRide => row.at_least(50.0),
        });
    }
    for pair in [[0, 1], [1, 2]] {
        for against in ComparedRuns::ALL {
            let [from, to] = pair.map(|class| CLASSES[class].name);
            let name = against.name();
            let row = Row::new(format!("more often worse {to} than {from} ({name})"));
            let paper = 100.0 * (worse_than_best[pair[1]] - worse_than_best[pair[0]]);
            let ours = against.worse_share_difference(samples, pair);
            let row = row.paper(paper, "points").estimate(&ours, "points");
            rows.push(match against {
                ComparedRuns::SameRide => row,
                ComparedRuns::AnotherRide => row.at_least(0.0),
            });
        }
    }
    for (number, (name, _)) in STUDIED_CONTROLS.iter().enumerate() {
        let share = samples.share(|rides| {
            let above = rides.iter().filter(|ride| ride.studied[number] > 10.0).count();
            (above as u64, rides.len() as u64)
        });
        let row = Row::new(format!("{name}: rides above 10 Mbit/s, all classes"));
        let row = row.paper(100.0 * published.above_10_mbit[number], "%");
        let row = row.estimate(&share.percent(), "%");
        rows.push(match *name {
            "Reno" => row.mark_fitted("the median rate of the cells, derived from this share"),
            _ => row,
        });
    }
    rows
}
