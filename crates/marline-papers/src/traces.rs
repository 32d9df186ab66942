//! Key `traces`: every recorded pair of links with every scheduler: latency of echoes and of
//! bursts, goodput, the share of each path, distance from the clairvoyant bound, and whether a
//! single path would have been better.

mod cell;
mod pairs;
mod setup;

use marline_algos::PolicyKind;
use marline_lab::experiment::Variant;
use marline_lab::figure::{Figure, HeatMap, number};

use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::{Context, Paper};
use crate::table::{Grid, Reproduction, Table};
use cell::{Cell, Figure as Measure, Part};
use pairs::Pair;
use setup::{Setup, TEXT};

const TITLE: &str = "A cell is a scheduler on a pair";

/// The key.
pub(super) struct Traces;

impl Paper for Traces {
    fn key(&self) -> &'static str {
        "traces"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Setup>::parse(TEXT)?;
        let Some(directory) = context.traces else { return skipped() };
        let mut pairs = pairs::pairs(directory, &file.published)?;
        anyhow::ensure!(!pairs.is_empty(), "no pair of traces in {}", directory.display());
        pairs.truncate(context.runs(pairs.len()).min(pairs.len()));
        let margins = (file.tolerance("single_path")?, file.tolerance("single_path_ms")?);
        let measured = measure(context, &file.published, pairs)?;
        Ok(show(&measured, margins))
    }
}

/// Without traces there is nothing to do; it must not pass for done.
fn skipped() -> anyhow::Result<Reproduction> {
    let why = "SKIPPED: no recorded traces (--trace-dir DIR or MARLINE_TRACE_DIR)";
    let required = std::env::var_os("MARLINE_REQUIRE_ALL").is_some_and(|value| value == "1");
    anyhow::ensure!(!required, "{why}, and MARLINE_REQUIRE_ALL=1");
    eprintln!("traces: {why}");
    let row = Row::new("recorded traces").ours_says(why);
    let tables = vec![Table::new("traces", TITLE, vec![row])];
    Ok(Reproduction { tables, ..Reproduction::default() })
}

/// All cells: of each pair first those of its two paths alone, then of each scheduler.
struct Measured {
    pairs: Vec<Pair>,
    schedulers: Vec<String>,
    cells: Vec<Vec<Cell>>,
}

impl Measured {
    /// What each scheduler showed on a pair.
    fn of(&self, pair: usize) -> &[Cell] {
        &self.cells[pair][2..]
    }

    /// The better of the two paths alone.
    fn best_alone(&self, pair: usize, measure: Measure) -> f64 {
        let alone = &self.cells[pair][..2];
        measure.better(measure.of(&alone[0]), measure.of(&alone[1]))
    }

    /// The measures in which a scheduler is worse on a pair than the best single path.
    fn violations(
        &self,
        pair: usize,
        scheduler: usize,
        (share, least_ms): (f64, f64),
    ) -> Vec<Measure> {
        let cell = &self.of(pair)[scheduler];
        let worse = |measure: &Measure| {
            let best = self.best_alone(pair, *measure);
            measure.is_worse(measure.of(cell), best, share, least_ms)
        };
        Measure::ALL.into_iter().filter(worse).collect()
    }
}

fn measure(context: &Context<'_>, setup: &Setup, pairs: Vec<Pair>) -> anyhow::Result<Measured> {
    let registry = marline_lab::policies::registry();
    let all = registry.names(PolicyKind::Scheduler);
    let all = all.into_iter().map(|name| Variant::new(name).scheduler(name));
    let more = setup.more.iter().map(|more| Variant {
        congestion: more.congestion.clone(),
        ..Variant::new(&more.name).scheduler(&more.scheduler)
    });
    let mut variants: Vec<Variant> = all.chain(more).collect();
    // The shipped default first.
    variants.sort_by_key(|variant| (variant.name != "min-rtt", variant.name.clone()));
    let parts = context.parallel("bounds", &pairs, |pair| {
        let parts = pair.parts.iter().map(|links| Part::new(context, setup, pair, links));
        parts.collect::<anyhow::Result<Vec<Part>>>()
    })?;
    let mut runs = Vec::new();
    for (number, pair) in pairs.iter().enumerate() {
        let alone = pair.paths.iter().map(|path| Variant::alone(path, path));
        let variants = alone.chain(variants.iter().cloned());
        runs.extend(variants.map(|variant| (number, variant)));
    }
    let cells = context.parallel("cells", &runs, |(number, variant)| {
        cell::run(&pairs[*number], &parts[*number], variant, context.master)
    })?;
    let schedulers: Vec<String> = variants.into_iter().map(|variant| variant.name).collect();
    let cells = cells.chunks(schedulers.len() + 2).map(<[Cell]>::to_vec).collect();
    Ok(Measured { pairs, schedulers, cells })
}

fn show(measured: &Measured, margins: (f64, f64)) -> Reproduction {
    let grids = vec![
        cells_grid(measured, margins),
        schedulers_grid(measured, margins),
        violations_grid(measured, margins),
    ];
    Reproduction {
        tables: vec![sound(measured), never_worse(measured, margins)],
        grids,
        figures: figures(measured),
        notes: vec![format!(
            "Never worse than the best single path: in the median and the 99th percentile of echoes and \
             of bursts and in goodput, for each the better of TCP alone on either path (which a user \
             cannot know beforehand, and which may be a different one for each figure); by more than \
             {} % and {} ms it counts as worse.",
            number(100.0 * margins.0),
            number(margins.1)
        )],
    }
}

/// What must hold for the rest to mean something.
fn sound(measured: &Measured) -> Table {
    let all = || measured.cells.iter().flatten();
    let empty = all().filter(|cell| cell.echo.ours_ms.is_empty() || cell.burst.ours_ms.is_empty());
    let impossible: usize = all().map(|cell| cell.echo.impossible + cell.burst.impossible).sum();
    let rows = vec![
        Row::new("pairs").ours(measured.pairs.len() as f64, "").at_least(1.0),
        Row::new("schedulers").ours(measured.schedulers.len() as f64, "").at_least(1.0),
        Row::new("cells without messages").ours(empty.count() as f64, "").at_most(0.0),
        Row::new("messages faster than the bound").ours(impossible as f64, "").at_most(0.0),
    ];
    Table::new("traces", TITLE, rows)
}

/// On how many pairs a scheduler is never worse than the best single path.
fn never_worse(measured: &Measured, margins: (f64, f64)) -> Table {
    let pairs = measured.pairs.len();
    let row = |(number, name): (usize, &String)| {
        let never = |pair: &usize| measured.violations(*pair, number, margins).is_empty();
        let count = (0..pairs).filter(never).count();
        let ratio = |pair: usize| measured.of(pair)[number].echo.ratio(0.99);
        let ratios: Vec<f64> = (0..pairs).map(ratio).collect();
        let row = Row::new(name).ours_says(format!("{count} of {pairs}"));
        row.bound_ratio(marline_sim::median(&ratios))
    };
    let title = "Pairs on which it is never worse than the best single path; ratio to the bound: 99th \
                 percentile of echoes, median of the pairs";
    let rows = measured.schedulers.iter().enumerate().map(row).collect();
    Table::new("never-worse", title, rows)
}

/// Everything, a row for each cell.
fn cells_grid(measured: &Measured, margins: (f64, f64)) -> Grid {
    let columns = [
        ("pair", ""),
        ("scheduler", ""),
        ("never worse than the best path", ""),
        ("echo p50", "ms"),
        ("echo p99", "ms"),
        ("echo p99.9", "ms"),
        ("echo p99, ratio to the bound", ""),
        ("burst p50", "ms"),
        ("burst p99", "ms"),
        ("burst p99.9", "ms"),
        ("burst p50, ratio to the bound", ""),
        ("goodput", "Mbit/s"),
        ("first path's share of bytes", ""),
        ("bytes on links per byte of bursts", ""),
    ];
    let title = "Every pair and scheduler; TCP alone on either path first";
    let mut grid = Grid::new("cells", title, &columns);
    for (number, pair) in measured.pairs.iter().enumerate() {
        for (index, cell) in measured.cells[number].iter().enumerate() {
            let (name, judged) = match index.checked_sub(2) {
                None => (format!("TCP {}", pair.paths[index]), String::new()),
                Some(index) => {
                    let worse = measured.violations(number, index, margins);
                    let names: Vec<&str> = worse.iter().map(|measure| measure.name()).collect();
                    let judged = match names[..] {
                        [] => "yes".to_owned(),
                        _ => format!("no: {}", names.join(", ")),
                    };
                    (measured.schedulers[index].clone(), judged)
                }
            };
            let (echo, burst) = (&cell.echo, &cell.burst);
            let numbers = [
                echo.quantile(0.5),
                echo.quantile(0.99),
                echo.quantile(0.999),
                echo.ratio(0.99),
                burst.quantile(0.5),
                burst.quantile(0.99),
                burst.quantile(0.999),
                burst.ratio(0.5),
                cell.goodput(),
                cell.first_path_share(),
                cell.wire_ratio(),
            ];
            grid.push(&[&pair.name, &name, &judged], &numbers);
        }
    }
    grid
}

/// A row for each scheduler: medians over the pairs.
fn schedulers_grid(measured: &Measured, margins: (f64, f64)) -> Grid {
    let columns = [
        ("scheduler", ""),
        ("echo p50", "ms"),
        ("echo p99", "ms"),
        ("echo p99, ratio to the bound", ""),
        ("burst p50", "ms"),
        ("burst p50, ratio to the bound", ""),
        ("goodput over the best path's", ""),
        ("bytes on links per byte of bursts", ""),
        ("pairs with a violation", ""),
    ];
    let mut grid = Grid::new("schedulers", "Medians over the pairs", &columns);
    let pairs = 0..measured.pairs.len();
    for (number, name) in measured.schedulers.iter().enumerate() {
        let median = |of: &dyn Fn(usize, &Cell) -> f64| {
            let values: Vec<f64> =
                pairs.clone().map(|pair| of(pair, &measured.of(pair)[number])).collect();
            marline_sim::median(&values)
        };
        let worse = pairs.clone().filter(|p| !measured.violations(*p, number, margins).is_empty());
        let best = |pair| measured.best_alone(pair, Measure::Goodput);
        let numbers = [
            median(&|_, cell| cell.echo.quantile(0.5)),
            median(&|_, cell| cell.echo.quantile(0.99)),
            median(&|_, cell| cell.echo.ratio(0.99)),
            median(&|_, cell| cell.burst.quantile(0.5)),
            median(&|_, cell| cell.burst.ratio(0.5)),
            median(&|pair, cell| cell.goodput() / best(pair)),
            median(&|_, cell| cell.wire_ratio()),
            worse.count() as f64,
        ];
        grid.push(&[name], &numbers);
    }
    grid
}

/// Every violation, a row each.
fn violations_grid(measured: &Measured, margins: (f64, f64)) -> Grid {
    let columns = [
        ("scheduler", ""),
        ("pair", ""),
        ("figure", ""),
        ("value (ms; goodput Mbit/s)", ""),
        ("best single path", ""),
        ("ratio", ""),
    ];
    let mut grid = Grid::new("violations", "Worse than the best single path", &columns);
    for (index, scheduler) in measured.schedulers.iter().enumerate() {
        for (number, pair) in measured.pairs.iter().enumerate() {
            for measure in measured.violations(number, index, margins) {
                let value = measure.of(&measured.of(number)[index]);
                let best = measured.best_alone(number, measure);
                let words = [scheduler.as_str(), &pair.name, measure.name()];
                grid.push(&words, &[value, best, value / best]);
            }
        }
    }
    grid
}

fn figures(measured: &Measured) -> Vec<Figure> {
    let map = |title: &str, unit: &str| {
        let names: Vec<&str> = measured.schedulers.iter().map(String::as_str).collect();
        HeatMap::new(title, unit, &names)
    };
    let fill = |map: HeatMap, of: &dyn Fn(usize, &Cell) -> f64| {
        measured.pairs.iter().enumerate().fold(map, |map, (number, pair)| {
            let values: Vec<f64> =
                measured.of(number).iter().map(|cell| of(number, cell)).collect();
            map.row(&pair.name, &values)
        })
    };
    let echo = map("Echo, 99th percentile over the bound's", "times the bound").log();
    let echo = fill(echo.range(1.0, 30.0), &|_, cell| cell.echo.ratio(0.99));
    let burst = map("100 KB bursts, median over the bound's", "times the bound").log();
    let burst = fill(burst.range(1.0, 30.0), &|_, cell| cell.burst.ratio(0.5));
    let goodput = map("Goodput over the best single path's", "times the best path").range(0.5, 2.0);
    let best = |pair| measured.best_alone(pair, Measure::Goodput);
    let goodput = fill(goodput, &|pair, cell| cell.goodput() / best(pair));
    vec![
        echo.figure("echo-p99", "1 is what a clairvoyant sender reaches; darker is worse."),
        burst.figure(
            "burst-p50",
            "The bound of bursts is a fluid over both paths from empty queues: nobody reaches it. \
             Darker is worse.",
        ),
        goodput.figure("goodput", "Above 1 both paths together carry more; darker is better."),
    ]
}
