//! Turns of the runtime: short writes of several connections that fall into one leave together at its end.
//!
//! A system call to send costs more than everything else that a short message needs of this driver, and while a
//! runtime has many applications to poll, most of its turns have writes of several. A message that is alone must not
//! wait for others, though, and nothing says in advance whether others will come: it is concluded from those before.

use core::future::Future as _;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Waker};
use std::sync::Arc;
use std::task::Wake;

use marline_core::ConnectionId;
use marline_time::{Duration, Instant};

/// Bytes of the longest write that waits: more than a segment is worth a system call of its own.
const LONGEST: usize = 4 << 10;
/// Writes that may wait: no more than one batch has datagrams.
const MOST: u32 = 44;
/// Writes of a turn for which it is worth having waited: the end of the turn costs about what one call does.
const WORTH: u32 = 3;
/// Writes of two connections this close together are likely to be of one turn.
const NEAR: Duration = Duration::from_micros(50);
/// Time after which whoever comes by sends what waits, if the task that is polled takes long.
const LONGEST_TURN: Duration = Duration::from_micros(200);
/// Such pairs that it takes at most until a write waits again, after it had waited in vain.
const MOST_PAIRS: u32 = 64;

/// Whether the next short write waits for the end of the turn, as past ones say.
#[derive(Debug)]
pub(super) struct Turns {
    /// Who wrote last, and when.
    last: Option<(ConnectionId, Instant)>,
    /// Turns are expected to have writes of several connections.
    expects_several: bool,
    /// Pairs of close writes until they are, and how many it takes.
    pairs: u32,
    pairs_needed: u32,
    /// Writes that wait for the end of this turn.
    waiting: u32,
    /// Not all of them are of one connection.
    several: bool,
    /// When the first of them was written.
    since: Instant,
    /// The runtime says when the turn is over.
    end: Option<Arc<End>>,
}

/// End of a turn: it wakes the driver's task.
#[derive(Debug)]
struct End {
    has_come: AtomicBool,
    driver: Waker,
}

impl Wake for End {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_come.store(true, Ordering::Release);
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

    /// Whether writes wait for the end of this turn, and whatever else is to be sent can wait with them.
    pub(super) fn goes_on(&self, now: Instant) -> bool {
        let ended = |end: &Arc<End>| end.has_come.load(Ordering::Acquire);
        self.waiting > 0
            && now.since(self.since) < LONGEST_TURN
            && !self.end.as_ref().is_none_or(ended)
    }

    /// A connection wrote so many bytes. Whether they wait for the end of the turn.
    pub(super) fn on_write(&mut self, now: Instant, id: ConnectionId, len: usize) -> bool {
        let before = self.last.replace((id, now));
        let Some(end) = &self.end else { return false };
        let over = self.waiting > 0 && now.since(self.since) >= LONGEST_TURN;
        if len > LONGEST || self.waiting >= MOST || over {
            return false;
        }
        let other = before.is_some_and(|(last, _)| last != id);
        if self.waiting == 0 && !self.expects_several {
            if !other || before.is_none_or(|(_, at)| now.since(at) > NEAR) {
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

    /// The driver's task is woken at the end of turns.
    pub(super) fn set_driver(&mut self, driver: &Waker) {
        if self.end.as_ref().is_none_or(|end| !end.driver.will_wake(driver)) {
            self.end = Some(Arc::new(End { has_come: true.into(), driver: driver.clone() }));
        }
    }

    /// Everything is sent now. What waited says what to expect of the next turn.
    pub(super) fn on_sent(&mut self) {
        if self.waiting == 0 {
            return;
        }
        if self.several && self.waiting >= WORTH {
            self.pairs_needed = 1;
        } else {
            self.expects_several = false;
            self.pairs_needed = (self.pairs_needed * 2).min(MOST_PAIRS);
        }
        (self.pairs, self.waiting, self.several) = (0, 0, false);
    }
}

/// Wakes when the runtime has polled the tasks that are ready and looked at its sockets again; at once, if this is not
/// one of its threads.
fn wake_at_end_of_turn(end: &Arc<End>) {
    end.has_come.store(false, Ordering::Relaxed);
    // What a task does that yields, on behalf of another one; that is all that the future is for.
    let waker = Waker::from(Arc::clone(end));
    let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
}

#[cfg(test)]
mod tests;
