//! Comparison of two lanes, seed by seed: improvement with its interval, or no significant difference.

use anyhow::ensure;

use super::measurements::{MIN_RUNS, Measure, Measurements};
use super::record::Record;
use super::stored_runs::{StoredLane, StoredRuns};
use crate::estimate::{Estimate, RangePosition, RequiredRange};
use crate::figure::number;

/// Comparison of a lane of one series with a lane of another or the same series.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// First lane.
    pub a: StoredLane,
    /// Second lane.
    pub b: StoredLane,
    /// Number of seeds with runs in both lanes.
    pub seeds: usize,
    /// Number of messages that did not arrive in each lane.
    pub missing: (u64, u64),
    /// Compared measures.
    pub rows: Vec<ComparedMeasure>,
}

/// A measure in both lanes.
#[derive(Clone, Debug)]
pub struct ComparedMeasure {
    /// Measure.
    pub measure: Measure,
    /// Values in each lane.
    pub values: (f64, f64),
    /// First value divided by the second, with its interval.
    pub ratio: Estimate,
}

/// Result of a comparison.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The first lane is better.
    Better,
    /// The second lane is better.
    Worse,
    /// Both are equal for every seed.
    Equal,
    /// Not significant. About this many seeds would be enough, if any number is.
    Inconclusive(Option<u64>),
    /// Too few seeds for an interval.
    TooFew,
}

impl ComparedMeasure {
    /// The result.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let Estimate { value, low, high, .. } = self.ratio;
        if !(low.is_finite() && high.is_finite() && value.is_finite()) {
            return Outcome::TooFew;
        }
        let first_is_more = match () {
            () if low > 1.0 => true,
            () if high < 1.0 => false,
            () if low == 1.0 && high == 1.0 => return Outcome::Equal,
            () => {
                // Number of seeds with which the interval would no longer contain 1.
                let asked = if value > 1.0 {
                    RequiredRange::at_least(1.0)
                } else {
                    RequiredRange::at_most(1.0)
                };
                return Outcome::Inconclusive(match self.ratio.position_in(asked) {
                    RangePosition::Undecided { needed } => needed,
                    RangePosition::Inside | RangePosition::Outside => None,
                });
            }
        };
        if first_is_more == self.measure.is_higher_better() {
            Outcome::Better
        } else {
            Outcome::Worse
        }
    }

    /// Text of the result: `better by 5.3 % [4.1, 6.6]`.
    #[must_use]
    pub fn text(&self) -> String {
        let Estimate { value, low, high, .. } = self.ratio;
        // Percentage by which the better value is lower, or higher, than the other.
        let percent = |ratio: f64| 100.0 * (ratio - 1.0).abs();
        let between = |a: f64, b: f64| format!("[{}, {}]", number(a.min(b)), number(a.max(b)));
        let by = || {
            let (value, low, high) = (percent(value), percent(low), percent(high));
            format!("by {} % {}", number(value), between(low, high))
        };
        match self.outcome() {
            Outcome::Better => format!("better {}", by()),
            Outcome::Worse => format!("worse {}", by()),
            Outcome::Equal => "the same for every seed".to_owned(),
            Outcome::TooFew => format!("not judged: needs at least {MIN_RUNS} seeds for both"),
            Outcome::Inconclusive(needed) => {
                let signed = between(100.0 * (low - 1.0), 100.0 * (high - 1.0));
                let tell = match needed {
                    Some(needed) => format!("about {needed} seeds would decide"),
                    None => "no number of seeds would decide".to_owned(),
                };
                format!("inconclusive: {signed} %; {tell}")
            }
        }
    }
}

/// Selection of lanes of a series.
#[derive(Copy, Clone, Debug)]
pub struct Selection<'a> {
    /// Results of the series.
    pub results: &'a StoredRuns,
    /// Variant of the lanes. `None`: all variants.
    pub variant: Option<&'a str>,
}

impl Selection<'_> {
    fn lanes(self) -> anyhow::Result<Vec<StoredLane>> {
        let mut lanes = self.results.lanes();
        if let Some(wanted) = self.variant {
            let names: Vec<&str> = lanes.iter().map(|lane| lane.variant.as_str()).collect();
            let there = names.contains(&wanted);
            ensure!(there, "unknown variant `{wanted}`; known: {}", unique(&names).join(", "));
            lanes.retain(|lane| lane.variant == wanted);
        }
        Ok(lanes)
    }
}

impl Comparison {
    /// Compares the matching lanes of two series: those with equal sweep values and stacks, and with the given
    /// variants, or with equal variants if none is given.
    ///
    /// # Errors
    /// No lanes match, a result cannot be read, or two lanes have no seed in common.
    pub fn compare_all(a: Selection<'_>, b: Selection<'_>) -> anyhow::Result<Vec<Comparison>> {
        let (lanes_a, lanes_b) = (a.lanes()?, b.lanes()?);
        let named = a.variant.is_some() && b.variant.is_some();
        let mut all = Vec::new();
        for first in &lanes_a {
            for second in &lanes_b {
                let same = first.point == second.point && first.stack == second.stack;
                if same && (named || first.variant == second.variant) {
                    all.push(Comparison::compare_lanes(a.results, first, b.results, second)?);
                }
            }
        }
        ensure!(!all.is_empty(), "no two lanes have the same stack, variant and sweep values");
        Ok(all)
    }

    fn compare_lanes(
        a: &StoredRuns,
        first: &StoredLane,
        b: &StoredRuns,
        second: &StoredLane,
    ) -> anyhow::Result<Comparison> {
        let (of_a, of_b) = (a.records(first)?, b.records(second)?);
        let pair = |(seed, record): &'_ (u64, Record)| {
            let other = of_b.iter().find(|(other, _)| other == seed)?;
            Some((record.clone(), &other.1))
        };
        let pairs: Vec<(Record, &Record)> = of_a.iter().filter_map(pair).collect();
        ensure!(
            !pairs.is_empty(),
            "{} and {} have no seed in common",
            first.variant,
            second.variant
        );
        let one = Measurements::from_records(&pairs.iter().map(|pair| &pair.0).collect::<Vec<_>>());
        let two = Measurements::from_records(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
        let all = vec![1; pairs.len()];
        let compared = |measure| ComparedMeasure {
            measure,
            values: (one.value(measure, &all), two.value(measure, &all)),
            ratio: one.ratio(measure, &two),
        };
        let missing = |of: &dyn Fn(&(Record, &Record)) -> u32| {
            pairs.iter().map(|pair| u64::from(of(pair))).sum()
        };
        Ok(Comparison {
            a: first.clone(),
            b: second.clone(),
            seeds: pairs.len(),
            missing: (missing(&|pair| pair.0.missing), missing(&|pair| pair.1.missing)),
            rows: Measure::COMPARED.map(compared).to_vec(),
        })
    }

    /// The table, header first.
    #[must_use]
    pub fn table(&self) -> Vec<Vec<String>> {
        let mut table = vec![["", "A", "B", "A is"].map(str::to_owned).to_vec()];
        for row in &self.rows {
            let (a, b) = row.values;
            table.push(vec![row.measure.name().to_owned(), number(a), number(b), row.text()]);
        }
        table
    }
}

fn unique<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for name in names {
        if !found.contains(name) {
            found.push(*name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(measure: Measure, low: f64, value: f64, high: f64) -> String {
        let ratio = Estimate { value, low, high, roots: 20 };
        ComparedMeasure { measure, values: (1.0, 1.0), ratio }.text()
    }

    #[test]
    fn comparisons_show_the_better_variant_and_margin() {
        for (measure, [low, value, high], wanted) in [
            (Measure::P99, [0.85, 0.9, 0.95], "better by 10 % [5, 15]"),
            (Measure::Goodput, [0.85, 0.9, 0.95], "worse by 10 % [5, 15]"),
            (Measure::P50, [1.1, 1.25, 1.5], "worse by 25 % [10, 50]"),
            (Measure::Goodput, [1.1, 1.25, 1.5], "better by 25 % [10, 50]"),
            (Measure::P50, [1.0, 1.0, 1.0], "the same for every seed"),
            // The half-width is 0.25 and the distance 0.125: four times as many seeds are needed.
            (
                Measure::P50,
                [0.75, 0.875, 1.125],
                "inconclusive: [-25, 12.5] %; about 80 seeds would decide",
            ),
            (
                Measure::P50,
                [0.875, 1.125, 1.25],
                "inconclusive: [-12.5, 25] %; about 80 seeds would decide",
            ),
        ] {
            assert_eq!(compared(measure, low, value, high), wanted);
        }
        let none = compared(Measure::P50, f64::NAN, 1.1, f64::NAN);
        assert_eq!(none, "not judged: needs at least 10 seeds for both");
    }
}
