//! The default in each half of the pairs, with both paths free and with one of them limited, compared with the better
//! path alone under the same congestion control.

use marline_lab::experiment::Variant;

use super::cell::Cell;
use super::{Cells, DEFAULT, Measure, is_worse};
use crate::auto::recorded::PairSubset;
use crate::estimate::{Estimate, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::recorded::figures::{Margins, Quantiles};
use crate::recorded::pairs::Pair;
use crate::recorded::setup::Setup;
use crate::roots::Root;
use crate::table::Table;

/// The default with a path on which bytes count against an allowance: the second of a pair in every other root.
pub(super) fn variant_with_one_limited(pair: &Pair, root: &Root) -> Variant {
    let limited = (root.number + 1) % 2;
    let path = |(number, name): (usize, &String)| match number == limited {
        true => format!("{name},limited"),
        false => name.clone(),
    };
    let paths = pair.paths.iter().enumerate().map(path).collect();
    Variant { paths, ..Variant::new(&format!("{DEFAULT}, one path limited")) }
}

/// Question about the default in one of the two cases.
struct Goals {
    /// Index among the judged variants.
    variant: usize,
    /// The paths, as named in the titles of the rows.
    paths: &'static str,
    /// Cases in which a metric is worse than on the better path alone, percent.
    worse_percent: f64,
    /// 50th, 90th and 99th percentiles of burst times, in multiples of the clairvoyant bound.
    bursts: [f64; 3],
    /// Goodput relative to the better path: median and minimum.
    goodput: [f64; 2],
}

impl Goals {
    fn read(file: &PaperFile<Setup>) -> anyhow::Result<[Goals; 2]> {
        let of = |key: &str| file.tolerance(key);
        let goodput = [of("goodput")?, of("goodput_least")?];
        let read = |variant: usize, paths: &'static str, key: &str| {
            let quantile = |name: &str| of(&format!("{key}_burst_{name}"));
            let worse_percent = 100.0 * of(&format!("{key}_worse"))?;
            let bursts = [quantile("p50")?, quantile("p90")?, quantile("p99")?];
            anyhow::Ok(Goals { variant, paths, worse_percent, bursts, goodput })
        };
        Ok([read(0, "unlimited paths", "free")?, read(1, "one path limited", "limited")?])
    }
}

/// A table for each half. Rows of the tuned half are not judged.
pub(super) fn tables(
    file: &PaperFile<Setup>,
    pairs: &[Pair],
    samples: &Samples<Cells>,
    margins: Margins,
) -> anyhow::Result<Vec<Table>> {
    let goals = Goals::read(file)?;
    let table = |(half, name, title): (PairSubset, &str, &str)| {
        let rows =
            goals.iter().flat_map(|goals| Half { half, pairs, samples, margins }.rows(goals));
        Table::new(name, title, half.mark_fitted_rows(rows.collect()))
    };
    let halves = [
        (PairSubset::Judged, "held-out", "Held-out pairs, under the same congestion control"),
        (PairSubset::Tuned, "tuned", "Pairs used for tuning, under the same congestion control"),
    ];
    Ok(halves.into_iter().map(table).collect())
}

/// A quantile in multiples of the clairvoyant bound.
type RatioToBound = fn(&Quantiles) -> f64;

/// The cases of one half.
struct Half<'a> {
    half: PairSubset,
    pairs: &'a [Pair],
    samples: &'a Samples<Cells>,
    margins: Margins,
}

impl Half<'_> {
    fn cases<'a>(&'a self, root: &'a Cells) -> impl Iterator<Item = &'a Vec<Cell>> {
        let mine = |(pair, _): &(&Pair, &Vec<Cell>)| PairSubset::of_pair(&pair.name) == self.half;
        self.pairs.iter().zip(root).filter(mine).map(|(_, case)| case)
    }

    /// A statistic of one value per case.
    fn estimate(
        &self,
        of: impl Fn(&Vec<Cell>) -> f64,
        statistic: impl Fn(&[f64]) -> f64,
    ) -> Estimate {
        let numbers = self.samples.map(|root| self.cases(root).map(&of).collect::<Vec<f64>>());
        numbers.estimate(|roots| {
            statistic(&roots.iter().copied().flatten().copied().collect::<Vec<f64>>())
        })
    }

    fn rows(&self, goals: &Goals) -> Vec<Row> {
        let Goals { variant, paths, worse_percent, bursts, goodput } = goals;
        let worse = self.samples.share(|root| {
            let is = |case: &&Vec<Cell>| {
                Measure::ALL.iter().any(|of| is_worse(case, *variant, *of, self.margins))
            };
            (self.cases(root).filter(is).count() as u64, self.cases(root).count() as u64)
        });
        let what =
            format!("{paths}: cases worse than the better path alone in any of the five metrics");
        let mut rows = vec![Row::new(what).estimate(&worse.percent(), "%").at_most(*worse_percent)];
        let quantiles: [(&str, RatioToBound); 3] = [
            ("p50", Quantiles::p50_ratio),
            ("p90", Quantiles::p90_ratio),
            ("p99", Quantiles::p99_ratio),
        ];
        for ((name, of), limit) in quantiles.into_iter().zip(bursts) {
            let median = self.estimate(|case| of(&case[2 + variant].burst), marline_sim::median);
            let what = format!("{paths}: burst {name}, ratio to bound, median");
            rows.push(Row::new(what).estimate(&median, "").at_most(*limit));
        }
        let gain =
            |case: &Vec<Cell>| case[2 + variant].goodput / case[0].goodput.max(case[1].goodput);
        let [median, least] = goodput;
        let row =
            |what: &str| Row::new(format!("{paths}: goodput, ratio to the better path, {what}"));
        let lowest = |numbers: &[f64]| numbers.iter().copied().fold(f64::NAN, f64::min);
        rows.push(
            row("median").estimate(&self.estimate(gain, marline_sim::median), "").at_least(*median),
        );
        rows.push(row("minimum").estimate(&self.estimate(gain, lowest), "").at_least(*least));
        let bytes = self.estimate(
            |case| case[2 + variant].wire_ratio / case[0].wire_ratio.min(case[1].wire_ratio),
            marline_sim::median,
        );
        rows.push(
            Row::new(format!("{paths}: bytes of bursts, ratio to plain TCP, median"))
                .estimate(&bytes, ""),
        );
        rows
    }
}
