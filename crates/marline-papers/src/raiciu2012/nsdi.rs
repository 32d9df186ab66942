//! The NSDI paper's own links, and what it says of figure 7 there.

use std::time::Duration;

use marline::BufferTuning;

use super::curves::{
    CELLULAR, CODE, Curve, Jobs, KERNEL, NONE, PAPER, SEND_AS_LINUX, SEND_AS_SAID, SHIPPED,
    Setting, WIDE, WIFI, lasts, measure,
};
use super::density::{Runs, median, median_ratio};
use super::{Published, shown};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::Grid;

const LASTS: Duration = Duration::from_secs(30);
const PART: Part = Part::new("nsdi", 20, 70);
/// The most that tuned buffers grow to.
const BOUND: u64 = 4 << 20;
const EACH: [Curve; 9] = [WIFI, CELLULAR, NONE, PAPER, CODE, KERNEL, WIDE, SHIPPED, CAPPED];
const CAPPED: Curve =
    Curve { name: "M1+M2+M4, code of 2012", congestion: "cubic-classic+cap", ..CODE };
const AT_CELLULAR: usize = 1;
const AT_NONE: usize = 2;
/// Those with M1 and M2, Marline's own among them.
const RULES: std::ops::Range<usize> = 3..8;
/// Rates of the links, together, Mbit/s.
const RATES: [f64; 2] = [8.0, 2.0];

/// 200 KB as payload, and as Linux counts them.
fn settings() -> [Setting; 2] {
    let said = Setting::nsdi();
    let doubled = Setting { name: "200 KB, doubled", send: SEND_AS_LINUX, ..said.clone() };
    [said, Setting { receive: 2 * SEND_AS_SAID, ..doubled }]
}

fn jobs() -> Jobs {
    let mut jobs = Jobs::new();
    for setting in settings() {
        jobs.extend(EACH.map(|curve| (setting.clone(), curve)));
    }
    let tuned =
        Setting { name: "tuned, 4 MB at most", send: BOUND, receive: BOUND, ..Setting::nsdi() };
    let curves = [
        Curve { name: "M1+M2, windows", tuning: BufferTuning::Windows, ..CODE },
        Curve { name: "M1+M2+M3", tuning: BufferTuning::Rates, ..CODE },
        Curve { name: "M1+M2+M3+M4", tuning: BufferTuning::Rates, ..CAPPED },
    ];
    jobs.extend(curves.map(|curve| (tuned.clone(), curve)));
    jobs
}

/// Rows on the claims of the paper, and all curves.
pub(super) fn judge(
    context: &Context<'_>,
    file: &PaperFile<Published>,
) -> anyhow::Result<(Vec<Row>, Grid)> {
    let jobs = jobs();
    let share = file.tolerance("derived")?;
    let long = lasts(context, LASTS);
    let all = |runs: &Runs| -> Vec<Row> {
        let each = settings().into_iter().enumerate();
        each.flat_map(|(place, setting)| rows(runs, place * EACH.len(), &setting, share)).collect()
    };
    let (runs, rows) =
        context.judge(PART, |root| measure(&jobs, long, root.seed), |runs| Ok(all(runs)))?;
    let title = "Links of the NSDI paper: WiFi 8 Mbit/s, 20 ms, 80 ms of buffer; 3G 2 Mbit/s, 150 ms, \
                 2 s of buffer";
    let mut grid = shown::grid("nsdi", title, &["buffers", "curve"]);
    for (number, (setting, curve)) in jobs.iter().enumerate() {
        shown::push(&mut grid, &[setting.name, curve.name], &runs, (context.master, number));
    }
    Ok((rows, grid))
}

/// Rows of one setting, whose jobs begin at `from`.
fn rows(runs: &Runs, from: usize, setting: &Setting, share: f64) -> Vec<Row> {
    let named = |what: String| Row::new(format!("{}: {what}", setting.name));
    let derived = |curve: usize, mbit_per_s: f64| {
        let expected = (setting.send as f64 * 8.0 / mbit_per_s / 1e3).round();
        named(format!("{}, p50", EACH[curve].name))
            .paper_says(format!("send buffer over {mbit_per_s} Mbit/s: {expected} ms"))
            .estimate(&median(runs, from + curve), "ms")
            .within_of(share, expected, "send buffer over rate")
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
        named("no M over TCP WiFi, p95".to_owned())
            .paper_says("a heavier tail")
            .estimate(&tail(none, wifi), "")
            .at_least(1.0),
    );
    for curve in RULES {
        let (name, job) = (EACH[curve].name, from + curve);
        rows.push(derived(curve, RATES.iter().sum()));
        rows.push(named(format!("{name}, goodput")).estimate(&goodput(job), "Mbit/s"));
        rows.push(
            named(format!("{name} over TCP WiFi, p50"))
                .paper_says("lower than TCP over WiFi")
                .estimate(&median_ratio(runs, (job, wifi)), "")
                .at_most(1.0),
        );
        rows.push(
            named(format!("{name} over TCP WiFi, goodput"))
                .paper_says("more throughput than the better path")
                .estimate(&gain(job), "")
                .at_least(1.0),
        );
        rows.push(
            named(format!("{name} over no M, p95"))
                .paper_says("the long tail goes")
                .estimate(&tail(job, none), "")
                .at_most(1.0),
        );
    }
    rows
}
