//! Reproduction of MultiMob (De Coninck and Bonaventure): interactive applications on smartphones
//! that leave WiFi range, in virtual time. The assumptions are in `papers/multimob2018.toml`.

mod handover;
pub(crate) mod loads;
mod neighbors;
mod ours;
mod phone_scenario;
mod published;
mod push;
mod quantiles;
mod radios;
mod silence;
mod stationary;
mod systems;
mod walks;
mod weak_wifi;

use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::table::Reproduction;
use ours::ParameterComparison;
use published::Published;

const TEXT: &str = include_str!("../papers/multimob2018.toml");

/// Reproduction of MultiMob (2018).
pub(super) struct MultiMob;

impl Paper for MultiMob {
    fn key(&self) -> &'static str {
        "multimob2018"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Published>::parse(TEXT)?;
        let (mut all, mut ours) = (Reproduction::default(), ParameterComparison::new());
        walks::reproduce(context, &file, &mut all, &mut ours)?;
        stationary::reproduce(context, &file, &mut all, &mut ours)?;
        silence::reproduce(context, &file, &mut all, &mut ours)?;
        handover::reproduce(context, &file, &mut all)?;
        push::reproduce(context, &mut all)?;
        neighbors::reproduce(context, &mut all)?;
        weak_wifi::reproduce(context, &mut all)?;
        all.grids.push(ours.into_grid());
        Ok(all)
    }
}
