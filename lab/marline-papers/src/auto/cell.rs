//! Measurements of contestants on one pair of links: a run of each workload.

use std::time::Duration;

use marline_lab::experiment::{Calibration, Experiment, Outcome, Variant, simulate};
use marline_lab::scenario::Event;
use marline_lab::workload::Workload;
use serde::{Deserialize, Serialize};

use super::setup::{Messages, Setup};
use crate::paper::Context;
use crate::plain::tcp;
use crate::recorded::figures::{Bounds, FiveMetrics, Latencies, Quantiles};
use crate::recorded::pairs::Pair;
use crate::roots::Root;

/// Time for which a run continues after its planned end.
const DRAIN_TIME: Duration = Duration::from_secs(15);
/// Bytes per write of the goodput workload.
const BLOCK_BYTES: u32 = 8_192;

/// Index of the judged contestant.
pub(super) const JUDGED_INDEX: usize = 0;

/// Results of the runs on a recorded pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RecordedPairResult {
    /// TCP alone on either path.
    pub(super) alone: [FiveMetrics; 2],
    /// Results in the order of [`Setup::contestants`].
    pub(super) contestants: Vec<Cell>,
}

/// Results of a contestant on a recorded pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) five: FiveMetrics,
    pub(super) small: Quantiles,
    /// Latencies of the bursts of each size.
    pub(super) bursts: Vec<Quantiles>,
    /// Copies sent for echoes, for small messages, for bursts of each size, and in the goodput workload.
    pub(super) extra: Vec<Extra>,
    /// Forecasts of the judged contestant. `None` for the others.
    pub(super) forecasts: Option<Forecasts>,
}

/// Calibration of answer-time forecasts, by workload and path.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Forecasts {
    pub(super) echo: [Calibration; 2],
    pub(super) small: [Calibration; 2],
    /// Calibration for the bursts that the five metrics use.
    pub(super) burst: [Calibration; 2],
}

/// Bytes that were also sent on another path, and the payload of the same run.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Extra {
    pub(super) bytes: u64,
    pub(super) payload: u64,
}

impl Extra {
    fn from_outcome(outcome: &Outcome, workload: &Workload) -> Extra {
        let asked = match workload {
            Workload::Ask { request_bytes, .. } => *request_bytes,
            _ => 0,
        };
        let messages = outcome.messages(workload);
        let payload = messages.iter().map(|message| u64::from(message.bytes + asked)).sum();
        Extra { bytes: outcome.reinjected_bytes, payload }
    }
}

/// Two paths with their links and events.
#[derive(Copy, Clone, Debug)]
pub(super) struct Links<'a> {
    /// Names and link descriptions.
    pub(super) paths: [(&'a str, &'a str); 2],
    pub(super) events: &'a [Event],
}

impl Links<'_> {
    fn experiment(
        &self,
        context: &Context<'_>,
        warm_up_seconds: u32,
        workload: Workload,
    ) -> Experiment {
        let mut experiment = Experiment::over(&self.paths, workload);
        experiment.scenario.events = self.events.to_vec();
        experiment.trace_dir = context.traces.map(std::path::Path::to_path_buf);
        experiment.patience = DRAIN_TIME;
        experiment.warm_up = Duration::from_secs(warm_up_seconds.into());
        experiment
    }

    fn echo(&self, context: &Context<'_>, warm_up_seconds: u32, messages: Messages) -> Experiment {
        let Messages { bytes, .. } = messages;
        let workload = Workload::Ask {
            request_bytes: bytes,
            answer_bytes: bytes,
            gap: messages.gap(),
            count: messages.count(),
        };
        self.experiment(context, warm_up_seconds, workload)
    }

    fn bursts(
        &self,
        context: &Context<'_>,
        warm_up_seconds: u32,
        messages: Messages,
    ) -> Experiment {
        let Messages { bytes, .. } = messages;
        let workload = Workload::Bursts { bytes, gap: messages.gap(), count: messages.count() };
        self.experiment(context, warm_up_seconds, workload)
    }

    fn blocks(&self, context: &Context<'_>, setup: &Setup) -> Experiment {
        let lasts_ms = u64::from(setup.goodput_seconds) * 1_000;
        let workload = Workload::Blocks { bytes: BLOCK_BYTES, lasts_ms };
        self.experiment(context, setup.warm_up_seconds, workload)
    }
}

/// Results of a run with messages.
struct MessageRunResult {
    latencies: Quantiles,
    extra: Extra,
    /// Calibration of each path.
    forecasts: [Calibration; 2],
}

/// An experiment with messages, and their latency bounds if they are compared.
struct TimedExperiment {
    experiment: Experiment,
    bounds: Option<Bounds>,
}

impl TimedExperiment {
    fn without_bounds(experiment: Experiment) -> TimedExperiment {
        TimedExperiment { experiment, bounds: None }
    }

    fn with_bounds(experiment: Experiment, seed: u64) -> anyhow::Result<TimedExperiment> {
        let bounds = Some(Bounds::for_experiment(&experiment, seed)?);
        Ok(TimedExperiment { experiment, bounds })
    }

    fn run(&self, variant: &Variant, seed: u64) -> anyhow::Result<MessageRunResult> {
        let outcome = simulate(&self.experiment, variant, seed)?;
        let latencies = Latencies::from_outcome(&self.experiment, self.bounds.as_ref(), &outcome)?;
        let forecast = |path: usize| outcome.paths.get(path)?.calibration;
        Ok(MessageRunResult {
            latencies: Quantiles::from_latencies(&latencies),
            extra: Extra::from_outcome(&outcome, self.experiment.workload()),
            forecasts: [0, 1].map(|path| forecast(path).unwrap_or_default()),
        })
    }
}

/// Goodput, Mbit/s, and the cost of its copies.
fn goodput(experiment: &Experiment, variant: &Variant, seed: u64) -> anyhow::Result<(f64, Extra)> {
    let outcome = simulate(experiment, variant, seed)?;
    let workload = experiment.workload();
    let from_ms = experiment.warm_up.as_secs_f64() * 1e3;
    let to_ms = workload.duration(seed).as_secs_f64() * 1e3;
    let mbit_per_s = outcome.goodput_mbit_per_s(workload, from_ms, to_ms);
    Ok((mbit_per_s, Extra::from_outcome(&outcome, workload)))
}

/// All experiments on a recorded pair, from one position in the recording.
struct CaseExperiments {
    echo: TimedExperiment,
    small: TimedExperiment,
    bursts: Vec<TimedExperiment>,
    metric_burst: usize,
    blocks: Experiment,
}

impl CaseExperiments {
    fn new(
        context: &Context<'_>,
        setup: &Setup,
        links: &Links<'_>,
        seed: u64,
    ) -> anyhow::Result<CaseExperiments> {
        let warm_up = setup.warm_up_seconds;
        let bursts = setup.bursts.iter();
        let bursts = bursts.map(|burst| {
            TimedExperiment::with_bounds(links.bursts(context, warm_up, *burst), seed)
        });
        Ok(CaseExperiments {
            echo: TimedExperiment::with_bounds(links.echo(context, warm_up, setup.echo), seed)?,
            small: TimedExperiment::without_bounds(links.bursts(context, warm_up, setup.small)),
            bursts: bursts.collect::<anyhow::Result<Vec<TimedExperiment>>>()?,
            metric_burst: setup.metric_burst()?,
            blocks: links.blocks(context, setup),
        })
    }

    fn measure_single_path(&self, path: &str, seed: u64) -> anyhow::Result<FiveMetrics> {
        let variant = tcp(path, path);
        Ok(FiveMetrics {
            echo: self.echo.run(&variant, seed)?.latencies,
            burst: self.bursts[self.metric_burst].run(&variant, seed)?.latencies,
            goodput: goodput(&self.blocks, &variant, seed)?.0,
        })
    }

    fn cell(&self, variant: &Variant, seed: u64) -> anyhow::Result<Cell> {
        let echo = self.echo.run(variant, seed)?;
        let small = self.small.run(variant, seed)?;
        let bursts = self.bursts.iter().map(|burst| burst.run(variant, seed));
        let bursts = bursts.collect::<anyhow::Result<Vec<MessageRunResult>>>()?;
        let (goodput, of_blocks) = goodput(&self.blocks, variant, seed)?;
        let burst = &bursts[self.metric_burst];
        let messages = [&echo, &small].into_iter().chain(&bursts);
        let extra = messages.map(|ran| ran.extra).chain([of_blocks]).collect();
        let forecasts = variant.score_forecasts.then_some(Forecasts {
            echo: echo.forecasts,
            small: small.forecasts,
            burst: burst.forecasts,
        });
        let five = FiveMetrics { echo: echo.latencies, burst: burst.latencies.clone(), goodput };
        let bursts = bursts.into_iter().map(|ran| ran.latencies).collect();
        Ok(Cell { five, small: small.latencies, bursts, extra, forecasts })
    }
}

/// Runs everything on a recorded pair, from a position that the root draws.
pub(super) fn run_recorded_pair(
    context: &Context<'_>,
    setup: &Setup,
    pair: &Pair,
    root: &Root,
) -> anyhow::Result<RecordedPairResult> {
    let [first, second] = pair.links(&mut root.rng(&pair.name))?;
    let names = [pair.paths[0].as_str(), pair.paths[1].as_str()];
    let links = Links { paths: [(names[0], &first), (names[1], &second)], events: &[] };
    let place = CaseExperiments::new(context, setup, &links, root.seed)?;
    let variants = setup.contestants().enumerate().map(|(number, contestant)| {
        let variant = contestant.variant();
        if number == JUDGED_INDEX { variant.with_forecast_scores() } else { variant }
    });
    let contestants = variants.map(|variant| place.cell(&variant, root.seed));
    Ok(RecordedPairResult {
        alone: [
            place.measure_single_path(names[0], root.seed)?,
            place.measure_single_path(names[1], root.seed)?,
        ],
        contestants: contestants.collect::<anyhow::Result<Vec<Cell>>>()?,
    })
}

/// Results of the runs on generated links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GeneratedLinksResult {
    /// TCP alone on either path.
    pub(super) alone: [FiveMetrics; 2],
    pub(super) judged: FiveMetrics,
    pub(super) duplication: FiveMetrics,
}

/// Runs the workloads of the five metrics on generated links.
pub(super) fn on_generated(
    context: &Context<'_>,
    setup: &Setup,
    links: &Links<'_>,
    seed: u64,
) -> anyhow::Result<GeneratedLinksResult> {
    let (warm_up, generated) = (setup.warm_up_seconds, &setup.generated);
    let echo = TimedExperiment::without_bounds(links.echo(context, warm_up, generated.echo));
    let burst = TimedExperiment::without_bounds(links.bursts(context, warm_up, generated.burst));
    let blocks = links.blocks(context, setup);
    let five = |variant: &Variant| -> anyhow::Result<FiveMetrics> {
        Ok(FiveMetrics {
            echo: echo.run(variant, seed)?.latencies,
            burst: burst.run(variant, seed)?.latencies,
            goodput: goodput(&blocks, variant, seed)?.0,
        })
    };
    let [first, second] = links.paths.map(|(name, _)| tcp(name, name));
    Ok(GeneratedLinksResult {
        alone: [five(&first)?, five(&second)?],
        judged: five(&setup.judged.variant())?,
        duplication: five(&setup.duplication.variant())?,
    })
}
