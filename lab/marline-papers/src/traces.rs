//! Key `traces`: every recorded pair of links with every scheduler. The measures are the latency of echoes and of
//! bursts, goodput, the share of each path, the distance from the clairvoyant bound, and a comparison with the
//! best single path.
//!
//! A root draws the position in the recordings at which each pair starts. The shipped default is judged against the
//! two paths alone. Every other scheduler is shown only, with fewer roots.

mod cell;
mod halves;

use marline_algos::PolicyKind;
use marline_lab::experiment::Variant;
use marline_lab::figure::{Figure, HeatMap, number};

use crate::estimate::{RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::{Context, Paper};
use crate::recorded;
use crate::recorded::figures::{Figure as Measure, Margins};
use crate::recorded::pairs::{self, Pair};
use crate::recorded::setup::{Setup, TEXT};
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use cell::{CaseExperiments, Cell};

const TITLE: &str =
    "The shipped default compared with the better of the two paths alone, on every pair";
/// The default scheduler.
const DEFAULT: &str = "auto";
const JUDGED: Part = Part::new("default", 20, 80);
const SHOWN: Part = Part::fixed("schedulers", 3);

/// Evaluation of the default on recorded links.
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
        let Some(directory) = context.traces else { return skipped_reproduction() };
        let mut pairs = pairs::pairs(directory, &file.published)?;
        anyhow::ensure!(!pairs.is_empty(), "no pair of traces in {}", directory.display());
        pairs.truncate(context.count(pairs.len()));
        let margins = Margins::from_file(&file)?;
        let never = file.tolerance("never_worse")?;
        let judged = |pair: &Pair, root: &Root| {
            vec![default_variant(), halves::variant_with_one_limited(pair, root)]
        };
        let (samples, rows) = context.judge_part(
            JUDGED,
            |root| measure(context, &file.published, &pairs, &judged, root),
            |samples| Ok(never_worse_rows(samples, margins, never)),
        )?;
        let variants = schedulers(&file.published);
        let all = |_: &Pair, _: &Root| variants.clone();
        let shown =
            context.sample(SHOWN, |root| measure(context, &file.published, &pairs, &all, root))?;
        let halves = halves::tables(&file, &pairs, &samples, margins)?;
        let names = variants.iter().map(|variant| variant.name.clone()).collect();
        let roots = shown.all().to_vec();
        let mut result =
            reproduction(rows, &MeasuredResults { pairs, schedulers: names, roots, margins });
        result.tables.extend(halves);
        Ok(result)
    }
}

/// Result without traces.
fn skipped_reproduction() -> anyhow::Result<Reproduction> {
    let tables = vec![Table::new("traces", TITLE, vec![recorded::skipped_row("traces")?])];
    Ok(Reproduction { tables, ..Reproduction::default() })
}

/// Marline as shipped. A test checks that the name is that of the default.
fn default_variant() -> Variant {
    Variant::new(DEFAULT)
}

/// Every scheduler of the registry, and several with the wrappers and congestion controls of their studies. The
/// shipped default is first.
fn schedulers(setup: &Setup) -> Vec<Variant> {
    let registry = marline_lab::policies::registry();
    let all = registry.names(PolicyKind::Scheduler);
    let all = all.into_iter().map(|name| Variant::new(name).scheduler(name));
    let more = setup.more.iter().map(|more| Variant {
        congestion: more.congestion.clone(),
        ..Variant::new(&more.name).scheduler(&more.scheduler)
    });
    let mut variants: Vec<Variant> = all.chain(more).collect();
    variants.sort_by_key(|variant| (variant.name != DEFAULT, variant.name.clone()));
    variants
}

/// Results of one root by pair: TCP alone on each of the two paths, then each scheduler.
type Cells = Vec<Vec<Cell>>;

fn measure(
    context: &Context<'_>,
    setup: &Setup,
    pairs: &[Pair],
    variants: &dyn Fn(&Pair, &Root) -> Vec<Variant>,
    root: &Root,
) -> anyhow::Result<Cells> {
    let of_pair = |pair: &Pair| {
        let place = CaseExperiments::new(context, setup, pair, root)?;
        let alone = pair.paths.iter().map(|path| Variant::single_path(path, path));
        let all = alone.chain(variants(pair, root));
        let cells = all.map(|variant| place.run(pair, &variant, root.seed));
        cells.collect::<anyhow::Result<Vec<Cell>>>()
    };
    pairs.iter().map(of_pair).collect()
}

/// True if a scheduler is worse than the better of the two paths alone.
fn is_worse(cells: &[Cell], scheduler: usize, measure: Measure, margins: Margins) -> bool {
    let best = measure.better_of(cells[0].figure(measure), cells[1].figure(measure));
    measure.is_worse(cells[2 + scheduler].figure(measure), best, margins)
}

/// Shares of the pairs and positions in which the default is not worse, for each measure and for all of them.
fn never_worse_rows(samples: &Samples<Cells>, margins: Margins, never: f64) -> Vec<Row> {
    let share = |measures: &[Measure]| {
        samples.share(|cells| {
            let fine = |cells: &&Vec<Cell>| {
                !measures.iter().any(|measure| is_worse(cells, 0, *measure, margins))
            };
            (cells.iter().filter(fine).count() as u64, cells.len() as u64)
        })
    };
    let row = |what: String, measures: &[Measure]| {
        let text = format!("at least {} %", number(100.0 * never));
        let share = share(measures).percent();
        let row = Row::new(what).paper_claim("never worse, which is our own guarantee");
        row.estimate(&share, "%").require_range(RequiredRange::at_least(100.0 * never), text)
    };
    let each = Measure::ALL.map(|measure| {
        row(
            format!("{DEFAULT}: {} is not worse than on the best path alone", measure.name()),
            &[measure],
        )
    });
    let all = row(format!("{DEFAULT}: no metric is worse"), &Measure::ALL);
    each.into_iter().chain([all]).collect()
}

/// Results of every scheduler on every pair, over several roots.
struct MeasuredResults {
    pairs: Vec<Pair>,
    schedulers: Vec<String>,
    roots: Vec<Cells>,
    margins: Margins,
}

impl MeasuredResults {
    /// Cells of one index on a pair (TCP alone first), one per root.
    fn cells(&self, pair: usize, index: usize) -> impl Iterator<Item = &Cell> {
        self.roots.iter().map(move |cells| &cells[pair][index])
    }

    /// Mean over the roots.
    fn mean(&self, pair: usize, index: usize, of: impl Fn(&Cell) -> f64) -> f64 {
        self.cells(pair, index).map(of).sum::<f64>() / self.roots.len() as f64
    }

    /// Mean over the roots of the ratio of a scheduler's goodput to that of the better path.
    fn goodput_gain(&self, pair: usize, scheduler: usize) -> f64 {
        let of = |cells: &Cells| {
            let cells = &cells[pair];
            cells[2 + scheduler].goodput / cells[0].goodput.max(cells[1].goodput)
        };
        self.roots.iter().map(of).sum::<f64>() / self.roots.len() as f64
    }

    /// Number of roots in which a scheduler is worse on a pair than the best single path.
    fn count_worse(&self, pair: usize, scheduler: usize, measure: Measure) -> usize {
        let worse = |cells: &&Cells| is_worse(&cells[pair], scheduler, measure, self.margins);
        self.roots.iter().filter(worse).count()
    }

    /// Number of roots in which it is not worse in any measure.
    fn count_never_worse(&self, pair: usize, scheduler: usize) -> usize {
        let fine = |cells: &&Cells| {
            !Measure::ALL.iter().any(|m| is_worse(&cells[pair], scheduler, *m, self.margins))
        };
        self.roots.iter().filter(fine).count()
    }
}

fn reproduction(rows: Vec<Row>, measured: &MeasuredResults) -> Reproduction {
    let grids = vec![schedulers_grid(measured), cells_grid(measured), violations_grid(measured)];
    Reproduction {
        tables: vec![Table::new("never-worse", TITLE, rows)],
        grids,
        figures: figures(measured),
        notes: vec![format!(
            "Never worse than the best single path in five metrics: median and 99th percentile of echoes and of \
             bursts, and goodput. For each metric, the best path is the better of TCP alone on either path, which a \
             user cannot know beforehand. A metric is worse if it differs by more than {} % and {} ms.",
            number(100.0 * measured.margins.share),
            number(measured.margins.ms)
        )],
    }
}

/// Grid of all results, with a row for each cell.
fn cells_grid(measured: &MeasuredResults) -> Grid {
    let columns = [
        ("pair", ""),
        ("scheduler", ""),
        ("positions at which it is never worse than the best path", ""),
        ("echo p50", "ms"),
        ("echo p99", "ms"),
        ("echo p99.9", "ms"),
        ("echo p99, ratio to bound", ""),
        ("burst p50", "ms"),
        ("burst p99", "ms"),
        ("burst p99.9", "ms"),
        ("burst p50, ratio to bound", ""),
        ("goodput", "Mbit/s"),
        ("first path's share of bytes", ""),
        ("bytes on links per burst byte", ""),
    ];
    let title = format!(
        "Every pair and scheduler, TCP alone on either path first: means over {} positions",
        measured.roots.len()
    );
    let mut grid = Grid::new("cells", title, &columns);
    for (pair, of) in measured.pairs.iter().enumerate() {
        for index in 0..measured.schedulers.len() + 2 {
            let (name, judged) = match index.checked_sub(2) {
                None => (format!("TCP {}", of.paths[index]), String::new()),
                Some(scheduler) => {
                    let fine = measured.count_never_worse(pair, scheduler);
                    let judged = format!("{fine} of {}", measured.roots.len());
                    (measured.schedulers[scheduler].clone(), judged)
                }
            };
            let mean = |of: &dyn Fn(&Cell) -> f64| measured.mean(pair, index, of);
            let numbers = [
                mean(&|cell| cell.echo.all_ms()[0]),
                mean(&|cell| cell.echo.all_ms()[1]),
                mean(&|cell| cell.echo.all_ms()[2]),
                mean(&|cell| cell.echo.p99_ratio()),
                mean(&|cell| cell.burst.all_ms()[0]),
                mean(&|cell| cell.burst.all_ms()[1]),
                mean(&|cell| cell.burst.all_ms()[2]),
                mean(&|cell| cell.burst.p50_ratio()),
                mean(&|cell| cell.goodput),
                mean(&|cell| cell.first_path_share),
                mean(&|cell| cell.wire_ratio),
            ];
            grid.push(&[&of.name, &name, &judged], &numbers);
        }
    }
    grid
}

/// A row for each scheduler: medians over the pairs.
fn schedulers_grid(measured: &MeasuredResults) -> Grid {
    let columns = [
        ("scheduler", ""),
        ("never worse than the best path (share of pairs and positions)", "%"),
        ("echo p50", "ms"),
        ("echo p99", "ms"),
        ("echo p99, ratio to bound", ""),
        ("burst p50", "ms"),
        ("burst p50, ratio to bound", ""),
        ("goodput, ratio to the best path", ""),
        ("bytes on links per burst byte", ""),
    ];
    let pairs = measured.pairs.len();
    let title = format!(
        "Every scheduler, not judged: medians over {pairs} pairs of the means over {} positions",
        measured.roots.len()
    );
    let mut grid = Grid::new("schedulers", title, &columns);
    for (number, name) in measured.schedulers.iter().enumerate() {
        let median = |of: &dyn Fn(&Cell) -> f64| {
            let values: Vec<f64> =
                (0..pairs).map(|pair| measured.mean(pair, 2 + number, of)).collect();
            marline_sim::median(&values)
        };
        let fine: usize = (0..pairs).map(|p| measured.count_never_worse(p, number)).sum();
        let gains: Vec<f64> = (0..pairs).map(|pair| measured.goodput_gain(pair, number)).collect();
        let numbers = [
            100.0 * fine as f64 / (pairs * measured.roots.len()) as f64,
            median(&|cell| cell.echo.all_ms()[0]),
            median(&|cell| cell.echo.all_ms()[1]),
            median(&|cell| cell.echo.p99_ratio()),
            median(&|cell| cell.burst.all_ms()[0]),
            median(&|cell| cell.burst.p50_ratio()),
            marline_sim::median(&gains),
            median(&|cell| cell.wire_ratio),
        ];
        grid.push(&[name], &numbers);
    }
    grid
}

/// Every pair on which a scheduler is worse at some position, with a row for each measure.
fn violations_grid(measured: &MeasuredResults) -> Grid {
    let columns = [
        ("scheduler", ""),
        ("pair", ""),
        ("figure", ""),
        ("places", ""),
        ("value (ms; goodput Mbit/s)", ""),
        ("first path alone", ""),
        ("second path alone", ""),
    ];
    let title =
        "Worse than the best single path: number of positions, and means over all positions";
    let mut grid = Grid::new("violations", title, &columns);
    for (index, scheduler) in measured.schedulers.iter().enumerate() {
        for (number, pair) in measured.pairs.iter().enumerate() {
            for measure in Measure::ALL {
                let places = measured.count_worse(number, index, measure);
                if places > 0 {
                    let mean = |of: usize| measured.mean(number, of, |cell| cell.figure(measure));
                    let words = [scheduler.as_str(), &pair.name, measure.name()];
                    grid.push(&words, &[places as f64, mean(2 + index), mean(0), mean(1)]);
                }
            }
        }
    }
    grid
}

fn figures(measured: &MeasuredResults) -> Vec<Figure> {
    let map = |title: &str, unit: &str| {
        let names: Vec<&str> = measured.schedulers.iter().map(String::as_str).collect();
        HeatMap::new(title, unit, &names)
    };
    let fill = |map: HeatMap, of: &dyn Fn(usize, usize) -> f64| {
        measured.pairs.iter().enumerate().fold(map, |map, (number, pair)| {
            let schedulers = 0..measured.schedulers.len();
            let values: Vec<f64> = schedulers.map(|scheduler| of(number, scheduler)).collect();
            map.row(&pair.name, &values)
        })
    };
    let mean = |of: fn(&Cell) -> f64| {
        move |pair: usize, scheduler: usize| measured.mean(pair, 2 + scheduler, of)
    };
    let echo = map("Echo, 99th percentile, ratio to bound", "times the bound").log();
    let echo = fill(echo.range(1.0, 30.0), &mean(|cell| cell.echo.p99_ratio()));
    let burst = map("100 KB bursts, median, ratio to bound", "times the bound").log();
    let burst = fill(burst.range(1.0, 30.0), &mean(|cell| cell.burst.p50_ratio()));
    let goodput =
        map("Goodput, ratio to the best single path", "times the best path").range(0.5, 2.0);
    let goodput = fill(goodput, &|pair, scheduler| measured.goodput_gain(pair, scheduler));
    vec![
        echo.figure("echo-p99", "1 is what a clairvoyant sender reaches; darker is worse."),
        burst.figure(
            "burst-p50",
            "The bound of bursts treats data as a fluid over both paths with empty queues, so no scheduler reaches it. \
             Darker is worse.",
        ),
        goodput.figure(
            "goodput",
            "Above 1, both paths together carry more than the best one; darker is better.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_judged_policies_are_the_defaults() {
        let set = default_variant().policies().unwrap();
        assert_eq!(set.scheduler.name(), DEFAULT);
        assert_eq!(set.congestion.name(), marline::algos::default_policies().congestion.name());
    }
}
