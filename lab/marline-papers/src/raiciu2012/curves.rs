//! One run of a curve: a configuration of paths and policies, in one setting.

use std::time::Duration;

use anyhow::Context as _;
use marline::config::BufferTuning;
use marline_lab::bound::{self, Bound};
use marline_lab::experiment::{Experiment, Variant, simulate};
use marline_lab::workload::Workload;
use marline_time::Rng;
use serde::{Deserialize, Serialize};

use crate::mechanism::Mechanism;
use crate::paper::{Context, Effort};
use crate::plain;

/// Time at the start of a run that is not evaluated.
const WARM_UP: Duration = Duration::from_secs(5);
const BLOCK_BYTES: u32 = 8_192;
/// Width of a histogram's bins, ms.
pub(super) const BIN_MS: f64 = 5.0;
/// One of this many blocks is compared with its bound.
const BOUND_STRIDE: usize = 16;

/// Links and buffers.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// Name in tables.
    pub(super) name: &'static str,
    /// Link descriptions of WiFi and 3G.
    pub(super) links: [String; 2],
    /// Capacity of the send buffer, bytes of payload.
    pub(super) send: u64,
    /// The largest receive window, bytes.
    pub(super) receive: u64,
}

/// Link parameters of the CS244 study.
#[derive(Copy, Clone, Debug)]
pub(super) struct Cs244 {
    pub(super) jitter_ms: u32,
    /// True if 3G can reorder packets.
    pub(super) overtaking: bool,
    /// Random losses of WiFi and 3G, percent.
    pub(super) loss_percent: [f64; 2],
    /// Queue of each link.
    pub(super) queue_kbyte: u32,
}

impl Cs244 {
    /// The study's links with this jitter on 3G. Queues hold 1000 packets of 1500 bytes.
    pub(super) const fn with_jitter(jitter_ms: u32) -> Cs244 {
        Cs244 { jitter_ms, overtaking: true, loss_percent: [0.75, 0.1], queue_kbyte: 1_500 }
    }

    /// Descriptions with delays of 5 and 30 ms, plus 1 ms for the common hop behind the links.
    fn describe(self) -> [String; 2] {
        let Cs244 { jitter_ms, overtaking, loss_percent: [wifi, cellular], queue_kbyte } = self;
        let order = if overtaking { "yes" } else { "no" };
        let jitter = format!("jitter=uniform:{jitter_ms}ms,overtaking={order}");
        [
            format!("rate=30M,delay=6ms,loss={wifi}%,queue={queue_kbyte}kB"),
            format!("rate=3M,delay=31ms,{jitter},loss={cellular}%,queue={queue_kbyte}kB"),
        ]
    }
}

/// Payload in 200 KB as Linux counts them: memory of twice the size, of which 2,304 bytes hold 1,428 of payload.
pub(super) const SEND_AS_LINUX: u64 = 409_600 * 1_428 / 2_304;
/// Payload of 200 KB.
pub(super) const SEND_200_KB: u64 = 204_800;
/// Window of a 30 KB buffer in Linux: the size is doubled when it is set, and half of that is the window.
pub(super) const RECEIVE_AS_LINUX: u64 = 30_720;
/// Window of a 30 KB buffer if all of its doubled size is window.
pub(super) const RECEIVE_DOUBLED: u64 = 61_440;

impl Setting {
    /// The study's buffers with these links.
    pub(super) fn cs244(links: Cs244) -> Setting {
        Setting::with_links("as judged", links.describe())
    }

    /// The study's buffers with any links.
    pub(super) fn with_links(name: &'static str, links: [String; 2]) -> Setting {
        Setting { name, links, send: SEND_AS_LINUX, receive: RECEIVE_AS_LINUX }
    }

    /// Links of the NSDI paper, with 200 KB of payload at both ends. `drawn` maps each number of the paper
    /// (kbit/s, us, ms) to the number in use.
    pub(super) fn nsdi(name: &'static str, mut drawn: impl FnMut(f64) -> u64) -> Setting {
        let mut link = |kbit_per_s: f64, delay_us: f64, queue_ms: f64| {
            let (rate, delay, queue) = (drawn(kbit_per_s), drawn(delay_us), drawn(queue_ms));
            format!("rate={rate}k,delay={delay}us,queue={queue}ms")
        };
        let links = [link(8_000.0, 10_000.0, 80.0), link(2_000.0, 75_000.0, 2_000.0)];
        Setting { send: SEND_200_KB, receive: SEND_200_KB, ..Setting::with_links(name, links) }
    }
}

/// A value times a log-uniform factor between `1 / spread` and `spread`.
pub(super) fn draw_around(rng: &mut impl Rng, spread: f64, value: f64) -> u64 {
    (value * spread.powf(2.0f64.mul_add(rng.unit(), -1.0))).round() as u64
}

/// Use of the paths.
#[derive(Copy, Clone, Debug)]
pub(super) struct Curve {
    /// Name in tables.
    pub(super) name: &'static str,
    pub(super) way: PathUse,
    /// Congestion control.
    pub(super) congestion: &'static str,
    /// True if the buffers are tuned within their bounds.
    pub(super) tuning: BufferTuning,
    /// Loss recovery. `None`: the default.
    pub(super) recovery: Option<&'static str>,
}

/// Paths of a curve, and their use.
#[derive(Copy, Clone, Debug)]
pub(super) enum PathUse {
    /// Plain TCP on this path.
    Alone(&'static str),
    /// Both paths with this scheduler.
    Both(&'static str),
}

/// CUBIC without HyStart++.
const CONGESTION: &str = "cubic-classic";

pub(super) const WIFI: Curve = Curve::single_path("TCP WiFi", "wifi");
pub(super) const CELLULAR: Curve = Curve::single_path("TCP 3G", "3g");
pub(super) const NONE: Curve = Curve::with("no M", "lowest-rtt");
/// Rules of the out-of-tree kernel since 2013, which the study ran.
pub(super) const KERNEL: Curve = Curve::with("M1+M2, kernel of the study", "lowest-rtt+orp");
/// Rules of the paper's text.
pub(super) const PAPER: Curve =
    Curve::with("M1+M2, the paper's text", "lowest-rtt+orp,retransmit=paper,penalize=paper");
/// Rules of the code at the time of the paper.
pub(super) const CODE: Curve = Curve::with("M1+M2, code of 2012", "lowest-rtt+orp,penalize=paper");
/// Marline's rule for M1, which was chosen for the peaks on the study's links, with the kernel's for M2.
pub(super) const WIDE: Curve = Curve::with("M1+M2, wide", "lowest-rtt+orp,retransmit=wide");
/// Marline's default scheduler.
pub(super) const MARLINE_DEFAULT: Curve = Curve::with("Marline's min-rtt", "min-rtt");

impl Curve {
    /// Plain TCP on one path.
    const fn single_path(name: &'static str, path: &'static str) -> Curve {
        let (way, tuning) = (PathUse::Alone(path), BufferTuning::Fixed);
        Curve { name, way, congestion: CONGESTION, tuning, recovery: None }
    }

    /// Both paths with this scheduler.
    pub(super) const fn with(name: &'static str, scheduler: &'static str) -> Curve {
        let (way, tuning) = (PathUse::Both(scheduler), BufferTuning::Fixed);
        Curve { name, way, congestion: CONGESTION, tuning, recovery: None }
    }

    fn variant(&self, setting: &Setting) -> Variant {
        let variant = match self.way {
            PathUse::Alone(path) => plain::tcp(self.name, path),
            PathUse::Both(scheduler) => {
                plain::mptcp(self.name).scheduler(&without_mechanism(scheduler))
            }
        };
        let variant = match self.recovery {
            Some(recovery) => variant.recovery(recovery),
            None => variant,
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

/// A scheduler without the mechanism that is switched off.
fn without_mechanism(scheduler: &str) -> String {
    let option = match Mechanism::switched_off() {
        Some(Mechanism::OpportunisticRetransmission) => "retransmit",
        Some(Mechanism::Penalization) => "penalize",
        _ => return scheduler.to_owned(),
    };
    let Some((base, options)) = scheduler.split_once("+orp") else { return scheduler.to_owned() };
    let others = options.split(',').filter(|other| !other.is_empty() && !other.starts_with(option));
    let others: String = others.map(|other| format!(",{other}")).collect();
    format!("{base}+orp,{option}=off{others}")
}

/// Results of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct RunResult {
    /// Number of latencies in each bin of [`BIN_MS`]. A latency lasts from when the sender accepted a block until it
    /// was read.
    pub(super) counts: Vec<u32>,
    pub(super) p5_ms: f64,
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) goodput_mbit_per_s: f64,
    /// Data carried by WiFi and 3G to the client.
    pub(super) carried_mbyte: [f64; 2],
    /// Data that was also sent on another subflow.
    pub(super) repeated_mbyte: f64,
    /// Median, relative to that of the clairvoyant bound.
    pub(super) bound_ratio: f64,
}

/// Settings and curves that are run on each root.
pub(super) type Jobs = Vec<(Setting, Curve)>;

/// Length of a run: `full`, or three times the warm-up in a quick run.
pub(super) fn scaled_duration(context: &Context<'_>, full: Duration) -> Duration {
    if context.effort == Effort::Quick { WARM_UP * 3 } else { full }
}

/// Runs each job once, all from the same seed.
///
/// # Errors
/// Failed run.
pub(super) fn measure(
    jobs: &[(Setting, Curve)],
    lasts: Duration,
    seed: u64,
) -> anyhow::Result<Vec<RunResult>> {
    jobs.iter()
        .map(|(setting, curve)| {
            run(setting, curve, lasts, seed)
                .with_context(|| format!("{}, {}", setting.name, curve.name))
        })
        .collect()
}

/// The experiment of a setting.
fn experiment(setting: &Setting, lasts: Duration) -> Experiment {
    let lasts_ms = lasts.as_millis() as u64;
    let workload = Workload::Blocks { bytes: BLOCK_BYTES, lasts_ms };
    let [wifi, cellular] = &setting.links;
    let mut experiment = Experiment::over(&[("wifi", wifi), ("3g", cellular)], workload);
    experiment.warm_up = WARM_UP;
    experiment
}

fn run(setting: &Setting, curve: &Curve, lasts: Duration, seed: u64) -> anyhow::Result<RunResult> {
    let lasts_ms = lasts.as_millis() as u64;
    let experiment = experiment(setting, lasts);
    let outcome = simulate(&experiment, &curve.variant(setting), seed)?;
    let from_ms = WARM_UP.as_secs_f64() * 1e3;
    let mut messages = outcome.messages(experiment.workload());
    messages.retain(|message| message.sent_ms >= from_ms);
    let latencies_ms: Vec<f64> = messages.iter().map(|message| message.latency_ms).collect();
    anyhow::ensure!(!latencies_ms.is_empty(), "no block arrived");
    let some: Vec<_> = messages.iter().copied().step_by(BOUND_STRIDE).collect();
    let bounds_ms = Bound::for_experiment(&experiment, seed)?.latencies_ms(&some);
    let carried = |name: &str| {
        let path = outcome.paths.iter().find(|path| path.name == name);
        path.map_or(0.0, |path| path.down.delivered_bytes as f64 / 1e6)
    };
    let quantile = |share| rounded(marline_sim::quantile(&latencies_ms, share));
    let goodput = outcome.goodput_mbit_per_s(experiment.workload(), from_ms, lasts_ms as f64);
    Ok(RunResult {
        counts: histogram(&latencies_ms),
        p5_ms: quantile(0.05),
        p50_ms: quantile(0.5),
        p95_ms: quantile(0.95),
        goodput_mbit_per_s: rounded(goodput),
        carried_mbyte: [rounded(carried("wifi")), rounded(carried("3g"))],
        repeated_mbyte: rounded(outcome.reinjected_bytes as f64 / 1e6),
        bound_ratio: rounded(bound::ratio(&latencies_ms, &bounds_ms, 0.5)),
    })
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn histogram(latencies_ms: &[f64]) -> Vec<u32> {
    let bin = |value: &f64| (value / BIN_MS).max(0.0) as usize;
    let last = latencies_ms.iter().map(bin).max();
    let mut counts = vec![0; last.map_or(0, |last| last + 1)];
    for value in latencies_ms {
        counts[bin(value)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use marline_lab::experiment::Stack;
    use marline_lab::experiment::file::ExperimentFile;

    use super::*;

    #[test]
    fn linux_buffer_sizes_match_the_experiment_file() {
        assert_eq!(SEND_AS_LINUX, 253_866);
        assert_eq!(RECEIVE_DOUBLED, 2 * RECEIVE_AS_LINUX);
    }

    /// The experiment file alone determines a run, so that the numbers of the figure can be reproduced.
    #[test]
    fn the_study_runs_the_experiment_file_of_the_figure() {
        let name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/block-latency.toml");
        let file = ExperimentFile::open(std::path::Path::new(name)).unwrap();
        let setting = Setting::cs244(Cs244::with_jitter(100));
        let ours = experiment(&setting, crate::raiciu2012::study::RUN_DURATION);
        assert_eq!(format!("{:#?}", file.experiment), format!("{ours:#?}"));
        let lanes = file.lanes(&[Stack::Sim]).unwrap();
        let curves = [WIFI, KERNEL, NONE, CELLULAR];
        assert_eq!(lanes.len(), curves.len());
        for (lane, curve) in lanes.iter().zip(curves) {
            let ours = curve.variant(&setting);
            assert_eq!(format!("{:#?}", lane.variant), format!("{ours:#?}"), "{}", curve.name);
        }
    }

    /// The runs in the notebook are those of the figure.
    #[test]
    fn the_notebook_has_the_first_roots_of_the_published_results() {
        let name =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python/figure_of_a_paper.ipynb");
        let notebook = std::fs::read_to_string(name).unwrap();
        let roots = crate::roots::expand(101, "raiciu2012", 20);
        let seeds: Vec<String> = roots.iter().map(|root| root.seed.to_string()).collect();
        let at: Vec<Option<usize>> =
            seeds.iter().map(|seed| notebook.find(seed.as_str())).collect();
        assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{}", seeds.join(", "));
    }

    #[test]
    fn a_histogram_counts_by_bins_of_five_ms() {
        assert_eq!(histogram(&[0.0, 4.9, 5.0, 17.0]), [2, 1, 0, 1]);
        assert!(histogram(&[]).is_empty());
    }
}
