//! Key `raiciu2012`: delay of a block while a slow path holds up a fast one, without and with opportunistic
//! retransmission and penalization (NSDI 2012, figure 7; Stanford CS244, 2014).

mod curves;
mod density;
mod drawn_links;
mod loss;
mod nsdi;
mod study;
mod supplement;

use marline_lab::figure::{Figure, Plot};
use serde::Deserialize;

use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::table::{Reproduction, Table};
use curves::{CELLULAR, KERNEL, NONE, WIFI};
use study::{AT_CELLULAR, AT_KERNEL, AT_NONE, AT_WIFI, JudgedResults, PLOT_ENDS_MS, Shape, job};
use supplement::Heading;

const TEXT: &str = include_str!("../papers/raiciu2012.toml");

/// The published plots.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    at: Vec<PublishedAt>,
}

/// One plot.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedAt {
    /// Jitter of the 3G link.
    jitter_ms: u32,
    wifi: Shape,
    both: Shape,
    none: Shape,
    cellular: Cellular,
    /// Mean latency of TCP over WiFi, relative to Multipath TCP without M1 and M2.
    mean_wifi_over_none: f64,
}

/// TCP over 3G. The plots show only the start of the distribution.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cellular {
    /// Position of the peak, in words.
    peak: String,
    /// Median. `None`: beyond the end of the plot.
    p50_ms: Option<f64>,
    within_3_s: f64,
}

const NOTES: [&str; 2] = [
    "Before this experiment, Marline did not count a receive window with less than a segment left as blocked, so M1 \
     and M2 hardly ever acted under small windows. This has been fixed in the core.",
    "The ratio to bound says little here: the bound is for a block with nothing queued before it, but the measured \
     delay is that of a full send buffer. With jitter cut off at 0, some 3G packets have no delay at all, and the \
     bound assumes this for every packet.",
];

/// Reproduction of the 2012 paper on receive-buffer blocking.
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
        let JudgedResults { jobs, runs, plots, mut claims } = study::judge_study(context, &file)?;
        let (losses, losses_grid) = loss::judge_loss(context, &file)?;
        let (nsdi, [nsdi_grid, exact_grid]) = nsdi::judge_nsdi(context, &file)?;
        claims.extend(losses);
        let tables = vec![
            Table::new("curves", "CS244: the curves of the four plots", plots),
            Table::new("claims", "CS244: statements about the curves, jitter and losses", claims),
            Table::new("authors", "What CS244 says of NSDI, on NSDI's links", nsdi),
        ];
        let title = "The curves of the four plots, with every rule";
        let heading = Heading { name: "details", title, settings: "jitter" };
        let grids = vec![
            supplement::grid(&heading, &jobs, &runs, context.master),
            supplement::plots(&runs, context.master, &file.published),
            losses_grid,
            nsdi_grid,
            exact_grid,
            drawn_links::grid(context)?,
            supplement::rules(context)?,
            supplement::buffers(context)?,
            supplement::doubled_window(context, &file.published)?,
        ];
        let published = &file.published.at;
        let mut figures: Vec<Figure> =
            (0..published.len()).map(|place| plot_figure_four(&runs, &file, place)).collect();
        figures.push(plot_jitters(&runs, &file));
        Ok(Reproduction { tables, grids, figures, notes: NOTES.map(str::to_owned).to_vec() })
    }
}

const X: &str = "latency of a block (ms)";
const Y: &str = "share of the blocks per 20 ms";

/// Figure of the four curves of one of the study's plots.
fn plot_figure_four(runs: &density::Runs, file: &PaperFile<Published>, place: usize) -> Figure {
    let jitter_ms = file.published.at[place].jitter_ms;
    let curves = [
        (WIFI.name, AT_WIFI),
        (KERNEL.name, job(place, AT_KERNEL)),
        (NONE.name, job(place, AT_NONE)),
        (CELLULAR.name, job(place, AT_CELLULAR)),
    ];
    let mut plot = Plot::new(&format!("Latency of 8 KB blocks, 3G jitter {jitter_ms} ms"), X, Y);
    for (name, job) in curves {
        plot = plot.area(name, &density::line(runs, job, PLOT_ENDS_MS));
    }
    let name = match place {
        0 => "block-latency".to_owned(),
        _ => format!("block-latency-{jitter_ms}"),
    };
    plot.x_range(0.0, PLOT_ENDS_MS).figure(
        &name,
        "Without M1 and M2 the connection is as slow as the slow path makes it. TCP over 3G continues beyond the end \
         of the plot.",
    )
}

fn plot_jitters(runs: &density::Runs, file: &PaperFile<Published>) -> Figure {
    const TO_MS: f64 = 1_500.0;
    let mut plot = Plot::new("Latency of 8 KB blocks, by 3G jitter", X, Y);
    for (name, curve) in [("M1+M2", AT_KERNEL), ("no M", AT_NONE)] {
        for (place, at) in file.published.at.iter().enumerate() {
            let points = density::line(runs, job(place, curve), TO_MS);
            plot = plot.line(&format!("{name}, {} ms", at.jitter_ms), &points);
        }
    }
    plot.x_range(0.0, TO_MS).figure(
        "block-latency-jitter",
        "Each increase in jitter shifts the curve without M1 and M2 to the right. With both, the curve \
         does not move.",
    )
}
