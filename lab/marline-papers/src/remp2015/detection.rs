//! Adaptive redundancy compared with constant redundancy.

use links::WifiEnd;
use marline_lab::experiment::{Experiment, Message};
use marline_lab::figure::{Figure, Plot};
use serde::{Deserialize, Serialize};

use super::links::{self, Coincidence, LTE, WIFI, WIFI_INDEPENDENT, WIFI_SHORT};
use super::measure::{self, Echoes, Tail, bound_ms, bound_ratio, sorted};
use super::worlds::{self, World};
use crate::estimate::{Estimate, Samples};
use crate::paper::Context;
use crate::plain::mptcp;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction};
use crate::value::Value;

/// No copies, copies of everything, and detection.
const CONTESTANTS: [&str; 3] = ["min-rtt", "redundant", "auto-redundant"];
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

/// The comparison of automatic detection with full redundancy, and of all degrees. The paper names both as future
/// work: nothing is judged.
pub(super) fn run(context: &Context<'_>, result: &mut Reproduction) -> anyhow::Result<()> {
    let count = context.count(links::MESSAGES);
    let columns = [
        ("case", ""),
        ("parameters chosen here", ""),
        ("p99 / full", ""),
        ("p99.9 / full", ""),
        ("extra bytes / full", "%"),
        ("payload sent twice / full", "%"),
        ("p99 within 5 s of the failure / full", ""),
        ("average / bound", ""),
    ];
    let title = "Automatic detection (auto-redundant) against full redundancy (99 % intervals)";
    let mut grid = Grid::new("ours", title, &columns);
    for case in &CASES {
        let measure = |root: &Root| Degrees::measure(case, count, root, &CONTESTANTS);
        let samples = context.sample(Part::fixed(case.part, 60), measure)?;
        grid.rows.push(detection_cells(case, &samples, context.master));
    }
    result.grids.push(grid);
    let title = "Five worlds not used for fitting, drawn from stated ranges";
    let mut grid = Grid::new("worlds", title, &worlds::COLUMNS);
    for number in 1..=5 {
        grid.push(&[&number.to_string()], &World::number(number).numbers());
    }
    result.grids.push(grid);
    degrees(context, count, result)
}

fn detection_cells(case: &Case, samples: &Samples<Degrees>, master: u64) -> Vec<Value> {
    let [full, auto] = [FULL, AUTO].map(|place| tail(samples, place));
    let payload = samples.ratio(|root| {
        let copied = |place: usize| root.runs[place].copied_bytes as f64;
        (100.0 * copied(AUTO), copied(FULL))
    });
    let near_failure = match case.place {
        CaseLinks::Leaving(_) => {
            let near = |place: usize| {
                Tail::new(samples.all().iter().map(|root| root.near_ms[place].as_slice()))
            };
            Value::from_estimate(&near(AUTO).ratio(&near(FULL), master, 0.99), "")
        }
        _ => Value::new(f64::NAN, ""),
    };
    vec![
        Value::Text(case.name.to_owned()),
        Value::Text(if case.fitted { "yes" } else { "no" }.to_owned()),
        Value::from_estimate(&auto.ratio(&full, master, 0.99), ""),
        Value::from_estimate(&auto.ratio(&full, master, 0.999), ""),
        Value::from_estimate(&extra_percent(samples, AUTO), ""),
        Value::new(payload.value, ""),
        near_failure,
        Value::new(bound_ratio_of(samples, AUTO), ""),
    ]
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
