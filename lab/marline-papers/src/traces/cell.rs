//! One scheduler on one pair of links, from one position in their recordings.

use marline_lab::experiment::{Experiment, Variant, simulate};
use marline_lab::workload::{Gap, Workload};
use serde::{Deserialize, Serialize};

use crate::paper::Context;
use crate::recorded::figures::{Bounds, Figure, Latencies, Quantiles};
use crate::recorded::pairs::Pair;
use crate::recorded::setup::Setup;
use crate::roots::Root;

/// Experiments on a pair from one position, with the bounds of their messages.
#[derive(Debug)]
pub(super) struct CaseExperiments {
    echo: (Experiment, Bounds),
    burst: (Experiment, Bounds),
    goodput: Experiment,
}

/// Results of a scheduler on a pair. A latency of `None` is infinite, because too many messages never arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) echo: Quantiles,
    pub(super) burst: Quantiles,
    /// Goodput, Mbit/s.
    pub(super) goodput: f64,
    /// Share of the bytes to the client that the first path carried in the goodput run.
    pub(super) first_path_share: f64,
    /// Bytes on all links per byte of payload in bursts.
    pub(super) wire_ratio: f64,
}

impl Cell {
    /// Value of one of the five metrics.
    pub(super) fn figure(&self, figure: Figure) -> f64 {
        figure.value_in(&self.echo, &self.burst, self.goodput)
    }
}

impl CaseExperiments {
    /// Experiments on a pair, from the position in its recordings that a root draws.
    pub(super) fn new(
        context: &Context<'_>,
        setup: &Setup,
        pair: &Pair,
        root: &Root,
    ) -> anyhow::Result<CaseExperiments> {
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
        let bound = |experiment: &Experiment| Bounds::for_experiment(experiment, root.seed);
        let (echo_bound, burst_bound) = (bound(&echo)?, bound(&burst)?);
        Ok(CaseExperiments { echo: (echo, echo_bound), burst: (burst, burst_bound), goodput })
    }

    /// Runs a variant.
    pub(super) fn run(&self, pair: &Pair, variant: &Variant, seed: u64) -> anyhow::Result<Cell> {
        let (experiment, bound) = &self.echo;
        let echo = Latencies::from_outcome(
            experiment,
            Some(bound),
            &simulate(experiment, variant, seed)?,
        )?;
        let (experiment, bound) = &self.burst;
        let outcome = simulate(experiment, variant, seed)?;
        let burst = Latencies::from_outcome(experiment, Some(bound), &outcome)?;
        let messages = outcome.messages(experiment.workload());
        let payload: u64 = messages.iter().map(|message| u64::from(message.bytes)).sum();
        let wire_ratio = outcome.wire_bytes() as f64 / payload.max(1) as f64;
        let outcome = simulate(&self.goodput, variant, seed)?;
        let workload = self.goodput.workload();
        let lasts_ms = workload.duration(seed).as_secs_f64() * 1e3;
        let from_ms = self.goodput.warm_up.as_secs_f64() * 1e3;
        let delivered = |name: &str| -> u64 {
            let of = outcome.paths.iter().filter(|path| path.name == name);
            of.map(|path| path.down.delivered_bytes).sum()
        };
        let [first, second] = [delivered(&pair.paths[0]), delivered(&pair.paths[1])];
        Ok(Cell {
            echo: Quantiles::from_latencies(&echo),
            burst: Quantiles::from_latencies(&burst),
            goodput: outcome.goodput_mbit_per_s(workload, from_ms, lasts_ms),
            first_path_share: first as f64 / (first + second).max(1) as f64,
            wire_ratio,
        })
    }
}
