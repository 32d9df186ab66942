//! Rows and lists of the recorded pairs, for each half separately.

use marline_lab::figure::number;
use marline_time::fnv1a;

use super::cell::{Cell, Extra, JUDGED_INDEX, RecordedPairResult};
use super::setup::{Limits, Messages, Setup};
use super::violations::{self, percent, violations};
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::{Context, Effort};
use crate::recorded::figures::{Figure, Margins, Quantiles};
use crate::recorded::pairs::{Pair, pairs};
use crate::recorded::setup::{Setup as RecordedSetup, TEXT as RECORDED_TEXT};
use crate::table::{Grid, Reproduction, Table};

/// Index of small messages in [`Cell::extra`].
const SMALL: usize = 1;

/// Results of every pair from one root.
pub(super) type Cells = Vec<RecordedPairResult>;
/// Name of a quantile, ratio of the quantile to its bound, and limit on the median of that ratio.
type BoundRatioRow = (&'static str, fn(&Quantiles) -> f64, f64);

/// A half of the pairs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PairSubset {
    /// Pairs on which the scheduler was tuned.
    Tuned,
    /// Pairs that were not used before the test.
    Judged,
}

impl PairSubset {
    /// Half to which the pair of this name belongs.
    pub(crate) fn of_pair(pair: &str) -> PairSubset {
        if fnv1a(pair).is_multiple_of(2) { PairSubset::Tuned } else { PairSubset::Judged }
    }

    /// Rows of this half. Rows of the tuned half are not judged.
    pub(crate) fn mark_fitted_rows(self, rows: Vec<Row>) -> Vec<Row> {
        match self {
            PairSubset::Judged => rows,
            PairSubset::Tuned => {
                rows.into_iter().map(|row| row.mark_fitted("tuned on these pairs")).collect()
            }
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            PairSubset::Tuned => "tuned",
            PairSubset::Judged => "judged",
        }
    }
}

/// All pairs, and in quick runs the first of each half. `None` without traces, which `result` reports.
pub(crate) fn recorded_pairs(
    context: &Context<'_>,
    key: &str,
    result: &mut Reproduction,
) -> anyhow::Result<Option<Vec<Pair>>> {
    let Some(directory) = context.traces else {
        let row = crate::recorded::skipped_row(key)?;
        result.tables.push(Table::new("recorded", "Recorded pairs", vec![row]));
        return Ok(None);
    };
    let links = PaperFile::<RecordedSetup>::parse(RECORDED_TEXT)?.published;
    let pairs = pairs(directory, &links)?;
    anyhow::ensure!(!pairs.is_empty(), "no pair of traces in {}", directory.display());
    if context.effort != Effort::Quick {
        return Ok(Some(pairs));
    }
    let first = |half| pairs.iter().find(|pair| PairSubset::of_pair(&pair.name) == half);
    Ok(Some(
        [PairSubset::Tuned, PairSubset::Judged].into_iter().filter_map(first).cloned().collect(),
    ))
}

/// Inputs to the judgment of one half.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) setup: &'a Setup,
    pub(super) limits: &'a Limits,
    pub(super) pairs: &'a [Pair],
    pub(super) half: PairSubset,
}

impl View<'_> {
    /// Cases of one root in this half.
    pub(super) fn cases<'a>(
        &'a self,
        root: &'a Cells,
    ) -> impl Iterator<Item = &'a RecordedPairResult> {
        let mine =
            |(pair, _): &(&Pair, &RecordedPairResult)| PairSubset::of_pair(&pair.name) == self.half;
        self.pairs.iter().zip(root).filter(mine).map(|(_, of)| of)
    }

    /// One number per case, by root.
    fn numbers(
        &self,
        samples: &Samples<Cells>,
        of: impl Fn(&RecordedPairResult) -> f64,
    ) -> Samples<Vec<f64>> {
        samples.map(|root| self.cases(root).map(&of).collect())
    }

    pub(super) fn median(
        &self,
        samples: &Samples<Cells>,
        of: impl Fn(&RecordedPairResult) -> f64,
    ) -> Estimate {
        let numbers = self.numbers(samples, of);
        numbers.estimate(|roots| marline_sim::median(&all(roots)))
    }

    fn estimate_minimum(
        &self,
        samples: &Samples<Cells>,
        of: impl Fn(&RecordedPairResult) -> f64,
    ) -> Estimate {
        let numbers = self.numbers(samples, of);
        numbers.estimate(|roots| all(roots).into_iter().fold(f64::NAN, f64::min))
    }

    /// Share of the cases that meet a condition, percent.
    pub(super) fn percent(
        &self,
        samples: &Samples<Cells>,
        is: impl Fn(&RecordedPairResult) -> bool,
    ) -> Estimate {
        percent(samples, |root| {
            let hits = self.cases(root).filter(|case| is(case)).count();
            (hits as u64, self.cases(root).count() as u64)
        })
    }

    /// Rows of this half except calibration. Rows of the tuned half are not judged.
    pub(super) fn rows(&self, samples: &Samples<Cells>) -> Vec<Row> {
        let mut rows = self.echo(samples);
        rows.push(self.small_message_row(samples));
        rows.extend(self.bursts(samples));
        rows.extend(self.goodput(samples));
        rows.extend(self.never_worse_rows(samples));
        rows.extend(self.extra_byte_rows(samples));
        self.half.mark_fitted_rows(rows)
    }

    fn echo(&self, samples: &Samples<Cells>) -> Vec<Row> {
        let Limits { echo_p99, echo_p99_high, echo_p99_high_share, .. } = *self.limits;
        let ratio = |case: &RecordedPairResult| judged_cell(case).five.echo.p99_ratio();
        let median = self.median(samples, ratio);
        let high = self.percent(samples, |case| ratio(case) > echo_p99_high);
        let what = format!("cases with echo p99 above {} times the bound", number(echo_p99_high));
        vec![
            Row::new("echo p99, ratio to bound, median").estimate(&median, "").at_most(echo_p99),
            Row::new(what).estimate(&high, "%").at_most(100.0 * echo_p99_high_share),
        ]
    }

    fn small_message_row(&self, samples: &Samples<Cells>) -> Row {
        let ratio = |case: &RecordedPairResult| {
            ratio(judged_cell(case).small.all_ms()[1], case.contestants[1].small.all_ms()[1])
        };
        let what =
            format!("{}, p99, ratio to full duplication, median", messages_name(self.setup.small));
        Row::new(what).estimate(&self.median(samples, ratio), "").at_most(self.limits.duplication)
    }

    fn bursts(&self, samples: &Samples<Cells>) -> Vec<Row> {
        let [p50, p90, p99] = self.limits.bursts;
        let quantiles: [BoundRatioRow; 3] = [
            ("p50", Quantiles::p50_ratio, p50),
            ("p90", Quantiles::p90_ratio, p90),
            ("p99", Quantiles::p99_ratio, p99),
        ];
        let mut rows = Vec::new();
        for (index, burst) in self.setup.bursts.iter().enumerate() {
            for (name, of, limit) in quantiles {
                let median = self.median(samples, |case| of(&judged_cell(case).bursts[index]));
                let what =
                    format!("bursts of {}, {name}, ratio to bound, median", size(burst.bytes));
                rows.push(Row::new(what).estimate(&median, "").at_most(limit));
            }
        }
        rows
    }

    fn goodput(&self, samples: &Samples<Cells>) -> Vec<Row> {
        let Limits { goodput, goodput_least, .. } = *self.limits;
        let median = self.median(samples, |case| goodput_gain(case, 0));
        let least = self.estimate_minimum(samples, |case| goodput_gain(case, 0));
        vec![
            Row::new("goodput, ratio to the best path, median")
                .estimate(&median, "")
                .at_least(goodput),
            Row::new("goodput, ratio to the best path, minimum")
                .estimate(&least, "")
                .at_least(goodput_least),
        ]
    }

    fn never_worse_rows(&self, samples: &Samples<Cells>) -> Vec<Row> {
        let limit = 100.0 * self.limits.violations;
        let worse = |case: &RecordedPairResult| self.find_violations(case, 0);
        let each = Figure::ALL.map(|figure| {
            let share =
                self.percent(samples, |case| worse(case).iter().any(|of| of.figure == figure));
            let what = format!("cases with {} worse than on the best path alone", figure.name());
            Row::new(what).estimate(&share, "%").at_most(limit)
        });
        let any = self.percent(samples, |case| !worse(case).is_empty());
        let any = Row::new("cases worse than the best path in any metric")
            .estimate(&any, "%")
            .at_most(limit);
        each.into_iter().chain([any]).collect()
    }

    fn extra_byte_rows(&self, samples: &Samples<Cells>) -> Vec<Row> {
        let row = |(index, name): (usize, String)| {
            let percent = self.extra_percent(samples, 0, index);
            let allowed = match self.messages().nth(index) {
                Some(messages) => self.setup.budget.percent(messages),
                None => 100.0 * self.setup.budget.share,
            };
            let row = Row::new(format!("extra bytes, {name}")).estimate(&percent, "%");
            row.require_range(
                RequiredRange::at_most(allowed),
                format!("at most {} %", number(allowed)),
            )
        };
        let names = self.messages().map(messages_name).chain(["bulk transfer".to_owned()]);
        let mut rows: Vec<Row> = names.enumerate().map(row).collect();
        let most = self.numbers(samples, |case| {
            let Extra { bytes, payload } = judged_cell(case).extra[SMALL];
            100.0 * bytes as f64 / payload.max(1) as f64
        });
        let most = most.estimate(|roots| all(roots).into_iter().fold(f64::NAN, f64::max));
        let what =
            format!("extra bytes, {}, maximum over the cases", messages_name(self.setup.small));
        rows.push(Row::new(what).estimate(&most, "%"));
        rows
    }

    /// The workloads of messages, in the order of [`Cell::extra`].
    fn messages(&self) -> impl Iterator<Item = Messages> {
        let bursts = self.setup.bursts.iter().copied();
        [self.setup.echo, self.setup.small].into_iter().chain(bursts)
    }

    fn extra_percent(&self, samples: &Samples<Cells>, contestant: usize, index: usize) -> Estimate {
        samples.ratio(|root| {
            let extra = || self.cases(root).map(|case| case.contestants[contestant].extra[index]);
            let (bytes, payload): (u64, u64) =
                (extra().map(|of| of.bytes).sum(), extra().map(|of| of.payload).sum());
            (100.0 * bytes as f64, payload as f64)
        })
    }

    fn find_violations(
        &self,
        case: &RecordedPairResult,
        contestant: usize,
    ) -> Vec<violations::Violation> {
        violations(&case.alone, &case.contestants[contestant].five, self.limits.margins)
    }

    /// Comparison of all contestants: medians over the cases.
    pub(super) fn contestants(&self, samples: &Samples<Cells>) -> Grid {
        let columns = [
            ("contestant", ""),
            ("echo p99, ratio to bound", ""),
            ("small p99", "ms"),
            ("10 kB p99, ratio to bound", ""),
            ("100 kB p50, ratio to bound", ""),
            ("100 kB p99, ratio to bound", ""),
            ("1 MB p50, ratio to bound", ""),
            ("goodput, ratio to the best path", ""),
            ("worse in any of the five metrics", "%"),
            ("extra bytes, small messages", "%"),
        ];
        let title = format!(
            "Every contestant on the {} half (not judged): medians over its cases",
            self.half.name()
        );
        let mut grid = Grid::new(&format!("contestants-{}", self.half.name()), title, &columns);
        for (index, contestant) in self.setup.contestants().enumerate() {
            let median = |of: &dyn Fn(&Cell) -> f64| {
                let all = samples.all().iter().flat_map(|root| self.cases(root));
                let numbers: Vec<f64> = all.map(|case| of(&case.contestants[index])).collect();
                marline_sim::median(&numbers)
            };
            let burst = |bytes: u32, of: fn(&Quantiles) -> f64| {
                let place = self.setup.bursts.iter().position(|burst| burst.bytes == bytes);
                place.map_or(f64::NAN, |place| median(&|cell| of(&cell.bursts[place])))
            };
            let gains: Vec<f64> = {
                let all = samples.all().iter().flat_map(|root| self.cases(root));
                all.map(|case| goodput_gain(case, index)).collect()
            };
            let worse = self.percent(samples, |case| !self.find_violations(case, index).is_empty());
            let numbers = [
                median(&|cell| cell.five.echo.p99_ratio()),
                median(&|cell| cell.small.all_ms()[1]),
                burst(10_000, Quantiles::p99_ratio),
                burst(100_000, Quantiles::p50_ratio),
                burst(100_000, Quantiles::p99_ratio),
                burst(1_000_000, Quantiles::p50_ratio),
                marline_sim::median(&gains),
                worse.value,
                self.extra_percent(samples, index, SMALL).value,
            ];
            grid.push(&[&contestant.name], &numbers);
        }
        grid
    }
}

/// List of every violation in either half.
pub(super) fn list(samples: &Samples<Cells>, pairs: &[Pair], margins: Margins) -> Grid {
    let title = "Recorded pairs with a metric worse than on the best path alone";
    let mut grid = violations::grid("violations-recorded", title, "half");
    for half in [PairSubset::Judged, PairSubset::Tuned] {
        for (number, pair) in pairs.iter().enumerate() {
            for (root, cells) in samples.all().iter().enumerate() {
                let case = &cells[number];
                let words = [&*pair.name, half.name(), &root.to_string()];
                let found = violations(&case.alone, &judged_cell(case).five, margins);
                let found = found.iter().filter(|_| PairSubset::of_pair(&pair.name) == half);
                for violation in found {
                    violations::push(&mut grid, words, violation, &case.contestants[1].five);
                }
            }
        }
    }
    grid
}

/// Results of every pair: means over the positions.
pub(super) fn grid_by_pair(samples: &Samples<Cells>, pairs: &[Pair], margins: Margins) -> Grid {
    let columns = [
        ("pair", ""),
        ("half", ""),
        ("echo p99, ratio to bound", ""),
        ("small p99, ratio to full duplication", ""),
        ("100 kB p50, ratio to bound", ""),
        ("100 kB p99, ratio to bound", ""),
        ("goodput, ratio to the best path", ""),
        ("metrics worse than on the best path", "%"),
    ];
    let mut grid = Grid::new("pairs", "Every recorded pair: means over its positions", &columns);
    for (number, pair) in pairs.iter().enumerate() {
        let mean = |of: &dyn Fn(&RecordedPairResult) -> f64| {
            let numbers: Vec<f64> = samples.all().iter().map(|root| of(&root[number])).collect();
            marline_sim::mean(&numbers)
        };
        let figures = Figure::ALL.len() as f64;
        let numbers = [
            mean(&|case| judged_cell(case).five.echo.p99_ratio()),
            mean(&|case| {
                ratio(judged_cell(case).small.all_ms()[1], case.contestants[1].small.all_ms()[1])
            }),
            mean(&|case| judged_cell(case).five.burst.p50_ratio()),
            mean(&|case| judged_cell(case).five.burst.p99_ratio()),
            mean(&|case| goodput_gain(case, 0)),
            mean(&|case| {
                100.0 * violations(&case.alone, &judged_cell(case).five, margins).len() as f64
                    / figures
            }),
        ];
        grid.push(&[&pair.name, PairSubset::of_pair(&pair.name).name()], &numbers);
    }
    grid
}

pub(super) fn judged_cell(case: &RecordedPairResult) -> &Cell {
    &case.contestants[JUDGED_INDEX]
}

/// Goodput relative to the better path alone.
fn goodput_gain(case: &RecordedPairResult, contestant: usize) -> f64 {
    let best = case.alone[0].goodput.max(case.alone[1].goodput);
    ratio(case.contestants[contestant].five.goodput, best)
}

/// Ratio of two values. It is 1 if both are zero or both are infinite (no message arrived).
fn ratio(ours: f64, other: f64) -> f64 {
    if ours == other { 1.0 } else { ours / other }
}

fn all(roots: &[&Vec<f64>]) -> Vec<f64> {
    roots.iter().flat_map(|root| root.iter().copied()).collect()
}

fn messages_name(messages: Messages) -> String {
    let Messages { bytes, every_ms, .. } = messages;
    format!("{} every {every_ms} ms", size(bytes))
}

fn size(bytes: u32) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} kB", number(f64::from(bytes) / 1e3)),
        _ => format!("{} MB", number(f64::from(bytes) / 1e6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_assigned_to_its_half_by_its_name() {
        for name in ["s042 tmobile + verizon", "att-lte + verizon-lte"] {
            assert_eq!(PairSubset::of_pair(name), PairSubset::Tuned, "{name}");
        }
        for name in ["s050 tmobile + verizon", "att-lte + tmobile-lte", "train m3 + u4"] {
            assert_eq!(PairSubset::of_pair(name), PairSubset::Judged, "{name}");
        }
        // Test vectors of FNV-1a.
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn sizes_are_rounded_and_infinite_ratios_defined() {
        assert_eq!([100, 1_000, 97_000, 1_000_000].map(size), ["100 B", "1 kB", "97 kB", "1 MB"]);
        assert_eq!(ratio(f64::INFINITY, f64::INFINITY), 1.0);
        assert_eq!(ratio(3.0, f64::INFINITY), 0.0);
        assert_eq!(ratio(0.0, 0.0), 1.0);
    }
}
