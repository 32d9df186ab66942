//! Bounded set of connections of one kind, oldest first.

use std::collections::VecDeque;

use crate::ConnectionId;

/// Entries that are not worth sweeping.
const LEAST: usize = 16;

/// Connections of that kind, oldest first; entries that are of it no more are skipped.
#[derive(Debug, Default)]
pub(super) struct OldestFirst {
    queue: VecDeque<ConnectionId>,
    /// How many of them still are.
    count: usize,
}

impl OldestFirst {
    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// One more.
    pub(super) fn push(&mut self, id: ConnectionId) {
        self.queue.push_back(id);
        self.count += 1;
    }

    /// One less. Its entry stays: entries are swept out when those that count no more are the majority.
    pub(super) fn remove(&mut self, still_is: impl Fn(ConnectionId) -> bool) {
        self.count -= 1;
        if self.queue.len() > 2 * self.count + LEAST {
            self.queue.retain(|id| still_is(*id));
        }
    }

    /// Takes the oldest entry, which may be of that kind no more.
    pub(super) fn pop(&mut self) -> Option<ConnectionId> {
        self.queue.pop_front()
    }
}
