//! The clock of a driver: nanoseconds since it started, from the system's monotonic clock.

use marline_time::Instant;

/// A monotonic clock with its own origin.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock that starts one second after its origin, so that "a little earlier" exists.
    #[must_use]
    pub fn start() -> Self {
        let now = std::time::Instant::now();
        Clock { origin: now.checked_sub(std::time::Duration::from_secs(1)).unwrap_or(now) }
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
}
