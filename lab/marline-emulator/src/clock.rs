//! Clock of the emulator.

use marline_time::Instant;

/// The emulator's time in nanoseconds since its start.
#[derive(Debug)]
pub(crate) struct Clock(std::time::Instant);

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock(std::time::Instant::now())
    }

    /// Time zero.
    pub(crate) const fn started(&self) -> std::time::Instant {
        self.0
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::ZERO + self.0.elapsed()
    }
}
