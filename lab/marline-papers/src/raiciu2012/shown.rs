//! Supplementary results: a comparison with the published plots, each mechanism separately, other buffers.

use std::time::Duration;

use marline::config::BufferTuning;

use super::Published;
use super::curves::{
    CELLULAR, Cs244, Curve, Jobs, KERNEL, MARLINE_DEFAULT, NONE, RECEIVE_AS_LINUX, RECEIVE_DOUBLED,
    SEND_200_KB, SEND_AS_LINUX, Setting, WIDE, WIFI, measure, scaled_duration,
};
use super::density::{self, Runs};
use super::study::{AT_KERNEL, AT_NONE, AT_WIFI, Shape, job};
use crate::estimate::Estimate;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::Grid;
use crate::value::Value;

/// Length of a run. Short, because these results are only shown.
const RUN_DURATION: Duration = Duration::from_secs(15);
const RULES: Part = Part::fixed("rules", 20);
const BUFFERS: Part = Part::fixed("buffers", 20);
const DOUBLED: Part = Part::fixed("doubled", 20);
/// Length of a run, equal to that of the judged curves next to which these are shown.
const DOUBLED_LASTS: Duration = Duration::from_secs(40);
const DOUBLED_FITTED: &str =
    "a window of 61,440 bytes, with which M1+M2 is closer to the plot at 100 ms";

/// Columns of every grid, after its own leading columns.
const COLUMNS: [(&str, &str); 9] = [
    ("peak", "ms"),
    ("p5", "ms"),
    ("p50", "ms"),
    ("p95", "ms"),
    ("p50 / bound", ""),
    ("goodput", "Mbit/s"),
    ("WiFi", "MB"),
    ("3G", "MB"),
    ("repeated", "MB"),
];

/// An empty grid of curves.
pub(super) fn grid(name: &str, title: &str, words: &[&str]) -> Grid {
    let words = words.iter().map(|word| (*word, ""));
    Grid::new(name, title, &words.chain(COLUMNS).collect::<Vec<_>>())
}

fn cell(estimate: &Estimate) -> Value {
    Value::from_estimate(estimate, "")
}

/// Adds the results of a job.
pub(super) fn push(grid: &mut Grid, words: &[&str], runs: &Runs, master: u64, job: usize) {
    let numbers = [
        density::peak(runs, master, job),
        runs.mean(|root| root[job].p5_ms),
        density::median(runs, job),
        runs.mean(|root| root[job].p95_ms),
        runs.mean(|root| root[job].bound_ratio),
        runs.mean(|root| root[job].goodput_mbit_per_s),
        runs.mean(|root| root[job].carried_mbyte[0]),
        runs.mean(|root| root[job].carried_mbyte[1]),
        runs.mean(|root| root[job].repeated_mbyte),
    ];
    let words = words.iter().map(|word| Value::Text((*word).to_owned()));
    grid.rows.push(words.chain(numbers.iter().map(cell)).collect());
}

/// Heights and reach of the curves, compared with the published plots.
pub(super) fn plots(runs: &Runs, master: u64, published: &Published) -> Grid {
    let columns = [
        ("jitter", ""),
        ("curve", ""),
        ("fullest bin, published", "%"),
        ("fullest bin", "%"),
        ("last bin above 0.5 %, published", "ms"),
        ("last bin above 0.5 %", "ms"),
        ("p95, published", "ms"),
        ("p95", "ms"),
    ];
    let title = "The curves in the study's bins of 20 ms, compared with its plots";
    let mut grid = Grid::new("plots", title, &columns);
    for (place, at) in published.at.iter().enumerate() {
        let curves: [(&Curve, &Shape, usize); 3] = [
            (&WIFI, &at.wifi, AT_WIFI),
            (&KERNEL, &at.both, job(place, AT_KERNEL)),
            (&NONE, &at.none, job(place, AT_NONE)),
        ];
        for (curve, shape, job) in curves {
            let (height, reach) = density::height_and_reach(runs, master, job);
            let Estimate { value, low, high, .. } = height;
            let words = [format!("{} ms", at.jitter_ms), curve.name.to_owned()];
            let numbers = [
                Value::new(100.0 * shape.highest, ""),
                Value::with_interval(100.0 * value, 100.0 * low, 100.0 * high, ""),
                Value::new(shape.until_ms, ""),
                cell(&reach),
                Value::new(shape.p95_ms, ""),
                cell(&runs.mean(|root| root[job].p95_ms)),
            ];
            grid.rows.push(words.map(Value::Text).into_iter().chain(numbers).collect());
        }
    }
    grid
}

/// Each mechanism separately, and other schedulers.
pub(super) fn rules(context: &Context<'_>) -> anyhow::Result<Grid> {
    let counted = |name, curve| Curve { name, recovery: Some("rfc6675"), ..curve };
    let curves = [
        Curve::with("M1, kernel", "lowest-rtt+orp,penalize=off"),
        Curve::with("M1, wide", "lowest-rtt+orp,retransmit=wide,penalize=off"),
        Curve::with("M2, kernel", "lowest-rtt+orp,retransmit=off"),
        Curve::with("BLEST, M1 and M2 (kernel)", "blest+orp"),
        Curve::with("ECF, M1 and M2 (kernel)", "ecf+orp"),
        MARLINE_DEFAULT,
        counted("TCP WiFi, rfc6675", WIFI),
        counted("M1+M2, kernel of the study, rfc6675", KERNEL),
        counted("no M, rfc6675", NONE),
    ];
    let mut jobs = Jobs::new();
    for (jitter_ms, name) in [(100, "100 ms"), (250, "250 ms")] {
        let setting = Setting { name, ..Setting::cs244(Cs244::with_jitter(jitter_ms)) };
        jobs.extend(curves.map(|curve| (setting.clone(), curve)));
    }
    let title = "M1 and M2 one by one, other schedulers, and loss recovery by counting, on the judged links";
    fill(context, RULES, &jobs, grid("rules", title, &["jitter", "curve"]))
}

/// The study's curves with other buffers, and without overtaking.
pub(super) fn buffers(context: &Context<'_>) -> anyhow::Result<Grid> {
    let mut jobs = Jobs::new();
    let mut add = |setting: &Setting, tuning: BufferTuning| {
        let curves = [WIFI, KERNEL, NONE, CELLULAR];
        jobs.extend(curves.map(|curve| (setting.clone(), Curve { tuning, ..curve })));
    };
    for jitter_ms in [100, 250] {
        let links = Cs244::with_jitter(jitter_ms);
        let judged = Setting::cs244(links);
        let said = Setting { send: SEND_200_KB, ..judged };
        let ordered = Setting::cs244(Cs244 { overtaking: false, ..links });
        let queue = Setting::cs244(Cs244 { queue_kbyte: 200, ..links });
        let [said_name, ordered_name, queue_name] = match jitter_ms {
            100 => [
                "100 ms: send buffer of 204,800 bytes",
                "100 ms: in order",
                "100 ms: queue of 200 KB",
            ],
            _ => [
                "250 ms: send buffer of 204,800 bytes",
                "250 ms: in order",
                "250 ms: queue of 200 KB",
            ],
        };
        add(&Setting { name: said_name, ..said }, BufferTuning::Fixed);
        add(&Setting { name: ordered_name, ..ordered }, BufferTuning::Fixed);
        add(&Setting { name: queue_name, ..queue.clone() }, BufferTuning::Fixed);
        if jitter_ms == 100 {
            let name = "100 ms: queue of 200 KB, send buffer tuned";
            add(&Setting { name, send: 4 << 20, ..queue }, BufferTuning::Windows);
        }
    }
    let title = "Other buffers: 200 KB as payload or as the queue of the links (the study's first reading), and a 3G \
                 link without reordering";
    fill(context, BUFFERS, &jobs, grid("buffers", title, &["setting", "curve"]))
}

fn fill(context: &Context<'_>, part: Part, jobs: &Jobs, mut grid: Grid) -> anyhow::Result<Grid> {
    let long = scaled_duration(context, RUN_DURATION);
    let runs = context.sample(part, |root| measure(jobs, long, root.seed))?;
    for (number, (setting, curve)) in jobs.iter().enumerate() {
        push(&mut grid, &[setting.name, curve.name], &runs, context.master, number);
    }
    Ok(grid)
}

/// Peaks with the whole doubled receive buffer as window. The rows are not judged.
pub(super) fn doubled_window_table(
    context: &Context<'_>,
    file: &PaperFile<Published>,
) -> anyhow::Result<Vec<Row>> {
    const DOUBLED_CURVES: [Curve; 4] = [KERNEL, WIDE, NONE, CELLULAR];
    let at = |jitter_ms| {
        let setting = Setting::cs244(Cs244::with_jitter(jitter_ms));
        Setting { name: "doubled", receive: RECEIVE_DOUBLED, ..setting }
    };
    let mut jobs: Jobs = vec![(at(file.published.at[0].jitter_ms), WIFI)];
    for published in &file.published.at {
        jobs.extend(DOUBLED_CURVES.map(|curve| (at(published.jitter_ms), curve)));
    }
    let long = scaled_duration(context, DOUBLED_LASTS);
    let runs = context.sample(DOUBLED, |root| measure(&jobs, long, root.seed))?;
    let share = file.tolerance("peak")?;
    let mut rows = Vec::new();
    for (place, at) in file.published.at.iter().enumerate() {
        let shapes = [Some(&at.both), Some(&at.both), Some(&at.none), None];
        let from = 1 + place * DOUBLED_CURVES.len();
        let curves = DOUBLED_CURVES.iter().zip(shapes).enumerate();
        let all = curves.map(|(number, (curve, shape))| (curve.name, shape, from + number));
        for (name, shape, job) in [(WIFI.name, Some(&at.wifi), 0)].into_iter().chain(all) {
            let row = Row::new(format!("jitter {} ms: {name}", at.jitter_ms))
                .estimate(&density::peak(&runs, context.master, job), "ms");
            rows.push(match shape {
                Some(shape) => row
                    .paper(shape.peak_ms, "ms")
                    .within_of_paper(share)
                    .mark_fitted(DOUBLED_FITTED),
                None => row.paper_claim(&at.cellular.peak),
            });
        }
        let over = density::median_ratio(&runs, from, 0);
        rows.push(
            Row::new(format!("jitter {} ms: {} vs. TCP WiFi, p50", at.jitter_ms, KERNEL.name))
                .paper((100.0 * at.both.p50_ms / at.wifi.p50_ms).round() / 100.0, "")
                .estimate(&over, "")
                .at_most(1.0 + file.tolerance("same")?)
                .mark_fitted(DOUBLED_FITTED),
        );
    }
    Ok(rows)
}

// The doubled size is twice the configured size.
const _: () = assert!(RECEIVE_DOUBLED == 2 * RECEIVE_AS_LINUX && SEND_AS_LINUX > SEND_200_KB);
