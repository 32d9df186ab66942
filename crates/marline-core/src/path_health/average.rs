//! Smoothed share, weighted by the number of samples.

/// An exponentially weighted average of `part / whole` over periods: both are averaged separately, so that a
/// period with few segments has little weight.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(super) struct Average {
    part: f64,
    whole: f64,
    /// True if the newest period increased the share.
    rose: bool,
}

impl Average {
    pub(super) const EMPTY: Average = Average { part: 0.0, whole: 0.0, rose: false };

    /// Adds a period with `part` out of `whole`, with this weight. An empty period has no effect.
    pub(super) fn add(&mut self, part: u64, whole: u64, weight: f64) {
        if whole == 0 {
            self.rose = false;
            return;
        }
        let before = self.value();
        self.part = weight * part as f64 + (1.0 - weight) * self.part;
        self.whole = weight * whole as f64 + (1.0 - weight) * self.whole;
        self.rose = self.value() > before;
    }

    /// Smoothed share, 0 to 1.
    pub(super) fn value(&self) -> f64 {
        if self.whole > 0.0 { (self.part / self.whole).min(1.0) } else { 0.0 }
    }

    /// True if the newest period raised the share to `threshold` or higher, based on at least `least` segments.
    pub(super) fn has_risen_to(&self, threshold: f64, least: f64, weight: f64) -> bool {
        self.rose && self.value() >= threshold && self.whole / weight >= least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn periods_count_by_their_volume() {
        let mut average = Average::default();
        average.add(0, 100, 0.5);
        average.add(4, 4, 0.5);
        // 0.5 x 4 of 0.5 x 4 + 0.5 x 50.
        assert!(near(average.value(), 2.0 / 27.0), "{average:?}");
        average.add(0, 0, 0.5);
        assert!(near(average.value(), 2.0 / 27.0), "an empty period does not change the average");
    }

    #[test]
    fn only_a_rise_based_on_enough_segments_counts() {
        let mut average = Average::default();
        average.add(1, 2, 0.5);
        assert!(average.has_risen_to(0.25, 0.0, 0.5) && !average.has_risen_to(0.25, 8.0, 0.5));
        average.add(8, 16, 0.5);
        assert!(!average.has_risen_to(0.25, 0.0, 0.5), "as before: {average:?}");
        average.add(16, 16, 0.5);
        assert!(average.has_risen_to(0.5, 8.0, 0.5), "{average:?}");
        average.add(0, 0, 0.5);
        assert!(!average.has_risen_to(0.25, 0.0, 0.5), "a period without packets does not count");
    }
}
