//! Measurements of contestants on one pair of links.

use std::time::Duration;

use marline_lab::datagrams::{DatagramExperiment, DatagramOutcome, DatagramWorkload};
use marline_sim::quantile;
use marline_time::Rng as _;
use serde::{Deserialize, Serialize};

use super::setup::{Pulses, Setup};
use crate::paper::Context;
use crate::recorded::pairs::Pair;
use crate::roots::Root;

/// Results of the runs on a pair, in the order of [`Setup::contestants`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RecordedPairResult {
    pub(super) call: Vec<Cell>,
    pub(super) game: Vec<Cell>,
    pub(super) call_bound: UnavoidableLoss,
    pub(super) game_bound: UnavoidableLoss,
    /// Goodput of the bulk flow, Mbit/s.
    pub(super) quic: Vec<f64>,
}

/// Results of a contestant in a call or a game.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    /// `None`: infinite.
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    pub(super) datagrams: u64,
    pub(super) lost: u64,
    /// Datagrams that missed each deadline, and how many of them met it in the bound.
    pub(super) missed: [u64; 2],
    pub(super) missed_avoidably: [u64; 2],
    /// Bytes of copied frames and of first transmissions with datagrams, summed over both ends.
    pub(super) extra_bytes: u64,
    pub(super) first_bytes: u64,
    /// Bytes of frames with only acknowledgments or requests.
    pub(super) control_bytes: u64,
}

/// Lateness that no sender could avoid, ms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct UnavoidableLoss {
    p99_ms: Option<f64>,
    pub(super) missed: [u64; 2],
}

fn finite_or_none(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

impl Cell {
    pub(super) fn p50_ms(&self) -> f64 {
        self.p50_ms.unwrap_or(f64::INFINITY)
    }

    pub(super) fn p99_ms(&self) -> f64 {
        self.p99_ms.unwrap_or(f64::INFINITY)
    }
}

impl UnavoidableLoss {
    pub(super) fn p99_ms(&self) -> f64 {
        self.p99_ms.unwrap_or(f64::INFINITY)
    }
}

/// Runs every contestant on a pair, from a position in its recordings that the root draws.
pub(super) fn on_pair(
    context: &Context<'_>,
    setup: &Setup,
    pair: &Pair,
    root: &Root,
) -> anyhow::Result<RecordedPairResult> {
    let mut rng = root.rng(&format!("places/{}", pair.name));
    let links = pair.links(&mut rng)?;
    let seed = rng.next_u64() >> 11;
    let links = [(&*pair.paths[0], &*links[0]), (&*pair.paths[1], &*links[1])];
    let over = |workload, lasts| {
        DatagramExperiment::with_links(&links, context.traces, workload, lasts, seed)
    };
    let (call, call_bound) =
        pulses(setup, setup.call, &over(setup.call.workload(), setup.call.duration())?)?;
    let (game, game_bound) =
        pulses(setup, setup.game, &over(setup.game.workload(), setup.game.duration())?)?;
    let seconds = setup.quic_seconds;
    let bulk = over(DatagramWorkload::Quic, Duration::from_secs(seconds.into()))?;
    let goodput = |contestant| {
        let outcome = bulk.run(&setup.policies(contestant))?;
        let from_ms = f64::from(setup.warm_up_seconds) * 1e3;
        let until_ms = f64::from(seconds) * 1e3;
        let counted = outcome.bulk.iter().filter(|(at, _)| (from_ms..until_ms).contains(at));
        let bytes: f64 = counted.map(|(_, bytes)| f64::from(*bytes)).sum();
        Ok(bytes * 8.0 / (until_ms - from_ms) / 1e3)
    };
    let quic: anyhow::Result<Vec<f64>> = setup.contestants().map(goodput).collect();
    Ok(RecordedPairResult { call, game, call_bound, game_bound, quic: quic? })
}

fn pulses(
    setup: &Setup,
    pulses: Pulses,
    experiment: &DatagramExperiment,
) -> anyhow::Result<(Vec<Cell>, UnavoidableLoss)> {
    let from_ms = f64::from(setup.warm_up_seconds) * 1e3;
    let mut cells = Vec::new();
    let mut bounds: Option<Vec<f64>> = None;
    for contestant in setup.contestants() {
        let outcome = experiment.run(&setup.policies(contestant))?;
        anyhow::ensure!(outcome.wrong == 0, "{}: a datagram arrived twice", contestant.name);
        let after = |(sent, _): &&(f64, f64)| *sent >= from_ms;
        let datagrams: Vec<(f64, f64)> = outcome.datagrams.iter().filter(after).copied().collect();
        // All contestants send at the same times.
        let bounds = match &mut bounds {
            Some(bounds) => bounds,
            none => {
                let sent: Vec<f64> = datagrams.iter().map(|(sent, _)| *sent).collect();
                none.insert(experiment.bounds_ms(&sent, pulses.bytes)?)
            }
        };
        anyhow::ensure!(bounds.len() == datagrams.len(), "contestants sent at different times");
        cells.push(cell(setup, &outcome, &datagrams, bounds));
    }
    let bounds = bounds.unwrap_or_default();
    let missed = setup.deadlines_ms.map(|deadline| count_late(&bounds, deadline.into()));
    Ok((cells, UnavoidableLoss { p99_ms: finite_or_none(quantile(&bounds, 0.99)), missed }))
}

fn count_late(latencies: &[f64], deadline_ms: f64) -> u64 {
    latencies.iter().filter(|ms| **ms > deadline_ms).count() as u64
}

fn cell(
    setup: &Setup,
    outcome: &DatagramOutcome,
    datagrams: &[(f64, f64)],
    bounds: &[f64],
) -> Cell {
    let latencies: Vec<f64> = datagrams.iter().map(|(_, latency)| *latency).collect();
    let avoidable = |deadline: u32| {
        let deadline = f64::from(deadline);
        let both = latencies.iter().zip(bounds);
        both.filter(|(ms, bound)| **ms > deadline && **bound <= deadline).count() as u64
    };
    let both = [outcome.server, outcome.client];
    Cell {
        p50_ms: finite_or_none(quantile(&latencies, 0.5)),
        p99_ms: finite_or_none(quantile(&latencies, 0.99)),
        datagrams: latencies.len() as u64,
        lost: latencies.iter().filter(|ms| ms.is_infinite()).count() as u64,
        missed: setup.deadlines_ms.map(|deadline| count_late(&latencies, deadline.into())),
        missed_avoidably: setup.deadlines_ms.map(avoidable),
        extra_bytes: both.iter().map(|lane| lane.copied_frame_bytes).sum(),
        first_bytes: both.iter().map(|lane| lane.first_frame_bytes).sum(),
        control_bytes: both.iter().map(|lane| lane.control_frame_bytes).sum(),
    }
}

/// Longest gaps in a call while one of two paths dies, ms.
pub(super) fn deaths(setup: &Setup, root: &Root) -> anyhow::Result<Vec<f64>> {
    let mut rng = root.rng("deaths");
    let death = &setup.death;
    let links = [("wifi", &*death.wifi), ("lte", &*death.lte)];
    let lasts = Duration::from_secs(death.seconds.into());
    let mut gaps = Vec::new();
    for _ in 0..death.runs_of_a_root {
        let seed = rng.next_u64() >> 11;
        let after = lasts.mul_f64(0.5 + 0.3 * rng.unit());
        let experiment =
            DatagramExperiment::with_links(&links, None, setup.call.workload(), lasts, seed)?
                .with_death(0, after);
        let outcome = experiment.run(&setup.policies(&setup.judged))?;
        let came = |(sent, latency): &(f64, f64)| finite_or_none(sent + latency);
        let mut arrived: Vec<f64> = outcome.datagrams.iter().filter_map(came).collect();
        arrived.sort_by(f64::total_cmp);
        gaps.push(arrived.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max));
    }
    Ok(gaps)
}
