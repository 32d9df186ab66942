//! Bounded set of connections of one kind, oldest first.

use std::collections::VecDeque;

use crate::ConnectionId;

/// Number of entries below which sweeping is not worthwhile.
const MIN_SWEPT_ENTRIES: usize = 16;

/// Connections of one kind, oldest first. Stale entries are skipped.
#[derive(Debug, Default)]
pub(super) struct OldestFirst {
    queue: VecDeque<ConnectionId>,
    /// Number of entries that are not stale.
    count: usize,
}

impl OldestFirst {
    /// Number of connections, excluding stale entries.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Adds a connection.
    pub(super) fn push(&mut self, id: ConnectionId) {
        self.queue.push_back(id);
        self.count += 1;
    }

    /// Subtracts a connection. Its entry stays until most entries are stale, which are then removed.
    pub(super) fn remove(&mut self, still_is: impl Fn(ConnectionId) -> bool) {
        self.count -= 1;
        if self.queue.len() > 2 * self.count + MIN_SWEPT_ENTRIES {
            self.queue.retain(|id| still_is(*id));
        }
    }

    /// Takes the oldest entry, which may be stale.
    pub(super) fn pop(&mut self) -> Option<ConnectionId> {
        self.queue.pop_front()
    }
}
