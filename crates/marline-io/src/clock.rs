//! Clock of the drivers: nanoseconds since the first one started, from the system's monotonic clock, without the time
//! in which the process did not run ([`ProcessClock`]).

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use marline_time::{Instant, PAUSE, ProcessClock, nanos};

/// Time that has passed when a clock starts, so that "a little earlier" exists.
const HEAD_START_NANOS: u64 = 1_000_000_000;
/// Readings this close together are noted as one: threads that all read the clock write to memory rarely.
const GRAIN_NANOS: u64 = 1_000_000;

/// One for the process: what several drivers share, such as the path health monitor, compares their
/// times.
static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
/// When drivers are to be woken, and the time left out. Locked only when nobody has read the clock for [`PAUSE`], and
/// when a timer is set.
static WAKING: Mutex<Waking> =
    Mutex::new(Waking { clock: ProcessClock::new(), alarms: BTreeMap::new(), next_alarm: 0 });
/// The last reading of the system's clock, to [`GRAIN_NANOS`].
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// Time left out so far.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);
/// Pauses so far.
static PAUSES: AtomicU64 = AtomicU64::new(0);

/// What tells a pause from a wait.
#[derive(Debug)]
struct Waking {
    clock: ProcessClock,
    /// When each driver is to be woken.
    alarms: BTreeMap<u64, Instant>,
    next_alarm: u64,
}

impl Waking {
    fn lock() -> MutexGuard<'static, Waking> {
        WAKING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the clock after nobody did for a while.
    fn look(&mut self, system: Instant) -> Instant {
        let Waking { clock, alarms, .. } = self;
        clock.note_running(Instant::from_nanos(LOOKED_AT.load(Ordering::Acquire)));
        let pauses = clock.pauses();
        let now = clock.look(system, || alarms.values().copied().min());
        if clock.pauses() > pauses {
            // Each has told of one pause. A driver that nobody runs any more must not stop the clock of others.
            alarms.retain(|_, at| *at > now);
            PAUSES.store(clock.pauses(), Ordering::Release);
            LEFT_OUT.store(nanos(clock.left_out()), Ordering::Release);
        }
        LOOKED_AT.fetch_max(system.as_nanos(), Ordering::Release);
        now
    }
}

/// When a driver is to be woken. If it is woken much later, and nothing of the process ran meanwhile, the clock leaves
/// that time out.
#[derive(Debug)]
pub(crate) struct Alarm(u64);

impl Alarm {
    pub(crate) fn new() -> Alarm {
        let mut waking = Waking::lock();
        waking.next_alarm += 1;
        Alarm(waking.next_alarm)
    }

    /// The driver is to be woken then.
    pub(crate) fn set(&self, at: Instant) {
        Waking::lock().alarms.insert(self.0, at);
    }

    /// It was woken, or need not be.
    pub(crate) fn clear(&self) {
        Waking::lock().alarms.remove(&self.0);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.clear();
    }
}

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
            now.checked_sub(std::time::Duration::from_nanos(HEAD_START_NANOS)).unwrap_or(now)
        });
        Clock { origin: *origin }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        loop {
            let left_out = LEFT_OUT.load(Ordering::Acquire);
            let system = self.origin.elapsed().as_nanos() as u64;
            let last = LOOKED_AT.load(Ordering::Acquire);
            let unseen = system.saturating_sub(last);
            if unseen > nanos(PAUSE) {
                return Waking::lock().look(Instant::from_nanos(system));
            }
            if unseen > GRAIN_NANOS {
                LOOKED_AT.fetch_max(system, Ordering::Release);
            }
            // Whether somebody else has seen a pause meanwhile, which this reading lies behind.
            if LEFT_OUT.load(Ordering::Acquire) == left_out {
                return Instant::from_nanos(system - left_out);
            }
        }
    }

    /// How often the process did not run for a while, as far as that was seen.
    pub(crate) fn pauses(&self) -> u64 {
        PAUSES.load(Ordering::Acquire)
    }
}
