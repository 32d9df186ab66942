//! One run of a curve: a configuration of paths and policies, in one setting.

use std::time::Duration;

use anyhow::Context as _;
use marline::BufferTuning;
use marline_lab::bound::{self, Bound};
use marline_lab::experiment::{Experiment, Variant, simulate};
use marline_lab::workload::Workload;
use marline_time::Rng;
use serde::{Deserialize, Serialize};

use crate::paper::{Context, Effort};
use crate::plain;

/// What begins earlier is not looked at.
const WARM_UP: Duration = Duration::from_secs(5);
const BLOCK_BYTES: u32 = 8_192;
/// Width of a histogram's bins, ms.
pub(super) const BIN_MS: f64 = 5.0;
/// Every so-manieth block is compared with its bound.
const BOUND_STRIDE: usize = 16;

/// Links and buffers.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// What tables call it.
    pub(super) name: &'static str,
    /// Descriptions of WiFi and 3G.
    pub(super) links: [String; 2],
    /// Payload that the send buffer takes, bytes.
    pub(super) send: u64,
    /// The largest receive window, bytes.
    pub(super) receive: u64,
}

/// Numbers of the links of the CS244 study.
#[derive(Copy, Clone, Debug)]
pub(super) struct Cs244 {
    pub(super) jitter_ms: u32,
    /// Whether packets of 3G overtake each other.
    pub(super) overtaking: bool,
    /// Random losses of WiFi and 3G, percent.
    pub(super) loss_percent: [f64; 2],
    /// Of each link.
    pub(super) queue_kbyte: u32,
}

impl Cs244 {
    /// The study's links at this jitter of 3G; queues of 1000 packets of 1500 bytes.
    pub(super) const fn at(jitter_ms: u32) -> Cs244 {
        Cs244 { jitter_ms, overtaking: true, loss_percent: [0.75, 0.1], queue_kbyte: 1_500 }
    }

    /// 5 and 30 ms, and 1 ms for the hop behind both.
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

/// 200 KB as Linux counts them: twice as much memory, 2,304 bytes of it for 1,428 of payload.
pub(super) const SEND_AS_LINUX: u64 = 409_600 * 1_428 / 2_304;
/// 200 KB of payload.
pub(super) const SEND_AS_SAID: u64 = 204_800;
/// 30 KB: doubled when they are set, and half of that is window.
pub(super) const RECEIVE_AS_LINUX: u64 = 30_720;
/// 30 KB, doubled, all of it window.
pub(super) const RECEIVE_DOUBLED: u64 = 61_440;

impl Setting {
    /// The study's buffers around these links.
    pub(super) fn cs244(links: Cs244) -> Setting {
        Setting::with_links("as judged", links.describe())
    }

    /// The study's buffers around any links.
    pub(super) fn with_links(name: &'static str, links: [String; 2]) -> Setting {
        Setting { name, links, send: SEND_AS_LINUX, receive: RECEIVE_AS_LINUX }
    }

    /// The links of the NSDI paper, and 200 KB of payload at both ends. `drawn` makes of each number
    /// of the paper (kbit/s, us, ms) the one that is used.
    pub(super) fn nsdi(name: &'static str, mut drawn: impl FnMut(f64) -> u64) -> Setting {
        let mut link = |kbit_per_s: f64, delay_us: f64, queue_ms: f64| {
            let (rate, delay, queue) = (drawn(kbit_per_s), drawn(delay_us), drawn(queue_ms));
            format!("rate={rate}k,delay={delay}us,queue={queue}ms")
        };
        let links = [link(8_000.0, 10_000.0, 80.0), link(2_000.0, 75_000.0, 2_000.0)];
        Setting { send: SEND_AS_SAID, receive: SEND_AS_SAID, ..Setting::with_links(name, links) }
    }
}

/// Times a factor between `1 / spread` and `spread`, drawn evenly on a logarithmic scale.
pub(super) fn around(rng: &mut impl Rng, spread: f64, value: f64) -> u64 {
    (value * spread.powf(2.0f64.mul_add(rng.unit(), -1.0))).round() as u64
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
    /// Loss recovery, if not the usual one.
    pub(super) recovery: Option<&'static str>,
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

pub(super) const WIFI: Curve = Curve::alone("TCP WiFi", "wifi");
pub(super) const CELLULAR: Curve = Curve::alone("TCP 3G", "3g");
pub(super) const NONE: Curve = Curve::with("no M", "lowest-rtt");
/// The rules of the out-of-tree kernel from 2013 on, which the study ran.
pub(super) const KERNEL: Curve = Curve::with("M1+M2, kernel of the study", "lowest-rtt+orp");
/// The rules of the paper's text.
pub(super) const PAPER: Curve =
    Curve::with("M1+M2, the paper's text", "lowest-rtt+orp,retransmit=paper,penalise=paper");
/// The rules of the code of the paper's time.
pub(super) const CODE: Curve = Curve::with("M1+M2, code of 2012", "lowest-rtt+orp,penalise=paper");
/// Marline's rule for M1 with the kernel's for M2.
pub(super) const WIDE: Curve = Curve::with("M1+M2, wide", "lowest-rtt+orp,retransmit=wide");
/// What Marline uses unless told otherwise.
pub(super) const SHIPPED: Curve = Curve::with("Marline's min-rtt", "min-rtt");
/// What is to be said of [`WIDE`] on the study's links.
pub(super) const WIDE_FITTED: &str =
    "retransmit=wide, chosen for the peaks of M1+M2 on these links";

impl Curve {
    /// Plain TCP on one path.
    const fn alone(name: &'static str, path: &'static str) -> Curve {
        let (way, tuning) = (Way::Alone(path), BufferTuning::Fixed);
        Curve { name, way, congestion: CONGESTION, tuning, recovery: None }
    }

    /// Both paths with this scheduler.
    pub(super) const fn with(name: &'static str, scheduler: &'static str) -> Curve {
        let (way, tuning) = (Way::Both(scheduler), BufferTuning::Fixed);
        Curve { name, way, congestion: CONGESTION, tuning, recovery: None }
    }

    fn variant(&self, setting: &Setting) -> Variant {
        let variant = match self.way {
            Way::Alone(path) => plain::tcp(self.name, path),
            Way::Both(scheduler) => plain::mptcp(self.name).scheduler(scheduler),
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

/// What a run gave.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// How many latencies lie in each bin of [`BIN_MS`]; a latency is from a block's being taken to
    /// its being read.
    pub(super) counts: Vec<u32>,
    pub(super) p5_ms: f64,
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) goodput_mbit_per_s: f64,
    /// Carried by WiFi and 3G to the client.
    pub(super) carried_mbyte: [f64; 2],
    /// Sent again on another subflow.
    pub(super) repeated_mbyte: f64,
    /// The median over the clairvoyant bound's.
    pub(super) bound_ratio: f64,
}

/// What is run on each root: settings with the curves in them.
pub(super) type Jobs = Vec<(Setting, Curve)>;

/// How long a run lasts: so long, or three times the warm-up for a quick look.
pub(super) fn lasts(context: &Context<'_>, full: Duration) -> Duration {
    if context.effort == Effort::Quick { WARM_UP * 3 } else { full }
}

/// Runs each job once from the same seed.
///
/// # Errors
/// A run failed.
pub(super) fn measure(
    jobs: &[(Setting, Curve)],
    lasts: Duration,
    seed: u64,
) -> anyhow::Result<Vec<Seen>> {
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

fn run(setting: &Setting, curve: &Curve, lasts: Duration, seed: u64) -> anyhow::Result<Seen> {
    let lasts_ms = lasts.as_millis() as u64;
    let experiment = experiment(setting, lasts);
    let outcome = simulate(&experiment, &curve.variant(setting), seed)?;
    let from_ms = WARM_UP.as_secs_f64() * 1e3;
    let mut messages = outcome.messages(&experiment.workload);
    messages.retain(|message| message.sent_ms >= from_ms);
    let latencies_ms: Vec<f64> = messages.iter().map(|message| message.latency_ms).collect();
    anyhow::ensure!(!latencies_ms.is_empty(), "no block arrived");
    let some: Vec<_> = messages.iter().copied().step_by(BOUND_STRIDE).collect();
    let bounds_ms = Bound::of(&experiment, seed)?.latencies_ms(&some);
    let carried = |name: &str| {
        let path = outcome.paths.iter().find(|path| path.name == name);
        path.map_or(0.0, |path| path.down.delivered_bytes as f64 / 1e6)
    };
    let quantile = |share| rounded(marline_sim::quantile(&latencies_ms, share));
    let goodput = outcome.goodput_mbit_per_s(&experiment.workload, from_ms, lasts_ms as f64);
    Ok(Seen {
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

    /// Whoever runs the file makes the figure's numbers: nothing else decides what a run is.
    #[test]
    fn the_study_runs_the_experiment_file_of_the_figure() {
        let name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/block-latency.toml");
        let file = ExperimentFile::open(std::path::Path::new(name)).unwrap();
        let setting = Setting::cs244(Cs244::at(100));
        let ours = experiment(&setting, crate::raiciu2012::study::LASTS);
        assert_eq!(format!("{:#?}", file.experiment), format!("{ours:#?}"));
        let lanes = file.lanes(&[Stack::Sim]).unwrap();
        let curves = [WIFI, KERNEL, NONE, CELLULAR];
        assert_eq!(lanes.len(), curves.len());
        for (lane, curve) in lanes.iter().zip(curves) {
            let ours = curve.variant(&setting);
            assert_eq!(format!("{:#?}", lane.variant), format!("{ours:#?}"), "{}", curve.name);
        }
    }

    /// The notebook's runs are those of the figure.
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
