//! Clock of the drivers: nanoseconds since the first one started, from the system's monotonic
//! clock.

use std::sync::OnceLock;

use marline_time::Instant;

/// Time that has passed when a clock starts, so that "a little earlier" exists.
const HEAD_START_NANOS: u64 = 1_000_000_000;

/// One for the process: what several drivers share, such as the path health monitor, compares their
/// times.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

/// Where a clock begins.
#[derive(Copy, Clone, Debug)]
struct Origin {
    at: std::time::Instant,
    /// The same on the machine's monotonic clock, which all processes share.
    machine_nanos: u64,
}

/// The monotonic clock of this process.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    origin: Origin,
}

impl Clock {
    /// A clock that starts one second after its origin, so that "a little earlier" exists.
    #[must_use]
    pub fn start() -> Self {
        let origin = ORIGIN.get_or_init(|| {
            let now = std::time::Instant::now();
            let machine = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let machine_nanos = machine.tv_sec as u64 * 1_000_000_000 + machine.tv_nsec as u64;
            let before = |nanos| now.checked_sub(std::time::Duration::from_nanos(nanos));
            match before(HEAD_START_NANOS) {
                Some(at) => {
                    Origin { at, machine_nanos: machine_nanos.saturating_sub(HEAD_START_NANOS) }
                }
                None => Origin { at: now, machine_nanos },
            }
        });
        Clock { origin: *origin }
    }

    /// A time on the monotonic clock of the machine, which other processes read too (nanoseconds).
    pub(crate) const fn machine_nanos(&self, at: Instant) -> u64 {
        self.origin.machine_nanos.saturating_add(at.as_nanos())
    }

    /// The time at which the machine's clock said this; what was before this process is its beginning.
    pub(crate) const fn at_machine_nanos(&self, nanos: u64) -> Instant {
        Instant::from_nanos(nanos.saturating_sub(self.origin.machine_nanos))
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.origin.at.elapsed().as_nanos() as u64)
    }
}
