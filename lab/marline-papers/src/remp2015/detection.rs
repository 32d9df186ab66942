//! Adaptive redundancy compared with constant redundancy.

use links::WifiEnd;
use marline_lab::experiment::{Experiment, Message};
use marline_lab::figure::{Figure, Plot};
use serde::{Deserialize, Serialize};

use super::links::{self, Coincidence, LTE, WIFI, WIFI_INDEPENDENT, WIFI_SHORT};
use super::measure::{self, Echoes, Tail, bound_ms, bound_ratio, sorted};
use super::published::Published;
use super::worlds::{self, World};
use crate::estimate::{Estimate, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::plain::mptcp;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// Contestants of the verdicts: no copies, copies of everything, and detection.
const JUDGED_CONTESTANTS: [&str; 3] = ["min-rtt", "redundant", "auto-redundant"];
/// Indexes of the three contestants.
const NONE: usize = 0;
const FULL: usize = 1;
const AUTO: usize = 2;

/// All schedulers that make copies, and min-rtt, on which they are based.
const SCHEDULERS: [&str; 8] = [
    "min-rtt",
    "redundant",
    "auto-redundant",
    "hedged",
    "opportunistic-redundant",
    "redundant-idle",
    "burst-end",
    "probing",
];

/// Length of the evaluated time before and after the WiFi dies, s.
const NEAR_S: f64 = 5.0;

/// Links of a case.
#[derive(Copy, Clone, Debug)]
enum CaseLinks {
    Home(&'static str),
    Train,
    Leaving(WifiEnd),
    World(usize),
}

/// A case: its links, its part, and whether it was used for fitting.
#[derive(Copy, Clone, Debug)]
struct Case {
    name: &'static str,
    /// Name of its part.
    part: &'static str,
    place: CaseLinks,
    /// True if auto-redundant's parameters were chosen with this case.
    fitted: bool,
}

impl Case {
    const fn new(name: &'static str, part: &'static str, place: CaseLinks) -> Case {
        Case { name, part, place, fitted: false }
    }

    const fn as_fitted(self) -> Case {
        Case { fitted: true, ..self }
    }

    /// Experiment of a root, and the time at which the WiFi dies, s.
    fn experiment(&self, count: usize, root: &Root) -> (Experiment, Option<f64>) {
        match self.place {
            CaseLinks::Home(wifi) => (links::home_experiment(wifi, LTE, count), None),
            CaseLinks::Train => {
                (links::train_experiment(Coincidence::Never, count, root.seed), None)
            }
            CaseLinks::Leaving(farewell) => {
                let at_s = links::death_s(count, &mut root.rng("death of the WiFi"));
                (links::wifi_loss_experiment(farewell, count, at_s), Some(at_s))
            }
            CaseLinks::World(number) => {
                let world = World::number(number);
                (links::home_experiment(&world.wifi(), &world.lte(), count), None)
            }
        }
    }
}

const CASES: [Case; 11] = [
    Case::new("home", "detection-home", CaseLinks::Home(WIFI)).as_fitted(),
    Case::new("train", "detection-train", CaseLinks::Train).as_fitted(),
    Case::new("home, WiFi dies abruptly", "detection-abrupt", CaseLinks::Leaving(WifiEnd::Abrupt)),
    Case::new("home, WiFi fades and dies", "detection-fading", CaseLinks::Leaving(WifiEnd::Fading)),
    Case::new(
        "home, independent losses of 3 %",
        "detection-independent",
        CaseLinks::Home(WIFI_INDEPENDENT),
    ),
    Case::new(
        "home, bad periods half as long but worse",
        "detection-short",
        CaseLinks::Home(WIFI_SHORT),
    ),
    Case::new("world 1", "detection-world-1", CaseLinks::World(1)),
    Case::new("world 2", "detection-world-2", CaseLinks::World(2)),
    Case::new("world 3", "detection-world-3", CaseLinks::World(3)),
    Case::new("world 4", "detection-world-4", CaseLinks::World(4)),
    Case::new("world 5", "detection-world-5", CaseLinks::World(5)),
];

/// Results of several schedulers on a root.
#[derive(Debug, Serialize, Deserialize)]
struct Degrees {
    runs: Vec<Echoes>,
    /// Round-trip times of the messages sent shortly before or after the WiFi died, ms, sorted.
    near_ms: Vec<Vec<f64>>,
    bound_ms: Option<f64>,
}

impl Degrees {
    fn measure(
        case: &Case,
        count: usize,
        root: &Root,
        schedulers: &[&str],
    ) -> anyhow::Result<Degrees> {
        let (experiment, death_s) = case.experiment(count, root);
        let mut degrees = Degrees { runs: Vec::new(), near_ms: Vec::new(), bound_ms: None };
        for name in schedulers {
            let variant = mptcp(name).scheduler(name);
            let (messages, echoes) = measure::run(&experiment, &variant, root)?;
            degrees.runs.push(echoes);
            if let Some(death_s) = death_s {
                let near = |message: &&Message| (message.sent_ms / 1e3 - death_s).abs() < NEAR_S;
                let near = messages.iter().filter(near).map(|message| message.latency_ms);
                degrees.near_ms.push(sorted(near));
            }
            if degrees.bound_ms.is_none() {
                degrees.bound_ms = bound_ms(&experiment, root, &messages)?;
            }
        }
        Ok(degrees)
    }
}

fn tail(samples: &Samples<Degrees>, place: usize) -> Tail {
    Tail::new(samples.all().iter().map(|root| root.runs[place].latencies_ms.as_slice()))
}

/// Bytes beyond those without redundancy, as a percentage of the extra bytes of full redundancy.
fn extra_percent(samples: &Samples<Degrees>, place: usize) -> Estimate {
    samples.ratio(|root| {
        let bytes = |place: usize| root.runs[place].wire_bytes as f64;
        (100.0 * (bytes(place) - bytes(NONE)), bytes(FULL) - bytes(NONE))
    })
}

fn bound_ratio_of(samples: &Samples<Degrees>, place: usize) -> f64 {
    bound_ratio(samples.all().iter().map(|root| (&root.runs[place], root.bound_ms)))
}

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    result: &mut Reproduction,
) -> anyhow::Result<()> {
    let count = context.count(links::MESSAGES);
    let mut rows = Vec::new();
    for case in &CASES {
        let (_, of_case) = context.judge_part(
            Part::new(case.part, 60, 2_400),
            |root| Degrees::measure(case, count, root, &JUDGED_CONTESTANTS),
            |samples| judge_case(file, case, samples, context.master),
        )?;
        rows.extend(of_case);
    }
    let title = "Automatic detection (auto-redundant) against full redundancy";
    result.tables.push(Table::new("detection", title, rows));
    let title = "Five worlds not used for fitting, drawn from stated ranges";
    let mut grid = Grid::new("worlds", title, &worlds::COLUMNS);
    for number in 1..=5 {
        grid.push(&[&number.to_string()], &World::number(number).numbers());
    }
    result.grids.push(grid);
    degrees(context, count, result)
}

fn judge_case(
    file: &PaperFile<Published>,
    case: &Case,
    samples: &Samples<Degrees>,
    master: u64,
) -> anyhow::Result<Vec<Row>> {
    let [none, full, auto] = [NONE, FULL, AUTO].map(|place| tail(samples, place));
    let ratio = |name: &str, share: f64, most: f64| {
        let values = [&auto, &full, &none].map(|tail| tail.quantile(share));
        let [of_auto, of_full, of_none] = values;
        Row::new(format!("{}: {name}, ratio to full redundancy", case.name))
            .estimate(&auto.ratio(&full, master, share), "")
            .at_most(most)
            .with_remark(format!("{of_auto:.0} ms; full {of_full:.0} ms; none {of_none:.0} ms"))
    };
    let payload = samples.ratio(|root| {
        let copied = |place: usize| root.runs[place].copied_bytes as f64;
        (100.0 * copied(AUTO), copied(FULL))
    });
    let mut rows = vec![
        ratio("p99", 0.99, file.tolerance("detection_p99_ratio")?)
            .bound_ratio(bound_ratio_of(samples, AUTO)),
        ratio("p99.9", 0.999, file.tolerance("detection_p999_ratio")?),
        Row::new(format!("{}: extra bytes, ratio to full redundancy", case.name))
            .estimate(&extra_percent(samples, AUTO), "%")
            .at_most(file.tolerance("detection_bytes_percent")?)
            .with_remark(format!("{:.0} % of the payload was sent twice", payload.value)),
    ];
    if matches!(case.place, CaseLinks::Leaving(_)) {
        let near = |place: usize| {
            Tail::new(samples.all().iter().map(|root| root.near_ms[place].as_slice()))
        };
        let [none, full, auto] = [NONE, FULL, AUTO].map(near);
        let [of_none, of_full, of_auto] = [&none, &full, &auto].map(|tail| tail.quantile(0.99));
        rows.push(
            Row::new(format!("{}: p99 within 5 s of the failure, ratio to full", case.name))
                .estimate(&auto.ratio(&full, master, 0.99), "")
                .at_most(file.tolerance("detection_p99_ratio")?)
                .with_remark(format!(
                    "{of_auto:.0} ms; full {of_full:.0} ms; none {of_none:.0} ms"
                )),
        );
    }
    if case.fitted {
        let what = "parameters of auto-redundant, chosen on this scene";
        rows = rows.into_iter().map(|row| row.mark_fitted(what)).collect();
    }
    Ok(rows)
}

/// Results of all schedulers, shown only.
fn degrees(context: &Context<'_>, count: usize, result: &mut Reproduction) -> anyhow::Result<()> {
    let columns = [
        ("case", ""),
        ("scheduler", ""),
        ("average", "ms"),
        ("p50", "ms"),
        ("p99", "ms"),
        ("p99.9", "ms"),
        ("average / bound", ""),
        ("extra bytes", "%"),
        ("p99 / full", ""),
    ];
    let title = "Degrees of redundancy: extra bytes beyond min-rtt, as a percentage of full redundancy (99 % \
                 intervals)";
    let mut grid = Grid::new("degrees", title, &columns);
    let shown = &CASES[..6];
    let part = Part::fixed("degrees", 20);
    let all = context.sample(part, |root| {
        shown.iter().map(|case| Degrees::measure(case, count, root, &SCHEDULERS)).collect()
    })?;
    let cell = |of: &Estimate| Value::from_estimate(of, "");
    for (number, case) in shown.iter().enumerate() {
        let samples = measure::map_roots(&all, context.master, |root: &Vec<Degrees>| Degrees {
            runs: root[number].runs.clone(),
            near_ms: Vec::new(),
            bound_ms: root[number].bound_ms,
        });
        let full = tail(&samples, FULL);
        for (place, name) in SCHEDULERS.iter().enumerate() {
            let mine = tail(&samples, place);
            let average = samples.mean(|root| marline_sim::mean(&root.runs[place].latencies_ms));
            grid.rows.push(vec![
                Value::Text(case.name.to_owned()),
                Value::Text((*name).to_owned()),
                cell(&average),
                Value::new(mine.quantile(0.5), ""),
                cell(&mine.estimate(context.master, 0.99)),
                cell(&mine.estimate(context.master, 0.999)),
                Value::new(bound_ratio_of(&samples, place), ""),
                cell(&extra_percent(&samples, place)),
                cell(&mine.ratio(&full, context.master, 0.99)),
            ]);
        }
        if number == 0 {
            result.figures.push(figure(&samples));
        }
    }
    result.grids.push(grid);
    Ok(())
}

/// Share of the messages above each round-trip time.
fn figure(samples: &Samples<Degrees>) -> Figure {
    let longer = |place: usize| -> Vec<(f64, f64)> {
        let runs = samples.all().iter().map(|root| &root.runs[place].latencies_ms);
        let mut all: Vec<f64> = runs.flatten().copied().collect();
        all.sort_by(f64::total_cmp);
        let share = |ms: f64| {
            let longer = all.len() - all.partition_point(|latency| *latency <= ms);
            longer as f64 / all.len() as f64
        };
        (80..=600).step_by(2).map(|ms| (f64::from(ms), share(f64::from(ms)))).collect()
    };
    let plot = Plot::new(
        "Redundancy shortens the tail, at home",
        "RTT (ms)",
        "share of messages that take longer",
    )
    .log_y()
    .y_range(1e-4, 1.0);
    let plot = SCHEDULERS.iter().take(4).enumerate().fold(plot, |plot, (place, name)| {
        let points: Vec<_> = longer(place).into_iter().filter(|(_, y)| *y > 0.0).collect();
        plot.line(name, &points)
    });
    plot.figure("tails", "Degrees of redundancy under today's loss recovery.")
}
