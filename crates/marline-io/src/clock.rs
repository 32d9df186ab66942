//! Clock of the drivers: nanoseconds since the first driver started, from the system's monotonic clock, excluding time
//! during which the process did not run ([`ProcessClock`]).

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use marline_time::{Instant, PAUSE, ProcessClock, nanos};

/// Reading of a clock at its start, so that earlier times can be represented.
const HEAD_START_NANOS: u64 = 1_000_000_000;
/// Readings this close together are recorded as one, so that threads reading the clock rarely write to memory.
const RESOLUTION_NANOS: u64 = 1_000_000;

/// One origin for the process: shared components, such as the path health monitor, compare times of several drivers.
static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
/// Alarms of the drivers, and the excluded time. Locked only when the clock has not been read for [`PAUSE`], and
/// when a timer is set.
static PAUSE_DETECTOR: Mutex<PauseDetector> = Mutex::new(PauseDetector {
    clock: ProcessClock::new(),
    alarms: BTreeMap::new(),
    next_alarm: 0,
});
/// Last reading of the system's clock, with a resolution of [`RESOLUTION_NANOS`].
static LAST_READING: AtomicU64 = AtomicU64::new(0);
/// Excluded time so far.
static EXCLUDED: AtomicU64 = AtomicU64::new(0);
/// Number of pauses so far.
static PAUSE_COUNT: AtomicU64 = AtomicU64::new(0);

/// State that distinguishes a pause from a wait.
#[derive(Debug)]
struct PauseDetector {
    clock: ProcessClock,
    /// Next wake-up of each driver.
    alarms: BTreeMap<u64, Instant>,
    next_alarm: u64,
}

impl PauseDetector {
    fn lock() -> MutexGuard<'static, PauseDetector> {
        PAUSE_DETECTOR.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the clock when it has not been read for [`PAUSE`].
    fn read_after_pause(&mut self, system: Instant) -> Instant {
        let PauseDetector { clock, alarms, .. } = self;
        clock.record_running(Instant::from_nanos(LAST_READING.load(Ordering::Acquire)));
        let pauses = clock.pauses();
        let now = clock.read(system, || alarms.values().copied().min());
        if clock.pauses() > pauses {
            // Each alarm accounts for one pause. A driver that no longer runs must not stop the clock of the others.
            alarms.retain(|_, at| *at > now);
            PAUSE_COUNT.store(clock.pauses(), Ordering::Release);
            EXCLUDED.store(nanos(clock.excluded_time()), Ordering::Release);
        }
        LAST_READING.fetch_max(system.as_nanos(), Ordering::Release);
        now
    }
}

/// Next wake-up of a driver. If it wakes much later, and no other part of the process ran in the meantime, the clock
/// excludes that time.
#[derive(Debug)]
pub(crate) struct Alarm(u64);

impl Alarm {
    pub(crate) fn new() -> Alarm {
        let mut waking = PauseDetector::lock();
        waking.next_alarm += 1;
        Alarm(waking.next_alarm)
    }

    /// Sets the time at which the driver should be woken.
    pub(crate) fn set(&self, at: Instant) {
        PauseDetector::lock().alarms.insert(self.0, at);
    }

    /// Clears the wake-up time after the wake-up, or when it is no longer needed.
    pub(crate) fn clear(&self) {
        PauseDetector::lock().alarms.remove(&self.0);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Monotonic clock of this process.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// Creates a clock that starts one second after its origin, so that an earlier time can be represented.
    #[must_use]
    pub fn start() -> Self {
        let origin = ORIGIN.get_or_init(|| {
            let now = std::time::Instant::now();
            now.checked_sub(std::time::Duration::from_nanos(HEAD_START_NANOS)).unwrap_or(now)
        });
        Clock { origin: *origin }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        loop {
            let left_out = EXCLUDED.load(Ordering::Acquire);
            let system = self.origin.elapsed().as_nanos() as u64;
            let last = LAST_READING.load(Ordering::Acquire);
            let unseen = system.saturating_sub(last);
            if unseen > nanos(PAUSE) {
                return PauseDetector::lock().read_after_pause(Instant::from_nanos(system));
            }
            if unseen > RESOLUTION_NANOS {
                LAST_READING.fetch_max(system, Ordering::Release);
            }
            // Another thread may have detected a pause in the meantime, which this reading must exclude.
            if EXCLUDED.load(Ordering::Acquire) == left_out {
                return Instant::from_nanos(system - left_out);
            }
        }
    }

    /// Returns the number of detected pauses of the process.
    pub(crate) fn pauses(&self) -> u64 {
        PAUSE_COUNT.load(Ordering::Acquire)
    }
}
