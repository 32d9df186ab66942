//! Estimate of a measured quantity over independent roots, with a bootstrap interval.
//!
//! A root is one replication of an experiment: every variant runs once on the links, losses and messages drawn from
//! that root. The roots of a resample are drawn with replacement, and a statistic is computed again from all variants
//! of the roots drawn. Ratios and differences are therefore paired by root, without assumptions about the distribution
//! within a root.
//!
//! The interval is the percentile interval (B. Efron, R. Tibshirani: *An Introduction to the Bootstrap*, 1993,
//! chapter 13) with its level widened for small samples as T. Hesterberg proposes (*What Teachers Should Know
//! about the Bootstrap*, 2014, section 5.3): with 20 roots the plain interval is too narrow. The formulas were written
//! from memory of both texts; a test checks the coverage. Shares that are 0 or 1 in every root have no spread to
//! resample, so they get the exact binomial interval.

use marline_time::{Rng, SeedTree};
use serde::{Deserialize, Serialize};

/// Minimum number of roots for a verdict.
pub const MIN_ROOTS: usize = 20;
/// Share of the intervals that contain the true value. A hundred rows are evaluated up to four times while roots are
/// added, so with 95 % a verdict would change every day.
pub const CONFIDENCE: f64 = 0.99;

/// Confidence level of intervals, and the number of resamples.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Level {
    confidence: f64,
    /// Quantile of the normal distribution at the upper end of the interval.
    z: f64,
    resamples: usize,
}

/// Level of verdicts: [`CONFIDENCE`].
const VERDICT_LEVEL: Level = Level { confidence: CONFIDENCE, z: 2.575_829, resamples: 4_000 };
/// Level of intervals shown after a number: the usual 95 %.
const DISPLAY_LEVEL: Level = Level { confidence: 0.95, z: 1.959_964, resamples: 1_000 };

/// A quantity with its interval.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Value over all roots; NaN if it could not be measured.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of roots. With 0, nothing is random, and both ends of the interval equal the value.
    pub roots: usize,
}

/// Required range of a quantity, inclusive.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct RequiredRange {
    /// Lower limit. Negative infinity if there is none.
    pub least: f64,
    /// Upper limit. Infinity if there is none.
    pub most: f64,
}

impl RequiredRange {
    /// A range with only an upper limit.
    #[must_use]
    pub const fn at_most(most: f64) -> RequiredRange {
        RequiredRange { least: f64::NEG_INFINITY, most }
    }

    /// A range with only a lower limit.
    #[must_use]
    pub const fn at_least(least: f64) -> RequiredRange {
        RequiredRange { least, most: f64::INFINITY }
    }

    /// The range that deviates from `of` by at most this share.
    #[must_use]
    pub fn within(share: f64, of: f64) -> RequiredRange {
        RequiredRange { least: of - share * of.abs(), most: of + share * of.abs() }
    }
}

/// Position of an estimate relative to the required range.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RangePosition {
    /// The whole interval lies inside.
    Inside,
    /// The whole interval lies outside, or nothing was measured.
    Outside,
    /// The interval crosses a limit.
    Undecided {
        /// Approximate number of roots needed for a verdict; `None` if no number is enough, because the value lies on
        /// the limit.
        needed: Option<u64>,
    },
}

impl Estimate {
    /// An exact quantity, without randomness.
    #[must_use]
    pub const fn exact(value: f64) -> Estimate {
        Estimate { value, low: value, high: value, roots: 0 }
    }

    /// Converts a share to percent.
    #[must_use]
    pub fn percent(self) -> Estimate {
        let Estimate { value, low, high, roots } = self;
        Estimate { value: 100.0 * value, low: 100.0 * low, high: 100.0 * high, roots }
    }

    /// Compares the estimate with a required range.
    #[must_use]
    pub fn position_in(&self, asked: RequiredRange) -> RangePosition {
        let RequiredRange { least, most } = asked;
        if !(self.low.is_finite() && self.high.is_finite() && self.value.is_finite()) {
            return RangePosition::Outside;
        }
        if self.low >= least && self.high <= most {
            return RangePosition::Inside;
        }
        if self.high < least || self.low > most {
            return RangePosition::Outside;
        }
        // The width of the interval shrinks with the square root of the number of roots.
        let told = |half: f64, limit: f64| {
            let ratio = half / (self.value - limit).abs();
            ratio.is_finite().then(|| (self.roots as f64 * ratio * ratio).ceil().max(1.0) as u64)
        };
        let mut needed = Some(0);
        for (limit, crossed) in [(least, self.low < least), (most, self.high > most)] {
            if crossed {
                let half = match self.value < limit {
                    true => self.high - self.value,
                    false => self.value - self.low,
                };
                needed = needed.zip(told(half, limit)).map(|(a, b)| a.max(b));
            }
        }
        RangePosition::Undecided { needed }
    }
}

/// Measurements of each root, in the order of the roots.
#[derive(Clone, Debug)]
pub struct Samples<T> {
    all: Vec<T>,
    seeds: SeedTree,
    level: Level,
}

impl<T> Samples<T> {
    /// Creates samples from measurements. `master` seeds the resamples.
    #[must_use]
    pub fn new(all: Vec<T>, master: u64) -> Samples<T> {
        Samples { all, seeds: SeedTree::new(master).branch("bootstrap"), level: VERDICT_LEVEL }
    }

    /// Uses 95 % intervals, which tables show. They are not for verdicts.
    #[must_use]
    pub fn for_tables(self) -> Samples<T> {
        Samples { level: DISPLAY_LEVEL, ..self }
    }

    /// Measurements of all roots.
    #[must_use]
    pub fn all(&self) -> &[T] {
        &self.all
    }

    /// Number of roots.
    #[must_use]
    pub fn roots(&self) -> usize {
        self.all.len()
    }

    /// Maps the measurements of each root. The resamples stay the same.
    #[must_use]
    pub fn map<U>(&self, of: impl Fn(&T) -> U) -> Samples<U> {
        Samples { all: self.all.iter().map(of).collect(), seeds: self.seeds, level: self.level }
    }

    /// Computes a statistic over all roots, with its interval. `of` is called with the measurements of the roots, then
    /// with those of each resample, in which some occur repeatedly. Every statistic of the same samples sees the same
    /// resamples.
    #[must_use]
    pub fn estimate(&self, of: impl Fn(&[&T]) -> f64) -> Estimate {
        let whole: Vec<&T> = self.all.iter().collect();
        let (value, roots) = (of(&whole), self.all.len());
        if roots < 2 {
            return Estimate { value, low: f64::NAN, high: f64::NAN, roots };
        }
        let mut rng = self.seeds.stream("resamples");
        let mut picked = whole;
        let resamples = self.level.resamples;
        let mut drawn = Vec::with_capacity(resamples);
        for _ in 0..resamples {
            for slot in &mut picked {
                *slot = &self.all[rng.below(roots as u64) as usize];
            }
            drawn.push(of(&picked));
        }
        if drawn.iter().any(|value| value.is_nan()) {
            return Estimate { value, low: f64::NAN, high: f64::NAN, roots };
        }
        drawn.sort_by(f64::total_cmp);
        let at = |share: f64| drawn[((share * resamples as f64) as usize).min(resamples - 1)];
        let tail = tail(roots, self.level.z);
        let (low, high) = (at(tail).min(value), at(1.0 - tail).max(value));
        Estimate { value, low, high, roots }
    }

    /// The mean of one number per root.
    #[must_use]
    pub fn mean(&self, of: impl Fn(&T) -> f64) -> Estimate {
        let numbers = self.map(of);
        numbers.estimate(|picked| picked.iter().copied().sum::<f64>() / picked.len() as f64)
    }

    /// The mean of one number divided by the mean of another, paired by root.
    #[must_use]
    pub fn ratio(&self, of: impl Fn(&T) -> (f64, f64)) -> Estimate {
        let numbers = self.map(of);
        numbers.estimate(|picked| {
            picked.iter().map(|pair| pair.0).sum::<f64>()
                / picked.iter().map(|pair| pair.1).sum::<f64>()
        })
    }

    /// The share of cases with an event, 0 to 1. For a root, `of` returns the number of such cases and the number of
    /// all cases. If the share is 0 or 1, the interval counts roots instead of cases.
    #[must_use]
    pub fn share(&self, of: impl Fn(&T) -> (u64, u64)) -> Estimate {
        let estimate = self.ratio(|root| {
            let (hits, cases) = of(root);
            (hits as f64, cases as f64)
        });
        let cases: u64 = self.all.iter().map(|root| of(root).1).sum();
        let counted = self.all.iter().filter(|root| of(root).1 > 0).count();
        let alone = ((1.0 - self.level.confidence) / 2.0).powf(1.0 / counted as f64);
        match estimate.value {
            _ if cases == 0 => estimate,
            0.0 => Estimate { low: 0.0, high: 1.0 - alone, ..estimate },
            1.0 => Estimate { low: alone, high: 1.0, ..estimate },
            _ => estimate,
        }
    }
}

/// The share of the resamples outside each end of the interval.
fn tail(roots: usize, z: f64) -> f64 {
    let freedom = (roots - 1) as f64;
    let t = student(freedom, z) * (roots as f64 / freedom).sqrt();
    normal_cdf(-t)
}

/// Quantile of Student's t at the level at which that of the normal distribution is `z`, by Cornish and Fisher's
/// expansion, correct to two digits for at least 10 degrees of freedom.
fn student(freedom: f64, z: f64) -> f64 {
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    z + first / freedom + second / freedom.powi(2)
}

/// Distribution function of the standard normal, by Abramowitz and Stegun 7.1.26 (1.5e-7).
fn normal_cdf(x: f64) -> f64 {
    let y = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / 0.327_591_1_f64.mul_add(y, 1.0);
    const A: [f64; 5] =
        [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let series = A.iter().rev().fold(0.0, |sum, a| (sum + a) * t);
    let upper = 0.5 * series * (-y * y).exp();
    if x < 0.0 { upper } else { 1.0 - upper }
}

/// The value at or below which this share (0 to 1) of all values lies (nearest rank), for several sorted lists. NaN
/// without values. Lists are not merged, which makes this fast enough for resampling.
#[must_use]
pub fn pooled_quantile<'a>(lists: impl Iterator<Item = &'a [f64]>, share: f64) -> f64 {
    let lists: Vec<&[f64]> = lists.collect();
    let total: usize = lists.iter().map(|list| list.len()).sum();
    if total == 0 {
        return f64::NAN;
    }
    let rank = ((share * total as f64).ceil() as usize).clamp(1, total);
    // The bits are ordered as in `total_cmp`, so that the bisection ends at one value.
    let key = |value: f64| {
        let bits = value.to_bits() as i64;
        bits ^ (((bits >> 63) as u64) >> 1) as i64
    };
    let ends = lists.iter().filter(|list| !list.is_empty());
    let low = ends.clone().map(|list| key(list[0])).min().unwrap_or(0);
    let high = ends.map(|list| key(list[list.len() - 1])).max().unwrap_or(0);
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = (low & high) + ((low ^ high) >> 1);
        let below = |list: &&[f64]| list.partition_point(|value| key(*value) <= middle);
        if lists.iter().map(below).sum::<usize>() >= rank {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let bits = low ^ (((low >> 63) as u64) >> 1) as i64;
    f64::from_bits(bits as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_twenty_roots_have_their_nominal_coverage() {
        let mut held = [0; 2];
        let trials = 400;
        for trial in 0..trials {
            let mut rng = SeedTree::new(trial).stream("values");
            // Exponential, skewed like latencies: mean 1, median ln 2.
            let roots: Vec<f64> = (0..20).map(|_| -(1.0 - rng.unit()).ln()).collect();
            let even: Vec<f64> = (0..20).map(|_| rng.unit()).collect();
            for (held, (values, truth)) in held.iter_mut().zip([(roots, 1.0), (even, 0.5)]) {
                let estimate = Samples::new(values, 7).mean(|value| *value);
                *held += usize::from(estimate.low <= truth && truth <= estimate.high);
            }
        }
        let share = held.map(|held| held as f64 / trials as f64);
        // For skewed values, intervals of twenty roots have less than their nominal coverage.
        assert!(share[0] > 0.93 && share[1] > 0.975, "{share:?}");
    }

    #[test]
    fn ratios_are_paired_by_root() {
        // Each root has its own scale, but the ratio is always 2.
        let pairs: Vec<(f64, f64)> = (1..=30).map(|n| (2.0 * f64::from(n), f64::from(n))).collect();
        let ratio = Samples::new(pairs, 1).ratio(|pair| *pair);
        assert_eq!((ratio.value, ratio.low, ratio.high, ratio.roots), (2.0, 2.0, 2.0, 30));
    }

    #[test]
    fn a_share_of_zero_has_an_upper_bound() {
        let never = Samples::new(vec![0_u64; 20], 1).share(|hits| (*hits, 1));
        assert_eq!((never.value, never.low), (0.0, 0.0));
        assert!((never.high - 0.233).abs() < 0.001, "{never:?}");
        let always = Samples::new(vec![1_u64; 120], 1).share(|hits| (*hits, 1));
        assert!(always.low > 0.95 && always.high >= 1.0, "{always:?}");
        let some = Samples::new((0..100).map(|n| n % 4).collect::<Vec<u64>>(), 1)
            .share(|n| (u64::from(*n == 0), 1));
        assert!(some.low > 0.1 && some.low < 0.2 && some.high > 0.3 && some.high < 0.4, "{some:?}");
    }

    #[test]
    fn position_depends_on_the_whole_interval() {
        let of = |low, value, high| Estimate { value, low, high, roots: 20 };
        let asked = RequiredRange::at_most(10.0);
        assert_eq!(of(8.0, 9.0, 10.0).position_in(asked), RangePosition::Inside);
        assert_eq!(of(10.1, 11.0, 12.0).position_in(asked), RangePosition::Outside);
        // The half-width is 2 and the distance 1: four times as many roots are needed.
        let near = of(7.0, 9.0, 11.0).position_in(asked);
        assert_eq!(near, RangePosition::Undecided { needed: Some(80) });
        assert_eq!(
            of(9.0, 10.0, 11.0).position_in(asked),
            RangePosition::Undecided { needed: None }
        );
        assert_eq!(of(f64::NAN, 9.0, f64::NAN).position_in(asked), RangePosition::Outside);
        let both = RequiredRange::within(0.1, 100.0);
        assert_eq!(
            of(89.0, 100.0, 111.0).position_in(both),
            RangePosition::Undecided { needed: Some(25) }
        );
        assert_eq!(of(60.0, 70.0, 80.0).position_in(both), RangePosition::Outside);
        assert_eq!(Estimate::exact(10.0).position_in(asked), RangePosition::Inside);
        assert_eq!(Estimate::exact(f64::NAN).position_in(asked), RangePosition::Outside);
    }

    #[test]
    fn pooled_quantiles_match_the_merged_list() {
        let mut rng = SeedTree::new(3).stream("lists");
        for size in [1, 2, 7, 50] {
            let mut lists: Vec<Vec<f64>> = (0..5)
                .map(|n| (0..size + n).map(|_| rng.unit() * 100.0 - 30.0).collect())
                .collect();
            let all: Vec<f64> = lists.iter().flatten().copied().collect();
            lists.iter_mut().for_each(|list| list.sort_by(f64::total_cmp));
            for share in [0.0, 0.01, 0.5, 0.99, 1.0] {
                let pooled = pooled_quantile(lists.iter().map(Vec::as_slice), share);
                assert_eq!(pooled, marline_sim::quantile(&all, share), "{size} {share}");
            }
        }
        assert!(pooled_quantile(std::iter::empty(), 0.5).is_nan());
    }

    #[test]
    fn the_normal_distribution_has_its_known_values() {
        for (x, below) in [(0.0, 0.5), (-1.959_964, 0.025), (2.575_829, 0.995)] {
            assert!((normal_cdf(x) - below).abs() < 1e-6, "{x}");
        }
        assert!((student(19.0, VERDICT_LEVEL.z) - 2.861).abs() < 0.005);
        assert!((student(9.0, DISPLAY_LEVEL.z) - 2.262).abs() < 0.005);
    }
}
