//! Histogram of delays for monitoring. Its bounds are fixed, so that histograms of several endpoints can be added.

use crate::Duration;

/// Upper bounds of the buckets, in milliseconds. Longer delays are in a final, unbounded bucket.
const BOUNDS_MS: [u64; 16] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000, 120_000];

/// Number of delays per bucket since the start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayHistogram {
    counts: [u64; BOUNDS_MS.len() + 1],
    sum_us: u64,
}

impl DelayHistogram {
    /// Counts one delay.
    pub fn record(&mut self, delay: Duration) {
        self.record_us(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX));
    }

    /// Counts one delay, in microseconds. Must be cheap, because it runs for each message of a connection.
    pub fn record_us(&mut self, us: u64) {
        // Nearly all delays are in the first buckets, so a linear search is faster than a binary search.
        let class = BOUNDS_MS.iter().position(|bound| us <= bound * 1_000);
        self.counts[class.unwrap_or(BOUNDS_MS.len())] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &DelayHistogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// The buckets in ascending order: the upper bound of each (`None` if unbounded) and its number of delays.
    pub fn classes(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = BOUNDS_MS.into_iter().map(|ms| Some(Duration::from_millis(ms)));
        bounds.chain([None]).zip(self.counts)
    }

    /// Sum of all delays, in microseconds.
    #[must_use]
    pub const fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// Number of delays.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_in_the_first_class_that_it_does_not_exceed() {
        let mut histogram = DelayHistogram::default();
        for us in [0, 1_000, 1_001, 99_999, 100_000, 120_000_001] {
            histogram.record(Duration::from_micros(us));
        }
        let filled: Vec<_> = histogram.classes().filter(|(_, count)| *count > 0).collect();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(filled, [(ms(1), 2), (ms(2), 1), (ms(100), 2), (None, 1)]);
        let mut twice = histogram;
        twice.add(&histogram);
        assert_eq!((twice.count(), twice.sum_us()), (12, 2 * histogram.sum_us()));
    }
}
