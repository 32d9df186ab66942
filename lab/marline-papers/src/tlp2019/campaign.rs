//! Campaign: the traces of a root in several scenes of the failure, each run with both kinds of probes, with
//! windows that are kept and with windows that restart.

use std::time::Duration;

use marline_lab::experiment::Variant;
use serde::{Deserialize, Serialize};

use super::contestants::{Windows, both_variants, standard};
use super::run::{AffectedBurst, run, time_of_share};
use super::traffic::{App, DEATH, FailurePlacement, Repetition, Trace, WLAN_MBIT, millis};
use crate::estimate::{Estimate, Samples};
use crate::paper::Context;
use crate::roots::Root;
use marline_time::Rng;

/// Scene of a failure, and its number of traces per root.
#[derive(Copy, Clone, Debug)]
pub(super) struct Case {
    pub(super) app: App,
    pub(super) place: FailurePlacement,
    pub(super) traces: usize,
    pub(super) wlan_mbit: f64,
}

/// A trace and its failure.
pub(super) struct FailurePoint {
    pub(super) trace: Trace,
    pub(super) repetition: Repetition,
}

/// A case with one setting of windows.
#[derive(Copy, Clone, Debug)]
pub(super) struct Setting {
    pub(super) case: Case,
    pub(super) windows: Windows,
}

/// Results of the two contestants on the same trace.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) standard: AffectedBurst,
    pub(super) multipath: AffectedBurst,
}

/// Results of a root by setting and trace. `None`: WLAN lost no data of that trace.
pub(super) type Sample = Vec<Vec<Option<Pair>>>;

impl Pair {
    pub(super) fn saved_ms(&self) -> f64 {
        self.standard.completion_ms - self.multipath.completion_ms
    }

    pub(super) fn saved_share(&self) -> f64 {
        self.saved_ms() / self.standard.completion_ms
    }

    pub(super) fn more_bytes(&self) -> f64 {
        self.multipath.air_bytes as f64 - self.standard.air_bytes as f64
    }
}

/// Time at which WLAN dies. Earlier in a quick run.
pub(super) fn death(context: &Context<'_>) -> Duration {
    context.length(DEATH).max(Duration::from_secs(12))
}

impl Case {
    pub(super) const fn new(app: App, place: FailurePlacement, traces: usize) -> Case {
        Case { app, place, traces, wlan_mbit: WLAN_MBIT }
    }

    /// The trace of this number. Each repetition of a trace has its own failure and links.
    pub(super) fn spot(
        &self,
        root: &Root,
        number: usize,
        repetition: usize,
        windows: Windows,
        death: Duration,
    ) -> anyhow::Result<FailurePoint> {
        let part = self.place.max_share(self.app, number);
        let drawn = Trace::new(self.app, number, root.seed, death, part.is_some());
        let trace = Trace { wlan_mbit: self.wlan_mbit, ..drawn };
        let mut rng = root.rng(&format!("{}/{number}/{repetition}", self.app.name()));
        let (seed, at) = (rng.next_u64(), rng.unit());
        let dies = match part {
            Some(part) => time_of_share(&trace, seed, &standard(windows), death, part * at)?,
            None => millis(death.as_secs_f64().mul_add(1e3, 200.0 * at - 100.0)),
        };
        Ok(FailurePoint { trace, repetition: Repetition { seed, death_time: dies } })
    }
}

impl FailurePoint {
    pub(super) fn run(&self, variant: &Variant) -> anyhow::Result<AffectedBurst> {
        run(&self.trace, &self.repetition, variant)
    }

    /// Results of both contestants. `None`: WLAN lost no data with at least one of them.
    pub(super) fn pair(&self, windows: Windows) -> anyhow::Result<Option<Pair>> {
        let [standard, multipath] = both_variants(windows);
        let pair = Pair { standard: self.run(&standard)?, multipath: self.run(&multipath)? };
        Ok((pair.standard.lost && pair.multipath.lost).then_some(pair))
    }
}

/// Every case with both settings of the windows.
pub(super) fn settings(cases: &[Case]) -> Vec<Setting> {
    let with = |case: &Case| Windows::ALL.map(|windows| Setting { case: *case, windows });
    cases.iter().flat_map(with).collect()
}

/// Runs all settings on a root.
pub(super) fn measure(
    context: &Context<'_>,
    root: &Root,
    settings: &[Setting],
) -> anyhow::Result<Sample> {
    let of_setting = |setting: &Setting| {
        let mut pairs = Vec::new();
        for number in 0..context.count(setting.case.traces) {
            let spot = setting.case.spot(root, number, 0, setting.windows, death(context))?;
            pairs.push(spot.pair(setting.windows)?);
        }
        Ok(pairs)
    };
    settings.iter().map(of_setting).collect()
}

/// Samples of one setting.
pub(super) struct SettingSamples<'a> {
    pub(super) setting: Setting,
    samples: &'a Samples<Sample>,
    index: usize,
}

/// The settings with their samples.
pub(super) fn setting_samples<'a>(
    settings: &[Setting],
    samples: &'a Samples<Sample>,
) -> Vec<SettingSamples<'a>> {
    let of =
        |(index, setting): (usize, &Setting)| SettingSamples { setting: *setting, samples, index };
    settings.iter().enumerate().map(of).collect()
}

impl SettingSamples<'_> {
    fn of<'b>(&self, sample: &'b Sample) -> impl Iterator<Item = &'b Pair> {
        sample.get(self.index).into_iter().flatten().flatten()
    }

    /// Number of traces that were hit, and number of all traces.
    pub(super) fn affected_runs(&self) -> (usize, usize) {
        let all = self.samples.all().iter().filter_map(|sample| sample.get(self.index));
        (self.pairs().count(), all.map(Vec::len).sum())
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.samples.all().iter().flat_map(|sample| self.of(sample))
    }

    /// Mean over the traces.
    pub(super) fn mean(&self, of: impl Fn(&Pair) -> f64) -> Estimate {
        self.ratio(|pair| Some((of(pair), 1.0)))
    }

    /// Ratio of two means over the traces that have both numbers.
    pub(super) fn ratio(&self, of: impl Fn(&Pair) -> Option<(f64, f64)>) -> Estimate {
        self.samples.ratio(|sample| {
            let pairs = self.of(sample).filter_map(&of);
            pairs.fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1))
        })
    }

    /// Share of the completion time that TLP-MP saves, in percent.
    pub(super) fn saved_percent(&self) -> Estimate {
        self.ratio(|pair| Some((100.0 * pair.saved_ms(), pair.standard.completion_ms)))
    }

    /// Mean of the traces that meet a condition relative to the mean of the others.
    pub(super) fn ratio_of_groups(
        &self,
        of: impl Fn(&Pair) -> f64,
        first: impl Fn(&Pair) -> bool,
    ) -> Estimate {
        // Sums and counts of both groups.
        let sums = self.samples.map(|sample| {
            let mut sums = [[0.0; 2]; 2];
            for pair in self.of(sample) {
                let group = &mut sums[usize::from(!first(pair))];
                *group = [group[0] + of(pair), group[1] + 1.0];
            }
            sums
        });
        sums.estimate(|picked| {
            let sum = |group: usize, which: usize| -> f64 {
                picked.iter().map(|sums| sums[group][which]).sum()
            };
            sum(0, 0) / sum(0, 1) / (sum(1, 0) / sum(1, 1))
        })
    }

    /// Share of the traces that meet a condition.
    pub(super) fn share(&self, of: impl Fn(&Pair) -> bool) -> Estimate {
        self.samples.share(|sample| {
            let held = self.of(sample).filter(|pair| of(pair)).count();
            (held as u64, self.of(sample).count() as u64)
        })
    }

    /// Share of the roots for which all traces meet a condition.
    pub(super) fn share_of_roots(&self, of: impl Fn(&Pair) -> bool) -> Estimate {
        self.samples.share(|sample| (u64::from(self.of(sample).all(&of)), 1))
    }

    /// Mean over the roots of a statistic of each root's traces.
    pub(super) fn mean_over_roots(
        &self,
        of: impl Fn(&Pair) -> f64,
        statistic: impl Fn(&[f64]) -> f64,
    ) -> Estimate {
        self.samples.mean(|sample| statistic(&self.of(sample).map(&of).collect::<Vec<_>>()))
    }
}
