//! Reproduction of high-speed rail (SIGCOMM 2018; PAPD, IETF 100). It measures how often bonding two or three
//! carriers is worse than the best of them alone, for the kernel's scheduler, with OR&P, and with PAPD.

mod contestants;
mod replay;
mod ride;
mod rows;
mod studied;

use marline_time::{Duration, Rng as _};
use serde::Deserialize;

use crate::download::Download;
use crate::estimate::Samples;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::{Context, Paper};
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;
use contestants::{Ride, SCHEDULERS, StudiedRide, ride, ride_of_study};
use replay::{Recording, Replay};
use ride::{CLASSES, LENGTH};
use rows::{Efficiencies, efficiencies, ratios_to_best};

const TEXT: &str = include_str!("../papers/hsr2018.toml");

/// Ride for a seed at 150 to 310 km/h with two carriers, and the names of both paths.
pub(crate) fn fast_ride_downloads(seed: u64) -> anyhow::Result<(Download, [&'static str; 2])> {
    let fastest = &CLASSES[CLASSES.len() - 1];
    let download = contestants::carriers(fastest, 2, LENGTH, seed)?;
    Ok((download, [ride::PATHS[0], ride::PATHS[1]]))
}

/// Each root has one ride of each class.
const RIDES: Part = Part::new("rides", 50, 240);
const STUDIED: Part = Part::new("studied", 20, 60);
const REPLAY: Part = Part::new("replay", 100, 1000);
/// Minimum length of a quick run. Connections over such paths need seconds to start.
const SHORTEST: Duration = Duration::from_secs(8);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    better_than_best: [f64; 3],
    above_three_times_the_worse: [f64; 3],
    above_seven_tenths_of_the_sum: [f64; 3],
    above_10_mbit: [f64; 3],
}

impl Published {
    const fn shares(&self) -> studied::Shares<'_> {
        studied::Shares {
            better_than_best: &self.better_than_best,
            exceeds_three_worst: &self.above_three_times_the_worse,
            exceeds_share_of_sum: &self.above_seven_tenths_of_the_sum,
            above_10_mbit: &self.above_10_mbit,
        }
    }
}

/// Reproduction of the 2018 high-speed rail paper.
pub(super) struct HighSpeedRail;

impl Paper for HighSpeedRail {
    fn key(&self) -> &'static str {
        "hsr2018"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Published>::parse(TEXT)?;
        let most = file.tolerance("papd_of_others")?;
        let length = context.length(LENGTH).max(SHORTEST);
        let tables_of = |rides: &Samples<Vec<Ride>>| {
            tables(&EfficiencySets::from_rides(rides, context.master), most)
        };
        let (rides, _) = context.judge_part(
            RIDES,
            |root| CLASSES.iter().map(|class| ride(class, length, root.seed)).collect(),
            |rides| Ok(tables_of(rides).into_iter().flat_map(|table| table.rows).collect()),
        )?;
        let shares = file.published.shares();
        let (as_studied, studied_rows) = context.judge_part(
            STUDIED,
            |root| as_studied(length, root),
            |rides| Ok(studied::rows(rides, &shares)),
        )?;
        let recording = Recording::read(context.traces()?)?;
        let of_replays = |samples: &Samples<Replay>| {
            efficiencies(samples, context.master, |r| vec![ratios_to_best(&r.two, &r.alone)])
        };
        let (replays, replayed) = context.judge_part(
            REPLAY,
            |root| recording.replay(length, root),
            |samples| Ok(rows::shares(&of_replays(samples), Some(most))),
        )?;
        let sets = EfficiencySets::from_rides(&rides, context.master);
        let wide = group_by_class(&as_studied, context.master, |ride| {
            ratios_to_best(&ride.two, &ride.alone)
        });
        let mut tables = tables_of(&rides);
        let title = "Two carriers with the study's buffers (2 MB to send, 3 MB to receive)";
        tables.push(Table::new("study-buffers", title, of_classes(&wide, None)));
        tables.push(studied::table(studied_rows));
        tables.push(Table::new("replay", "Replay of a recording from random positions", replayed));
        let figures = CLASSES
            .iter()
            .zip(&sets.two_carriers)
            .map(|(class, set)| rows::figure(class.key, class.name, set))
            .collect();
        let grids = vec![sets.means(&wide, &of_replays(&replays)), goodputs(&rides)];
        Ok(Reproduction { tables, grids, figures, notes: Vec::new() })
    }
}

/// Runs one ride of each class, and another one of each for Reno.
fn as_studied(length: Duration, root: &Root) -> anyhow::Result<Vec<StudiedRide>> {
    let later = root.rng("another ride").next_u64();
    CLASSES.iter().map(|class| ride_of_study(class, length, root.seed, later)).collect()
}

/// Efficiencies of each class.
fn group_by_class<T>(
    samples: &Samples<Vec<T>>,
    master: u64,
    of: impl Fn(&T) -> Vec<f64>,
) -> Vec<Efficiencies> {
    let class = |class: usize| efficiencies(samples, master, |rides| vec![of(&rides[class])]);
    (0..CLASSES.len()).map(class).collect()
}

/// Rows of the shares of all classes, for one table.
fn of_classes(sets: &[Efficiencies], most: Option<f64>) -> Vec<Row> {
    let mut all = Vec::new();
    for (class, set) in CLASSES.iter().zip(sets) {
        for mut row in rows::shares(set, most.filter(|_| class.is_moving())) {
            row.what = format!("{}: {}", class.name, row.what);
            all.push(row);
        }
    }
    all
}

/// Efficiencies by class with two carriers and with three.
struct EfficiencySets {
    two_carriers: Vec<Efficiencies>,
    three_carriers: Vec<Efficiencies>,
    /// Two carriers, rides of all classes pooled.
    all: Efficiencies,
}

impl EfficiencySets {
    fn from_rides(samples: &Samples<Vec<Ride>>, master: u64) -> EfficiencySets {
        let two = |ride: &Ride| ratios_to_best(&ride.two, &ride.alone[..2]);
        EfficiencySets {
            two_carriers: group_by_class(samples, master, two),
            three_carriers: group_by_class(samples, master, |ride| {
                ratios_to_best(&ride.three, &ride.alone)
            }),
            all: efficiencies(samples, master, |rides| rides.iter().map(two).collect()),
        }
    }

    fn means(&self, wide: &[Efficiencies], replays: &Efficiencies) -> Grid {
        let mut sets = Vec::new();
        for (what, of_class) in [
            ("two carriers", &self.two_carriers[..]),
            ("three carriers", &self.three_carriers),
            ("two carriers, the study's buffers", wide),
        ] {
            for (class, set) in CLASSES.iter().zip(of_class) {
                sets.push((format!("{}, {what}", class.name), set));
            }
        }
        sets.push(("replay".to_owned(), replays));
        rows::means(&sets)
    }
}

/// Judged tables of the rides.
fn tables(sets: &EfficiencySets, most: f64) -> Vec<Table> {
    let title = "Two carriers, rides of all classes";
    let mut tables = vec![Table::new("below-one", title, rows::shares(&sets.all, Some(most)))];
    for (class, set) in CLASSES.iter().zip(&sets.two_carriers) {
        let rows = rows::shares(set, class.is_moving().then_some(most));
        tables.push(Table::new(class.key, format!("Two carriers, {}", class.name), rows));
    }
    let title = "Three carriers: compared with the best of the three alone";
    tables.push(Table::new("three-carriers", title, of_classes(&sets.three_carriers, Some(most))));
    tables
}

fn goodputs(rides: &Samples<Vec<Ride>>) -> Grid {
    let mut columns = vec![("rides", "")];
    columns.extend(SCHEDULERS.iter().map(|(name, _)| (*name, "Mbit/s")));
    columns.extend([("China Mobile alone", "Mbit/s"), ("China Unicom alone", "Mbit/s")]);
    columns.push(("better of the two, ride by ride", "Mbit/s"));
    let mut grid = Grid::new("goodput", "Mean goodput with two carriers", &columns);
    for (number, class) in CLASSES.iter().enumerate() {
        let mean = |of: &dyn Fn(&Ride) -> f64| {
            let estimate = rides.mean(|root| of(&root[number]));
            Value::from_estimate(&estimate, "")
        };
        let mut row = vec![Value::Text(class.name.to_owned())];
        row.extend((0..SCHEDULERS.len()).map(|s| mean(&|ride: &Ride| ride.two[s])));
        row.extend((0..2).map(|path| mean(&|ride: &Ride| ride.alone[path])));
        row.push(mean(&|ride: &Ride| ride.alone[0].max(ride.alone[1])));
        grid.rows.push(row);
    }
    grid
}
