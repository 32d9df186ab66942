//! Wake-ups of a shard's task: its waker and timer, and busy polling.
//!
//! With busy polling, a shard polls its sockets continuously for some time after each write or receive, instead of
//! sleeping until the system wakes it. Waking a thread costs more than the processing of a short message, most of all
//! if the processor has entered a sleep state meanwhile. An application that expects answers within that time can get
//! them sooner, at the cost of a busy processor, so this is off by default. Other tasks of the runtime still have
//! their turns, and timers fire.

use core::task::{Context, Waker};

use marline_core::ConnectionId;
use marline_time::{Duration, Instant};

use super::streams::{register, wake};
use super::turns::Turns;

/// Upper limit of the polling time after the last exchange.
pub const MAX_BUSY_POLL: Duration = Duration::from_millis(10);

/// State of a shard's busy polling.
#[derive(Copy, Clone, Debug)]
struct BusyPoll {
    /// Polling time after the last exchange; zero disables polling.
    length: Duration,
    until: Instant,
}

impl BusyPoll {
    /// Polls for `length` after each exchange, at most [`MAX_BUSY_POLL`].
    fn new(length: Duration) -> BusyPoll {
        BusyPoll { length: length.min(MAX_BUSY_POLL), until: Instant::ZERO }
    }

    const fn is_enabled(&self) -> bool {
        !self.length.is_zero()
    }

    /// Records a write or a receive. Returns true if polling begins with it.
    fn on_exchange(&mut self, now: Instant) -> bool {
        if !self.is_enabled() {
            return false;
        }
        let was_on = self.is_on(now);
        self.until = now + self.length;
        !was_on
    }

    fn is_on(&self, now: Instant) -> bool {
        now < self.until
    }
}

/// Waker and timer of a shard's task.
#[derive(Debug)]
pub(super) struct Wakeups {
    task: Option<Waker>,
    armed: Option<Instant>,
    busy_poll: BusyPoll,
    turns: Turns,
    /// Set when the task has ended.
    stopped: bool,
    /// Number of process pauses that endpoint and lanes have been notified of.
    pauses: u64,
}

impl Wakeups {
    pub(super) fn new(busy_poll: Duration) -> Wakeups {
        Wakeups {
            task: None,
            armed: None,
            busy_poll: BusyPoll::new(busy_poll),
            turns: Turns::new(),
            stopped: false,
            pauses: 0,
        }
    }

    /// Wakes the task.
    pub(super) fn wake_task(&mut self) {
        wake(self.task.take());
    }

    /// Stores the waker of the task, which is polled now.
    pub(super) fn set_task(&mut self, cx: &Context<'_>) {
        register(&mut self.task, cx);
        self.turns.set_driver(cx.waker());
    }

    /// Waker of the task, unless it is woken already.
    #[cfg(test)]
    pub(super) fn task(&self) -> Option<Waker> {
        self.task.clone()
    }

    #[cfg(test)]
    pub(super) const fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Time at which the timer fires.
    pub(super) const fn armed(&self) -> Option<Instant> {
        self.armed
    }

    pub(super) const fn set_armed(&mut self, at: Option<Instant>) {
        self.armed = at;
    }

    pub(super) const fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub(super) const fn stop(&mut self) {
        self.stopped = true;
    }

    /// Records the number of process pauses. Returns true if there was a new one.
    pub(super) const fn note_pauses(&mut self, pauses: u64) -> bool {
        core::mem::replace(&mut self.pauses, pauses) != pauses
    }

    /// Returns true if writes wait for the end of this turn of the runtime. Everything else can then wait with them.
    pub(super) fn turn_continues(&self, now: Instant) -> bool {
        self.turns.goes_on(now)
    }

    /// Records a write of `len` bytes. Returns true if it waits for the end of the turn.
    pub(super) fn delays_write(&mut self, now: Instant, id: ConnectionId, len: usize) -> bool {
        self.turns.on_write(now, id, len)
    }

    /// Records that everything has been sent.
    pub(super) fn on_sent(&mut self) {
        self.turns.on_sent();
    }

    pub(super) const fn may_busy_poll(&self) -> bool {
        self.busy_poll.is_enabled()
    }

    /// Records a write or a receive. Returns true if busy polling begins with it.
    pub(super) fn on_exchange(&mut self, now: Instant) -> bool {
        self.busy_poll.on_exchange(now)
    }

    pub(super) fn is_busy_polling(&self, now: Instant) -> bool {
        self.busy_poll.is_on(now)
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
