//! Key `remp2015`: echoes over WiFi and LTE, and over two LTE connections on a train, on one path and redundantly
//! on both. It also covers single paths computed from captures, flow completion times by degree of redundancy,
//! adaptive redundancy, and redundancy that competes with a TCP. The assumptions are in `papers/remp2015.toml`.

mod coding;
mod correlation;
mod detection;
mod echo;
mod fairness;
pub(crate) mod links;
mod measure;
mod published;
mod round_trips;
mod sizes;
mod what_if;
mod worlds;

use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::table::{Reproduction, Table};
use published::Published;

/// Reproduction of ReMP TCP (2015).
#[derive(Debug)]
pub(super) struct Remp2015;

impl Paper for Remp2015 {
    fn key(&self) -> &'static str {
        "remp2015"
    }

    fn text(&self) -> &'static str {
        include_str!("../papers/remp2015.toml")
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file: PaperFile<Published> = PaperFile::parse(self.text())?;
        let mut result = Reproduction::default();
        let mut grid = round_trips::round_trip_grid();
        let what_if::HomeRows { mut principle, mut home } =
            what_if::run_home(context, &file, &mut grid)?;
        home.extend(echo::run_home(context, &file, &mut grid, &mut result)?);
        let mut train = what_if::run_train(context, &file, &mut grid)?;
        train.extend(echo::run_train(context, &file, &mut grid, &mut result)?);
        result.grids.insert(0, grid);
        principle.push(sizes::run(context, &file, &mut result)?);
        principle.push(fairness::run(context, &file, &mut result)?);
        detection::run(context, &mut result)?;
        coding::run(context, &mut result)?;
        result.tables = vec![
            Table::new("principle", "What redundancy does", principle),
            Table::new("home", "Experiment 1: WiFi and LTE at home", home),
            Table::new("train", "Experiment 2: two LTE connections on a train", train),
        ];
        Ok(result)
    }
}
