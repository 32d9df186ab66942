//! Point in time as integer nanoseconds.

use core::fmt;
use core::num::NonZeroU64;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an origin chosen by the driver.
///
/// The 64 bits cover 584 years. Unlike those of `std::time::Instant`, values can be built, printed and compared freely.
/// Arithmetic saturates at both ends instead of panicking.
///
/// Stored as the nanoseconds plus one, so that the value is never 0 and an `Option<Instant>`, of which a connection has
/// dozens, is no larger than an instant.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(NonZeroU64);

impl Instant {
    /// The origin of the time line.
    pub const ZERO: Instant = Instant(NonZeroU64::MIN);
    /// Later than every other instant: "never".
    pub const FAR_FUTURE: Instant = Instant(NonZeroU64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// The instant `micros` microseconds after the origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Instant::from_nanos(micros.saturating_mul(1_000))
    }

    /// The instant `millis` milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Instant::from_nanos(millis.saturating_mul(1_000_000))
    }

    /// The instant `secs` seconds after the origin.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Instant::from_nanos(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// Whole microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.as_nanos() / 1_000
    }

    /// Whole milliseconds since the origin.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.as_nanos() / 1_000_000
    }

    /// Seconds since the origin as a float, for tables and figures only.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.as_nanos() as f64 / 1e9
    }

    /// Time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Default for Instant {
    fn default() -> Self {
        Instant::ZERO
    }
}

/// A duration's nanoseconds, saturated to 64 bits (584 years).
#[must_use]
pub const fn nanos(d: Duration) -> u64 {
    let n = d.as_nanos();
    if n > u64::MAX as u128 { u64::MAX } else { n as u64 }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(d)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, d: Duration) -> Instant {
        let left = self.0.get().saturating_sub(nanos(d));
        NonZeroU64::new(left).map_or(Instant::ZERO, Instant)
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.as_nanos();
        write!(f, "{}.{:09}s", nanos / 1_000_000_000, nanos % 1_000_000_000)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.as_micros();
        write!(f, "{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Instant::ZERO - Duration::from_secs(1), Instant::ZERO);
        assert_eq!(Instant::FAR_FUTURE + Duration::from_secs(1), Instant::FAR_FUTURE);
        assert_eq!(Instant::ZERO.since(Instant::from_secs(3)), Duration::ZERO);
        assert_eq!(Instant::from_millis(1_500) - Instant::from_secs(1), Duration::from_millis(500));
        assert_eq!(Instant::from_nanos(u64::MAX), Instant::FAR_FUTURE);
        assert_eq!(Instant::from_nanos(7) - Duration::from_nanos(7), Instant::ZERO);
    }

    #[test]
    fn nanoseconds_round_trip_and_none_is_the_smallest() {
        for nanos in [0, 1, 999_999_999, 1 << 40] {
            assert_eq!(Instant::from_nanos(nanos).as_nanos(), nanos);
        }
        assert_eq!(Instant::default(), Instant::ZERO);
        assert!(None < Some(Instant::ZERO) && Instant::ZERO < Instant::from_nanos(1));
        assert_eq!(size_of::<Option<Instant>>(), size_of::<Instant>());
        assert_eq!(
            format!("{:?} {}", Instant::from_micros(1_500_001), Instant::from_millis(2)),
            "1.500001000s 0.002000"
        );
    }
}
