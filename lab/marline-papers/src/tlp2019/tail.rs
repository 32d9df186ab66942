//! Gain of probes by the number of packets lost at the end of a burst, which is the question of the study of 2017.
//! The packets are lost once, or the path is dead from then on.

use marline_lab::experiment::Variant;
use marline_lab::figure::{Figure, Plot, Point};

use super::contestants::{Windows, both_variants, variant_without_probes};
use super::published::Published;
use super::single_burst::BurstExperiment;
use crate::estimate::{Estimate, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction};
use crate::value::Value;

const PART: Part = Part::fixed("tail", 20);
/// A burst of twenty segments.
const BYTES: u64 = 20 * 1_428;
const SEGMENTS: u64 = 20;
const LONGEST: u64 = 10;
/// More packets than are sent on the path after the burst.
const PERMANENT_LOSS: u64 = 400;

/// Kind of the tail loss.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Loss {
    /// These packets, once.
    Once,
    /// These packets and all that follow.
    Permanent,
}

impl Loss {
    const ALL: [Loss; 2] = [Loss::Once, Loss::Permanent];

    const fn text(self) -> &'static str {
        match self {
            Loss::Once => "lost once",
            Loss::Permanent => "path dead from then on",
        }
    }
}

/// Completion times of the three contestants, ms: no probes, TLP-STD, TLP-MP.
type Times = [f64; 3];

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<Vec<Row>> {
    let cases: Vec<(Loss, u64)> =
        Loss::ALL.into_iter().flat_map(|loss| (1..=LONGEST).map(move |k| (loss, k))).collect();
    let samples = context.sample(PART, |root| {
        cases
            .iter()
            .map(|(loss, k)| measure_times(context, root, *loss, *k))
            .collect::<anyhow::Result<Vec<Times>>>()
    })?;
    let columns = [
        ("lost", ""),
        ("k", "packets"),
        ("no probes", "ms"),
        ("TLP-STD", "ms"),
        ("TLP-MP", "ms"),
        ("time saved by TLP-MP", "ms"),
    ];
    let title = "The last k packets of 20 are lost, windows kept (99 % intervals)";
    let mut grid = Grid::new("tail", title, &columns);
    for (index, (loss, k)) in cases.iter().enumerate() {
        let cell = |of: Estimate| Value::from_estimate(&of, "");
        let mean = |which: usize| cell(samples.mean(|cases| cases[index][which]));
        let saved = cell(samples.mean(|cases| cases[index][1] - cases[index][2]));
        let (words, k) = (Value::Text(loss.text().to_owned()), Value::new(*k as f64, ""));
        grid.rows.push(vec![words, k, mean(0), mean(1), mean(2), saved]);
    }
    all.grids.push(grid);
    all.figures.extend(Loss::ALL.map(|loss| figure(&samples, &cases, loss)));
    let improved = 100.0 * file.tolerance("improved")?;
    let row = |what: &str, loss: Loss, slow: usize| {
        let of_loss =
            || cases.iter().enumerate().filter(move |(_, case)| case.0 == loss).map(|case| case.0);
        let saved = samples.ratio(|times| {
            let sum = |which: usize| of_loss().map(|index| times[index][which]).sum::<f64>();
            (100.0 * (sum(slow) - sum(slow + 1)), sum(slow))
        });
        let what =
            format!("The last 1 to {LONGEST} of {SEGMENTS} packets, {}: {what}", loss.text());
        Row::new(what).paper_claim("improved").estimate(&saved, "%").at_least(improved)
    };
    Ok(vec![
        row("share of the time saved by TLP-STD's probes", Loss::Once, 0)
            .statement("probe-avoids-timeout"),
        row("share of the time saved by TLP-MP", Loss::Permanent, 1).statement("synthetic-gain"),
    ])
}

fn measure_times(context: &Context<'_>, root: &Root, loss: Loss, k: u64) -> anyhow::Result<Times> {
    let end = if loss == Loss::Once { SEGMENTS } else { SEGMENTS + PERMANENT_LOSS };
    let lost: Vec<u64> = (SEGMENTS + 1 - k..=end).collect();
    let drill = BurstExperiment::new(context, BYTES, root.seed);
    let [standard, multipath] = both_variants(Windows::Kept);
    let time =
        |variant: &Variant| -> anyhow::Result<f64> { Ok(drill.run(variant, &lost)?.completion_ms) };
    Ok([time(&variant_without_probes(Windows::Kept))?, time(&standard)?, time(&multipath)?])
}

fn figure(samples: &Samples<Vec<Times>>, cases: &[(Loss, u64)], loss: Loss) -> Figure {
    let title = format!("The last k of 20 packets, {}", loss.text());
    let points = |which: usize| -> Vec<Point> {
        let of_loss = cases.iter().enumerate().filter(|(_, (of, _))| *of == loss);
        let point = |(index, (_, k)): (usize, &(Loss, u64))| {
            let time = samples.mean(|cases| cases[index][which]);
            let interval = Some((time.low, time.high)).filter(|interval| interval.0.is_finite());
            Point { x: *k as f64, y: time.value, interval }
        };
        of_loss.map(point).collect()
    };
    let name = if loss == Loss::Once { "tail-once" } else { "tail-for-good" };
    Plot::new(&title, "k (packets)", "time (ms)")
        .points("no probes", &points(0))
        .points("TLP-STD", &points(1))
        .points("TLP-MP", &points(2))
        .figure(name, "Pairs of paths sampled like those of the traces; 99 % intervals.")
}
