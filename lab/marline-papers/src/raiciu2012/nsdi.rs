//! Links of the NSDI paper, and its statements about figure 7 on them.
//!
//! The links have no randomness, so that a simulation of them gives a single number. Accidental effects of two
//! interfering periods cannot be told apart from other effects. Each root therefore draws every number of the links
//! within 5 % of the paper's. The results of the exact links are in the grid `nsdi-exact`.

use std::time::Duration;

use marline::config::BufferTuning;

use super::curves::{
    self, CELLULAR, CODE, Curve, Jobs, KERNEL, MARLINE_DEFAULT, NONE, PAPER, SEND_200_KB,
    SEND_AS_LINUX, Setting, WIDE, WIFI, measure, scaled_duration,
};
use super::density::{Runs, median, median_ratio};
use super::{Published, shown};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::Grid;

const RUN_DURATION: Duration = Duration::from_secs(30);
const PART: Part = Part::new("nsdi", 20, 70);
/// Numbers of the links lie within this factor of the paper's.
const LINK_SPREAD: f64 = 1.05;
/// Maximum size of tuned buffers, bytes.
const BOUND: u64 = 4 << 20;
const NSDI_CURVES: [Curve; 9] =
    [WIFI, CELLULAR, NONE, PAPER, CODE, KERNEL, WIDE, MARLINE_DEFAULT, CAPPED];
const CAPPED: Curve =
    Curve { name: "M1+M2+M4, code of 2012", congestion: "cubic-classic+cap", ..CODE };
const AT_CELLULAR: usize = 1;
const AT_NONE: usize = 2;
/// Indexes of the curves with M1 and M2, including Marline's own.
const RULES: std::ops::Range<usize> = 3..8;
/// Rates of the links, Mbit/s.
const RATES: [f64; 2] = [8.0, 2.0];

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

/// Rows on the claims of the paper, and all curves.
pub(super) fn judge_nsdi(
    context: &Context<'_>,
    file: &PaperFile<Published>,
) -> anyhow::Result<(Vec<Row>, [Grid; 2])> {
    let share = file.tolerance("derived")?;
    let long = scaled_duration(context, RUN_DURATION);
    let all = |runs: &Runs| -> Vec<Row> {
        (0..NAMES.len()).flat_map(|place| rows(runs, place, share)).collect()
    };
    let measured = |root: &Root| {
        let mut rng = root.rng("links");
        let drawn =
            Setting::nsdi(NAMES[0], |value| curves::draw_around(&mut rng, LINK_SPREAD, value));
        measure(&jobs(&drawn), long, root.seed)
    };
    let (runs, rows) = context.judge_part(PART, measured, |runs| Ok(all(runs)))?;
    let title = "Links of the NSDI paper within 5 %: WiFi 8 Mbit/s, 20 ms, 80 ms of buffer; 3G \
                 2 Mbit/s, 150 ms, 2 s of buffer";
    let mut grid = shown::grid("nsdi", title, &["buffers", "curve"]);
    let exact = jobs(&Setting::nsdi(NAMES[0], |value| value.round() as u64));
    for (number, (setting, curve)) in exact.iter().enumerate() {
        shown::push(&mut grid, &[setting.name, curve.name], &runs, context.master, number);
    }
    let mut all = exact;
    let said = Setting::nsdi(NAMES[0], |value| value.round() as u64);
    all.extend(SINGLE_RULES.map(|curve| (said.clone(), curve)));
    Ok((rows, [grid, deterministic_links(context, &all, long)?]))
}

/// Results of the exact links. The seed has no effect.
fn deterministic_links(context: &Context<'_>, jobs: &Jobs, long: Duration) -> anyhow::Result<Grid> {
    let columns =
        [("buffers", ""), ("curve", ""), ("p50", "ms"), ("p95", "ms"), ("goodput", "Mbit/s")];
    let title = "Links of the NSDI paper, exactly; nothing in them is random";
    let mut grid = Grid::new("nsdi-exact", title, &columns);
    let seen =
        context.parallel("nsdi-exact", jobs, |job| measure(std::slice::from_ref(job), long, 0))?;
    for ((setting, curve), seen) in jobs.iter().zip(seen.iter().flatten()) {
        let numbers = [seen.p50_ms, seen.p95_ms, seen.goodput_mbit_per_s];
        grid.push(&[setting.name, curve.name], &numbers);
    }
    Ok(grid)
}

/// Rows with one buffer size.
fn rows(runs: &Runs, place: usize, share: f64) -> Vec<Row> {
    let from = place * NSDI_CURVES.len();
    let named = |what: String| Row::new(format!("{}: {what}", NAMES[place]));
    let derived = |curve: usize, mbit_per_s: f64| {
        let expected = (SEND[place] as f64 * 8.0 / mbit_per_s / 1e3).round();
        named(format!("{}, p50", NSDI_CURVES[curve].name))
            .paper_claim(format!("send buffer divided by {mbit_per_s} Mbit/s: {expected} ms"))
            .estimate(&median(runs, from + curve), "ms")
            .within_of(share, expected, "send buffer divided by rate")
    };
    let mut rows = vec![derived(0, RATES[0]), derived(AT_CELLULAR, RATES[1])];
    let (wifi, none) = (from, from + AT_NONE);
    let goodput = |job: usize| runs.mean(|root| root[job].goodput_mbit_per_s);
    let gain = |job: usize| {
        runs.ratio(|root| (root[job].goodput_mbit_per_s, root[wifi].goodput_mbit_per_s))
    };
    let tail = |of: usize, over: usize| runs.ratio(|root| (root[of].p95_ms, root[over].p95_ms));
    rows.push(named("TCP WiFi, goodput".to_owned()).estimate(&goodput(wifi), "Mbit/s"));
    rows.push(
        named("no M vs. TCP WiFi, p95".to_owned())
            .paper_claim("a heavier tail")
            .estimate(&tail(none, wifi), "")
            .at_least(1.0),
    );
    for curve in RULES {
        let (name, job) = (NSDI_CURVES[curve].name, from + curve);
        rows.push(derived(curve, RATES.iter().sum()));
        rows.push(named(format!("{name}, goodput")).estimate(&goodput(job), "Mbit/s"));
        rows.push(
            named(format!("{name} vs. TCP WiFi, p50"))
                .paper_claim("lower than TCP over WiFi")
                .estimate(&median_ratio(runs, job, wifi), "")
                .at_most(1.0),
        );
        rows.push(
            named(format!("{name} vs. TCP WiFi, goodput"))
                .paper_claim("more throughput than the better path")
                .estimate(&gain(job), "")
                .at_least(1.0),
        );
        rows.push(
            named(format!("{name} vs. no M, p95"))
                .paper_claim("the long tail disappears")
                .estimate(&tail(job, none), "")
                .at_most(1.0),
        );
    }
    rows
}
