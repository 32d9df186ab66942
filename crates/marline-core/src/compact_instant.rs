//! Instants in four bytes, for what every connection keeps and only monitoring reads.

use marline_time::{Duration, Instant};

/// Nanoseconds of a tick, as a power of two: 65.5 microseconds.
const TICK_SHIFT: u32 = 16;

/// An instant to 65.5 microseconds. What was 78 hours ago or more is taken for something later.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactInstant(u32);

impl CompactInstant {
    /// This instant.
    pub(crate) const fn of(instant: Instant) -> Self {
        CompactInstant((instant.as_nanos() >> TICK_SHIFT) as u32)
    }

    /// How long ago it was.
    pub(crate) fn elapsed(self, now: Instant) -> Duration {
        let ticks = CompactInstant::of(now).0.wrapping_sub(self.0);
        Duration::from_nanos(u64::from(ticks) << TICK_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_right_to_a_tick_also_over_the_wrap() {
        let wrap = Instant::from_nanos(1 << (32 + TICK_SHIFT));
        for ms in [0, 1, 100, 60_000, 200_000_000] {
            let time = Duration::from_millis(ms);
            let begun = wrap - Duration::from_millis(50);
            let elapsed = CompactInstant::of(begun).elapsed(begun + time);
            assert!(
                elapsed.abs_diff(time) <= Duration::from_micros(66),
                "{elapsed:?} for {time:?}"
            );
        }
    }
}
