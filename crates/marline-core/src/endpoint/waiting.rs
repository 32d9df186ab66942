//! Strangers that wait for a path: how many there may be, and who goes first.
//!
//! A connection whose last subflow ended costs its peer nothing and us a place. Those of peers that the application
//! knows are its own affair; of the others only so many are kept ([`Limits::lingering`](crate::Limits)), the newest.

use std::collections::VecDeque;

use marline_time::Instant;

use super::Endpoint;
use crate::ConnectionId;

/// Who waits, oldest first; entries that do not any more are skipped.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: VecDeque<ConnectionId>,
    /// How many of them still do.
    count: usize,
}

impl Endpoint {
    /// A connection was touched: it may have begun to wait, or have ended that.
    pub(super) fn count_waiting(&mut self, now: Instant, slot: u32) {
        let Some((id, changed)) = self.slots.note_waiting(slot) else { return };
        let Some(waits) = changed else { return };
        if waits {
            self.waiting.queue.push_back(id);
            self.waiting.count += 1;
            self.keep_to_bound(now);
        } else {
            self.waiting.count -= 1;
            self.forget_those_that_came_back();
        }
    }

    /// Beyond the bound the one that has waited longest ends.
    fn keep_to_bound(&mut self, now: Instant) {
        while self.waiting.count > self.config.limits.lingering {
            let Some(oldest) = self.waiting.queue.pop_front() else { return };
            if !self.is_waiting(oldest) {
                continue;
            }
            self.out.counters.lingering_overflow += 1;
            // Ends the wait, and comes by here again to be counted out.
            self.with(now, oldest, |c, cx| c.give_place_up(cx));
        }
    }

    /// Entries that ended otherwise stay in the queue: they are swept out when they are the majority.
    fn forget_those_that_came_back(&mut self) {
        if self.waiting.queue.len() > 2 * self.waiting.count + 16 {
            let mut queue = core::mem::take(&mut self.waiting.queue);
            queue.retain(|id| self.is_waiting(*id));
            self.waiting.queue = queue;
        }
    }

    fn is_waiting(&self, id: ConnectionId) -> bool {
        self.slots.is_waiting(id)
    }
}
