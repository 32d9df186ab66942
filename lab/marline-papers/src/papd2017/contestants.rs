//! Contestants, their links and buffers, and the results of a root in a scene.

use marline_lab::experiment::Variant;
use marline_time::Duration;
use serde::{Deserialize, Serialize};

use crate::download::Download;
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::mechanism::Mechanism;
use crate::plain::{mptcp, tcp};
use crate::value::Value;

/// The kernel's scheduler at the time.
const MIN_RTT: &str = "lowest-rtt+orp";
/// PAPD as on the slides. Both modes are measured, nothing is modeled.
const PAPD: &str = "lowest-rtt+orp+papd,rule=off";
/// Our variant of PAPD. It skips the measurement where buffer and RTT already determine the result.
const WITH_RULE: &str = "lowest-rtt+orp+papd";
/// Ethernet with 100 Mbit/s, as the rate of IP packets of 1500 bytes.
pub(super) const LINK: &str = "rate=97.5M,queue=1200kB";
/// Payload of each of the two buffers, bytes.
pub(crate) const SMALL_BUFFER: u64 = 700_000;
pub(crate) const LARGE_BUFFER: u64 = 8_000_000;
/// Names of the paths. The losses are drawn by name.
pub(super) const NAMES: [&str; 2] = ["first", "second"];

/// A ratio that is greater than 1. PAPD without its redundant mode is minRTT, and its ratio to minRTT is exactly 1.
pub(super) const MORE_THAN_ONE: RequiredRange = RequiredRange::at_least(1.0_f64.next_up());

/// Throughputs of a root in a scene, Mbit/s.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Rates {
    pub(super) min_rtt: f64,
    /// PAPD as on the slides, and with the rule.
    pub(super) papd: [f64; 2],
    /// Each path alone, except those that cannot be the best.
    pub(super) alone: Vec<f64>,
}

/// Links, buffers and time of a scene.
pub(super) struct Scene {
    pub(super) download: Download,
    /// Payload of each buffer, bytes.
    pub(super) buffer: u64,
    /// Start of the evaluated time.
    pub(super) start: Duration,
}

fn with_bbr(variant: Variant, buffer: u64) -> Variant {
    let congestion = if Mechanism::BbrFeed.is_off() { "cubic" } else { "bbr" };
    variant.congestion(congestion).buffers(Some(buffer), Some(buffer))
}

impl Scene {
    fn rate(&self, variant: Variant, seed: u64) -> anyhow::Result<f64> {
        let rate = self.download.mbit_per_s(&with_bbr(variant, self.buffer), seed, self.start)?;
        Ok((rate * 1e3).round() / 1e3)
    }

    pub(super) fn min_rtt(&self, seed: u64) -> anyhow::Result<f64> {
        self.rate(mptcp("minRTT").scheduler(MIN_RTT), seed)
    }

    /// Throughput of PAPD as on the slides.
    pub(super) fn papd(&self, seed: u64) -> anyhow::Result<f64> {
        let scheduler = if Mechanism::ModeChoice.is_off() { MIN_RTT } else { PAPD };
        self.rate(mptcp("PAPD").scheduler(scheduler), seed)
    }

    /// Throughput of plain TCP over the path of this name.
    pub(super) fn measure_single_path(&self, path: &str, seed: u64) -> anyhow::Result<f64> {
        self.rate(tcp(path, path), seed)
    }

    /// Throughputs of all contestants that bond, together with those of the paths alone.
    pub(super) fn run_bonded(&self, alone: Vec<f64>, seed: u64) -> anyhow::Result<Rates> {
        let ruled = self.rate(mptcp("PAPD").scheduler(WITH_RULE), seed)?;
        Ok(Rates { min_rtt: self.min_rtt(seed)?, papd: [self.papd(seed)?, ruled], alone })
    }

    /// Throughputs of all contestants, including each path alone.
    pub(super) fn all(&self, seed: u64) -> anyhow::Result<Rates> {
        let paths = &self.download.paths;
        let alone = paths.iter().map(|(name, _)| self.measure_single_path(name, seed));
        self.run_bonded(alone.collect::<anyhow::Result<_>>()?, seed)
    }
}

/// Means over roots of the values that have a column on the slides.
#[derive(Copy, Clone, Debug)]
pub(super) struct Means {
    pub(super) min_rtt: f64,
    pub(super) papd: [f64; 2],
    /// Mean of the path with the highest mean.
    pub(super) best: f64,
}

impl Means {
    pub(super) fn of<'a>(roots: impl Iterator<Item = &'a Rates> + Clone) -> Means {
        let count = roots.clone().count() as f64;
        let mean = |of: &dyn Fn(&Rates) -> f64| roots.clone().map(of).sum::<f64>() / count;
        let paths = roots.clone().map(|rates| rates.alone.len()).min().unwrap_or(0);
        Means {
            min_rtt: mean(&|rates| rates.min_rtt),
            papd: [mean(&|rates| rates.papd[0]), mean(&|rates| rates.papd[1])],
            best: (0..paths).map(|path| mean(&|rates| rates.alone[path])).fold(f64::NAN, f64::max),
        }
    }
}

/// Estimate over the roots of a statistic of one of several scenes.
pub(super) fn estimate_for_scene(
    samples: &Samples<Vec<Rates>>,
    scene: usize,
    of: impl Fn(Means) -> f64,
) -> Estimate {
    samples.estimate(|picked| of(Means::of(picked.iter().map(|root| &root[scene]))))
}

/// Estimate over the roots of a statistic of all scenes together.
pub(super) fn estimate_over_scenes(
    samples: &Samples<Vec<Rates>>,
    of: impl Fn(&[Means]) -> f64,
) -> Estimate {
    let scenes = samples.all().first().map_or(0, Vec::len);
    samples.estimate(|picked| {
        let means = |scene: usize| Means::of(picked.iter().map(|root| &root[scene]));
        of(&(0..scenes).map(means).collect::<Vec<_>>())
    })
}

/// The smallest value of a ratio.
pub(super) fn minimum_ratio<T>(all: &[T], ratio: impl Fn(&T) -> f64) -> f64 {
    all.iter().map(ratio).fold(f64::INFINITY, f64::min)
}

/// Throughputs of minRTT, PAPD and the best path in a scene, Mbit/s.
pub(super) fn rates_of_scene(samples: &Samples<Vec<Rates>>, scene: usize) -> [Estimate; 3] {
    let of: [fn(Means) -> f64; 3] =
        [|means| means.min_rtt, |means| means.papd[0], |means| means.best];
    of.map(|of| estimate_for_scene(samples, scene, of))
}

/// Line of the grid `ours` for a scene.
pub(super) fn line_of_ours(
    name: String,
    samples: &Samples<Vec<Rates>>,
    scene: usize,
) -> Vec<Value> {
    let of: [fn(Means) -> f64; 3] =
        [|means| means.min_rtt, |means| means.papd[0], |means| means.papd[1]];
    let ratio = |of: fn(Means) -> f64| {
        let ratio = estimate_for_scene(samples, scene, |means| of(means) / means.best);
        Value::from_estimate(&ratio, "")
    };
    [Value::Text(name)].into_iter().chain(of.map(ratio)).collect()
}
