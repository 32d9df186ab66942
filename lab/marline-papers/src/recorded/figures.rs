//! Metrics for comparing schedulers on a pair of links: quantiles of latencies, their ratios to the bound, and a test
//! against the best single path.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::ensure;
use marline_lab::bound::{self, Bound};
use marline_lab::experiment::{Experiment, Message, Outcome};
use marline_sim::quantile;
use serde::{Deserialize, Serialize};

use crate::file::PaperFile;

/// Difference from the best single path above which a metric counts as worse.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Margins {
    /// Relative margin: a share of the best path's value.
    pub(crate) share: f64,
    /// Minimum difference of latencies, ms.
    pub(crate) ms: f64,
}

impl Margins {
    /// The margins in a file's tolerances.
    ///
    /// # Errors
    /// A margin is missing.
    pub(crate) fn from_file<P>(file: &PaperFile<P>) -> anyhow::Result<Margins> {
        Ok(Margins { share: file.tolerance("single_path")?, ms: file.tolerance("single_path_ms")? })
    }
}

/// Latency bounds of an experiment's messages. Each bound is computed once, because all contestants write at the same
/// times.
#[derive(Debug)]
pub(crate) struct Bounds {
    bound: Bound,
    /// Bounds, keyed by the bits of the write time and by the size.
    known: RefCell<BTreeMap<(u64, u32), f64>>,
}

impl Bounds {
    /// # Errors
    /// The same as [`Bound::for_experiment`].
    pub(crate) fn for_experiment(experiment: &Experiment, seed: u64) -> anyhow::Result<Bounds> {
        Ok(Bounds { bound: Bound::for_experiment(experiment, seed)?, known: RefCell::default() })
    }

    fn latencies_ms(&self, messages: &[Message]) -> Vec<f64> {
        let mut known = self.known.borrow_mut();
        let least = |message: &Message| {
            let Message { sent_ms, bytes, .. } = *message;
            let new = || self.bound.latency_ms(sent_ms, bytes);
            *known.entry((sent_ms.to_bits(), bytes)).or_insert_with(new)
        };
        messages.iter().map(least).collect()
    }
}

/// Latencies and their bounds, ms. A message that never arrived has an infinite latency.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    ours_ms: Vec<f64>,
    bounds_ms: Vec<f64>,
}

/// Quantiles of latencies, ms, and for some of them the ratio to bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    p999_ms: Option<f64>,
    p50_ratio: Option<f64>,
    p90_ratio: Option<f64>,
    p99_ratio: Option<f64>,
}

fn finite_or_none(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

impl Quantiles {
    pub(crate) fn from_latencies(latencies: &Latencies) -> Quantiles {
        let at = |share: f64| finite_or_none(quantile(&latencies.ours_ms, share));
        let ratio = |share: f64| {
            finite_or_none(bound::ratio(&latencies.ours_ms, &latencies.bounds_ms, share))
        };
        Quantiles {
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            p50_ratio: ratio(0.5),
            p90_ratio: ratio(0.9),
            p99_ratio: ratio(0.99),
        }
    }

    /// Quantiles of a single value. Infinite: the message never arrived.
    #[cfg(test)]
    pub(crate) fn constant_quantiles(ms: f64) -> Quantiles {
        Quantiles::from_latencies(&Latencies { ours_ms: vec![ms], bounds_ms: vec![ms] })
    }

    /// Median, 99th and 99.9th percentiles, ms. Infinite if messages never arrived.
    pub(crate) fn all_ms(&self) -> [f64; 3] {
        [self.p50_ms, self.p99_ms, self.p999_ms].map(|value| value.unwrap_or(f64::INFINITY))
    }

    /// Ratio of the median to the bound's.
    pub(crate) fn p50_ratio(&self) -> f64 {
        self.p50_ratio.unwrap_or(f64::INFINITY)
    }

    /// Ratio of the 90th percentile to the bound's.
    pub(crate) fn p90_ratio(&self) -> f64 {
        self.p90_ratio.unwrap_or(f64::INFINITY)
    }

    /// Ratio of the 99th percentile to the bound's.
    pub(crate) fn p99_ratio(&self) -> f64 {
        self.p99_ratio.unwrap_or(f64::INFINITY)
    }
}

/// A metric by which schedulers are compared with the best single path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    EchoP50,
    EchoP99,
    BurstP50,
    BurstP99,
    Goodput,
}

impl Figure {
    pub(crate) const ALL: [Figure; 5] =
        [Figure::EchoP50, Figure::EchoP99, Figure::BurstP50, Figure::BurstP99, Figure::Goodput];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Figure::EchoP50 => "echo p50",
            Figure::EchoP99 => "echo p99",
            Figure::BurstP50 => "burst p50",
            Figure::BurstP99 => "burst p99",
            Figure::Goodput => "goodput",
        }
    }

    /// Value of this metric in the results of each workload.
    pub(crate) fn value_in(self, echo: &Quantiles, burst: &Quantiles, goodput: f64) -> f64 {
        match self {
            Figure::EchoP50 => echo.all_ms()[0],
            Figure::EchoP99 => echo.all_ms()[1],
            Figure::BurstP50 => burst.all_ms()[0],
            Figure::BurstP99 => burst.all_ms()[1],
            Figure::Goodput => goodput,
        }
    }

    /// The better of two values.
    pub(crate) fn better_of(self, a: f64, b: f64) -> f64 {
        if self == Figure::Goodput { a.max(b) } else { a.min(b) }
    }

    /// True if `value` is worse than `best` by more than the margins.
    pub(crate) fn is_worse(self, value: f64, best: f64, margins: Margins) -> bool {
        let Margins { share, ms } = margins;
        match self {
            Figure::Goodput => value < best * (1.0 - share),
            _ => value > best * (1.0 + share) && value > best + ms,
        }
    }
}

impl Latencies {
    /// Latencies of a run. Without bounds there are no ratios.
    ///
    /// # Errors
    /// No message was measured, or one was faster than possible.
    pub(crate) fn from_outcome(
        experiment: &Experiment,
        bounds: Option<&Bounds>,
        outcome: &Outcome,
    ) -> anyhow::Result<Latencies> {
        // Messages are selected by their planned times. Messages planned before the evaluated time do not count, even
        // if they were delayed.
        let from_ns = experiment.warm_up.as_nanos() as u64;
        let times_ns = experiment.workload().times_ns(outcome.seed);
        let first = times_ns.partition_point(|at_ns| *at_ns < from_ns);
        let mut messages = outcome.messages(experiment.workload());
        messages.retain(|message| message.index as usize >= first);
        let mut ours_ms: Vec<f64> = messages.iter().map(|message| message.latency_ms).collect();
        let bounds_ms = match bounds {
            Some(bounds) => limit_to_attained(&ours_ms, bounds.latencies_ms(&messages))?,
            None => Vec::new(),
        };
        let lost = (times_ns.len() - first).saturating_sub(messages.len());
        ours_ms.extend(std::iter::repeat_n(f64::INFINITY, lost));
        ensure!(!ours_ms.is_empty(), "no message was measured");
        Ok(Latencies { ours_ms, bounds_ms })
    }
}

/// Bounds, limited to the measured latencies: the search for the bound can miss a good moment of a link that is
/// shorter than its steps, and a message may have used it.
fn limit_to_attained(ours_ms: &[f64], mut bounds_ms: Vec<f64>) -> anyhow::Result<Vec<f64>> {
    let mut overlooked = 0;
    for (ours, least) in ours_ms.iter().zip(&mut bounds_ms) {
        overlooked += usize::from(*ours < *least - bound::STEP_MS);
        *least = least.min(*ours);
    }
    let few = overlooked * 100 <= ours_ms.len();
    ensure!(few, "{overlooked} of {} messages are faster than the bound", ours_ms.len());
    Ok(bounds_ms)
}

/// The five metrics by which a scheduler is compared with the best single path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FiveMetrics {
    pub(crate) echo: Quantiles,
    pub(crate) burst: Quantiles,
    /// Goodput, Mbit/s.
    pub(crate) goodput: f64,
}

impl FiveMetrics {
    pub(crate) fn figure(&self, figure: Figure) -> f64 {
        figure.value_in(&self.echo, &self.burst, self.goodput)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slightly_beaten_bound_is_adjusted_and_a_wrong_one_is_an_error() {
        let bounds = vec![50.0, 55.768, 60.0];
        assert_eq!(
            limit_to_attained(&[51.0, 55.7564, 60.0], bounds).unwrap(),
            [50.0, 55.7564, 60.0]
        );
        assert!(limit_to_attained(&[51.0, 30.0, 60.0], vec![50.0, 55.0, 60.0]).is_err());
    }
}
