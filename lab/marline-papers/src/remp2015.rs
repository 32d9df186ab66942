//! Key `remp2015`: echoes over WiFi and LTE, and over two LTE connections in a train, on one path and redundantly
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
mod sizes;
mod what_if;
mod worlds;

use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::table::Reproduction;
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
        echo::run(context, &file, &mut result)?;
        what_if::run(context, &file, &mut result)?;
        detection::run(context, &file, &mut result)?;
        fairness::run(context, &file, &mut result)?;
        sizes::run(context, &mut result)?;
        coding::run(context, &mut result)?;
        Ok(result)
    }
}
