//! Scenes of the studies: links, workloads and measures.

use std::time::Duration;

use anyhow::Context as _;
use marline_lab::experiment::Moment;
use marline_lab::experiment::{Experiment, Fault};
use marline_lab::workload::{Gap, Workload};

use crate::download::Download;
use crate::paper::Context;
use crate::roots::Root;
use crate::{hsr2018, papd2017, remp2015};

/// Measure of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The longest latency.
    Longest,
    /// The median latency.
    Median,
    /// The 99th percentile of the latency.
    P99,
    /// Bytes read per unit of time.
    Goodput,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Kind::Longest => "longest (ms)",
            Kind::Median => "p50 (ms)",
            Kind::P99 => "p99 (ms)",
            Kind::Goodput => "goodput (Mbit/s)",
        }
    }

    pub(super) const fn is_lower_better(self) -> bool {
        !matches!(self, Kind::Goodput)
    }
}

/// Workload of a scene.
pub(super) enum Stage {
    Messages(Box<Experiment>),
    Download(Download),
}

impl Stage {
    /// Name of the second path.
    pub(super) fn second_path(&self) -> anyhow::Result<&str> {
        let name = match self {
            Stage::Messages(experiment) => {
                experiment.scenario.paths.get(1).map(|path| path.name.as_str())
            }
            Stage::Download(download) => download.paths.get(1).map(|(name, _)| *name),
        };
        name.context("a scene with one path")
    }
}

/// Payload that an end holds, both unsent and received.
pub(super) struct Buffers {
    pub(super) send_bytes: u64,
    pub(super) receive_bytes: u64,
}

/// Workload with its buffers; `None`: autotuned.
pub(super) struct SceneWorkload {
    pub(super) stage: Stage,
    pub(super) buffers: Option<Buffers>,
}

/// A scene in which the contestants are compared.
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// Key of the study with these links.
    pub(super) key: &'static str,
    pub(super) measures: &'static [Kind],
    pub(super) stage: fn(&Context<'_>, &Root) -> anyhow::Result<SceneWorkload>,
}

/// All scenes.
pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "400 B every second, WiFi dies during one of them",
        key: "tlp2019",
        measures: &[Kind::Longest],
        stage: |_, _| Ok(bursts(400, 4.0)),
    },
    Scene {
        name: "100 kB every second, WiFi dies during one of them",
        key: "tlp2019",
        measures: &[Kind::Longest, Kind::Median],
        stage: |_, _| Ok(bursts(100_000, 45.0)),
    },
    Scene {
        name: "1 MB every 3 s, WiFi dies during one of them",
        key: "tlp2019",
        measures: &[Kind::Longest, Kind::Median],
        stage: |_, _| Ok(bursts(1_000_000, 200.0)),
    },
    Scene {
        name: "echoes at home",
        key: "remp2015",
        measures: &[Kind::Median, Kind::P99, Kind::Longest],
        stage: |_, _| Ok(messages(remp2015::links::home_echoes(ECHOES))),
    },
    Scene {
        name: "echoes on a train",
        key: "remp2015",
        measures: &[Kind::Median, Kind::P99, Kind::Longest],
        stage: |_, root| Ok(messages(remp2015::links::train_echoes(ECHOES, root.seed))),
    },
    Scene {
        name: "download, small buffer, 50 and 200 ms, 1 % loss",
        key: "papd2017",
        measures: &[Kind::Goodput],
        stage: |context, _| wires([50.0, 200.0], [0.0, 0.01], papd2017::SMALL_BUFFER, context),
    },
    Scene {
        name: "download, large buffer, 10 ms, 1 % loss",
        key: "papd2017",
        measures: &[Kind::Goodput],
        stage: |context, _| wires([10.0, 10.0], [1e-3, 0.01], papd2017::LARGE_BUFFER, context),
    },
    Scene {
        name: "download on a phone, scenario 1",
        key: "papd2017",
        measures: &[Kind::Goodput],
        stage: |context, root| phone(0, context, root),
    },
    Scene {
        name: "download on a phone, scenario 2",
        key: "papd2017",
        measures: &[Kind::Goodput],
        stage: |context, root| phone(1, context, root),
    },
    Scene {
        name: "download on a phone, scenario 3",
        key: "papd2017",
        measures: &[Kind::Goodput],
        stage: |context, root| phone(2, context, root),
    },
    Scene {
        name: "download on a phone, scenario 5",
        key: "papd2017",
        measures: &[Kind::Goodput],
        stage: |context, root| phone(4, context, root),
    },
    Scene {
        name: "download on a train at 150 to 310 km/h",
        key: "hsr2018",
        measures: &[Kind::Goodput],
        stage: |_, root| {
            let (download, _) = hsr2018::fast_ride_downloads(root.seed)?;
            Ok(SceneWorkload { stage: Stage::Download(download), buffers: None })
        },
    },
    Scene {
        name: "voice assistant, walking out of WiFi range",
        key: "multimob2018",
        measures: &[Kind::Longest, Kind::Median],
        stage: |_, _| Ok(walk()),
    },
    Scene {
        name: "blocks of 8 kB, 100 ms of jitter on 3G",
        key: "raiciu2012",
        measures: &[Kind::Median, Kind::Goodput],
        stage: |context, _| {
            let wifi = "rate=30M,delay=6ms,loss=0.75%,queue=1500kB";
            let cellular =
                "rate=3M,delay=31ms,jitter=uniform:100ms,overtaking=yes,loss=0.1%,queue=1500kB";
            Ok(blocks(
                [wifi, cellular],
                Buffers { send_bytes: 253_866, receive_bytes: 30_720 },
                context,
            ))
        },
    },
    Scene {
        name: "blocks of 8 kB, links of NSDI'12",
        key: "raiciu2012",
        measures: &[Kind::Median, Kind::Goodput],
        stage: |context, _| {
            let wifi = "rate=8M,delay=10ms,queue=80ms";
            let cellular = "rate=2M,delay=75ms,queue=2s";
            Ok(blocks(
                [wifi, cellular],
                Buffers { send_bytes: 204_800, receive_bytes: 204_800 },
                context,
            ))
        },
    },
];

/// Time to wait for missing messages, ms. It counts as their latency.
pub(super) const MISSING_MESSAGE_TIMEOUT_MS: f64 = 30_000.0;
/// Number of echoes in a run.
const ECHOES: usize = 600;
/// WiFi and LTE for bursts that a failure interrupts, as in TLP-MP's tests.
const NEAR: &str = "rate=50M,delay=6.5ms,queue=100ms";
const FAR: &str = "rate=20M,delay=42.5ms,queue=300ms";
/// Links of `scenarios/voice-assistant.toml`, with radios that are awake.
const LEAVING: &str = "rate=leaving:40M,delay=10ms,jitter=uniform:2ms,queue=100kB";
const STAYING: &str = "rate=20M,up.rate=8M,delay=24ms,jitter=uniform:3ms,queue=300kB";
/// Length of a run of blocks, ms.
const BLOCKS_MS: u64 = 20_000;
/// Length of a download over wires or on a phone.
const DOWNLOAD: marline_time::Duration = marline_time::Duration::from_secs(12);

fn messages(mut experiment: Experiment) -> SceneWorkload {
    experiment.patience = Duration::from_millis(MISSING_MESSAGE_TIMEOUT_MS as u64);
    SceneWorkload { stage: Stage::Messages(Box::new(experiment)), buffers: None }
}

/// Eleven bursts. WiFi dies in the seventh, at most `dies_within_ms` after its start.
fn bursts(bytes: u32, dies_within_ms: f64) -> SceneWorkload {
    let every_ms = if bytes > 500_000 { 3_000.0 } else { 1_000.0 };
    let gap = Gap { least_ms: every_ms, most_ms: every_ms };
    let workload = Workload::Bursts { bytes, gap, count: 11 };
    let mut experiment = Experiment::over(&[("wifi", NEAR), ("lte", FAR)], workload);
    experiment.faults.push(Fault::down("wifi", Moment::InBurst(6, 0.0, dies_within_ms)));
    messages(experiment)
}

fn walk() -> SceneWorkload {
    let workload = Workload::Dialogue {
        request_bytes: 2_500,
        answer_bytes: 750,
        pieces: (85, 500),
        unanswered_bytes: 22_500,
        gap: Gap { least_ms: 333.0, most_ms: 333.0 },
        count: 240,
    };
    messages(Experiment::over(&[("wifi", LEAVING), ("lte", STAYING)], workload))
}

fn blocks(links: [&str; 2], buffers: Buffers, context: &Context<'_>) -> SceneWorkload {
    let lasts = context.length(marline_time::Duration::from_millis(BLOCKS_MS));
    let workload = Workload::Blocks { bytes: 8_192, lasts_ms: lasts.as_nanos() as u64 / 1_000_000 };
    let experiment = Experiment::over(&[("wifi", links[0]), ("cellular", links[1])], workload);
    SceneWorkload { buffers: Some(buffers), ..messages(experiment) }
}

fn wires(
    rtt_ms: [f64; 2],
    loss: [f64; 2],
    buffer: u64,
    context: &Context<'_>,
) -> anyhow::Result<SceneWorkload> {
    let paths = papd2017::wires(rtt_ms, loss)?;
    let download = Download { paths, length: context.length(DOWNLOAD) };
    Ok(SceneWorkload {
        stage: Stage::Download(download),
        buffers: Some(Buffers { send_bytes: buffer, receive_bytes: buffer }),
    })
}

fn phone(scenario: usize, context: &Context<'_>, root: &Root) -> anyhow::Result<SceneWorkload> {
    let download = papd2017::phone(scenario, context.length(DOWNLOAD), root.seed)?;
    let buffer = papd2017::SMALL_BUFFER;
    Ok(SceneWorkload {
        stage: Stage::Download(download),
        buffers: Some(Buffers { send_bytes: buffer, receive_bytes: buffer }),
    })
}
