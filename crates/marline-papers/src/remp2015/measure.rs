//! Echo runs and their statistics.

use std::time::Duration;

use marline_lab::bound::Bound;
use marline_lab::experiment::{Experiment, Message, Variant, simulate};
use marline_sim::{mean, quantile};

use crate::paper::Context;

/// Longest that the last answers are waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs that are held against the clairvoyant bound: where links change, it takes longer than the run.
const BOUNDED: usize = 8;

/// What all runs of a variant showed together.
#[derive(Clone, Debug, Default)]
pub(super) struct Echoes {
    /// Messages of all runs.
    pub(super) messages: Vec<Message>,
    /// Round trips, ms, in that order.
    pub(super) latencies_ms: Vec<f64>,
    /// What a sender that knows the links would have reached in the first runs, ms, in that order.
    bounds_ms: Vec<f64>,
    /// The longest of each run, ms.
    worst_ms: Vec<f64>,
    /// Bytes offered to the links, per run.
    wire_bytes: Vec<f64>,
    /// Payload bytes that went over more than one path, per run.
    copied_bytes: Vec<f64>,
}

impl Echoes {
    pub(super) fn average_ms(&self) -> f64 {
        mean(&self.latencies_ms)
    }

    /// The mean of the runs' longest.
    pub(super) fn worst_ms(&self) -> f64 {
        mean(&self.worst_ms)
    }

    pub(super) fn sigma_ms(&self) -> f64 {
        let average = self.average_ms();
        let squares: f64 = self.latencies_ms.iter().map(|ms| (ms - average).powi(2)).sum();
        (squares / self.latencies_ms.len() as f64).sqrt()
    }

    pub(super) fn quantile_ms(&self, share: f64) -> f64 {
        quantile(&self.latencies_ms, share)
    }

    /// Average over that of the clairvoyant bound, in the first runs.
    pub(super) fn bound_ratio(&self) -> f64 {
        mean(&self.latencies_ms[..self.bounds_ms.len()]) / mean(&self.bounds_ms)
    }

    pub(super) fn wire_bytes(&self) -> f64 {
        mean(&self.wire_bytes)
    }

    pub(super) fn copied_bytes(&self) -> f64 {
        mean(&self.copied_bytes)
    }

    /// Round trips of the messages that began within these seconds after the start, ms.
    pub(super) fn within_ms(&self, from_s: f64, to_s: f64) -> Vec<f64> {
        let times = from_s * 1e3..to_s * 1e3;
        let pairs = self.messages.iter().zip(&self.latencies_ms);
        pairs.filter(|(message, _)| times.contains(&message.sent_ms)).map(|(_, ms)| *ms).collect()
    }
}

/// Without the losses that are drawn packet by packet: they do not move the bound, and only cost time.
fn lossless(experiment: &Experiment) -> Experiment {
    let mut experiment = experiment.clone();
    for path in &mut experiment.scenario.paths {
        let random = |item: &&str| !item.starts_with("ge=") && !item.starts_with("loss=");
        path.link = path.link.split(',').filter(random).collect::<Vec<_>>().join(",");
    }
    experiment.scenario.events.retain(|event| !event.command.starts_with("set loss="));
    experiment
}

/// Runs every variant with every seed.
pub(super) fn echoes(
    context: &Context<'_>,
    what: &str,
    runs: usize,
    experiment: impl Fn(u64) -> Experiment + Sync,
    variants: &[Variant],
) -> anyhow::Result<Vec<Echoes>> {
    let seeds: Vec<u64> = (0..context.runs(runs) as u64).map(|n| context.master + n).collect();
    let pairs: Vec<(usize, u64)> =
        (0..variants.len()).flat_map(|v| seeds.iter().map(move |seed| (v, *seed))).collect();
    let outcomes = context.parallel(what, &pairs, |(number, seed)| {
        let mut experiment = experiment(*seed);
        experiment.patience = PATIENCE;
        let outcome = simulate(&experiment, &variants[*number], *seed)?;
        let messages = outcome.messages(&experiment.workload);
        anyhow::Ok((messages, outcome.wire_bytes(), outcome.reinjected_bytes))
    })?;
    let bounded = &seeds[..seeds.len().min(BOUNDED)];
    let bounds = context.parallel("bound", bounded, |seed| {
        let bound = Bound::of(&lossless(&experiment(*seed)), *seed)?;
        // All variants send at the same times.
        anyhow::Ok(bound.latencies_ms(&outcomes[(seed - context.master) as usize].0))
    })?;
    let mut all = vec![Echoes::default(); variants.len()];
    for ((number, seed), (messages, wire, copied)) in pairs.iter().zip(outcomes) {
        let echoes = &mut all[*number];
        let latencies = messages.iter().map(|message| message.latency_ms);
        echoes.worst_ms.push(latencies.clone().fold(0.0, f64::max));
        echoes.latencies_ms.extend(latencies);
        echoes.messages.extend(messages);
        echoes.bounds_ms.extend(bounds.get((seed - context.master) as usize).into_iter().flatten());
        echoes.wire_bytes.push(wire as f64);
        echoes.copied_bytes.push(copied as f64);
    }
    Ok(all)
}
