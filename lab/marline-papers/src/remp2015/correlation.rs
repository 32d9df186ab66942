//! Correlation of two paths, measured from the round-trip times of the same messages on each path alone.
//!
//! There are two numbers. The first is Pearson's coefficient of the round-trip times, which a few long outages
//! dominate. The second is the coefficient of being late (more than twice the median of the run), in which an
//! outage counts by its number of messages.

use serde::{Deserialize, Serialize};

use super::measure::round_to_thousandth;

/// Ratio to the median of the run above which a message is late.
const LATE_RATIO: f64 = 2.0;

/// Two runs with the same messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pair {
    /// Pearson's coefficient; 0 if the times of a run do not vary.
    coefficient: f64,
    /// Numbers of messages that were late on neither path, on the first only, on the second only, on both.
    late: [u32; 4],
    /// Number of messages that were faster on the first path.
    first_sooner: u32,
}

impl Pair {
    /// Pair of two lists of round-trip times in ms, both in the order of the messages.
    pub(super) fn from_lists(first: &[f64], second: &[f64]) -> Pair {
        let late = |list: &[f64]| {
            let limit = LATE_RATIO * marline_sim::median(list);
            list.iter().map(|ms| *ms > limit).collect::<Vec<bool>>()
        };
        let mut counts = [0; 4];
        for (a, b) in late(first).into_iter().zip(late(second)) {
            counts[usize::from(a) + 2 * usize::from(b)] += 1;
        }
        let sooner = first.iter().zip(second).filter(|(a, b)| a < b).count();
        let coefficient = (pearson(first, second) * 1e6).round() / 1e6;
        Pair { coefficient, late: counts, first_sooner: sooner as u32 }
    }

    pub(super) const fn correlation(&self) -> f64 {
        self.coefficient
    }

    /// Number of messages that were faster on the first path, and the number of all messages.
    pub(super) fn first_sooner_counts(&self) -> (u64, u64) {
        (u64::from(self.first_sooner), self.late.iter().copied().map(u64::from).sum())
    }

    /// Correlation of being late, over the messages of all runs. 0 if it is undefined.
    pub(super) fn lateness_correlation<'a>(pairs: impl Iterator<Item = &'a Pair>) -> f64 {
        let mut counts = [0.0; 4];
        for pair in pairs {
            counts.iter_mut().zip(pair.late).for_each(|(sum, count)| *sum += f64::from(count));
        }
        let [neither, first, second, both] = counts;
        let sides = (first + both) * (second + both) * (neither + second) * (neither + first);
        if sides > 0.0 { (both * neither - first * second) / sides.sqrt() } else { 0.0 }
    }
}

fn pearson(first: &[f64], second: &[f64]) -> f64 {
    let (mean_a, mean_b) = (marline_sim::mean(first), marline_sim::mean(second));
    let (mut products, mut squares_a, mut squares_b) = (0.0, 0.0, 0.0);
    for (a, b) in first.iter().zip(second) {
        let (a, b) = (a - mean_a, b - mean_b);
        products += a * b;
        squares_a += a * a;
        squares_b += b * b;
    }
    let sides = round_to_thousandth(squares_a) * round_to_thousandth(squares_b);
    if sides > 0.0 { products / sides.sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlation_is_one_with_itself_and_minus_one_where_one_is_late_when_the_other_is_not() {
        let first = [10.0, 10.0, 10.0, 40.0, 10.0, 10.0];
        let same = Pair::from_lists(&first, &first);
        assert!((same.correlation() - 1.0).abs() < 1e-9, "{same:?}");
        assert!((Pair::lateness_correlation([&same].into_iter()) - 1.0).abs() < 1e-9);
        assert_eq!(same.first_sooner_counts(), (0, 6));
        let calm = Pair::from_lists(&first, &[10.0; 6]);
        assert_eq!(calm.correlation(), 0.0);
        assert_eq!(Pair::lateness_correlation([&calm].into_iter()), 0.0);
        // Alternating lateness gives a weak negative correlation, as for two rare events that never coincide.
        let other = [10.0, 40.0, 10.0, 10.0, 10.0, 10.0];
        let turn = Pair::from_lists(&first, &other);
        assert!((turn.correlation() + 0.2).abs() < 1e-9, "{turn:?}");
        assert!((Pair::lateness_correlation([&turn].into_iter()) + 0.2).abs() < 1e-9);
    }
}
