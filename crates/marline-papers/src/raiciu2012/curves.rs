//! One curve: a configuration of paths and policies, in one setting, over several runs.

use std::time::Duration;

use marline::BufferTuning;
use marline_lab::bound::{self, Bound};
use marline_lab::experiment::{Experiment, Variant, simulate};
use marline_lab::workload::Workload;

use crate::paper::Context;

/// What begins earlier is not looked at.
const WARM_UP: Duration = Duration::from_secs(5);
const LASTS: Duration = Duration::from_secs(100);
const BLOCK_BYTES: u32 = 8_192;
/// Steps in which densities are looked at for their peak, ms.
const STEP_MS: f64 = 5.0;

/// Links and buffers.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct Setting {
    /// What tables call it.
    pub(super) name: &'static str,
    pub(super) links: Links,
    /// Payload that the send buffer takes, bytes.
    pub(super) send: u64,
    /// The largest receive window, bytes.
    pub(super) receive: u64,
}

/// Which links.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Links {
    /// Of the CS244 study.
    Cs244 { jitter_ms: u32, overtaking: bool },
    /// Of the NSDI paper.
    Nsdi,
}

impl Links {
    /// The descriptions of WiFi and 3G.
    pub(super) fn describe(self) -> [String; 2] {
        match self {
            // 5 and 30 ms, and 1 ms for the hop behind both; 1000 packets of 1500 bytes.
            Links::Cs244 { jitter_ms, overtaking } => {
                let order = if overtaking { "yes" } else { "no" };
                let jitter = format!("jitter=uniform:{jitter_ms}ms,overtaking={order}");
                [
                    "rate=30M,delay=6ms,loss=0.75%,queue=1500kB".to_owned(),
                    format!("rate=3M,delay=31ms,{jitter},loss=0.1%,queue=1500kB"),
                ]
            }
            Links::Nsdi => [
                "rate=8M,delay=10ms,queue=80ms".to_owned(),
                "rate=2M,delay=75ms,queue=2s".to_owned(),
            ],
        }
    }
}

/// 200 KB as Linux counts them: twice as much memory, 2,304 bytes of it for 1,428 of payload.
pub(super) const SEND_AS_LINUX: u64 = 409_600 * 1_428 / 2_304;
/// 200 KB of payload.
pub(super) const SEND_AS_SAID: u64 = 204_800;
/// 30 KB, doubled.
pub(super) const RECEIVE_AS_LINUX: u64 = 61_440;
/// 30 KB.
pub(super) const RECEIVE_AS_SAID: u64 = 30_720;

impl Setting {
    /// What is judged.
    pub(super) const fn cs244(jitter_ms: u32) -> Setting {
        Setting {
            name: "as judged",
            links: Links::Cs244 { jitter_ms, overtaking: true },
            send: SEND_AS_LINUX,
            receive: RECEIVE_AS_LINUX,
        }
    }
}

/// A way to use the paths.
#[derive(Copy, Clone, Debug)]
pub(super) struct Curve {
    /// What tables call it.
    pub(super) name: &'static str,
    pub(super) way: Way,
    /// The congestion control.
    pub(super) congestion: &'static str,
    /// How large buffers are below their bounds.
    pub(super) tuning: BufferTuning,
}

/// Which paths, and how.
#[derive(Copy, Clone, Debug)]
pub(super) enum Way {
    /// Plain TCP on this path.
    Alone(&'static str),
    /// Both paths with this scheduler.
    Both(&'static str),
}

/// CUBIC as it was before HyStart++.
const CONGESTION: &str = "cubic-classic";

impl Curve {
    /// Plain TCP on one path.
    pub(super) const fn alone(name: &'static str, path: &'static str) -> Curve {
        let (way, tuning) = (Way::Alone(path), BufferTuning::Fixed);
        Curve { name, way, congestion: CONGESTION, tuning }
    }

    /// Both paths with this scheduler.
    pub(super) const fn with(name: &'static str, scheduler: &'static str) -> Curve {
        let (way, tuning) = (Way::Both(scheduler), BufferTuning::Fixed);
        Curve { name, way, congestion: CONGESTION, tuning }
    }

    fn variant(&self, setting: &Setting) -> Variant {
        let variant = match self.way {
            Way::Alone(path) => Variant::alone(self.name, path),
            Way::Both(scheduler) => Variant::new(self.name).scheduler(scheduler),
        };
        Variant {
            send_buffer: Some(setting.send),
            receive_buffer: Some(setting.receive),
            buffer_tuning: self.tuning,
            unpaced: true,
            ..variant.congestion(self.congestion)
        }
    }
}

/// What the runs of a curve gave together.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// From a block's being taken to its being read, ms, sorted.
    pub(super) latencies_ms: Vec<f64>,
    /// The median over the clairvoyant bound's.
    pub(super) bound_ratio: f64,
    /// Mean of the runs.
    pub(super) goodput_mbit_per_s: f64,
    /// Carried by WiFi and 3G to the client, per run, MB.
    pub(super) carried_mbyte: [f64; 2],
    /// Sent again on another subflow, per run, MB.
    pub(super) repeated_mbyte: f64,
}

impl Sample {
    /// The latency below which this share of the blocks lies, ms.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let last = self.latencies_ms.len().saturating_sub(1);
        let index = (share * last as f64).round() as usize;
        self.latencies_ms.get(index).copied().unwrap_or(f64::NAN)
    }

    /// Width of the kernels that the density is made with, ms.
    pub(super) fn bandwidth_ms(&self) -> f64 {
        (self.quantile(0.5) / 10.0).max(20.0)
    }

    /// The highest place of the density, ms.
    pub(super) fn peak_ms(&self) -> f64 {
        peak(&self.latencies_ms, self.bandwidth_ms())
    }
}

/// The highest place of the density of sorted values: by Gaussian kernels over a histogram that is
/// much finer than they are.
fn peak(sorted: &[f64], bandwidth: f64) -> f64 {
    let Some(largest) = sorted.last() else { return f64::NAN };
    let mut counts = vec![0.0; (largest / STEP_MS) as usize + 1];
    for value in sorted {
        counts[(value / STEP_MS) as usize] += 1.0;
    }
    let reach = (3.0 * bandwidth / STEP_MS).ceil() as usize;
    let kernel: Vec<f64> =
        (0..=reach).map(|n| (-0.5 * (n as f64 * STEP_MS / bandwidth).powi(2)).exp()).collect();
    let density = |place: usize| -> f64 {
        let from = place.saturating_sub(reach);
        let near = counts.iter().enumerate().take(place + reach + 1).skip(from);
        near.map(|(at, count)| count * kernel[at.abs_diff(place)]).sum()
    };
    let heights: Vec<f64> = (0..counts.len()).map(density).collect();
    let highest = (0..heights.len()).max_by(|a, b| heights[*a].total_cmp(&heights[*b]));
    highest.map_or(f64::NAN, |place| (place as f64 + 0.5) * STEP_MS)
}

/// Runs curves in settings, each `runs` times; one sample for each.
///
/// # Errors
/// A run failed.
pub(super) fn measure(
    context: &Context<'_>,
    what: &str,
    jobs: &[(Setting, Curve)],
    runs: usize,
) -> anyhow::Result<Vec<Sample>> {
    let runs = context.runs(runs);
    let lasts = context.length(LASTS).max(WARM_UP * 3);
    let each: Vec<(usize, u64)> = (0..jobs.len())
        .flat_map(|job| (0..runs as u64).map(move |run| (job, context.master + run)))
        .collect();
    let done = context.parallel(what, &each, |(job, seed)| {
        let (setting, curve) = &jobs[*job];
        run(setting, curve, lasts, *seed)
    })?;
    Ok(done.chunks(runs).map(merge).collect())
}

/// A run: its latencies and their bounds, ms.
struct Run {
    latencies_ms: Vec<f64>,
    bounds_ms: Vec<f64>,
    goodput_mbit_per_s: f64,
    carried_mbyte: [f64; 2],
    repeated_mbyte: f64,
}

fn run(setting: &Setting, curve: &Curve, lasts: Duration, seed: u64) -> anyhow::Result<Run> {
    let lasts_ms = lasts.as_millis() as u64;
    let workload = Workload::Blocks { bytes: BLOCK_BYTES, lasts_ms };
    let [wifi, cellular] = setting.links.describe();
    let mut experiment = Experiment::over(&[("wifi", &wifi), ("3g", &cellular)], workload);
    experiment.warm_up = WARM_UP;
    let outcome = simulate(&experiment, &curve.variant(setting), seed)?;
    let from_ms = WARM_UP.as_secs_f64() * 1e3;
    let messages: Vec<_> = outcome
        .messages(&experiment.workload)
        .into_iter()
        .filter(|message| message.sent_ms >= from_ms)
        .collect();
    let carried = |name: &str| {
        let path = outcome.paths.iter().find(|path| path.name == name);
        path.map_or(0.0, |path| path.down.delivered_bytes as f64 / 1e6)
    };
    Ok(Run {
        bounds_ms: Bound::of(&experiment, seed)?.latencies_ms(&messages),
        latencies_ms: messages.iter().map(|message| message.latency_ms).collect(),
        goodput_mbit_per_s: outcome.goodput_mbit_per_s(
            &experiment.workload,
            from_ms,
            lasts_ms as f64,
        ),
        carried_mbyte: [carried("wifi"), carried("3g")],
        repeated_mbyte: outcome.reinjected_bytes as f64 / 1e6,
    })
}

fn merge(runs: &[Run]) -> Sample {
    let all = |of: fn(&Run) -> &Vec<f64>| -> Vec<f64> {
        runs.iter().flat_map(|run| of(run).iter().copied()).collect()
    };
    let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    let mut latencies_ms = all(|run| &run.latencies_ms);
    let bound_ratio = bound::ratio(&latencies_ms, &all(|run| &run.bounds_ms), 0.5);
    latencies_ms.sort_by(f64::total_cmp);
    Sample {
        latencies_ms,
        bound_ratio,
        goodput_mbit_per_s: mean(&|run| run.goodput_mbit_per_s),
        carried_mbyte: [0, 1].map(|path| mean(&|run| run.carried_mbyte[path])),
        repeated_mbyte: mean(&|run| run.repeated_mbyte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_where_most_values_are_not_where_the_median_is() {
        let mut values: Vec<f64> = (0..100).map(|n| 100.0 + f64::from(n % 10)).collect();
        values.extend((0..150).map(|n| 400.0 + f64::from(n) * 4.0));
        values.sort_by(f64::total_cmp);
        let found = peak(&values, 20.0);
        assert!((found - 105.0).abs() <= STEP_MS, "{found}");
        assert!(peak(&[], 20.0).is_nan());
        assert!((peak(&[7.0], 20.0) - 7.5).abs() < 1e-9);
    }

    #[test]
    fn the_send_buffer_of_linux_is_what_the_file_says() {
        assert_eq!(SEND_AS_LINUX, 253_866);
    }
}
