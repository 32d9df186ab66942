//! Supplementary results: a comparison with the published plots, each mechanism separately, other buffers.

use std::time::Duration;

use marline::config::BufferTuning;

use super::curves::{
    CELLULAR, Cs244, Curve, Jobs, KERNEL, MARLINE_DEFAULT, NONE, RECEIVE_AS_LINUX, RECEIVE_DOUBLED,
    SEND_200_KB, SEND_AS_LINUX, Setting, WIDE, WIFI, measure, scaled_duration,
};
use super::density::{self, Runs};
use super::study::{
    ANY_JITTER, AT_CELLULAR, PLOT_ENDS_MS, PLOTTED, RUN_DURATION as JUDGED_DURATION, Shape, job,
    jobs_by_jitter,
};
use super::{Cellular, Published};
use crate::estimate::Estimate;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::Grid;
use crate::value::Value;

/// Length of a run. Short, because these results are only shown.
const RUN_DURATION: Duration = Duration::from_secs(15);
const RULES: Part = Part::fixed("rules", 20);
const BUFFERS: Part = Part::fixed("buffers", 20);
const DOUBLED: Part = Part::fixed("doubled", 20);

/// Columns of every grid of jobs, after the setting and the curve.
const COLUMNS: [(&str, &str); 11] = [
    ("peak", "ms"),
    ("p5", "ms"),
    ("p50", "ms"),
    ("p95", "ms"),
    ("p50 / bound", ""),
    ("goodput", "Mbit/s"),
    ("WiFi", "MB"),
    ("3G", "MB"),
    ("repeated", "MB"),
    ("p50 / WiFi's", ""),
    ("goodput / WiFi's", ""),
];

/// Heading of a grid of jobs.
pub(super) struct Heading {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Name of the column of settings.
    pub(super) settings: &'static str,
}

/// Results of all jobs.
pub(super) fn grid(heading: &Heading, jobs: &Jobs, runs: &Runs, master: u64) -> Grid {
    let words = [(heading.settings, ""), ("curve", "")];
    let columns: Vec<_> = words.into_iter().chain(COLUMNS).collect();
    let mut grid = Grid::new(heading.name, heading.title, &columns);
    for (job, (setting, curve)) in jobs.iter().enumerate() {
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
        let words = [setting.name, curve.name].map(|word| Value::Text(word.to_owned()));
        let mut cells: Vec<Value> = words.into_iter().chain(numbers.iter().map(cell)).collect();
        cells.extend(match wifi_of(jobs, setting) {
            Some(wifi) => [
                cell(&density::median_ratio(runs, job, wifi)),
                cell(&density::goodput_ratio(runs, job, wifi)),
            ],
            None => ["", ""].map(|empty| Value::Text(empty.to_owned())),
        });
        grid.rows.push(cells);
    }
    grid
}

/// Job of TCP over WiFi in this setting.
fn wifi_of(jobs: &Jobs, setting: &Setting) -> Option<usize> {
    jobs.iter().position(|(other, curve)| {
        curve.name == WIFI.name && [setting.name, ANY_JITTER].contains(&other.name)
    })
}

fn cell(estimate: &Estimate) -> Value {
    Value::from_estimate(estimate, "")
}

/// The curves, compared with the published plots.
pub(super) fn plots(runs: &Runs, master: u64, published: &Published) -> Grid {
    let columns = [
        ("jitter", ""),
        ("curve", ""),
        ("peak, published", "ms"),
        ("peak", "ms"),
        ("p50, published", "ms"),
        ("p50", "ms"),
        ("p95, published", "ms"),
        ("p95", "ms"),
        ("fullest bin, published", "%"),
        ("fullest bin", "%"),
        ("last bin above 0.5 %, published", "ms"),
        ("last bin above 0.5 %", "ms"),
        ("within 3 s, published", "%"),
        ("within 3 s", "%"),
    ];
    let title = "The curves in the study's bins of 20 ms, compared with its plots";
    let mut grid = Grid::new("plots", title, &columns);
    let number = |value: f64| Value::new(value, "");
    let text = |text: &str| Value::Text(text.to_owned());
    for (place, at) in published.at.iter().enumerate() {
        let jitter = format!("{} ms", at.jitter_ms);
        let ours = |job: usize| {
            let (height, reach) = density::height_and_reach(runs, master, job);
            let within = density::share_within(runs, job, PLOT_ENDS_MS);
            let peak = density::peak(runs, master, job);
            let median = density::median(runs, job);
            let tail = runs.mean(|root| root[job].p95_ms);
            [peak, median, tail, height.percent(), reach, within.percent()]
        };
        let mut push = |name: &str, published: [Value; 6], ours: [Estimate; 6]| {
            let pairs = published.into_iter().zip(ours.iter().map(cell));
            let words = [text(&jitter), text(name)];
            let cells = pairs.flat_map(|(published, ours)| [published, ours]);
            grid.rows.push(words.into_iter().chain(cells).collect());
        };
        for curve in &PLOTTED {
            let Shape { peak_ms, p50_ms, p95_ms, highest, until_ms } = *(curve.shape)(at);
            let numbers = [peak_ms, p50_ms, p95_ms, 100.0 * highest, until_ms, 100.0];
            push(curve.name, numbers.map(number), ours((curve.job)(place)));
        }
        let Cellular { peak, p50_ms, within_3_s } = &at.cellular;
        let median = p50_ms.map_or_else(|| text("beyond 3 s"), number);
        let within = number(100.0 * within_3_s);
        let published = [text(peak), median, text(""), text(""), text(""), within];
        push(CELLULAR.name, published, ours(job(place, AT_CELLULAR)));
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
    fill(context, RULES, &jobs, RUN_DURATION, &Heading { name: "rules", title, settings: "jitter" })
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
                "100 ms: no reordering",
                "100 ms: queue of 200 KB",
            ],
            _ => [
                "250 ms: send buffer of 204,800 bytes",
                "250 ms: no reordering",
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
    let heading = Heading { name: "buffers", title, settings: "setting" };
    fill(context, BUFFERS, &jobs, RUN_DURATION, &heading)
}

/// The study's curves with the whole doubled receive buffer as window.
pub(super) fn doubled_window(context: &Context<'_>, published: &Published) -> anyhow::Result<Grid> {
    let jobs: Jobs = jobs_by_jitter(published, &[KERNEL, WIDE, NONE, CELLULAR])
        .into_iter()
        .map(|(setting, curve)| (Setting { receive: RECEIVE_DOUBLED, ..setting }, curve))
        .collect();
    let title = "CS244: twice the receive window";
    let heading = Heading { name: "doubled", title, settings: "jitter" };
    fill(context, DOUBLED, &jobs, JUDGED_DURATION, &heading)
}

fn fill(
    context: &Context<'_>,
    part: Part,
    jobs: &Jobs,
    lasts: Duration,
    heading: &Heading,
) -> anyhow::Result<Grid> {
    let long = scaled_duration(context, lasts);
    let runs = context.sample(part, |root| measure(jobs, long, root.seed))?;
    Ok(grid(heading, jobs, &runs, context.master))
}

// The doubled size is twice the configured size.
const _: () = assert!(RECEIVE_DOUBLED == 2 * RECEIVE_AS_LINUX && SEND_AS_LINUX > SEND_200_KB);
