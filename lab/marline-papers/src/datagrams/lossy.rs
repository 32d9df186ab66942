//! Value of repairs for a call over a lossy WiFi path and an LTE path with little loss.

use std::time::Duration;

use marline_lab::datagrams::DatagramExperiment;
use marline_lab::figure::number;
use marline_sim::quantile;
use serde::{Deserialize, Serialize};

use super::setup::{DUPLICATION, JUDGED_INDEX, Limits, Scene, Setup};
use crate::estimate::Samples;
use crate::judge::Row;
use crate::roots::Root;
use crate::table::{Grid, Table};

/// Delay above which a frame is late: more than the delay of LTE, less than a retransmission timeout.
const LATE_MS: f64 = 50.0;

/// Results of one contestant in one scene.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(super) struct VariantResults {
    /// Delay quantiles of datagrams and of whole frames. `None`: infinite.
    p99_ms: [Option<f64>; 2],
    frames: u32,
    /// Frames that took more than [`LATE_MS`] to complete, or never did.
    late_frames: u32,
    datagrams: u32,
    lost: u32,
    extra_bytes: u64,
    repair_bytes: u64,
    first_bytes: u64,
}

/// Index of the contestant without repairs.
const WITHOUT_REPAIRS: usize = 2;

/// Results by scene and contestant.
pub(super) type Scenes = Vec<Vec<VariantResults>>;

/// Runs all scenes from one root.
pub(super) fn measure(setup: &Setup, root: &Root) -> anyhow::Result<Scenes> {
    let of = |scene: &Scene| -> anyhow::Result<Vec<VariantResults>> {
        let lossy = &setup.lossy;
        let wifi = format!("{},{}", lossy.wifi, scene.losses);
        let links = [("wifi", &*wifi), ("lte", &*lossy.lte)];
        let lasts = Duration::from_secs(lossy.seconds.into());
        let workload = setup.call.workload();
        let experiment = DatagramExperiment::with_links(&links, None, workload, lasts, root.seed)?;
        let shown = setup.variants_of_lossy().map(|contestant| {
            let outcome = experiment.run(&setup.policies(contestant))?;
            anyhow::ensure!(outcome.wrong == 0, "{}: a datagram arrived twice", contestant.name);
            let from_ms = f64::from(setup.warm_up_seconds) * 1e3;
            let after: Vec<(f64, f64)> =
                outcome.datagrams.iter().filter(|(sent, _)| *sent >= from_ms).copied().collect();
            let both = [outcome.server, outcome.client];
            Ok(VariantResults {
                extra_bytes: both.iter().map(|lane| lane.copied_frame_bytes).sum(),
                repair_bytes: both.iter().map(|lane| lane.repair_frame_bytes).sum(),
                first_bytes: both.iter().map(|lane| lane.first_frame_bytes).sum(),
                ..of_datagrams(&after)
            })
        });
        shown.into_iter().collect()
    };
    setup.lossy.scenes.iter().map(of).collect()
}

fn of_datagrams(datagrams: &[(f64, f64)]) -> VariantResults {
    let finite = |ms: f64| ms.is_finite().then_some(ms);
    let latencies: Vec<f64> = datagrams.iter().map(|(_, latency)| *latency).collect();
    // The datagrams of a frame are sent at the same time.
    let frames = datagrams.chunk_by(|one, next| one.0.to_bits() == next.0.to_bits());
    let whole: Vec<f64> =
        frames.map(|frame| frame.iter().map(|(_, latency)| *latency).fold(0.0, f64::max)).collect();
    VariantResults {
        p99_ms: [finite(quantile(&latencies, 0.99)), finite(quantile(&whole, 0.99))],
        frames: whole.len() as u32,
        late_frames: whole.iter().filter(|ms| **ms > LATE_MS).count() as u32,
        datagrams: latencies.len() as u32,
        lost: latencies.iter().filter(|ms| ms.is_infinite()).count() as u32,
        extra_bytes: 0,
        repair_bytes: 0,
        first_bytes: 0,
    }
}

impl VariantResults {
    fn p99_ms(&self, whole: bool) -> f64 {
        self.p99_ms[usize::from(whole)].unwrap_or(f64::INFINITY)
    }
}

/// Rows of the judged scenes, rows of the other scenes, and a comparison of all results.
pub(super) fn tables(
    samples: &Samples<Scenes>,
    setup: &Setup,
    limits: &Limits,
) -> (Vec<Table>, Grid) {
    let rows = |tuned: bool| -> Vec<Row> {
        let scenes =
            setup.lossy.scenes.iter().enumerate().filter(|(_, scene)| scene.tuned == tuned);
        scenes.flat_map(|(at, scene)| rows_of(samples, scene, at, limits)).collect()
    };
    let title = "A radio loses packets during a call: held-out scenes";
    let judged = Table::new("lossy", title, rows(false));
    let title = "A radio loses packets during a call: scenes used for tuning repairs";
    let fitted = rows(true).into_iter().map(|row| row.mark_fitted("tuned on this scene")).collect();
    (vec![judged, Table::new("lossy-tuned", title, fitted)], all_results(samples, setup))
}

fn rows_of(samples: &Samples<Scenes>, scene: &Scene, at: usize, limits: &Limits) -> Vec<Row> {
    let p99 = samples.mean(|root| {
        let of = |place: usize| root[at][place].p99_ms(true);
        super::rows::ratio(of(JUDGED_INDEX), of(DUPLICATION))
    });
    let extra = samples.ratio(|root| {
        let shown = &root[at][JUDGED_INDEX];
        (100.0 * shown.extra_bytes as f64, shown.first_bytes as f64)
    });
    let limit = limits.duplication;
    let allowed = 100.0 * limits.extra;
    let late = samples.ratio(|root| {
        let late = |place: usize| f64::from(root[at][place].late_frames);
        (late(JUDGED_INDEX), late(WITHOUT_REPAIRS))
    });
    vec![
        Row::new(format!(
            "{}: frames late (over 50 ms) or incomplete, ratio to no repairs",
            scene.name
        ))
        .estimate(&late, ""),
        Row::new(format!("{}: p99 of complete frames, ratio to full duplication", scene.name))
            .estimate(&p99, "")
            .at_most(limit),
        Row::new(format!("{}: extra bytes", scene.name)).estimate(&extra, "%").require_range(
            crate::estimate::RequiredRange::at_most(allowed),
            format!("at most {} %", number(allowed)),
        ),
    ]
}

fn all_results(samples: &Samples<Scenes>, setup: &Setup) -> Grid {
    let columns = [
        ("losses", ""),
        ("contestant", ""),
        ("p99", "ms"),
        ("complete frames, p99", "ms"),
        ("late (over 50 ms) or incomplete", "%"),
        ("lost", "%"),
        ("extra bytes", "%"),
        ("repairs among them", "%"),
    ];
    let title =
        "A radio loses packets during a call: every contestant, medians and sums over all roots";
    let mut grid = Grid::new("lossy-contestants", title, &columns);
    for (at, scene) in setup.lossy.scenes.iter().enumerate() {
        for (place, contestant) in setup.variants_of_lossy().into_iter().enumerate() {
            let all: Vec<VariantResults> =
                samples.all().iter().map(|root| root[at][place]).collect();
            let median = |whole: bool| {
                marline_sim::median(&all.iter().map(|one| one.p99_ms(whole)).collect::<Vec<f64>>())
            };
            let share = |of: &dyn Fn(&VariantResults) -> (u64, u64)| {
                let sums =
                    all.iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
                100.0 * sums.0 as f64 / sums.1.max(1) as f64
            };
            let numbers = [
                median(false),
                median(true),
                share(&|one| (one.late_frames.into(), one.frames.into())),
                share(&|one| (one.lost.into(), one.datagrams.into())),
                share(&|one| (one.extra_bytes, one.first_bytes)),
                share(&|one| (one.repair_bytes, one.first_bytes)),
            ];
            grid.push(&[&scene.name, &contestant.name], &numbers);
        }
    }
    grid
}
