//! One scheduler on one pair of links, from one place of their recordings.

use anyhow::ensure;
use marline_lab::bound::{self, Bound};
use marline_lab::experiment::{Experiment, Outcome, Variant, simulate};
use marline_lab::workload::{Gap, Workload};
use marline_sim::quantile;
use serde::{Deserialize, Serialize};

use super::pairs::Pair;
use super::setup::Setup;
use crate::paper::Context;
use crate::roots::Root;

/// What is done on a pair, with the bounds of its messages.
#[derive(Debug)]
pub(super) struct Place {
    echo: (Experiment, Bound),
    burst: (Experiment, Bound),
    goodput: Experiment,
}

/// Latencies and their bounds, ms; what never came is infinitely late.
#[derive(Clone, Debug)]
struct Latencies {
    ours_ms: Vec<f64>,
    bounds_ms: Vec<f64>,
}

/// What a scheduler showed on a pair. Of latencies `None`: so many messages never came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) echo: Quantiles,
    pub(super) burst: Quantiles,
    /// Mbit/s.
    pub(super) goodput: f64,
    /// Share of the bytes to the client that the first path carried while as much as possible is sent.
    pub(super) first_path_share: f64,
    /// Bytes on all links for each byte of a burst.
    pub(super) wire_ratio: f64,
}

/// Quantiles of latencies, ms, and of some their ratio to the bound's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Quantiles {
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    p999_ms: Option<f64>,
    p50_ratio: Option<f64>,
    p99_ratio: Option<f64>,
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

impl Quantiles {
    fn of(latencies: &Latencies) -> Quantiles {
        let at = |share: f64| finite(quantile(&latencies.ours_ms, share));
        let ratio =
            |share: f64| finite(bound::ratio(&latencies.ours_ms, &latencies.bounds_ms, share));
        Quantiles {
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            p50_ratio: ratio(0.5),
            p99_ratio: ratio(0.99),
        }
    }

    /// Median, 99 % and 99.9 %, ms; infinite where messages never came.
    pub(super) fn all_ms(&self) -> [f64; 3] {
        [self.p50_ms, self.p99_ms, self.p999_ms].map(|value| value.unwrap_or(f64::INFINITY))
    }

    /// Of the medians.
    pub(super) fn p50_ratio(&self) -> f64 {
        self.p50_ratio.unwrap_or(f64::INFINITY)
    }

    /// Of the 99 % quantiles.
    pub(super) fn p99_ratio(&self) -> f64 {
        self.p99_ratio.unwrap_or(f64::INFINITY)
    }
}

/// A figure by which schedulers are compared with the best single path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    EchoP50,
    EchoP99,
    BurstP50,
    BurstP99,
    Goodput,
}

impl Figure {
    pub(super) const ALL: [Figure; 5] =
        [Figure::EchoP50, Figure::EchoP99, Figure::BurstP50, Figure::BurstP99, Figure::Goodput];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Figure::EchoP50 => "echo p50",
            Figure::EchoP99 => "echo p99",
            Figure::BurstP50 => "burst p50",
            Figure::BurstP99 => "burst p99",
            Figure::Goodput => "goodput",
        }
    }

    pub(super) fn of(self, cell: &Cell) -> f64 {
        match self {
            Figure::EchoP50 => cell.echo.all_ms()[0],
            Figure::EchoP99 => cell.echo.all_ms()[1],
            Figure::BurstP50 => cell.burst.all_ms()[0],
            Figure::BurstP99 => cell.burst.all_ms()[1],
            Figure::Goodput => cell.goodput,
        }
    }

    /// Of two values the better.
    pub(super) fn better(self, a: f64, b: f64) -> f64 {
        if self == Figure::Goodput { a.max(b) } else { a.min(b) }
    }

    /// Whether `value` is worse than `best` by more than a share of it and, of latencies, by more
    /// than some ms.
    pub(super) fn is_worse(self, value: f64, best: f64, share: f64, least_ms: f64) -> bool {
        match self {
            Figure::Goodput => value < best * (1.0 - share),
            _ => value > best * (1.0 + share) && value > best + least_ms,
        }
    }
}

impl Latencies {
    /// # Errors
    /// No message was measured, or one was faster than is possible.
    fn of(experiment: &Experiment, bound: &Bound, outcome: &Outcome) -> anyhow::Result<Latencies> {
        // By their planned times: what was held up from before is of before.
        let from_ns = experiment.warm_up.as_nanos() as u64;
        let times_ns = experiment.workload.times_ns(outcome.seed);
        let first = times_ns.partition_point(|at_ns| *at_ns < from_ns);
        let mut messages = outcome.messages(&experiment.workload);
        messages.retain(|message| message.index as usize >= first);
        let mut ours_ms: Vec<f64> = messages.iter().map(|message| message.latency_ms).collect();
        let bounds_ms = attained(&ours_ms, bound.latencies_ms(&messages))?;
        let lost = (times_ns.len() - first).saturating_sub(messages.len());
        ours_ms.extend(std::iter::repeat_n(f64::INFINITY, lost));
        ensure!(!ours_ms.is_empty(), "no message was measured");
        Ok(Latencies { ours_ms, bounds_ms })
    }
}

/// The bounds, none of them above what was reached: a good moment of a link that is shorter than the steps in
/// which the bound looks for one is overlooked, and a message may have met it.
fn attained(ours_ms: &[f64], mut bounds_ms: Vec<f64>) -> anyhow::Result<Vec<f64>> {
    let mut overlooked = 0;
    for (ours, least) in ours_ms.iter().zip(&mut bounds_ms) {
        overlooked += usize::from(*ours < *least - bound::STEP_MS);
        *least = least.min(*ours);
    }
    let few = overlooked * 100 <= ours_ms.len();
    ensure!(few, "{overlooked} of {} messages are faster than the bound", ours_ms.len());
    Ok(bounds_ms)
}

impl Place {
    /// A pair from the place of its recordings that a root draws.
    pub(super) fn new(
        context: &Context<'_>,
        setup: &Setup,
        pair: &Pair,
        root: &Root,
    ) -> anyhow::Result<Place> {
        let links = pair.links(&mut root.rng(&pair.name))?;
        let paths = [
            (pair.paths[0].as_str(), links[0].as_str()),
            (pair.paths[1].as_str(), links[1].as_str()),
        ];
        let over = |workload| {
            let mut experiment = Experiment::over(&paths, workload);
            experiment.trace_dir = context.traces.map(std::path::Path::to_path_buf);
            experiment.patience = std::time::Duration::from_secs(15);
            experiment.warm_up = std::time::Duration::from_secs(setup.warm_up_seconds.into());
            experiment
        };
        let every = |ms: u32| Gap { least_ms: f64::from(ms), most_ms: f64::from(ms) };
        let count = |ms: u32| setup.seconds * 1_000 / ms;
        let (echo, burst) = (setup.echo, setup.burst);
        let echo = over(Workload::Ask {
            request_bytes: echo.bytes,
            answer_bytes: echo.bytes,
            gap: every(echo.every_ms),
            count: count(echo.every_ms),
        });
        let burst = over(Workload::Bursts {
            bytes: burst.bytes,
            gap: every(burst.every_ms),
            count: count(burst.every_ms),
        });
        let lasts_ms = u64::from(setup.goodput_seconds) * 1_000;
        let goodput = over(Workload::Blocks { bytes: 8_192, lasts_ms });
        let bound = |experiment: &Experiment| Bound::of(experiment, root.seed);
        let (echo_bound, burst_bound) = (bound(&echo)?, bound(&burst)?);
        Ok(Place { echo: (echo, echo_bound), burst: (burst, burst_bound), goodput })
    }

    /// Runs a variant.
    pub(super) fn run(&self, pair: &Pair, variant: &Variant, seed: u64) -> anyhow::Result<Cell> {
        let (experiment, bound) = &self.echo;
        let echo = Latencies::of(experiment, bound, &simulate(experiment, variant, seed)?)?;
        let (experiment, bound) = &self.burst;
        let outcome = simulate(experiment, variant, seed)?;
        let burst = Latencies::of(experiment, bound, &outcome)?;
        let messages = outcome.messages(&experiment.workload);
        let payload: u64 = messages.iter().map(|message| u64::from(message.bytes)).sum();
        let wire_ratio = outcome.wire_bytes() as f64 / payload.max(1) as f64;
        let outcome = simulate(&self.goodput, variant, seed)?;
        let workload = &self.goodput.workload;
        let lasts_ms = workload.lasts(seed).as_secs_f64() * 1e3;
        let from_ms = self.goodput.warm_up.as_secs_f64() * 1e3;
        let delivered = |name: &str| -> u64 {
            let of = outcome.paths.iter().filter(|path| path.name == name);
            of.map(|path| path.down.delivered_bytes).sum()
        };
        let [first, second] = [delivered(&pair.paths[0]), delivered(&pair.paths[1])];
        Ok(Cell {
            echo: Quantiles::of(&echo),
            burst: Quantiles::of(&burst),
            goodput: outcome.goodput_mbit_per_s(workload, from_ms, lasts_ms),
            first_path_share: first as f64 / (first + second).max(1) as f64,
            wire_ratio,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_is_beaten_by_little_gives_way_and_one_that_is_wrong_is_an_error() {
        let bounds = vec![50.0, 55.768, 60.0];
        assert_eq!(attained(&[51.0, 55.7564, 60.0], bounds).unwrap(), [50.0, 55.7564, 60.0]);
        assert!(attained(&[51.0, 30.0, 60.0], vec![50.0, 55.0, 60.0]).is_err());
    }
}
