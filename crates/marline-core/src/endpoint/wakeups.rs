//! Wakeup times of connections, in a heap with lazy deletion.
//!
//! Deadlines move later with nearly every ACK. A connection therefore keeps the earliest alarm it set. If that fires
//! too early, it sets the next one. Alarms that were replaced by earlier ones, or whose connection is gone, are
//! removed when they are the majority, so that the heap stays proportional to the number of connections.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use marline_time::Instant;

/// Number of alarms below which sweeping is not worthwhile.
const MIN_SWEPT_ALARMS: usize = 64;

/// Alarms, earliest first; alarms for the same time in the order in which they were set.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    heap: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    count: u64,
}

impl Wakeups {
    pub(super) fn push(&mut self, at: Instant, slot: u32) {
        self.count += 1;
        self.heap.push(Reverse((at, self.count, slot)));
    }

    /// The earliest alarm.
    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes one due alarm: its time and slot.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((at, _, slot))| (at, slot))
    }

    /// Returns true if most alarms must be stale, given this many live connections.
    pub(super) fn needs_sweep(&self, connections: usize) -> bool {
        self.heap.len() > 2 * connections + MIN_SWEPT_ALARMS
    }

    /// Keeps only the alarms that `is_set` confirms.
    pub(super) fn sweep(&mut self, is_set: impl Fn(Instant, u32) -> bool) {
        self.heap.retain(|Reverse((at, _, slot))| is_set(*at, *slot));
        self.heap.shrink_to(2 * self.heap.len() + MIN_SWEPT_ALARMS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakeups_are_due_in_order_and_not_early() {
        let mut wakeups = Wakeups::default();
        for (at, slot) in [(5, 1), (3, 2), (5, 3)] {
            wakeups.push(Instant::from_secs(at), slot);
        }
        assert_eq!(wakeups.pop_due(Instant::from_secs(2)), None);
        let mut due = Vec::new();
        while let Some((_, slot)) = wakeups.pop_due(Instant::from_secs(9)) {
            due.push(slot);
        }
        assert_eq!(due, [2, 1, 3]);
    }

    #[test]
    fn alarms_that_were_replaced_are_swept_out() {
        let mut wakeups = Wakeups::default();
        let mut swept = 0;
        for at in (1..10_000).rev() {
            wakeups.push(Instant::from_secs(at), 1);
            if wakeups.needs_sweep(1) {
                wakeups.sweep(|armed, _| armed == Instant::from_secs(at));
                swept += 1;
            }
        }
        assert!(swept > 10 && wakeups.heap.len() <= 66, "{} alarms", wakeups.heap.len());
        assert_eq!(wakeups.next(), Some(Instant::from_secs(1)));
    }
}
