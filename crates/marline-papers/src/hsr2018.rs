//! Reproduction of two carriers on high-speed rail (SIGCOMM 2018): how often bonding is worse than
//! the better carrier alone, for the kernel's scheduler, with OR&P, and with PAPD.

mod ride;

use std::path::Path;

use anyhow::Context as _;
use marline_lab::experiment::Variant;
use marline_lab::figure::{Plot, cdf};
use marline_link::trace::ArrivalTrace;
use marline_link::{DuplexConfig, RateConfig};
use marline_sim::mean;
use marline_time::{Duration, Instant};
use serde::Deserialize;

use crate::download::{Download, link};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::{Context, Paper};
use crate::table::{Grid, Reproduction, Table};
use ride::{CLASSES, LENGTH, PATHS};

const TEXT: &str = include_str!("../../../papers/hsr2018.toml");

/// Runs of each class at full scale.
const RUNS: usize = 100;
/// Of these also as the study ran them.
const STUDIED_RUNS: usize = 30;
/// At the start so much is not looked at.
const WARM_UP: Duration = Duration::from_secs(5);
/// Bytes of payload, of both buffers.
const BUFFER: u64 = 700_000;
/// Places of the recording from which it is replayed.
const OFFSETS: usize = 10;
/// The recording with both carriers, in the order of [`PATHS`].
const RECORDED: [&str; 2] = [
    "hsr-mptcp-2018/elephant_1529470329_olia_M3_wlan3.arrivals.csv.gz",
    "hsr-mptcp-2018/elephant_1529470329_olia_U4_wlan16.arrivals.csv.gz",
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    better_than_best: [f64; 3],
}

/// The key.
pub(super) struct HighSpeedRail;

impl Paper for HighSpeedRail {
    fn key(&self) -> &'static str {
        "hsr2018"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Published>::parse(TEXT)?;
        let mut all = Reproduction::default();
        let mut pooled = Vec::new();
        for (class, better) in CLASSES.iter().zip(file.published.better_than_best) {
            let rides: Vec<(Download, u64)> = (0..context.runs(RUNS) as u64)
                .map(|run| Ok((class.ride(context.master + run)?, context.master + run)))
                .collect::<anyhow::Result<_>>()?;
            let measured = measure(context, class.name, &rides)?;
            let mut table = shares(class.key, class.name, &measured);
            let studied = as_studied(context, &rides)?;
            let row = Row::new("as the study ran it (LIA; Reno alone): runs with U_c < 1");
            table.rows.push(row.paper((1.0 - better) * 100.0, "%").ours(studied * 100.0, "%"));
            all.tables.push(table);
            all.figures.push(figure(class.name, class.key, &measured));
            pooled.extend(measured);
        }
        let replays = replays(context.traces()?)?;
        let measured = measure(context, "replay", &replays)?;
        all.tables.push(shares("replay", "replay", &measured));
        pooled.extend(measured);
        all.tables.insert(0, verdicts(&pooled, file.tolerance("papd_of_others")?));
        all.grids.push(rates(&pooled));
        Ok(all)
    }
}

/// Schedulers, in the order of [`Measured::mbit_per_s`].
const SCHEDULERS: [(&str, &str); 4] = [
    ("min-RTT", "lowest-rtt"),
    ("OR&P", "lowest-rtt+orp"),
    (
        "PAPD",
        "lowest-rtt+orp+papd,best-path=off,window=2,most-window=500ms,share=0.05,hysteresis=0.1",
    ),
    ("PAPD with its defaults", "lowest-rtt+orp+papd"),
];

fn over(variant: Variant, congestion: &str) -> Variant {
    variant.congestion(congestion).buffers(Some(BUFFER), Some(BUFFER))
}

fn contestants() -> Vec<Variant> {
    let bonded = SCHEDULERS.map(|(name, spec)| Variant::new(name).scheduler(spec));
    let alone = PATHS.map(|path| Variant::alone(path, path));
    bonded.into_iter().chain(alone).map(|variant| over(variant, "bbr")).collect()
}

/// What the study compared.
fn studied() -> Vec<Variant> {
    let bonded = over(Variant::new("MPTCP").scheduler("lowest-rtt+orp"), "lia");
    let alone = PATHS.map(|path| over(Variant::alone(path, path), "reno"));
    [bonded].into_iter().chain(alone).collect()
}

/// Goodputs of one ride.
#[derive(Clone, Debug)]
struct Measured {
    /// Of the schedulers.
    mbit_per_s: [f64; 4],
    /// Of the better carrier alone.
    best: f64,
    /// Of the worse.
    worst: f64,
}

impl Measured {
    fn of(runs: &[f64]) -> Measured {
        Measured {
            mbit_per_s: [runs[0], runs[1], runs[2], runs[3]],
            best: runs[4].max(runs[5]),
            worst: runs[4].min(runs[5]),
        }
    }

    /// U_c of a scheduler.
    fn efficiency(&self, scheduler: usize) -> f64 {
        self.mbit_per_s[scheduler] / self.best
    }
}

/// Goodputs of all contestants on each ride.
fn goodputs(
    context: &Context<'_>,
    what: &str,
    rides: &[(Download, u64)],
    contestants: &[Variant],
) -> anyhow::Result<Vec<f64>> {
    let runs: Vec<(usize, usize)> =
        (0..rides.len()).flat_map(|r| (0..contestants.len()).map(move |c| (r, c))).collect();
    context.parallel(what, &runs, |(ride, contestant)| {
        let (download, seed) = &rides[*ride];
        let report = download.run(&contestants[*contestant], *seed)?;
        let goodput = report.goodput(Instant::ZERO + WARM_UP, Instant::ZERO + LENGTH);
        Ok(goodput.bits_per_s() as f64 / 1e6)
    })
}

fn measure(
    context: &Context<'_>,
    what: &str,
    rides: &[(Download, u64)],
) -> anyhow::Result<Vec<Measured>> {
    let goodputs = goodputs(context, what, rides, &contestants())?;
    Ok(goodputs.chunks(contestants().len()).map(Measured::of).collect())
}

/// Share of the rides on which Multipath TCP over LIA brought less than Reno on the better carrier.
fn as_studied(context: &Context<'_>, rides: &[(Download, u64)]) -> anyhow::Result<f64> {
    let rides = &rides[..rides.len().min(context.runs(STUDIED_RUNS))];
    let goodputs = goodputs(context, "as studied", rides, &studied())?;
    Ok(below_one(goodputs.chunks(3).map(|runs| runs[0] / runs[1].max(runs[2]))))
}

/// Share of the runs in which a value is below 1.
fn below_one(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().filter(|value| **value < 1.0).count() as f64 / values.len().max(1) as f64
}

/// How much is lacking where a value is below 1, on average over all.
fn lack(values: impl Iterator<Item = f64>) -> f64 {
    let lacking: Vec<f64> = values.map(|value| (1.0 - value).max(0.0)).collect();
    lacking.iter().sum::<f64>() / lacking.len().max(1) as f64
}

fn of_scheduler(measured: &[Measured], scheduler: usize) -> impl Iterator<Item = f64> {
    measured.iter().map(move |m| m.efficiency(scheduler))
}

fn shares(key: &str, class: &str, measured: &[Measured]) -> Table {
    let percent = |share: f64| share * 100.0;
    let mut rows = Vec::new();
    for (number, (name, _)) in SCHEDULERS.iter().enumerate() {
        let values: Vec<f64> = of_scheduler(measured, number).collect();
        let share = percent(below_one(values.iter().copied()));
        let lost = lack(values.iter().copied());
        let remark = format!(
            "mean U_c {:.2}; below 1 it lacks {:.1} % on average over all runs",
            mean(&values),
            percent(lost)
        );
        rows.push(Row::new(format!("{name}: runs with U_c < 1")).ours(share, "%").remark(remark));
    }
    Table::new(key, format!("{class}: {} runs", measured.len()), rows)
}

/// What is asked, over all runs.
fn verdicts(pooled: &[Measured], share: f64) -> Table {
    let below: Vec<f64> = (0..4).map(|s| below_one(of_scheduler(pooled, s)) * 100.0).collect();
    let mut rows = vec![
        Row::new("min-RTT: runs with U_c < 1")
            .paper_says("in many cases")
            .ours(below[0], "%")
            .holds(below[0] > 0.0, "more than none"),
        Row::new("OR&P: runs with U_c < 1").paper_says("still").ours(below[1], "%"),
    ];
    let text = format!(
        "less than {share} of min-RTT's ({:.1} %) and of OR&P's ({:.1} %)",
        below[0], below[1]
    );
    let met = below[2] < share * below[0] && below[2] < share * below[1];
    let row = Row::new("PAPD: runs with U_c < 1").ours(below[2], "%").holds(met, text);
    let lacks = |scheduler: usize| lack(of_scheduler(pooled, scheduler)) * 100.0;
    rows.push(row.remark(format!(
        "over all runs {:.1} % of the goodput is lacking (min-RTT {:.1} %, OR&P {:.1} %)",
        lacks(2),
        lacks(0),
        lacks(1)
    )));
    let row = Row::new("PAPD with its defaults: runs with U_c < 1");
    rows.push(row.ours(below[3], "%"));
    Table::new("below-one", format!("All {} runs", pooled.len()), rows)
}

fn rates(pooled: &[Measured]) -> Grid {
    let mut columns = vec![("what", "")];
    columns.extend(SCHEDULERS.iter().map(|(name, _)| (*name, "Mbit/s")));
    columns.extend([("better carrier", "Mbit/s"), ("worse carrier", "Mbit/s")]);
    let mut grid = Grid::new("goodput", "Mean goodput over all runs", &columns);
    let mean = |of: &dyn Fn(&Measured) -> f64| {
        pooled.iter().map(of).sum::<f64>() / pooled.len().max(1) as f64
    };
    let mut values: Vec<f64> = (0..4).map(|s| mean(&|m: &Measured| m.mbit_per_s[s])).collect();
    values.extend([mean(&|m: &Measured| m.best), mean(&|m: &Measured| m.worst)]);
    grid.push(&["all runs"], &values);
    grid
}

fn figure(class: &str, key: &str, measured: &[Measured]) -> marline_lab::figure::Figure {
    let title = format!("Aggregation efficiency, {class}");
    let mut plot = Plot::new(&title, "U_c = MPTCP / better carrier alone", "share of the runs");
    for (number, (name, _)) in SCHEDULERS.iter().enumerate() {
        plot = plot.steps(name, &cdf(&of_scheduler(measured, number).collect::<Vec<_>>()));
    }
    let caption = "Left of 1 bonding was worse than the better of the two carriers alone.";
    plot.mark_x(1.0, "better carrier").x_range(0.0, 2.0).figure(key, caption)
}

/// The recording from several places.
fn replays(traces: &Path) -> anyhow::Result<Vec<(Download, u64)>> {
    let window = Duration::from_millis(200);
    let mut recorded = Vec::new();
    for file in RECORDED {
        let place = traces.join(file);
        let bytes = std::fs::read(&place).with_context(|| place.display().to_string())?;
        let trace = ArrivalTrace::parse(file, &bytes)?;
        // IP and TCP headers with timestamps and DSS.
        recorded.push(trace.rate_steps(window, 72).map_err(anyhow::Error::msg)?);
    }
    let from = |number: usize| -> anyhow::Result<(Download, u64)> {
        let mut paths: Vec<(&'static str, DuplexConfig)> = Vec::new();
        for (name, steps) in PATHS.iter().zip(&recorded) {
            let mut both = link("up.rate=5M,delay=41.5ms,queue=300kB")?;
            let period = steps.period().unwrap_or(LENGTH);
            let start = period * number as u32 / OFFSETS as u32;
            both.down.rate = RateConfig::Steps(ride::rotated(steps, start)?);
            paths.push((*name, both));
        }
        Ok((Download { paths, length: LENGTH }, number as u64 + 1))
    };
    (0..OFFSETS).map(from).collect()
}
