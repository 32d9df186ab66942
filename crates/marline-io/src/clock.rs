//! The clock of the drivers: nanoseconds since the first one started, from the system's monotonic clock.

use std::sync::OnceLock;

use marline_time::Instant;

/// One for the process: what several drivers share, such as the path health monitor, compares their times.
static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();

/// The monotonic clock of this process.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock that starts one second after its origin, so that "a little earlier" exists.
    #[must_use]
    pub fn start() -> Self {
        let origin = ORIGIN.get_or_init(|| {
            let now = std::time::Instant::now();
            now.checked_sub(std::time::Duration::from_secs(1)).unwrap_or(now)
        });
        Clock { origin: *origin }
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
}
