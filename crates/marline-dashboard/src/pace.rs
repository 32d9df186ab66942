//! Rate at which a program is sampled: four times per second, or less often if samples need much CPU time.

use std::time::Duration;

/// Determines the time of the next sample. The cost of a sample grows with the number of connections, and that of
/// sending it with the number of viewers. Together they may use at most one [`SHARE`](Self::SHARE)th of a processor.
#[derive(Copy, Clone, Debug, Default)]
pub struct Pace {
    /// Slowly changing average cost of a sample.
    cost: Duration,
}

impl Pace {
    /// Minimum interval between two samples.
    pub const MIN_INTERVAL: Duration = Duration::from_millis(250);
    /// Maximum interval between two samples.
    pub const MAX_INTERVAL: Duration = Duration::from_secs(10);
    /// Denominator of the maximum fraction of a processor. The fraction is below one percent.
    pub const SHARE: u32 = 125;

    /// Returns the time until the next sample, after a sample that took this CPU time together with sending
    /// the previous one.
    pub fn next_delay(&mut self, took: Duration) -> Duration {
        // A single interrupted sample should have little weight, but two in a row should count.
        self.cost = (self.cost * 3 + took) / 4;
        (self.cost.max(took / 4) * Self::SHARE).clamp(Self::MIN_INTERVAL, Self::MAX_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_uses_less_than_one_percent_of_a_processor() {
        let mut pace = Pace::default();
        assert_eq!(pace.next_delay(Duration::from_micros(100)), Pace::MIN_INTERVAL);
        for took_us in [500, 3_000, 20_000] {
            let took = Duration::from_micros(took_us);
            let mut pause = Duration::ZERO;
            for _ in 0..40 {
                pause = pace.next_delay(took);
            }
            assert!(pause >= took * 99, "{took:?}: {pause:?}");
            assert!(pause <= (took * 126).max(Pace::MIN_INTERVAL), "{took:?}: {pause:?}");
        }
        assert_eq!(pace.next_delay(Duration::from_secs(9)), Pace::MAX_INTERVAL);
    }
}
