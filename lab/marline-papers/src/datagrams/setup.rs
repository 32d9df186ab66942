//! Setup of the runs: the table `[published]` of the file, and the tolerances.

use std::time::Duration;

use marline_lab::datagrams::{DatagramPolicies, DatagramWorkload};
use marline_lab::workload::Gap;
use serde::Deserialize;

use crate::file::PaperFile;
use crate::paper::{Context, Effort};

/// Text of the paper file.
pub(super) const TEXT: &str = include_str!("../../papers/datagrams.toml");

/// Configuration of the runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    pub(super) warm_up_seconds: u32,
    pub(super) call: Pulses,
    pub(super) game: Pulses,
    pub(super) quic_seconds: u32,
    pub(super) deadlines_ms: [u32; 2],
    congestion: String,
    inner: String,
    pub(super) judged: Contestant,
    duplication: Contestant,
    min_rtt: Contestant,
    one_path: [Contestant; 2],
    pub(super) death: DeathScene,
    pub(super) lossy: LossyScene,
}

/// A radio that loses packets during a call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LossyScene {
    pub(super) wifi: String,
    pub(super) lte: String,
    pub(super) seconds: u32,
    pub(super) without_repairs: Contestant,
    pub(super) scenes: Vec<Scene>,
}

/// Loss pattern of the radio.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scene {
    pub(super) name: String,
    pub(super) losses: String,
    pub(super) tuned: bool,
}

/// Groups of datagrams, sent at regular intervals.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pulses {
    gap_ms: [f64; 2],
    group: [u32; 2],
    pub(super) bytes: u32,
    pub(super) seconds: u32,
}

/// A named policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contestant {
    pub(super) name: String,
    policy: String,
}

/// A path that dies during a call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeathScene {
    pub(super) wifi: String,
    pub(super) lte: String,
    pub(super) seconds: u32,
    pub(super) runs_of_a_root: usize,
}

/// Indexes of the contestants.
pub(super) const JUDGED_INDEX: usize = 0;
pub(super) const DUPLICATION: usize = 1;
pub(super) const MIN_RTT: usize = 2;
/// Index of the first of two contestants on one path.
pub(super) const ONE_PATH: usize = 3;

impl Setup {
    /// Setup of the file, with shorter runs in a quick run.
    pub(super) fn from_file(file: &PaperFile<Setup>, context: &Context<'_>) -> Setup {
        let mut setup = file.published.clone();
        if context.effort == Effort::Quick {
            setup.call.seconds = setup.call.seconds.min(6);
            setup.game.seconds = setup.game.seconds.min(6);
            setup.quic_seconds = setup.quic_seconds.min(5);
            setup.lossy.seconds = setup.lossy.seconds.min(6);
            setup.death.runs_of_a_root = setup.death.runs_of_a_root.min(3);
        }
        setup
    }

    /// All contestants, in the order of the indexes above.
    pub(super) fn contestants(&self) -> impl Iterator<Item = &Contestant> {
        [&self.judged, &self.duplication, &self.min_rtt].into_iter().chain(&self.one_path)
    }

    /// Contestants on the lossy radio. The judged one is first, full duplication second.
    pub(super) fn variants_of_lossy(&self) -> [&Contestant; 4] {
        [&self.judged, &self.duplication, &self.lossy.without_repairs, &self.min_rtt]
    }

    pub(super) fn policies(&self, of: &Contestant) -> DatagramPolicies {
        DatagramPolicies {
            policy: of.policy.clone(),
            congestion: self.congestion.clone(),
            inner: self.inner.clone(),
        }
    }
}

impl Pulses {
    pub(super) const fn workload(self) -> DatagramWorkload {
        let Pulses { gap_ms: [least_ms, most_ms], group: [least, most], bytes, .. } = self;
        DatagramWorkload::Pulse { gap: Gap { least_ms, most_ms }, group: (least, most), bytes }
    }

    pub(super) fn duration(self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// Mean rate of the datagrams, kB/s.
    pub(super) fn kb_per_s(self) -> f64 {
        let datagrams = f64::from(self.group[0] + self.group[1]) / 2.0;
        datagrams * f64::from(self.bytes) / ((self.gap_ms[0] + self.gap_ms[1]) / 2.0)
    }
}

/// Limits of the verdicts.
#[derive(Copy, Clone, Debug)]
pub(super) struct Limits {
    pub(super) duplication: f64,
    pub(super) extra: f64,
    extra_kb_per_s: f64,
    pub(super) misses: f64,
    pub(super) quic: f64,
    pub(super) death_median_ms: f64,
    pub(super) death_worst_ms: f64,
}

impl Limits {
    pub(super) fn from_file(file: &PaperFile<Setup>) -> anyhow::Result<Limits> {
        let of = |name: &str| file.tolerance(name);
        Ok(Limits {
            duplication: of("duplication")?,
            extra: of("extra")?,
            extra_kb_per_s: of("extra_kb_per_s")?,
            misses: of("misses")?,
            quic: of("quic")?,
            death_median_ms: of("death_median_ms")?,
            death_worst_ms: of("death_worst_ms")?,
        })
    }

    /// Maximum share of copies among the sent bytes, percent.
    pub(super) fn extra_percent(&self, pulses: Pulses) -> f64 {
        100.0 * self.extra.max(self.extra_kb_per_s / pulses.kb_per_s())
    }
}
