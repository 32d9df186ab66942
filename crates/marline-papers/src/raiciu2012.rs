//! Key `raiciu2012`: delay of a block while a slow path holds up a fast one, without and with
//! opportunistic retransmission and penalisation (NSDI 2012, figure 7; Stanford CS244, 2014).

mod curves;
mod four;
mod shown;

use marline_lab::figure::{Figure, Plot, density, number};
use serde::Deserialize;

use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::{Context, Paper};
use crate::table::{Reproduction, Table};
use curves::{Curve, Sample, Setting, measure};
use four::{At, BOTH, CELLULAR, Four, NONE, WIFI};

const TEXT: &str = include_str!("../../../papers/raiciu2012.toml");

/// The published plots.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    at: Vec<At>,
}

const NOTES: [&str; 2] = [
    "A receive window of which less than a segment is left did not count as blocked in Marline before \
     this experiment was run, and M1 and M2 hardly ever acted under small windows; mended in the core.",
    "The ratio to the bound says little here: the bound is that of a block that finds nothing queued \
     before it, and a full send buffer is what is measured. With jitter that is cut at 0 some packet \
     of 3G takes no time at all, and the bound believes in luck.",
];
/// Runs of each judged curve.
const RUNS: usize = 8;

/// The key.
pub(super) struct Raiciu;

impl Paper for Raiciu {
    fn key(&self) -> &'static str {
        "raiciu2012"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Published>::parse(TEXT)?;
        let all = four_curves(context, &file.published.at)?;
        let mut rows = Vec::new();
        for four in &all {
            rows.extend(judge(four, &all[0].both, &file)?);
        }
        rows.push(moves(&all));
        let mut grids = vec![shown::details(&all)];
        grids.push(shown::rules(context)?);
        grids.push(shown::buffers(context)?);
        grids.push(shown::nsdi(context)?);
        let title = "Peaks of the density of block latencies; ratio to the bound: of the medians";
        Ok(Reproduction {
            tables: vec![Table::new("peaks", title, rows)],
            grids,
            figures: vec![plot_four(&all[0]), plot_jitters(&all)],
            notes: NOTES.map(str::to_owned).to_vec(),
        })
    }
}

fn four_curves(context: &Context<'_>, published: &[At]) -> anyhow::Result<Vec<Four>> {
    let jobs: Vec<(Setting, Curve)> = published
        .iter()
        .map(|at| Setting::cs244(at.jitter_ms))
        .flat_map(|setting| [WIFI, BOTH, NONE, CELLULAR].map(|curve| (setting, curve)))
        .collect();
    let mut samples = measure(context, "curves", &jobs, RUNS)?.into_iter();
    let mut next = || samples.next().unwrap_or_default();
    let four =
        |at: &At| Four { at: *at, wifi: next(), both: next(), none: next(), cellular: next() };
    Ok(published.iter().map(four).collect())
}

/// The rows of one jitter; `calm`: M1+M2 at the first one.
fn judge(four: &Four, calm: &Sample, file: &PaperFile<Published>) -> anyhow::Result<Vec<Row>> {
    let jitter = four.at.jitter_ms;
    let row = |name: &str, published: Option<f64>, sample: &Sample| {
        let row = Row::new(format!("jitter {jitter} ms: {name}"))
            .ours(sample.peak_ms(), "ms")
            .bound_ratio(sample.bound_ratio);
        match published {
            Some(value) => row.paper(value, "ms"),
            None => row.paper_says("not at hand, or off the plot"),
        }
    };
    let peak = file.tolerance("peak")?;
    let mut wifi = row(WIFI.name, four.at.wifi_ms, &four.wifi);
    let mut both = row(BOTH.name, four.at.both_ms, &four.both);
    if four.at.wifi_ms.is_some() {
        (wifi, both) = (wifi.within(peak), both.within(peak));
    }
    let both = both.within_of(file.tolerance("with_jitter")?, calm.peak_ms(), "its first");
    let share = file.tolerance("without_over_with")?;
    let none = row(NONE.name, four.at.none_ms, &four.none).at_least(share * four.both.peak_ms());
    let cellular = row(CELLULAR.name, four.at.cellular_ms, &four.cellular)
        .at_least(file.tolerance("cellular_least_ms")?);
    Ok(vec![wifi, both, none, cellular, order(four)])
}

/// Both fast curves before no M, and that before 3G.
fn order(four: &Four) -> Row {
    let (wifi, both) = (four.wifi.peak_ms(), four.both.peak_ms());
    let (none, cellular) = (four.none.peak_ms(), four.cellular.peak_ms());
    let peaks = [wifi, both, none, cellular].map(number).join(", ");
    Row::new(format!("jitter {} ms: order", four.at.jitter_ms))
        .paper_says("WiFi and M1+M2, no M, 3G")
        .ours_says(format!("{peaks} ms"))
        .holds(wifi.max(both) < none && none < cellular, "in this order")
}

/// Without M, each step of the jitter moves the peak.
fn moves(all: &[Four]) -> Row {
    let names: Vec<String> = all.iter().map(|four| format!("{} ms", four.at.jitter_ms)).collect();
    let peaks: Vec<(&str, f64)> =
        names.iter().map(String::as_str).zip(all.iter().map(|four| four.none.peak_ms())).collect();
    let published: Vec<String> =
        all.iter().map(|four| four.at.none_ms.map_or("-".to_owned(), number)).collect();
    Row::new("no M, by jitter").paper_says(published.join(", ")).holds(!peaks.is_empty(), "rising")
}

/// Share of the blocks for every 20 ms, as the study drew it.
fn per_bin(sample: &Sample, to_ms: f64) -> Vec<(f64, f64)> {
    let points = density(&sample.latencies_ms, (0.0, to_ms), sample.bandwidth_ms());
    points.into_iter().map(|(at, height)| (at, 20.0 * height)).collect()
}

const X: &str = "latency of a block (ms)";
const Y: &str = "share of the blocks per 20 ms";

fn plot_four(four: &Four) -> Figure {
    const TO_MS: f64 = 3_000.0;
    let title = format!("Latency of 8 KB blocks, 3G jitter {} ms", four.at.jitter_ms);
    Plot::new(&title, X, Y)
        .area(WIFI.name, &per_bin(&four.wifi, TO_MS))
        .area(BOTH.name, &per_bin(&four.both, TO_MS))
        .area(NONE.name, &per_bin(&four.none, TO_MS))
        .area(CELLULAR.name, &per_bin(&four.cellular, TO_MS))
        .x_range(0.0, TO_MS)
        .figure(
            "block-latency",
            "Without M1 and M2 the connection is as slow as the slow path makes it; with them it is \
             about as fast as WiFi alone.",
        )
}

fn plot_jitters(all: &[Four]) -> Figure {
    const TO_MS: f64 = 1_500.0;
    let mut plot = Plot::new("Latency of 8 KB blocks, by the jitter of 3G", X, Y);
    for four in all {
        let jitter = four.at.jitter_ms;
        plot = plot.line(&format!("M1+M2, {jitter} ms"), &per_bin(&four.both, TO_MS));
    }
    for four in all {
        let jitter = four.at.jitter_ms;
        plot = plot.line(&format!("no M, {jitter} ms"), &per_bin(&four.none, TO_MS));
    }
    plot.x_range(0.0, TO_MS).figure(
        "block-latency-jitter",
        "Each step of the jitter moves the curve without M1 and M2 to the right; with them it stays.",
    )
}
