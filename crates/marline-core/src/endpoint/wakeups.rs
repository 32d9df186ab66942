//! Alarms of connections: a heap in which nothing is ever moved.
//!
//! Deadlines move later with nearly every ACK. A connection therefore keeps the earliest alarm it
//! set and, when that rings, sets the next one. An alarm that rings at another time than the one the
//! connection keeps was overtaken by an earlier one: it must set nothing, or alarms would only ever
//! become more.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use marline_time::Instant;

/// Alarms, earliest first; equal times in the order they were set.
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

    /// Takes one alarm whose time has come, with that time.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((at, _, slot))| (at, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_ring_in_order_and_not_early() {
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
}
