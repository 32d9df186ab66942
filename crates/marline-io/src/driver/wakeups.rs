//! Wake-ups of a shard's task: its waker and timer, busy polling, and turns of the runtime.
//!
//! *Busy polling.* A shard polls its sockets continuously for some time after each write or receive, instead of
//! sleeping until the system wakes it. Waking a thread costs more than processing a short message, especially if the
//! processor has entered a sleep state. An application that expects answers within the polling time gets them sooner,
//! at the cost of a busy processor, so this is off by default. Other tasks of the runtime still have their turns, and
//! timers fire.
//!
//! *Turns.* Short writes of several connections within one turn of the runtime are sent together when the turn ends. A
//! send call costs more than everything else that this driver does for a short message. While a runtime has many tasks
//! to poll, most turns contain writes of several connections. But a single message must not wait in vain, and whether
//! others follow is unknown: this is predicted from earlier turns.

use core::future::Future as _;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Waker};
use std::sync::Arc;
use std::task::Wake;

use marline_core::ConnectionId;
use marline_time::{Duration, Instant};

use super::streams::{register, wake};

/// Upper limit on the polling time after the last exchange.
pub const MAX_BUSY_POLL: Duration = Duration::from_millis(10);

/// Maximum length of a write that waits, in bytes. Longer writes justify their own system call.
const MAX_DELAYED_WRITE_BYTES: usize = 4 << 10;
/// Maximum number of waiting writes: the datagrams of one batch.
const MAX_DELAYED_WRITES: u32 = 44;
/// Minimum number of writes in a turn that justifies waiting: the end of a turn costs about as much as one system
/// call.
const MIN_TURN_WRITES: u32 = 3;
/// Maximum time between writes of two connections that probably belong to one turn.
const MAX_WRITE_GAP: Duration = Duration::from_micros(50);
/// Time after which the next caller sends waiting writes, if the current task runs long.
const MAX_TURN: Duration = Duration::from_micros(200);
/// Upper limit on the number of such pairs that must occur, after useless waits, before a write waits again.
const MAX_PAIRS: u32 = 64;

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

    /// Records a write or a receive. Returns true if this starts polling.
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
    /// True once the task has ended.
    stopped: bool,
    /// Number of process pauses reported to the endpoint and the lanes.
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

    /// Stores the waker of the task, which is being polled.
    pub(super) fn set_task(&mut self, cx: &Context<'_>) {
        register(&mut self.task, cx);
        self.turns.set_driver(cx.waker());
    }

    /// Returns the waker of the task, unless it has already been woken.
    #[cfg(test)]
    pub(super) fn task(&self) -> Option<Waker> {
        self.task.clone()
    }

    #[cfg(test)]
    pub(super) const fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Returns the time at which the timer fires.
    pub(super) const fn alarm_at(&self) -> Option<Instant> {
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

    /// Records the number of process pauses. Returns true if there are new ones.
    pub(super) const fn record_pauses(&mut self, pauses: u64) -> bool {
        core::mem::replace(&mut self.pauses, pauses) != pauses
    }

    /// Returns true if writes wait for the end of this turn of the runtime. Other data can then wait with them.
    pub(super) fn defers_writes(&self, now: Instant) -> bool {
        self.turns.defers_writes(now)
    }

    /// Records a write of `len` bytes. Returns true if it waits for the end of the turn.
    pub(super) fn should_delay_write(
        &mut self,
        now: Instant,
        id: ConnectionId,
        len: usize,
    ) -> bool {
        self.turns.on_write(now, id, len)
    }

    /// Records that everything has been sent.
    pub(super) fn on_sent(&mut self) {
        self.turns.on_sent();
    }

    pub(super) const fn may_busy_poll(&self) -> bool {
        self.busy_poll.is_enabled()
    }

    /// Records a write or a receive. Returns true if this starts busy polling.
    pub(super) fn on_exchange(&mut self, now: Instant) -> bool {
        self.busy_poll.on_exchange(now)
    }

    pub(super) fn is_busy_polling(&self, now: Instant) -> bool {
        self.busy_poll.is_on(now)
    }
}

/// Predicts from past turns whether the next short write should wait for the end of the turn.
#[derive(Debug)]
pub(super) struct Turns {
    /// Connection and time of the last write.
    last: Option<(ConnectionId, Instant)>,
    /// True if turns are expected to contain writes of several connections.
    expects_several: bool,
    /// Number of pairs of close writes so far, and the number needed before several connections are expected.
    pairs: u32,
    pairs_needed: u32,
    /// Number of writes that wait for the end of this turn.
    waiting: u32,
    /// True if the waiting writes belong to several connections.
    several: bool,
    /// Time of the first waiting write.
    since: Instant,
    /// Detects the end of the turn.
    end: Option<Arc<End>>,
}

/// End of a turn, which wakes the driver's task.
#[derive(Debug)]
struct End {
    has_ended: AtomicBool,
    driver: Waker,
}

impl Wake for End {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_ended.store(true, Ordering::Release);
        self.driver.wake_by_ref();
    }
}

impl Turns {
    pub(super) const fn new() -> Turns {
        Turns {
            last: None,
            expects_several: false,
            pairs: 0,
            pairs_needed: 1,
            waiting: 0,
            several: false,
            since: Instant::ZERO,
            end: None,
        }
    }

    /// Returns true if writes wait for the end of this turn. Other data can then wait with them.
    pub(super) fn defers_writes(&self, now: Instant) -> bool {
        let ended = |end: &Arc<End>| end.has_ended.load(Ordering::Acquire);
        self.waiting > 0 && now.since(self.since) < MAX_TURN && !self.end.as_ref().is_none_or(ended)
    }

    /// Records a write of `len` bytes. Returns true if it waits for the end of the turn.
    pub(super) fn on_write(&mut self, now: Instant, id: ConnectionId, len: usize) -> bool {
        let before = self.last.replace((id, now));
        let Some(end) = &self.end else { return false };
        let over = self.waiting > 0 && now.since(self.since) >= MAX_TURN;
        if len > MAX_DELAYED_WRITE_BYTES || self.waiting >= MAX_DELAYED_WRITES || over {
            return false;
        }
        let other = before.is_some_and(|(last, _)| last != id);
        if self.waiting == 0 && !self.expects_several {
            if !other || before.is_none_or(|(_, at)| now.since(at) > MAX_WRITE_GAP) {
                return false;
            }
            self.pairs += 1;
            if self.pairs < self.pairs_needed {
                return false;
            }
            self.expects_several = true;
        }
        if self.waiting == 0 {
            self.since = now;
            wake_at_end_of_turn(end);
        }
        self.several |= self.waiting > 0 && other;
        self.waiting += 1;
        true
    }

    /// Sets the driver's task, which is woken when a turn ends.
    pub(super) fn set_driver(&mut self, driver: &Waker) {
        if self.end.as_ref().is_none_or(|end| !end.driver.will_wake(driver)) {
            self.end = Some(Arc::new(End { has_ended: true.into(), driver: driver.clone() }));
        }
    }

    /// Records that everything has been sent, and updates the prediction for the next turn.
    pub(super) fn on_sent(&mut self) {
        if self.waiting == 0 {
            return;
        }
        if self.several && self.waiting >= MIN_TURN_WRITES {
            self.pairs_needed = 1;
        } else {
            self.expects_several = false;
            self.pairs_needed = (self.pairs_needed * 2).min(MAX_PAIRS);
        }
        (self.pairs, self.waiting, self.several) = (0, 0, false);
    }
}

/// Wakes `end` when the runtime has polled the ready tasks and checked its sockets again, or immediately on a thread
/// outside a runtime.
fn wake_at_end_of_turn(end: &Arc<End>) {
    end.has_ended.store(false, Ordering::Relaxed);
    // Yields on behalf of another task; the future has no other purpose.
    let waker = Waker::from(Arc::clone(end));
    let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
}

#[cfg(test)]
mod tests;
