//! WLAN failure at 80 s: completion time of the affected burst, per trace; the position of the
//! loss; the overhead.

use marline_lab::experiment::Variant;
use marline_lab::figure::{Bars, Plot, cdf, mean_interval};

use super::contestants::{RECOVERY_OF_THEN, multipath, of_then, standard};
use super::published::Published;
use super::run::{Hit, reconnect, run};
use super::traffic::{App, Trace};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const TRACES: usize = 30;
/// Repetitions of each trace of the two that are judged, and of those that are only shown.
const REPETITIONS: usize = 30;
const FEWER: usize = 3;

/// Runs of all traces of an application, trace by trace.
type Campaign = Vec<Vec<Hit>>;

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut positions = Vec::new();
    let mut overhead = Vec::new();
    for app in App::ALL {
        let repetitions = context.runs(REPETITIONS);
        let standard = campaign(context, app, &standard(), repetitions)?;
        let multipath = campaign(context, app, &multipath(), repetitions)?;
        let (standard, multipath) = both_hit(standard, multipath);
        rows.extend(means(app, &standard, &multipath));
        if app == App::Docs {
            rows.extend(docs(file, &standard, &multipath)?);
        }
        overhead.push(additional(app, &standard, &multipath));
        positions.push((app, flat(&standard).map(|hit| hit.position).collect::<Vec<f64>>()));
        all.figures.push(bars(app, &standard, &multipath));
    }
    all.figures.push(position_figure(&positions));
    rows.extend(overhead);
    rows.extend(position_rows(file, &positions));
    rows.extend(handover(context, file)?);
    let title = "WLAN dies: the burst that is hit (means with 95 % intervals)";
    all.tables.push(Table::new("failure", title, rows));
    all.grids.push(variants(context)?);
    all.grids.push(sensitivity(context)?);
    Ok(())
}

/// All of them, but for a mere look (less than a tenth of the runs).
fn traces(context: &Context<'_>) -> usize {
    context.runs(10 * TRACES).min(TRACES)
}

fn campaign(
    context: &Context<'_>,
    app: App,
    variant: &Variant,
    repetitions: usize,
) -> anyhow::Result<Campaign> {
    let numbers = |trace| (0..repetitions).map(move |repetition| (trace, repetition));
    let items: Vec<(usize, usize)> = (0..traces(context)).flat_map(numbers).collect();
    let what = format!("{}, {}", app.name(), variant.name);
    let hits = context.parallel(&what, &items, |(trace, repetition)| {
        let trace = Trace::new(app, *trace, context.master);
        run(&trace, &trace.repetition(*repetition, context.master), variant)
    })?;
    Ok(hits.chunks(repetitions).map(<[Hit]>::to_vec).collect())
}

fn flat(campaign: &Campaign) -> impl Iterator<Item = &Hit> {
    campaign.iter().flatten()
}

/// Leaves out runs in which no data was lost. Until WLAN dies the two variants do the same.
fn both_hit(mut one: Campaign, mut other: Campaign) -> (Campaign, Campaign) {
    for (one, other) in one.iter_mut().zip(&mut other) {
        let hit: Vec<bool> = one.iter().zip(&*other).map(|(a, b)| a.lost && b.lost).collect();
        for runs in [one, other] {
            let mut keep = hit.iter();
            runs.retain(|_| keep.next().copied().unwrap_or(false));
        }
    }
    (one, other)
}

fn completions(campaign: &Campaign) -> Vec<f64> {
    flat(campaign).map(|hit| hit.completion_ms).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    mean_interval(&values).0
}

/// The mean of each trace.
fn trace_means(campaign: &Campaign) -> Vec<f64> {
    campaign.iter().map(|runs| mean(runs.iter().map(|hit| hit.completion_ms))).collect()
}

/// Means over their bounds.
fn bound_ratio(campaign: &Campaign) -> f64 {
    mean(flat(campaign).map(|hit| hit.completion_ms)) / mean(flat(campaign).map(|hit| hit.bound_ms))
}

fn means(app: App, standard: &Campaign, multipath: &Campaign) -> Vec<Row> {
    let name = app.name();
    let (slow, slow_between) = mean_interval(&completions(standard));
    let (fast, fast_between) = mean_interval(&completions(multipath));
    let mut savings = Vec::new();
    for (standard, multipath) in trace_means(standard).into_iter().zip(trace_means(multipath)) {
        savings.push(standard - multipath);
    }
    let (saving, between) = mean_interval(&savings);
    let by_trace = |campaign| mean_interval(&trace_means(campaign)).1;
    let (slow_traces, fast_traces) = (by_trace(standard), by_trace(multipath));
    let standard_row = Row::new(format!("{name}, TLP-STD, completion"))
        .ours_between(slow, slow_between, "ms")
        .bound_ratio(bound_ratio(standard));
    let multipath_row = Row::new(format!("{name}, TLP-MP, completion"))
        .paper_says("improved")
        .ours_between(fast, fast_between, "ms")
        .bound_ratio(bound_ratio(multipath))
        .holds(fast_between.1 < slow_between.0, "interval below that of TLP-STD")
        .remark(format!(
            "with traces as the units: {:.0}-{:.0} ms against {:.0}-{:.0} ms",
            fast_traces.0, fast_traces.1, slow_traces.0, slow_traces.1
        ));
    let saving_row = Row::new(format!("{name}, saved per trace"))
        .ours_between(saving, between, "ms")
        .holds(between.0 > 0.0, "interval above 0");
    vec![standard_row, multipath_row, saving_row]
}

fn docs(
    file: &PaperFile<Published>,
    standard: &Campaign,
    multipath: &Campaign,
) -> anyhow::Result<Vec<Row>> {
    let pairs: Vec<(f64, f64)> =
        trace_means(standard).into_iter().zip(trace_means(multipath)).collect();
    let faster = pairs.iter().filter(|(slow, fast)| fast < slow).count();
    let least = pairs.iter().map(|(slow, fast)| slow - fast).fold(f64::INFINITY, f64::min);
    let most = pairs.iter().map(|(slow, fast)| 1.0 - fast / slow).fold(0.0, f64::max);
    let published = &file.published;
    Ok(vec![
        Row::new("Docs, traces on which TLP-MP is faster")
            .paper_says("all 30")
            .ours(faster as f64, "")
            .at_least(pairs.len() as f64),
        Row::new("Docs, least saving of a trace")
            .paper(published.docs_least_saving_ms, "ms")
            .ours(least, "ms")
            .at_least(published.docs_least_saving_ms),
        Row::new("Docs, largest share saved")
            .paper(published.docs_largest_share, "")
            .ours(most, "")
            .within(file.tolerance("share")?),
    ])
}

/// What TLP-MP put on the air beyond TLP-STD.
fn additional(app: App, standard: &Campaign, multipath: &Campaign) -> Row {
    let lte = |campaign| mean(flat(campaign).map(|hit| hit.lte_bytes as f64));
    let twice = |campaign| mean(flat(campaign).map(|hit| hit.duplicate_bytes as f64));
    let (of_multipath, of_standard) = (twice(multipath), twice(standard));
    let bytes = mean(flat(standard).map(|hit| hit.bytes as f64));
    Row::new(format!("{}, bytes that arrive twice, TLP-MP less TLP-STD", app.name()))
        .paper_says("no additional overhead")
        .ours(of_multipath - of_standard, "B")
        .at_most(0.0)
        .remark(format!(
            "a run: {of_multipath:.0} and {of_standard:.0} B; of {bytes:.0} B of a burst 4G carries {:.0} B for \
             TLP-STD and {:.0} B for TLP-MP",
            lte(standard),
            lte(multipath)
        ))
}

fn bars(app: App, standard: &Campaign, multipath: &Campaign) -> marline_lab::figure::Figure {
    let title = format!("{}: completion of the burst that is hit, per trace", app.name());
    let mut bars = Bars::new(&title, "time (ms)", &["TLP-STD", "TLP-MP"]);
    let bar = |runs: &[Hit]| {
        let times: Vec<f64> = runs.iter().map(|hit| hit.completion_ms).collect();
        let (mean, interval) = mean_interval(&times);
        (mean, Some(interval).filter(|interval| interval.0.is_finite()))
    };
    for (number, (standard, multipath)) in (1..).zip(standard.iter().zip(multipath)) {
        bars = bars.group(&number.to_string(), &[bar(standard), bar(multipath)]);
    }
    let figure = match app {
        App::Docs => 4,
        App::Maps => 6,
        App::Netflix => 7,
    };
    let caption = format!(
        "As figure {figure} of the paper: one group for each of 30 traces, 95 % intervals over its repetitions."
    );
    bars.figure(&app.name().to_lowercase(), &caption)
}

fn position_figure(positions: &[(App, Vec<f64>)]) -> marline_lab::figure::Figure {
    let mut plot = Plot::new(
        "Where in the burst the first loss is",
        "position (% of the burst)",
        "share of the runs",
    );
    for (app, positions) in positions {
        let percent: Vec<f64> = positions.iter().map(|position| position * 100.0).collect();
        plot = plot.steps(app.name(), &cdf(&percent));
    }
    let caption = "As figures 2 and 3 of the paper. A loss between two bursts counts as one at the end of the first. \
                   Netflix and a third of Maps are placed so (see the assumptions).";
    plot.x_range(0.0, 100.0).figure("loss-position", caption)
}

fn position_rows(file: &PaperFile<Published>, positions: &[(App, Vec<f64>)]) -> Vec<Row> {
    let share = |positions: &[f64], fits: &dyn Fn(f64) -> bool| {
        positions.iter().filter(|position| fits(**position)).count() as f64
            / positions.len().max(1) as f64
    };
    let row = |(app, positions): &(App, Vec<f64>)| {
        let name = app.name();
        match app {
            App::Docs => Row::new(format!("{name}, losses that are a tail of one packet"))
                .paper_says("always")
                .ours(share(positions, &|_| true), ""),
            App::Maps => Row::new(format!("{name}, losses between bursts or in the last tenth"))
                .paper_says("most")
                .ours(share(positions, &|position| position >= 0.9), "")
                .at_least(0.5)
                .remark("a third of the traces is placed within a burst: an assumption"),
            App::Netflix => Row::new(format!("{name}, losses in the first tenth"))
                .paper_says("all, as observed")
                .ours(share(positions, &|p| p <= file.published.netflix_position), "")
                .at_least(0.9)
                .remark("placed so: an assumption, not a finding"),
        }
    };
    positions.iter().map(row).collect()
}

fn handover(context: &Context<'_>, file: &PaperFile<Published>) -> anyhow::Result<Vec<Row>> {
    let variant = Variant { plain: true, ..standard() };
    let mut rows = Vec::new();
    for app in App::ALL {
        let numbers: Vec<usize> = (0..traces(context)).collect();
        let what = format!("{}, one path at a time", app.name());
        let times = context.parallel(&what, &numbers, |number| {
            let trace = Trace::new(app, *number, context.master);
            reconnect(&trace, &trace.repetition(0, context.master), &variant)
        })?;
        let (mean, interval) = mean_interval(&times);
        rows.push(
            Row::new(format!("{}, one path, reconnects after 3 s", app.name()))
                .paper(file.published.handover_ms, "ms")
                .ours_between(mean, interval, "ms")
                .remark(
                    "the paper's number is the hand-over; ours the burst, which may begin later",
                ),
        );
    }
    Ok(rows)
}

/// What else could be done, and what Marline does.
fn variants(context: &Context<'_>) -> anyhow::Result<Grid> {
    let no_allowance = RECOVERY_OF_THEN.replace("linux-3.10", "no-allowance");
    let no_probes = RECOVERY_OF_THEN.replace("linux-3.10", "off");
    let list = [
        Variant { name: "no probes".to_owned(), ..standard() }.recovery(&no_probes),
        standard(),
        of_then("TLP-MP, waits for the timer", "tlp-mp,after=rto"),
        multipath(),
        Variant { name: "TLP-STD, no allowance".to_owned(), ..standard() }.recovery(&no_allowance),
        Variant { name: "TLP-MP, no allowance".to_owned(), ..multipath() }.recovery(&no_allowance),
        Variant { name: "TLP-MP, RACK, Linux today".to_owned(), ..multipath() }
            .recovery("rack-tlp,pto=linux"),
        Variant { name: "TLP-STD, LIA".to_owned(), ..standard() }.congestion("lia+keep-window"),
        Variant { name: "TLP-MP, LIA".to_owned(), ..multipath() }.congestion("lia+keep-window"),
        Variant::new("Marline's default"),
        Variant::new("Marline's default, windows kept").congestion("cubic+keep-window"),
    ];
    let title = "WLAN dies: other stacks and Marline's own";
    grid(context, "variants", title, &list)
}

fn grid(context: &Context<'_>, name: &str, title: &str, list: &[Variant]) -> anyhow::Result<Grid> {
    let columns = [
        ("application", ""),
        ("stack", ""),
        ("mean", "ms"),
        ("worst", "ms"),
        ("ratio to bound", ""),
    ];
    let mut grid = Grid::new(name, title, &columns);
    for app in App::ALL {
        for variant in list {
            let runs = campaign(context, app, variant, context.runs(FEWER))?;
            let hit: Campaign = runs.into_iter().map(|runs| only_hit(&runs)).collect();
            let times = completions(&hit);
            let (mean, interval) = mean_interval(&times);
            let worst = times.iter().copied().fold(0.0, f64::max);
            grid.rows.push(vec![
                Value::Text(app.name().to_owned()),
                Value::Text(variant.name.clone()),
                Value::between(mean, interval, ""),
                Value::new(worst, ""),
                Value::new(bound_ratio(&hit), ""),
            ]);
        }
    }
    Ok(grid)
}

fn only_hit(runs: &[Hit]) -> Vec<Hit> {
    runs.iter().filter(|hit| hit.lost).copied().collect()
}

/// Windows that start anew after each pause, as Linux has it unless told otherwise.
fn sensitivity(context: &Context<'_>) -> anyhow::Result<Grid> {
    let list = [
        Variant { name: "TLP-STD, restart after idle".to_owned(), ..standard() }
            .congestion("cubic"),
        Variant { name: "TLP-MP, restart after idle".to_owned(), ..multipath() }
            .congestion("cubic"),
    ];
    let title = "WLAN dies: without the assumption that windows are kept over idle times";
    grid(context, "sensitivity", title, &list)
}
