//! Measurement of contestants in scenes: a run of each, and its numbers.

use marline_lab::experiment::{Experiment, Outcome, Variant, simulate};
use marline_lab::workload::Workload;
use marline_link::radio::RadioKind;
use marline_sim::quantile;
use marline_time::Duration;
use serde::{Deserialize, Serialize};

use super::scenes::{
    Buffers, Kind, MISSING_MESSAGE_TIMEOUT_MS, SCENES, Scene, SceneWorkload, Stage,
};
use crate::download::Download;
use crate::hsr2018;
use crate::paper::Context;
use crate::plain::tcp;
use crate::roots::Root;

/// Time at the start of a download that is not evaluated.
const START: Duration = Duration::from_secs(3);

/// Results of all contestants in one scene, in their order.
pub(super) type SceneCells = Vec<Cell>;

/// Results of a contestant in a scene.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    /// Values of the measures of the scene.
    pub(super) values: Vec<f64>,
    /// Bytes that were also sent on another path.
    pub(super) extra_bytes: f64,
    /// Payload of the messages, or the bytes read.
    pub(super) payload_bytes: f64,
    /// Total time for which either end had data to send, s.
    pub(super) sending_s: f64,
    /// Energy that traffic drew from cellular radios; 0 in downloads, which model none. J.
    pub(super) cellular_j: f64,
}

impl Cell {
    /// Costs of several runs, added up.
    pub(super) fn sum<'a>(cells: impl Iterator<Item = &'a Cell>) -> Cell {
        cells.fold(Cell::default(), |sum, cell| Cell {
            values: Vec::new(),
            extra_bytes: sum.extra_bytes + cell.extra_bytes,
            payload_bytes: sum.payload_bytes + cell.payload_bytes,
            sending_s: sum.sending_s + cell.sending_s,
            cellular_j: sum.cellular_j + cell.cellular_j,
        })
    }
}

/// Runs all contestants in all scenes.
pub(super) fn all(
    context: &Context<'_>,
    variants: &[Variant],
    root: &Root,
) -> anyhow::Result<Vec<SceneCells>> {
    SCENES.iter().map(|scene| in_scene(context, scene, variants, root)).collect()
}

/// Runs these variants in a scene.
pub(super) fn in_scene(
    context: &Context<'_>,
    scene: &Scene,
    variants: &[Variant],
    root: &Root,
) -> anyhow::Result<SceneCells> {
    let SceneWorkload { stage, buffers } = (scene.stage)(context, root)?;
    let cell = |variant: &Variant| {
        let mut variant = variant.clone();
        if variant.mode.is_some() {
            // MultiMob's second path sleeps until the first one fails.
            variant.backup = vec![stage.second_path()?.to_owned()];
        }
        if let Some(Buffers { send_bytes, receive_bytes }) = buffers {
            variant = variant.buffers(Some(send_bytes), Some(receive_bytes));
        }
        match &stage {
            Stage::Messages(experiment) => messages(experiment, scene.measures, &variant, root),
            Stage::Download(download) => bulk(download, &variant, root),
        }
    };
    variants.iter().map(cell).collect()
}

fn bulk(download: &Download, variant: &Variant, root: &Root) -> anyhow::Result<Cell> {
    let (report, extra) = download.run_counted(variant, root.seed)?;
    let end = marline_time::Instant::ZERO + download.length;
    let from = marline_time::Instant::ZERO + START.min(download.length / 4);
    let mbit_per_s = report.goodput(from, end).bits_per_s() as f64 / 1e6;
    let all = report.goodput(marline_time::Instant::ZERO, end);
    Ok(Cell {
        values: vec![mbit_per_s],
        extra_bytes: extra as f64,
        payload_bytes: all.bytes_in(download.length) as f64,
        sending_s: download.length.as_secs_f64(),
        cellular_j: 0.0,
    })
}

fn messages(
    experiment: &Experiment,
    measures: &[Kind],
    variant: &Variant,
    root: &Root,
) -> anyhow::Result<Cell> {
    let outcome = simulate(experiment, variant, root.seed)?;
    let workload = experiment.workload();
    let lasts_s = workload.duration(root.seed).as_secs_f64();
    let latencies = latencies(experiment, &outcome);
    let asks = matches!(workload, Workload::Ask { .. } | Workload::Dialogue { .. });
    let value = |measure: &Kind| match measure {
        Kind::Longest => latencies.iter().copied().fold(0.0, f64::max),
        Kind::Median => quantile(&latencies, 0.5),
        Kind::P99 => quantile(&latencies, 0.99),
        Kind::Goodput => {
            let from_ms = START.as_secs_f64() * 1e3;
            outcome.goodput_mbit_per_s(workload, from_ms, lasts_s * 1e3)
        }
    };
    Ok(Cell {
        values: measures.iter().map(value).collect(),
        extra_bytes: outcome.reinjected_bytes as f64,
        payload_bytes: payload(&outcome, workload),
        sending_s: if asks { 2.0 * lasts_s } else { lasts_s },
        cellular_j: cellular_j(&outcome),
    })
}

/// Energy that traffic drew from cellular radios, J.
fn cellular_j(outcome: &Outcome) -> f64 {
    let radios = outcome.paths.iter().filter_map(|path| path.radio);
    let cellular = radios.filter(|radio| radio.kind != RadioKind::Wifi);
    cellular.map(|radio| radio.energy.traffic_j()).sum()
}

/// Latencies of all messages, ms. A message that never arrived has the maximum.
fn latencies(experiment: &Experiment, outcome: &Outcome) -> Vec<f64> {
    let workload = experiment.workload();
    let mut latencies = outcome.latencies_ms(workload, experiment.warm_up);
    let missing = match workload {
        Workload::Ask { .. } | Workload::Dialogue { .. } => {
            outcome.first().unanswered_ms(workload).len()
        }
        Workload::Bursts { count, .. } => (*count as usize).saturating_sub(latencies.len()),
        _ => 0,
    };
    latencies.extend(std::iter::repeat_n(MISSING_MESSAGE_TIMEOUT_MS, missing));
    latencies
}

fn payload(outcome: &Outcome, workload: &Workload) -> f64 {
    let asked = match workload {
        Workload::Ask { request_bytes, .. } | Workload::Dialogue { request_bytes, .. } => {
            *request_bytes
        }
        _ => 0,
    };
    let messages = outcome.messages(workload);
    messages.iter().map(|message| f64::from(message.bytes + asked)).sum()
}

/// Goodputs of one ride, Mbit/s.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ride {
    both: f64,
    best: f64,
}

impl Ride {
    /// Goodput relative to that of the best carrier alone.
    pub(super) fn ratio_to_best_carrier(&self) -> f64 {
        self.both / self.best
    }
}

/// Runs the default on a ride at 150 to 310 km/h, and TCP on each of its two carriers alone.
pub(super) fn ride(judged: &Variant, root: &Root) -> anyhow::Result<Ride> {
    let (download, names) = hsr2018::fast_ride_downloads(root.seed)?;
    let of = |variant: &Variant| download.mbit_per_s(variant, root.seed, Duration::ZERO);
    let alone =
        names.map(|name| of(&Variant { congestion: judged.congestion.clone(), ..tcp(name, name) }));
    let [first, second] = alone;
    Ok(Ride { both: of(judged)?, best: first?.max(second?) })
}
