//! The monotonic clock, which all processes of the machine share.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds as milliseconds.
pub fn ms(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}
