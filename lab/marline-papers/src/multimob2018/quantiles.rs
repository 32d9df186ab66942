//! Quantiles of one number per root, sorted once and resampled by counting.

use crate::estimate::{Estimate, Samples};

/// Values and root indexes, in ascending order of the values.
#[derive(Clone, Debug)]
pub(super) struct RankedSamples(Vec<(f64, usize)>);

impl RankedSamples {
    /// Ranks one number per root. Roots without a number are left out.
    pub(super) fn rank_samples<T>(
        samples: &Samples<T>,
        number: impl Fn(&T) -> Option<f64>,
    ) -> RankedSamples {
        let numbers = samples.all().iter().enumerate();
        let mut ranked: Vec<(f64, usize)> =
            numbers.filter_map(|(root, sample)| Some((number(sample)?, root))).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        RankedSamples(ranked)
    }

    /// The value at or below which this share of the drawn roots lies (nearest rank). `drawn` holds how often each
    /// root was drawn.
    pub(super) fn quantile(&self, drawn: &[u32], share: f64) -> f64 {
        let total: u32 = self.0.iter().map(|(_, root)| drawn[*root]).sum();
        let rank = ((share * f64::from(total)).ceil() as u32).max(1);
        let mut below = 0;
        let reached = self.0.iter().find(|(_, root)| {
            below += drawn[*root];
            below >= rank
        });
        reached.map_or(f64::NAN, |(value, _)| *value)
    }

    /// All values, ascending.
    pub(super) fn values(&self) -> Vec<f64> {
        self.0.iter().map(|(value, _)| *value).collect()
    }
}

/// Estimate, with its interval, of a statistic of how often each root was drawn.
pub(super) fn count_where<T>(
    samples: &Samples<T>,
    master: u64,
    of: impl Fn(&[u32]) -> f64,
) -> Estimate {
    let places = Samples::new((0..samples.roots()).collect::<Vec<usize>>(), master);
    let drawn = std::cell::RefCell::new(vec![0_u32; samples.roots()]);
    places.estimate(|picked| {
        let mut drawn = drawn.borrow_mut();
        drawn.fill(0);
        picked.iter().for_each(|place| drawn[**place] += 1);
        of(&drawn)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_counting_are_those_of_sorted_values() {
        let values: Vec<f64> = (0..37_u32).map(|n| f64::from(n * 17 % 37)).collect();
        let samples = Samples::new(values.clone(), 3);
        let ranked = RankedSamples::rank_samples(&samples, |value| Some(*value));
        for share in [0.1, 0.5, 0.9, 1.0] {
            let counted = count_where(&samples, 3, |drawn| ranked.quantile(drawn, share));
            let direct = samples.estimate(|picked| {
                let picked: Vec<f64> = picked.iter().map(|value| **value).collect();
                marline_sim::quantile(&picked, share)
            });
            assert_eq!(counted, direct, "{share}");
        }
        assert!(RankedSamples(Vec::new()).quantile(&[], 0.5).is_nan());
    }
}
