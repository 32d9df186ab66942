//! Gain of TLP-MP by the number of packets lost at the end of a burst (the question of the study of
//! 2017): lost once, or the path dead from there on; and the cost of its copies when the path is
//! alive.

use marline_lab::experiment::Variant;
use marline_lab::figure::{Figure, Plot, Point, mean_interval};

use super::contestants::{RECOVERY_OF_THEN, multipath, standard};
use super::drill::{Done, Drill, bound_ratio};
use super::traffic::LTE;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Reproduction, Table};

/// A burst of twenty segments.
const BYTES: u64 = 20 * 1_428;
const SEGMENTS: u64 = 20;
const SEEDS: usize = 30;
const LONGEST: u64 = 10;
/// More than are sent on the path after the burst.
const FOR_GOOD: u64 = 400;

/// How the tail is lost.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Loss {
    /// These packets, once.
    Once,
    /// These packets and all that follow.
    ForGood,
}

/// Runs of one length, seed by seed.
struct Length {
    k: u64,
    none: Vec<Done>,
    standard: Vec<Done>,
    multipath: Vec<Done>,
}

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (loss, words) in [(Loss::Once, "lost once"), (Loss::ForGood, "path dead from there on")] {
        let lengths = measure(context, loss, words)?;
        for length in &lengths {
            rows.push(gain_row(length, words));
        }
        if loss == Loss::Once {
            rows.push(overhead_row(&lengths));
        }
        all.figures.push(figure(&lengths, loss, words));
    }
    let title = "Gain of TLP-MP over TLP-STD if the last k packets of 20 are lost (95 % intervals)";
    all.tables.push(Table::new("tail", title, rows));
    Ok(())
}

fn measure(context: &Context<'_>, loss: Loss, words: &str) -> anyhow::Result<Vec<Length>> {
    let none = Variant { name: "no probes".to_owned(), ..standard() }
        .recovery(&RECOVERY_OF_THEN.replace("linux-3.10", "off"));
    let seeds: Vec<u64> = (0..context.runs(SEEDS) as u64).map(|n| context.master + n).collect();
    let lengths = (1..=LONGEST).map(|k| {
        let end = if loss == Loss::Once { SEGMENTS } else { SEGMENTS + FOR_GOOD };
        let lost: Vec<u64> = (SEGMENTS + 1 - k..=end).collect();
        let runs = |variant: &Variant| {
            let what = format!("tail of {k}, {words}, {}", variant.name);
            context.parallel(&what, &seeds, |seed| Drill::new(BYTES, *seed).run(variant, &lost))
        };
        let (standard, multipath) = (runs(&standard())?, runs(&multipath())?);
        Ok(Length { k, none: runs(&none)?, standard, multipath })
    });
    lengths.collect()
}

fn times(runs: &[Done]) -> Vec<f64> {
    runs.iter().map(|run| run.completion_ms).collect()
}

fn gains(length: &Length) -> Vec<f64> {
    let pairs = length.standard.iter().zip(&length.multipath);
    pairs.map(|(standard, multipath)| standard.completion_ms - multipath.completion_ms).collect()
}

fn gain_row(length: &Length, words: &str) -> Row {
    let (gain, between) = mean_interval(&gains(length));
    let mean = |runs| mean_interval(&times(runs)).0;
    let remark = format!(
        "no probes {:.0} ms, TLP-STD {:.0} ms, TLP-MP {:.0} ms; the ratio is TLP-MP's",
        mean(&length.none),
        mean(&length.standard),
        mean(&length.multipath)
    );
    Row::new(format!("k = {}, {words}", length.k))
        .ours_between(gain, between, "ms")
        .bound_ratio(bound_ratio(&length.multipath))
        .remark(remark)
}

/// Copies on 4G while WLAN lives: all of them are overhead.
fn overhead_row(lengths: &[Length]) -> Row {
    let packets = |run: &Done| run.sent.iter().filter(|sent| sent.path == LTE).count() as f64;
    let copies: Vec<f64> =
        lengths.iter().flat_map(|length| length.multipath.iter().map(packets)).collect();
    let most = copies.iter().copied().fold(0.0, f64::max);
    let (mean, between) = mean_interval(&copies);
    Row::new("ordinary tail loss, packets on 4G per episode")
        .paper_says("small; one extra packet")
        .ours_between(mean, between, "")
        .holds(most <= 1.0, "at most one in any run")
}

fn figure(lengths: &[Length], loss: Loss, words: &str) -> Figure {
    let title = format!("The last k of 20 packets, {words}");
    let points = |runs: &dyn Fn(&Length) -> Vec<f64>| -> Vec<Point> {
        let point = |length: &Length| {
            let (mean, interval) = mean_interval(&runs(length));
            let interval = Some(interval).filter(|interval| interval.0.is_finite());
            Point { x: length.k as f64, y: mean, interval }
        };
        lengths.iter().map(point).collect()
    };
    let name = if loss == Loss::Once { "tail-once" } else { "tail-for-good" };
    Plot::new(&title, "k (packets)", "time (ms)")
        .points("no probes", &points(&|length| times(&length.none)))
        .points("TLP-STD", &points(&|length| times(&length.standard)))
        .points("TLP-MP", &points(&|length| times(&length.multipath)))
        .figure(name, "30 pairs of paths, drawn as those of the traces; 95 % intervals.")
}
