//! Links of the NSDI paper, and what the study says of its authors' results on them.
//!
//! The links have no randomness, so that a simulation of them gives a single number. Accidental effects of two
//! interfering periods cannot be told apart from other effects. Each root therefore draws every link parameter within 5
//! % of the paper's value. The results of the exact links are in the grid `nsdi-exact`.

use std::time::Duration;

use marline::config::BufferTuning;

use super::Published;
use super::curves::{
    self, CELLULAR, CODE, Curve, Jobs, KERNEL, MARLINE_DEFAULT, NONE, PAPER, SEND_200_KB,
    SEND_AS_LINUX, Setting, WIDE, WIFI, measure, scaled_duration,
};
use super::density::{Runs, goodput_ratio, median, median_ratio};
use super::supplement::{self, Heading};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::Grid;

const RUN_DURATION: Duration = Duration::from_secs(30);
const PART: Part = Part::new("nsdi", 20, 70);
/// Link parameters are drawn within this factor of the paper's values.
const LINK_SPREAD: f64 = 1.05;
/// Maximum size of tuned buffers, bytes.
const BOUND: u64 = 4 << 20;
const NSDI_CURVES: [Curve; 9] =
    [WIFI, CELLULAR, NONE, PAPER, CODE, KERNEL, WIDE, MARLINE_DEFAULT, CAPPED];
const CAPPED: Curve =
    Curve { name: "M1+M2+M4, code of 2012", congestion: "cubic-classic+cap", ..CODE };
/// Indexes into [`NSDI_CURVES`], which are those of the jobs with the first buffers.
const AT_WIFI: usize = 0;
const AT_NONE: usize = 2;
const AT_CODE: usize = 4;
/// Sum of the links' rates.
const RATE_MBIT_PER_S: f64 = 10.0;

/// The kernel's rules, each separately.
const SINGLE_RULES: [Curve; 4] = [
    Curve::with("M1, kernel", "lowest-rtt+orp,penalize=off"),
    Curve::with("M2, kernel", "lowest-rtt+orp,retransmit=off"),
    Curve::with("M1+M2, kernel, M2 for the window only", "lowest-rtt+orp,send-buffer=retransmit"),
    Curve::with("M1+M2, kernel, for the window only", "lowest-rtt+orp,send-buffer=off"),
];
/// Names of the buffers: 200 KB as payload, and as Linux counts them.
const NAMES: [&str; 2] = ["200 KB", "200 KB, doubled"];
/// Send buffers of [`NAMES`].
const SEND: [u64; 2] = [SEND_200_KB, SEND_AS_LINUX];

fn jobs(said: &Setting) -> Jobs {
    let doubled = Setting { name: NAMES[1], send: SEND[1], ..said.clone() };
    let doubled = Setting { receive: 2 * SEND_200_KB, ..doubled };
    let mut jobs = Jobs::new();
    for setting in [said, &doubled] {
        jobs.extend(NSDI_CURVES.map(|curve| (setting.clone(), curve)));
    }
    let tuned =
        Setting { name: "tuned, 4 MB at most", send: BOUND, receive: BOUND, ..said.clone() };
    let curves = [
        Curve { name: "M1+M2, windows", tuning: BufferTuning::Windows, ..CODE },
        Curve { name: "M1+M2+M3", tuning: BufferTuning::Rates, ..CODE },
        Curve { name: "M1+M2+M3+M4", tuning: BufferTuning::Rates, ..CAPPED },
    ];
    jobs.extend(curves.map(|curve| (tuned.clone(), curve)));
    jobs
}

/// Rows on the statements, and all curves.
pub(super) fn judge_nsdi(
    context: &Context<'_>,
    file: &PaperFile<Published>,
) -> anyhow::Result<(Vec<Row>, [Grid; 2])> {
    let share = file.tolerance("derived")?;
    let long = scaled_duration(context, RUN_DURATION);
    let measured = |root: &Root| {
        let mut rng = root.rng("links");
        let drawn =
            Setting::nsdi(NAMES[0], |value| curves::draw_around(&mut rng, LINK_SPREAD, value));
        measure(&jobs(&drawn), long, root.seed)
    };
    let (runs, rows) = context.judge_part(PART, measured, |runs| Ok(rows(runs, share)))?;
    let title = "Links of the NSDI paper within 5 %: WiFi 8 Mbit/s, 20 ms, 80 ms of buffer; 3G \
                 2 Mbit/s, 150 ms, 2 s of buffer";
    let heading = Heading { name: "nsdi", title, settings: "buffers" };
    let exact = jobs(&Setting::nsdi(NAMES[0], |value| value.round() as u64));
    let grid = supplement::grid(&heading, &exact, &runs, context.master);
    let mut all = exact;
    let said = Setting::nsdi(NAMES[0], |value| value.round() as u64);
    all.extend(SINGLE_RULES.map(|curve| (said.clone(), curve)));
    Ok((rows, [grid, deterministic_links(context, &all, long)?]))
}

/// Results of the exact links. The seed has no effect.
fn deterministic_links(context: &Context<'_>, jobs: &Jobs, long: Duration) -> anyhow::Result<Grid> {
    let columns =
        [("buffers", ""), ("curve", ""), ("p50", "ms"), ("p95", "ms"), ("goodput", "Mbit/s")];
    let title = "The NSDI paper's links without randomness";
    let mut grid = Grid::new("nsdi-exact", title, &columns);
    let seen =
        context.parallel("nsdi-exact", jobs, |job| measure(std::slice::from_ref(job), long, 0))?;
    for ((setting, curve), seen) in jobs.iter().zip(seen.iter().flatten()) {
        let numbers = [seen.p50_ms, seen.p95_ms, seen.goodput_mbit_per_s];
        grid.push(&[setting.name, curve.name], &numbers);
    }
    Ok(grid)
}

/// The statements, for the rules that the authors measured.
fn rows(runs: &Runs, share: f64) -> Vec<Row> {
    let row = |what: String| Row::new(format!("{}: {what}", NAMES[0]));
    let code = NSDI_CURVES[AT_CODE].name;
    let tail = runs.ratio(|root| (root[AT_NONE].p95_ms, root[AT_WIFI].p95_ms));
    let drained_ms = (SEND[0] as f64 * 8.0 / RATE_MBIT_PER_S / 1e3).round();
    vec![
        row(format!("{code} vs. TCP WiFi, goodput"))
            .paper_claim("gains in most important metrics")
            .estimate(&goodput_ratio(runs, AT_CODE, AT_WIFI), "")
            .at_least(1.0)
            .statement("gains-over-one-path"),
        row("no M vs. TCP WiFi, p95".to_owned())
            .paper_claim("a heavier tail")
            .estimate(&tail, "")
            .at_least(1.0)
            .statement("authors-tail"),
        row(format!("{code} vs. TCP WiFi, p50"))
            .paper_claim("better latency than TCP over WiFi")
            .estimate(&median_ratio(runs, AT_CODE, AT_WIFI), "")
            .at_most(1.0)
            .statement("authors-latency"),
        row(format!("{code}, p50"))
            .paper_claim(format!(
                "send buffer divided by {RATE_MBIT_PER_S} Mbit/s: {drained_ms} ms"
            ))
            .estimate(&median(runs, AT_CODE), "ms")
            .within_of(share, drained_ms, "send buffer divided by rate")
            .statement("authors-buffer"),
    ]
}
