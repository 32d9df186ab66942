//! One scheduler on one pair of links.

use marline_lab::bound::Bound;
use marline_lab::experiment::{Experiment, Outcome, Variant, simulate};
use marline_lab::workload::{Gap, Workload};
use marline_sim::{mean, quantile};

use super::pairs::Pair;
use super::setup::Setup;
use crate::paper::Context;

/// What is done on a part of a pair, with the bounds of its messages.
#[derive(Debug)]
pub(super) struct Part {
    echo: (Experiment, Bound),
    burst: (Experiment, Bound),
    goodput: Experiment,
}

/// Latencies and their bounds, ms; what never came is infinitely late.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies {
    pub(super) ours_ms: Vec<f64>,
    pub(super) bounds_ms: Vec<f64>,
    /// Messages that were faster than their bounds: there must be none.
    pub(super) impossible: usize,
}

/// What a scheduler showed on a pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) echo: Latencies,
    pub(super) burst: Latencies,
    /// Of each part, Mbit/s.
    goodputs: Vec<f64>,
    /// Bytes to the client over each path while as much as possible is sent.
    bytes: [u64; 2],
    /// Bytes on all links and bytes of payload, during the bursts.
    wire: (u64, u64),
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
            Figure::EchoP50 => cell.echo.quantile(0.5),
            Figure::EchoP99 => cell.echo.quantile(0.99),
            Figure::BurstP50 => cell.burst.quantile(0.5),
            Figure::BurstP99 => cell.burst.quantile(0.99),
            Figure::Goodput => cell.goodput(),
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
    pub(super) fn quantile(&self, share: f64) -> f64 {
        quantile(&self.ours_ms, share)
    }

    /// Over the bound at the same quantile.
    pub(super) fn ratio(&self, share: f64) -> f64 {
        marline_lab::bound::ratio(&self.ours_ms, &self.bounds_ms, share)
    }

    fn add(&mut self, experiment: &Experiment, bound: &Bound, outcome: &Outcome) {
        // By their planned times: what was held up from before is of before.
        let from_ns = experiment.warm_up.as_nanos() as u64;
        let times_ns = experiment.workload.times_ns(outcome.seed);
        let first = times_ns.partition_point(|at_ns| *at_ns < from_ns);
        let mut messages = outcome.messages(&experiment.workload);
        messages.retain(|message| message.index as usize >= first);
        let bounds_ms = bound.latencies_ms(&messages);
        let faster = messages.iter().zip(&bounds_ms).filter(|(m, least)| m.latency_ms < **least);
        self.impossible += faster.count();
        self.ours_ms.extend(messages.iter().map(|message| message.latency_ms));
        self.bounds_ms.extend(bounds_ms);
        let lost = (times_ns.len() - first).saturating_sub(messages.len());
        self.ours_ms.extend(std::iter::repeat_n(f64::INFINITY, lost));
    }
}

impl Cell {
    /// Mean of the parts, Mbit/s.
    pub(super) fn goodput(&self) -> f64 {
        mean(&self.goodputs)
    }

    /// Share of the bytes to the client that the first path carried.
    pub(super) fn first_path_share(&self) -> f64 {
        self.bytes[0] as f64 / (self.bytes[0] + self.bytes[1]) as f64
    }

    /// Bytes on all links for each byte of a burst.
    pub(super) fn wire_ratio(&self) -> f64 {
        self.wire.0 as f64 / self.wire.1 as f64
    }
}

impl Part {
    pub(super) fn new(
        context: &Context<'_>,
        setup: &Setup,
        pair: &Pair,
        links: &[String; 2],
    ) -> anyhow::Result<Part> {
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
        let bound = |experiment: &Experiment| Bound::of(experiment, context.master);
        let (echo_bound, burst_bound) = (bound(&echo)?, bound(&burst)?);
        Ok(Part { echo: (echo, echo_bound), burst: (burst, burst_bound), goodput })
    }
}

/// Runs a variant on all parts of a pair.
pub(super) fn run(
    pair: &Pair,
    parts: &[Part],
    variant: &Variant,
    seed: u64,
) -> anyhow::Result<Cell> {
    let mut cell = Cell::default();
    for part in parts {
        let (experiment, bound) = &part.echo;
        cell.echo.add(experiment, bound, &simulate(experiment, variant, seed)?);
        let (experiment, bound) = &part.burst;
        let outcome = simulate(experiment, variant, seed)?;
        cell.burst.add(experiment, bound, &outcome);
        let workload = &experiment.workload;
        let payload: u64 = outcome.messages(workload).iter().map(|m| u64::from(m.bytes)).sum();
        cell.wire.0 += outcome.wire_bytes();
        cell.wire.1 += payload;
        let outcome = simulate(&part.goodput, variant, seed)?;
        let workload = &part.goodput.workload;
        let lasts_ms = workload.lasts(seed).as_secs_f64() * 1e3;
        let from_ms = part.goodput.warm_up.as_secs_f64() * 1e3;
        cell.goodputs.push(outcome.goodput_mbit_per_s(workload, from_ms, lasts_ms));
        for path in &outcome.paths {
            let number = pair.paths.iter().position(|name| *name == path.name);
            if let Some(bytes) = number.and_then(|number| cell.bytes.get_mut(number)) {
                *bytes += path.down.delivered_bytes;
            }
        }
    }
    Ok(cell)
}
