//! Pace of looks at a program: four a second, fewer where a look takes a processor for long.

use std::time::Duration;

/// Decides when the next look is due. A look costs time in proportion to the number of connections, and to tell it, to
/// that of viewers; both together may take one part in [`SHARE`](Self::SHARE) of a processor and no more.
#[derive(Copy, Clone, Debug, Default)]
pub struct Pace {
    /// A slowly changing cost of a look.
    cost: Duration,
}

impl Pace {
    /// Between two looks at least.
    pub const SHORTEST: Duration = Duration::from_millis(250);
    /// Between two looks at most.
    pub const LONGEST: Duration = Duration::from_secs(10);
    /// A look takes one part in so many of the time: less than a hundredth.
    pub const SHARE: u32 = 125;

    /// A look, and telling it, took a processor for so long: the time until the next, from its end.
    pub fn after(&mut self, took: Duration) -> Duration {
        // One that was interrupted is no measure, two in a row are.
        self.cost = (self.cost * 3 + took) / 4;
        (self.cost.max(took / 4) * Self::SHARE).clamp(Self::SHORTEST, Self::LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_take_less_than_a_hundredth_of_the_time_however_long_one_takes() {
        let mut pace = Pace::default();
        assert_eq!(pace.after(Duration::from_micros(100)), Pace::SHORTEST);
        for took_us in [500, 3_000, 20_000] {
            let took = Duration::from_micros(took_us);
            let mut pause = Duration::ZERO;
            for _ in 0..40 {
                pause = pace.after(took);
            }
            assert!(pause >= took * 99, "{took:?}: {pause:?}");
            assert!(pause <= (took * 126).max(Pace::SHORTEST), "{took:?}: {pause:?}");
        }
        assert_eq!(pace.after(Duration::from_secs(9)), Pace::LONGEST);
    }
}
