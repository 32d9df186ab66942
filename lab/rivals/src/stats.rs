//! Quantiles, medians and ranges. A missing value is larger than all others.

/// The value below which this share of the samples lies.
pub fn quantile(sample: &[f64], share: f64) -> Option<f64> {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// Median and range over runs; `INFINITY`: never.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Summary {
    /// Median.
    pub median: f64,
    /// Minimum.
    pub least: f64,
    /// Maximum.
    pub most: f64,
}

impl Summary {
    /// Summarizes at least one run.
    pub fn of(runs: &[Option<f64>]) -> Option<Summary> {
        let mut sorted: Vec<f64> = runs.iter().map(|run| run.unwrap_or(f64::INFINITY)).collect();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let (lower, upper) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Summary { median: lower / 2.0 + upper / 2.0, least, most })
    }

    /// Returns true if the ranges overlap.
    pub fn overlaps(self, other: Summary) -> bool {
        self.least <= other.most && other.least <= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_is_the_worst_run() {
        let summary = Summary::of(&[Some(2.0), None, Some(1.0)]);
        assert_eq!(summary, Some(Summary { median: 2.0, least: 1.0, most: f64::INFINITY }));
        assert_eq!(Summary::of(&[Some(2.0), Some(1.0)]).map(|summary| summary.median), Some(1.5));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let sample: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&sample, 0.99), Some(99.0));
        assert_eq!(quantile(&sample, 0.5), Some(50.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
