//! Key `multimob-live`: MultiMob compared with the kernel's TCP and Multipath TCP, with real processes over
//! emulated links whose radios sleep. It has walks out of WiFi range, runs that stay in range, and a download
//! whose WiFi dies. For each seed, all systems get the same links.

mod campaign;
mod rows;
mod systems;

use marline_lab::provenance;

use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::table::Reproduction;
use campaign::{Campaign, PublishedValues};

const TEXT: &str = include_str!("../papers/multimob-live.toml");

/// Live runs of MultiMob over emulated links.
pub(super) struct MultiMobLive;

impl Paper for MultiMobLive {
    fn key(&self) -> &'static str {
        "multimob-live"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn is_virtual_time(&self) -> bool {
        false
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<PublishedValues>::parse(TEXT)?;
        let campaign = Campaign::run(context)?;
        let records = || campaign.all().flat_map(|runs| &runs.records);
        let doubtful = records().filter(|record| !record.doubts.is_empty()).count();
        let failed = records().filter(|record| record.error.is_some());
        let mut notes = vec![format!(
            "Kernel {}, CUBIC. {} runs, {doubtful} of them unreliable (the emulated links were late in all three \
             attempts).",
            provenance::kernel_release(),
            records().count(),
        )];
        notes.extend(failed.filter_map(|record| record.error.clone()));
        Ok(Reproduction {
            tables: rows::tables(&campaign, &file, context.master)?,
            grids: rows::grids(&campaign),
            figures: vec![rows::figure(&campaign.walks)],
            notes,
        })
    }
}
