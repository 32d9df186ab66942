//! MultiMob (De Coninck and Bonaventure): interactive applications on smartphones that leave the
//! WiFi's range, in virtual time. The assumptions are in `papers/multimob2018.toml`.

mod handover;
mod neighbours;
mod peers;
mod scene;
mod silence;
mod still;
mod systems;
mod walks;

use serde::Deserialize;

use super::{Context, Paper, PaperFile, Reproduction};
use crate::workload::{Gap, Workload};

const TEXT: &str = include_str!("../../../../papers/multimob2018.toml");

/// What the authors' voice assistant says: a request is not sent while nine are unanswered.
pub(super) const ASSISTANT: Workload = Workload::Dialogue {
    request_bytes: 2_500,
    answer_bytes: 750,
    pieces: (85, 500),
    unanswered_bytes: 9 * 2_500,
    gap: Gap { least_ms: 333.0, most_ms: 333.0 },
    count: 240,
};

/// Their other load.
const ECHO: Workload = Workload::Ask {
    request_bytes: 750,
    answer_bytes: 750,
    gap: Gap { least_ms: 400.0, most_ms: 400.0 },
    count: 200,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    /// The shortest receive timer, ms.
    receive_timer_ms: f64,
    /// Round trips that data with the SYN saves.
    fast_join_rtts: f64,
}

/// The key.
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
        let mut all = Reproduction::default();
        walks::reproduce(context, &file, &mut all)?;
        still::reproduce(context, &file, &mut all)?;
        silence::reproduce(context, &file, &mut all)?;
        handover::reproduce(context, &file, &mut all)?;
        neighbours::reproduce(context, &mut all)?;
        peers::reproduce(context, &mut all)?;
        Ok(all)
    }
}
