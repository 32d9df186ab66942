//! Data rates in bits per second, SI decimal, with exact integer conversions.

use core::fmt;
use core::time::Duration;

const NANOS_PER_S: u128 = 1_000_000_000;

/// A data rate in bits per second. `Rate::from_mbit(8)` is 8,000,000 bit/s.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// A rate of zero.
    pub const ZERO: Rate = Rate(0);

    /// A rate in bits per second.
    #[must_use]
    pub const fn from_bits_per_s(bits: u64) -> Self {
        Rate(bits)
    }

    /// A rate in bytes per second; saturates.
    #[must_use]
    pub const fn from_bytes_per_s(bytes: u64) -> Self {
        Rate(bytes.saturating_mul(8))
    }

    /// A rate in megabits (10^6) per second; saturates.
    #[must_use]
    pub const fn from_mbit(mbit: u64) -> Self {
        Rate(mbit.saturating_mul(1_000_000))
    }

    /// Average rate of `bytes` sent in `interval`; zero for an empty interval.
    #[must_use]
    pub fn over(bytes: u64, interval: Duration) -> Self {
        let nanos = interval.as_nanos();
        if nanos == 0 {
            return Rate::ZERO;
        }
        Rate(u64::try_from(u128::from(bytes) * 8 * NANOS_PER_S / nanos).unwrap_or(u64::MAX))
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits_per_s(self) -> u64 {
        self.0
    }

    /// Whole bytes per second.
    #[must_use]
    pub const fn bytes_per_s(self) -> u64 {
        self.0 / 8
    }

    /// Time to serialize `bytes`, rounded up to a nanosecond. With a zero rate, `Duration::MAX`.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = (u128::from(bytes) * 8 * NANOS_PER_S).div_ceil(u128::from(self.0));
        u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// Number of whole bytes that fit into `interval`.
    #[must_use]
    pub fn bytes_in(self, interval: Duration) -> u64 {
        // The longest intervals at the highest rates need more than 128 bits.
        let bits = u128::from(self.0).saturating_mul(interval.as_nanos()) / NANOS_PER_S;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..=9_999 => write!(f, "{} bit/s", self.0),
            10_000..=9_999_999 => write!(f, "{:.1} kbit/s", self.0 as f64 / 1e3),
            10_000_000..=9_999_999_999 => write!(f, "{:.1} Mbit/s", self.0 as f64 / 1e6),
            _ => write!(f, "{:.2} Gbit/s", self.0 as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialization_time_is_exact_for_an_ethernet_frame() {
        assert_eq!(Rate::from_mbit(12).time_for(1_500), Duration::from_millis(1));
        assert_eq!(Rate::from_mbit(12).bytes_in(Duration::from_millis(1)), 1_500);
        assert_eq!(Rate::over(1_500, Duration::from_millis(1)), Rate::from_mbit(12));
        assert_eq!(Rate::ZERO.time_for(1), Duration::MAX);
        assert_eq!(Rate(u64::MAX).bytes_in(Duration::MAX), u64::MAX);
    }
}
