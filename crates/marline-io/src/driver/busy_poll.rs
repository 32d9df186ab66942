//! Busy polling: for some time after each write or receive, a shard polls its sockets continuously instead of
//! sleeping until the system wakes it.
//!
//! Waking a thread costs more than the processing of a short message, most of all if the processor has entered a
//! sleep state meanwhile. An application that expects answers within that time can get them sooner, at the cost of a
//! busy processor, so this is off by default. Other tasks of the runtime still have their turns, and timers fire.

use marline_time::{Duration, Instant};

/// Upper limit of the polling time after the last exchange.
pub const MAX_BUSY_POLL: Duration = Duration::from_millis(10);

/// State of a shard's busy polling.
#[derive(Copy, Clone, Debug)]
pub(super) struct BusyPoll {
    /// Polling time after the last exchange; zero disables polling.
    length: Duration,
    until: Instant,
}

impl BusyPoll {
    /// Polls for `length` after each exchange, at most [`MAX_BUSY_POLL`].
    pub(super) fn new(length: Duration) -> BusyPoll {
        BusyPoll { length: length.min(MAX_BUSY_POLL), until: Instant::ZERO }
    }

    pub(super) const fn is_enabled(&self) -> bool {
        !self.length.is_zero()
    }

    /// Records a write or a receive. Returns true if polling begins with it.
    pub(super) fn on_exchange(&mut self, now: Instant) -> bool {
        if !self.is_enabled() {
            return false;
        }
        let was_on = self.is_on(now);
        self.until = now + self.length;
        !was_on
    }

    pub(super) fn is_on(&self, now: Instant) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Instant = Instant::from_micros;

    #[test]
    fn busy_polling_continues_briefly_after_an_exchange() {
        let mut polls = BusyPoll::new(Duration::from_micros(50));
        assert!(!polls.is_on(US(100)));
        assert!(polls.on_exchange(US(100)) && !polls.on_exchange(US(130)));
        assert!(polls.is_on(US(179)) && !polls.is_on(US(180)));
        assert!(polls.on_exchange(US(180)), "it begins anew");
    }

    #[test]
    fn busy_polling_is_off_by_default_and_bounded() {
        let mut polls = BusyPoll::new(Duration::ZERO);
        assert!(!polls.on_exchange(US(100)) && !polls.is_on(US(100)));
        let mut polls = BusyPoll::new(Duration::from_secs(9));
        assert!(polls.on_exchange(US(0)) && !polls.is_on(US(10_000)));
    }
}
