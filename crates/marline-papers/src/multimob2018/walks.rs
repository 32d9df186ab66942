//! Walks out of WiFi range: the longest delay of each.

use marline_lab::bound::Bound;
use marline_lab::experiment::START;
use marline_lab::figure::{Plot, cdf};
use marline_lab::wifi_mobility;
use marline_lab::workload::Workload;
use marline_sim::{median, quantile};

use super::loads::{ASSISTANT, ECHO};
use super::phone_scenario::{PhoneScenario, Talk};
use super::published::Published;
use super::systems::{self, System};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};

/// All runs of a system.
struct Runs {
    system: System,
    talks: Vec<Talk>,
}

impl Runs {
    /// The longest delay of each run, ms.
    fn worst_ms(&self) -> Vec<f64> {
        self.talks.iter().map(Talk::worst_ms).collect()
    }

    /// The median of the holes that leaving the WiFi made.
    fn hole_ms(&self) -> f64 {
        median(&self.talks.iter().filter_map(Talk::hole_ms).collect::<Vec<f64>>())
    }

    fn decile_ms(&self, decile: u32) -> f64 {
        quantile(&self.worst_ms(), f64::from(decile) / 10.0)
    }
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    for (key, title, workload) in [
        ("assistant", "2,500 B in pieces, 750 B back, every 333 ms", ASSISTANT),
        ("echo", "750 B, 750 B back, every 400 ms", ECHO),
    ] {
        let runs = campaign(context, title, &workload)?;
        let bounds = bounds(context, title, &workload)?;
        all.tables.push(verdicts(key, title, &runs, &bounds, file)?);
        all.grids.push(deciles(key, title, &runs, &bounds));
        all.grids.push(each_walk(key, title, &runs, &bounds, context.master));
        all.figures.push(figure(key, title, &runs));
    }
    Ok(())
}

fn seeds(context: &Context<'_>) -> Vec<u64> {
    (0..context.runs(wifi_mobility::count() as usize) as u64)
        .map(|run| context.master + run)
        .collect()
}

fn campaign(context: &Context<'_>, title: &str, workload: &Workload) -> anyhow::Result<Vec<Runs>> {
    let (systems, seeds) = (systems::all(), seeds(context));
    let items: Vec<(usize, u64)> =
        (0..systems.len()).flat_map(|s| seeds.iter().map(move |seed| (s, *seed))).collect();
    let talks = context.parallel(title, &items, |(system, seed)| {
        let scenario = PhoneScenario::walk(context.traces()?, *seed, true)?;
        scenario.talk(&systems[*system], workload, *seed)
    })?;
    let mut talks = talks.into_iter();
    Ok(systems
        .into_iter()
        .map(|system| Runs { system, talks: talks.by_ref().take(seeds.len()).collect() })
        .collect())
}

/// The least that the longest delay of each walk could be, ms.
fn bounds(context: &Context<'_>, title: &str, workload: &Workload) -> anyhow::Result<Vec<f64>> {
    context.parallel(&format!("{title}, bound"), &seeds(context), |seed| {
        let scenario = PhoneScenario::walk(context.traces()?, *seed, true)?;
        let bound = Bound::over(
            &scenario.named(),
            workload,
            *seed,
            START + scenario.lasts(workload, *seed),
        );
        let answer = workload.sizes(*seed).of(0);
        let due = workload.times_ns(*seed).into_iter();
        let least = due.map(|ns| bound.latency_ms(ns as f64 / 1e6, answer));
        Ok(least.fold(0.0, f64::max))
    })
}

/// The largest of a system's deciles over another's, and which that is.
fn worst_ratio(ours: &Runs, theirs: &Runs) -> (f64, u32) {
    let ratio = |decile| (ours.decile_ms(decile) / theirs.decile_ms(decile), decile);
    (1..=9).map(ratio).fold((0.0, 0), |worst, next| if next.0 > worst.0 { next } else { worst })
}

fn verdicts(
    key: &str,
    title: &str,
    runs: &[Runs],
    bounds: &[f64],
    file: &PaperFile<Published>,
) -> anyhow::Result<Table> {
    let of = |name: &str| runs.iter().find(|runs| runs.system.name == name);
    let mut rows = Vec::new();
    for ours in runs.iter().filter(|runs| runs.system.multimob) {
        for other in [systems::vanilla(), systems::vanilla_backup()] {
            let Some(other) = of(other.name) else { continue };
            let (ratio, decile) = worst_ratio(ours, other);
            let what = format!("{}: worst decile against {}", ours.system.name, other.system.name);
            let row = Row::new(what).paper_says("not worse").ours(ratio, "").remark(format!(
                "the {decile}0 % decile, {:.0} and {:.0} ms",
                ours.decile_ms(decile),
                other.decile_ms(decile)
            ));
            rows.push(match ours.system.judged {
                true => row.at_most(1.0 + file.tolerance("decile")?),
                false => row,
            });
        }
        let Some(kernel) = of(systems::kernel_backup().name) else { continue };
        let most = file.tolerance("hole")?;
        let judge = |row: Row| if ours.system.judged { row.at_most(most) } else { row };
        let (hole, theirs) = (ours.hole_ms(), kernel.hole_ms());
        let what = format!("{}: median hole over that of {}", ours.system.name, kernel.system.name);
        let row = Row::new(what).ours(hole / theirs, "");
        rows.push(judge(row.remark(format!(
            "{hole:.0} and {theirs:.0} ms; of requests within 5 s of WiFi's silence"
        ))));
        let (whole, theirs) = (ours.decile_ms(5), kernel.decile_ms(5));
        let what = format!("{}: median longest delay, likewise", ours.system.name);
        let row = Row::new(what).ours(whole / theirs, "").bound_ratio(whole / median(bounds));
        rows.push(row.remark(format!(
            "{whole:.0} and {theirs:.0} ms; LTE's own pauses included, that nobody can help: bound \
             {:.0} ms",
            median(bounds)
        )));
    }
    let title =
        format!("Walks out of the WiFi's range, {title}: longest delay of {} runs", bounds.len());
    Ok(Table::new(&format!("walks-{key}"), title, rows))
}

fn deciles(key: &str, title: &str, runs: &[Runs], bounds: &[f64]) -> Grid {
    let mut columns = vec![("system", "")];
    const SHARES: [&str; 10] =
        ["10 %", "20 %", "30 %", "40 %", "50 %", "60 %", "70 %", "80 %", "90 %", "100 %"];
    columns.extend(SHARES.map(|share| (share, "ms")));
    columns.extend([
        ("50 % / bound", ""),
        ("median hole at WiFi's silence", "ms"),
        ("median gap between answers", "ms"),
        ("missed", "per run"),
        ("unanswered", "per run"),
        ("cellular subflows", "per run"),
        ("WiFi", "J"),
        ("LTE", "J"),
    ]);
    let title = format!("Deciles of the longest delay, {title}");
    let mut grid = Grid::new(&format!("deciles-{key}"), title, &columns);
    for runs in runs {
        let mean = |of: &dyn Fn(&Talk) -> f64| {
            runs.talks.iter().map(of).sum::<f64>() / runs.talks.len().max(1) as f64
        };
        let gaps: Vec<f64> = runs.talks.iter().map(|talk| talk.gap_ms).collect();
        let mut numbers: Vec<f64> = (1..=10).map(|decile| runs.decile_ms(decile)).collect();
        numbers.extend([
            runs.decile_ms(5) / median(bounds),
            runs.hole_ms(),
            median(&gaps),
            mean(&|talk| talk.missed as f64),
            mean(&|talk| talk.unanswered as f64),
            mean(&|talk| talk.opened as f64),
            mean(&|talk| talk.joules[0].traffic_j()),
            mean(&|talk| talk.joules[1].traffic_j()),
        ]);
        grid.push(&[runs.system.name], &numbers);
    }
    grid
}

fn each_walk(key: &str, title: &str, runs: &[Runs], bounds: &[f64], seed: u64) -> Grid {
    let mut columns = vec![("walk", "")];
    columns.extend(runs.iter().map(|runs| (runs.system.name, "ms")));
    columns.push(("bound", "ms"));
    let title = format!("Longest delay of each walk, {title}");
    let mut grid = Grid::new(&format!("each-{key}"), title, &columns);
    for (walk, bound) in bounds.iter().enumerate() {
        let mut numbers = vec![(seed + walk as u64) as f64];
        numbers.extend(runs.iter().map(|runs| runs.talks[walk].worst_ms()));
        numbers.push(*bound);
        grid.push(&[], &numbers);
    }
    grid
}

fn figure(key: &str, title: &str, runs: &[Runs]) -> marline_lab::figure::Figure {
    let heading = format!("Longest delay of a walk, {title}");
    let mut plot = Plot::new(&heading, "longest delay (ms)", "share of the walks").log_x();
    for runs in runs {
        plot = plot.steps(runs.system.name, &cdf(&runs.worst_ms()));
    }
    let caption = "Each system meets the same 60 walks. A request that was never answered counts \
                   with the time until the run ended.";
    plot.figure(&format!("cdf-{key}"), caption)
}
