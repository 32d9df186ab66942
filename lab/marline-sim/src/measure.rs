//! Statistics of samples.

use marline_time::{Duration, Rate};

/// Durations, stored exactly and sorted on demand.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    values: Vec<Duration>,
}

impl Samples {
    /// Samples of these values.
    #[must_use]
    pub fn new(mut values: Vec<Duration>) -> Self {
        values.sort_unstable();
        Samples { values }
    }

    /// The smallest sample such that the share `quantile` (0 to 1) of the samples is not larger (nearest rank). Zero
    /// without samples.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        nearest_rank(&self.values, quantile).unwrap_or_default()
    }

    /// The largest sample.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.values.last().copied().unwrap_or_default()
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True if there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// The smallest of sorted values such that this share (0 to 1) of them is not larger.
fn nearest_rank<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The smallest value such that the share `quantile` (0 to 1) of the values is not larger (nearest rank). NaN without
/// values.
#[must_use]
pub fn quantile(values: &[f64], quantile: f64) -> f64 {
    nearest_rank(&sorted(values), quantile).unwrap_or(f64::NAN)
}

/// The arithmetic mean. NaN without values.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The median. For an even number of values, the mean of the middle two. NaN without values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (len, middle) if len % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Goodput of a link: its rate times `payload / packet`, for full segments with `payload` bytes of application data in
/// packets of `packet` bytes.
#[must_use]
pub fn link_goodput(rate: Rate, payload: u64, packet: u64) -> Rate {
    let bits = u128::from(rate.bits_per_s()) * u128::from(payload) / u128::from(packet.max(1));
    Rate::from_bits_per_s(u64::try_from(bits).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let samples = Samples::new((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!(samples.quantile(0.5), Duration::from_millis(50));
        assert_eq!(samples.quantile(0.99), Duration::from_millis(99));
        assert_eq!(samples.quantile(1.0), Duration::from_millis(100));
        assert_eq!(samples.quantile(0.0), Duration::from_millis(1));
        assert_eq!(Samples::default().quantile(0.5), Duration::ZERO);
        assert_eq!(link_goodput(Rate::from_mbit(15), 1_000, 1_500), Rate::from_mbit(10));
    }

    #[test]
    fn quantiles_are_sampled_values() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let at = |q| quantile(&values, q);
        assert_eq!((at(0.5), at(0.95), at(0.99), at(1.0)), (50.0, 95.0, 99.0, 100.0));
        assert!(quantile(&[], 0.5).is_nan());
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
