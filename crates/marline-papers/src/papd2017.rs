//! Reproduction of PAPD (IETF 100, 2017): two tables of throughputs with a large and a small
//! buffer, five mobile scenarios, the argument of the slides that bonding cannot win below
//! RTT_max x best rate, and their claims in scenes that are drawn.

mod cells;
mod contestants;
mod drawn;
mod mobile;
mod published;
mod sweep;

use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::table::Reproduction;
use published::Published;

const TEXT: &str = include_str!("../../../papers/papd2017.toml");

/// The key.
pub(super) struct Papd;

impl Paper for Papd {
    fn key(&self) -> &'static str {
        "papd2017"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Published>::parse(TEXT)?;
        let mut all = Reproduction::default();
        cells::run(context, &file, &mut all)?;
        mobile::run(context, &file, &mut all)?;
        sweep::run(context, &file, &mut all)?;
        drawn::run(context, &file, &mut all)?;
        Ok(all)
    }
}
