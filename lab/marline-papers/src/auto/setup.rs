//! Setup of the runs: the table `[published]` of the file, and the tolerances.

use marline_lab::experiment::Variant;
use marline_lab::workload::Gap;
use serde::Deserialize;

use crate::file::PaperFile;
use crate::paper::{Context, Effort};
use crate::recorded::figures::Margins;

/// Text of the paper file.
pub(super) const TEXT: &str = include_str!("../../papers/auto.toml");

/// Configuration of the runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    pub(super) warm_up_seconds: u32,
    pub(super) goodput_seconds: u32,
    pub(super) echo: Messages,
    pub(super) small: Messages,
    pub(super) bursts: Vec<Messages>,
    pub(super) figure_burst_bytes: u32,
    pub(super) judged: Contestant,
    pub(super) duplication: Contestant,
    pub(super) shown: Vec<Contestant>,
    pub(super) generated: GeneratedSetup,
    pub(super) budget: Budget,
}

/// Configuration of the runs on generated pairs.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GeneratedSetup {
    pub(super) pairs_of_a_root: usize,
    pub(super) echo: Messages,
    pub(super) burst: Messages,
}

/// Messages of one size at one rate.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Messages {
    pub(super) bytes: u32,
    pub(super) every_ms: u32,
    pub(super) seconds: u32,
}

/// A combination of scheduler and congestion control.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contestant {
    pub(super) name: String,
    scheduler: String,
    congestion: String,
}

/// Budget of copies: the larger of a share of the payload and a rate.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Budget {
    pub(super) share: f64,
    pub(super) kb_per_s: f64,
}

impl Setup {
    /// Setup of the file, with shorter runs in a quick run.
    pub(super) fn from_file(file: &PaperFile<Setup>, context: &Context<'_>) -> Setup {
        let mut setup = file.published.clone();
        if context.effort == Effort::Quick {
            let shorter = |messages: &mut Messages| messages.seconds = messages.seconds.min(9);
            let generated = &mut setup.generated;
            [&mut setup.echo, &mut setup.small, &mut generated.echo, &mut generated.burst]
                .into_iter()
                .chain(&mut setup.bursts)
                .for_each(shorter);
            setup.goodput_seconds = setup.goodput_seconds.min(6);
        }
        setup
    }

    /// The judged contestant, full duplication, and the others, which are only shown.
    pub(super) fn contestants(&self) -> impl Iterator<Item = &Contestant> {
        [&self.judged, &self.duplication].into_iter().chain(&self.shown)
    }

    /// Index of the bursts that the five metrics use.
    pub(super) fn metric_burst(&self) -> anyhow::Result<usize> {
        let found = self.bursts.iter().position(|burst| burst.bytes == self.figure_burst_bytes);
        found.ok_or_else(|| anyhow::anyhow!("figure_burst_bytes is not the size of any burst"))
    }
}

impl Messages {
    pub(super) fn gap(self) -> Gap {
        let ms = f64::from(self.every_ms);
        Gap { least_ms: ms, most_ms: ms }
    }

    pub(super) fn count(self) -> u32 {
        self.seconds * 1_000 / self.every_ms
    }
}

impl Contestant {
    pub(super) fn variant(&self) -> Variant {
        Variant::new(&self.name).scheduler(&self.scheduler).congestion(&self.congestion)
    }
}

impl Budget {
    /// Share of the payload of a workload that may be copied, percent. A workload of requests and answers has a
    /// budget at each end.
    pub(super) fn percent(self, messages: Messages) -> f64 {
        let kb_per_s = f64::from(messages.bytes) / f64::from(messages.every_ms);
        100.0 * self.share.max(self.kb_per_s / kb_per_s)
    }
}

/// Limits on how far a metric may be from the ideal. Shares range from 0 to 1.
#[derive(Copy, Clone, Debug)]
pub(super) struct Limits {
    pub(super) margins: Margins,
    pub(super) violations: f64,
    pub(super) generated_violations: f64,
    pub(super) echo_p99: f64,
    pub(super) echo_p99_high: f64,
    pub(super) echo_p99_high_share: f64,
    pub(super) duplication: f64,
    /// Limits on the 50th, 90th and 99th percentiles.
    pub(super) bursts: [f64; 3],
    pub(super) goodput: f64,
    pub(super) goodput_least: f64,
    /// Range of the share of answers below p90 in a case that counts as calibrated.
    pub(super) p90: (f64, f64),
    pub(super) calibrated: f64,
    /// Limit on the pinball loss of p90 relative to that of SRTT + 4 RTTVAR.
    pub(super) pinball: f64,
}

impl Limits {
    pub(super) fn from_file(file: &PaperFile<Setup>) -> anyhow::Result<Limits> {
        let of = |name: &str| file.tolerance(name);
        Ok(Limits {
            margins: Margins::from_file(file)?,
            violations: of("violations")?,
            generated_violations: of("generated_violations")?,
            echo_p99: of("echo_p99")?,
            echo_p99_high: of("echo_p99_high")?,
            echo_p99_high_share: of("echo_p99_high_share")?,
            duplication: of("duplication")?,
            bursts: [of("burst_p50")?, of("burst_p90")?, of("burst_p99")?],
            goodput: of("goodput")?,
            goodput_least: of("goodput_least")?,
            p90: (of("p90_least")?, of("p90_most")?),
            calibrated: of("calibrated")?,
            pinball: of("pinball")?,
        })
    }
}
