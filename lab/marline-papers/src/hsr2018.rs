//! Reproduction of high-speed rail (SIGCOMM 2018; PAPD, IETF 100). It measures how often bonding two or three
//! carriers is worse than the best of them alone, for the kernel's scheduler, with OR&P, and with PAPD. Only the first
//! two are judged: neither document has PAPD on a train.

mod contestants;
mod replay;
mod ride;
mod rows;
mod study_comparison;

use marline_time::{Duration, Rng as _};

use crate::download::Download;
use crate::estimate::Samples;
use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;
use contestants::{Ride, SCHEDULERS, StudiedRide, ride, ride_of_study};
use replay::Recording;
use ride::{CLASSES, LENGTH};
use rows::{Efficiencies, RideSet, ratios_to_best, sets_by_class};
use study_comparison::Published;

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
const REPLAY: Part = Part::fixed("replay", 100);
/// Minimum length of a quick run. Connections over such paths take seconds to start.
const SHORTEST: Duration = Duration::from_secs(8);

const STUDIED_TITLE: &str = "As the study ran it: Multipath TCP (LIA, OLIA, Reno on each path) \
     against Reno alone on another ride";

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
        let many = 100.0 * file.tolerance("many")?;
        let length = context.length(LENGTH).max(SHORTEST);
        let (rides, degradations) = context.judge_part(
            RIDES,
            |root| CLASSES.iter().map(|class| ride(class, length, root.seed)).collect(),
            |rides| Ok(rows::degradations(&all_classes(rides), many)),
        )?;
        let (as_studied, studied_rows) = context.judge_part(
            STUDIED,
            |root| as_studied(length, root),
            |rides| study_comparison::rows(rides, &file),
        )?;
        let recording = Recording::read(context.traces()?)?;
        let replays = context.sample(REPLAY, |root| recording.replay(length, root))?;
        let two = sets_by_class(&rides, "two carriers", two_carriers);
        let figures = CLASSES
            .iter()
            .zip(&two)
            .map(|(class, set)| rows::figure(class.key, class.name, &set.efficiencies))
            .collect();
        let mut sets = two;
        let three = |ride: &Ride| ratios_to_best(&ride.three, &ride.alone);
        sets.extend(sets_by_class(&rides, "three carriers", three));
        let wide = |ride: &StudiedRide| ratios_to_best(&ride.two, &ride.alone);
        sets.extend(sets_by_class(&as_studied, "two carriers, the study's buffers", wide));
        let replayed = replays.map(|r| vec![ratios_to_best(&r.two, &r.alone)]);
        sets.push(RideSet { name: "replay".to_owned(), efficiencies: replayed });
        let tables = vec![
            Table::new("below-one", "Two carriers, rides of all classes", degradations),
            Table::new("as-studied", STUDIED_TITLE, studied_rows),
        ];
        let grids = vec![
            rows::efficiency_grid(&sets),
            study_comparison::grid(&as_studied, &file.published),
            goodputs(&rides),
        ];
        Ok(Reproduction { tables, grids, figures, notes: Vec::new() })
    }
}

/// Runs one ride of each class, and another one of each for Reno.
fn as_studied(length: Duration, root: &Root) -> anyhow::Result<Vec<StudiedRide>> {
    let later = root.rng("another ride").next_u64();
    CLASSES.iter().map(|class| ride_of_study(class, length, root.seed, later)).collect()
}

fn two_carriers(ride: &Ride) -> Vec<f64> {
    ratios_to_best(&ride.two, &ride.alone[..2])
}

/// Efficiencies with two carriers on the rides of all classes.
fn all_classes(rides: &Samples<Vec<Ride>>) -> Efficiencies {
    rides.map(|rides| rides.iter().map(two_carriers).collect())
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
