//! Clock of a process: the system's clock, excluding the time during which the process was suspended.
//!
//! *Problem.* To a process that was stopped (SIGSTOP, a frozen cgroup, a paused virtual machine), everything looks
//! late when it continues. Answers that waited in a socket for an hour look like round trips that took an hour, and
//! every timer that measures the network, from retransmission to path health, has expired although nothing was lost.
//!
//! *How.* A driver states when it should be woken. If the process reads the clock much later than that, and did not
//! read it in between, it was suspended, and the clock continues from the time at which the process should have been
//! woken. So every timer has as much time left as before, and answers that have arrived are read before it expires.
//! Data in flight during the pause cannot be timed: protocols are notified of the pause and take no measurements from
//! that data.
//!
//! A pause during a wait without a timer is not detected and is harmless, because nothing is being measured. A pause
//! during the wait for a timer is detected to the extent that it exceeds the wait. Linux treats a suspended machine in
//! the same way: its monotonic clock stops.

use core::time::Duration;

use crate::Instant;

/// A process woken later than this was suspended. Shorter delays are normal on a busy machine.
pub const PAUSE: Duration = Duration::from_millis(200);

/// Time during which the process ran, derived from readings of the system's clock.
#[derive(Copy, Clone, Debug, Default)]
pub struct ProcessClock {
    excluded: Duration,
    /// The last reading of the system's clock.
    last_reading: Instant,
    pauses: u64,
}

impl ProcessClock {
    /// Creates a clock without pauses.
    #[must_use]
    pub const fn new() -> Self {
        ProcessClock { excluded: Duration::ZERO, last_reading: Instant::ZERO, pauses: 0 }
    }

    /// Reads the clock. `due` returns the time of this clock at which the process was to be woken.
    pub fn read(&mut self, system: Instant, due: impl FnOnce() -> Option<Instant>) -> Instant {
        let (now, last) = (self.now(system), self.now(self.last_reading));
        let unseen = system.since(self.last_reading);
        self.record_running(system);
        if unseen <= PAUSE {
            return now;
        }
        let Some(due) = due() else { return now };
        let from = due.max(last);
        let late = now.since(from);
        if late <= PAUSE {
            return now;
        }
        self.excluded += late;
        self.pauses += 1;
        from
    }

    /// Records that the process ran at this system time, although it did not read this clock.
    pub fn record_running(&mut self, system: Instant) {
        self.last_reading = self.last_reading.max(system);
    }

    /// The process time at this system time, if there are no further pauses.
    #[must_use]
    pub fn now(&self, system: Instant) -> Instant {
        system - self.excluded
    }

    /// The system time at this process time, if there are no further pauses.
    #[must_use]
    pub fn system_time(&self, at: Instant) -> Instant {
        at + self.excluded
    }

    /// Total time during which the process was suspended, as far as detected.
    #[must_use]
    pub const fn excluded_time(&self) -> Duration {
        self.excluded
    }

    /// Number of pauses so far.
    #[must_use]
    pub const fn pauses(&self) -> u64 {
        self.pauses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    #[test]
    fn the_clock_stands_still_from_when_the_process_should_have_been_woken() {
        let mut clock = ProcessClock::default();
        assert_eq!(clock.read(ms(1_000), || None), ms(1_000));
        assert_eq!(clock.read(ms(3_601_000), || Some(ms(1_040))), ms(1_040));
        assert_eq!(clock.pauses(), 1);
        assert_eq!(clock.read(ms(3_601_030), || Some(ms(1_040))), ms(1_070));
        assert_eq!(clock.system_time(ms(1_100)), ms(3_601_060));
        assert_eq!(clock.read(ms(3_701_030), || Some(ms(1_100))), ms(1_100));
        assert_eq!(clock.excluded_time(), Duration::from_millis(3_699_930));
    }

    #[test]
    fn a_wait_that_ends_slightly_late_does_not_count_as_a_pause() {
        let mut clock = ProcessClock::default();
        assert_eq!(clock.read(ms(3_600_000), || Some(ms(3_600_000))), ms(3_600_000));
        assert_eq!(clock.read(ms(7_200_150), || Some(ms(7_200_000))), ms(7_200_150));
        assert_eq!(clock.read(ms(9_000_000), || Some(ms(9_999_000))), ms(9_000_000), "early");
        assert_eq!(clock.read(ms(9_900_000), || None), ms(9_900_000), "no deadline was due");
        assert_eq!(clock.pauses(), 0);
    }

    #[test]
    fn an_unserved_timer_of_a_running_process_stops_no_clock() {
        let mut clock = ProcessClock::default();
        for at in (100..10_000).step_by(100) {
            assert_eq!(clock.read(ms(at), || Some(ms(50))), ms(at));
        }
        assert_eq!(
            clock.read(ms(20_000), || Some(ms(50))),
            ms(9_900),
            "time since the last reading"
        );
    }
}
