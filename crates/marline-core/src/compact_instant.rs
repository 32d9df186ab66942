//! Instants in four bytes, for values that every connection stores and only monitoring reads.

use core::num::NonZeroU32;

use marline_time::{Duration, Instant};

/// Binary logarithm of the number of nanoseconds in a tick (65.5 microseconds).
const TICK_SHIFT: u32 = 16;

/// An instant with a resolution of 65.5 microseconds. An instant more than 78 hours ago is mistaken for a later one.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactInstant(u32);

impl CompactInstant {
    /// Rounds an instant down to a tick.
    pub(crate) const fn from_instant(instant: Instant) -> Self {
        CompactInstant((instant.as_nanos() >> TICK_SHIFT) as u32)
    }

    /// Elapsed time in microseconds.
    pub(crate) const fn elapsed_us(self, now: Instant) -> u64 {
        let ticks = CompactInstant::from_instant(now).0.wrapping_sub(self.0);
        ((ticks as u64) << TICK_SHIFT) / 1_000
    }
}

/// Like [`CompactInstant`], with a niche for `None`: one tick in 78 hours is replaced by the next one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct NonZeroCompactInstant(NonZeroU32);

impl NonZeroCompactInstant {
    /// Rounds an instant down to a tick.
    pub(crate) fn from_instant(instant: Instant) -> Self {
        NonZeroCompactInstant(
            NonZeroU32::new(CompactInstant::from_instant(instant).0).unwrap_or(NonZeroU32::MIN),
        )
    }

    /// True if less than `nanos` have passed since this instant, to within a tick. Cheaper than computing the elapsed
    /// time.
    pub(crate) const fn is_within(self, nanos: u64, now: Instant) -> bool {
        let ticks = CompactInstant::from_instant(now).0.wrapping_sub(self.0.get()).cast_signed();
        (ticks as i64) < (nanos >> TICK_SHIFT) as i64
    }

    /// Returns the original instant, accurate to a tick, if it is within 39 hours of `other`.
    pub(crate) fn to_instant_near(self, other: Instant) -> Instant {
        let ticks = CompactInstant::from_instant(other).0.wrapping_sub(self.0.get()).cast_signed();
        let apart = Duration::from_nanos(u64::from(ticks.unsigned_abs()) << TICK_SHIFT);
        if ticks < 0 { other + apart } else { other - apart }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_near_another_are_accurate_to_a_tick() {
        let wrap = Instant::from_nanos(1 << (32 + TICK_SHIFT));
        for (at, other) in [(0, 50), (50, 0), (49, 51), (0, 100_000_000), (10, 10)] {
            let [at, other] =
                [at, other].map(|ms| wrap - Duration::from_millis(50) + Duration::from_millis(ms));
            let found = NonZeroCompactInstant::from_instant(at).to_instant_near(other);
            assert!(
                found.max(at).since(found.min(at)) <= Duration::from_micros(132),
                "{at:?}, {other:?}"
            );
        }
    }

    #[test]
    fn times_are_accurate_to_a_tick_across_the_wrap() {
        let wrap = Instant::from_nanos(1 << (32 + TICK_SHIFT));
        for ms in [0, 1, 100, 60_000, 200_000_000] {
            let time = Duration::from_millis(ms);
            let begun = wrap - Duration::from_millis(50);
            let elapsed = CompactInstant::from_instant(begun).elapsed_us(begun + time);
            let elapsed = Duration::from_micros(elapsed);
            assert!(
                elapsed.abs_diff(time) <= Duration::from_micros(66),
                "{elapsed:?} for {time:?}"
            );
        }
    }
}
