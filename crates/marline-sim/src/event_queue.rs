//! Event queue, ordered by time and, at equal times, by insertion.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use marline_time::Instant;

/// A queue of events.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<(Instant, u64, E)>>,
    made: u64,
}

impl<E: Ord> EventQueue<E> {
    pub(crate) fn new() -> Self {
        EventQueue { heap: BinaryHeap::new(), made: 0 }
    }

    pub(crate) fn push(&mut self, at: Instant, event: E) {
        self.made += 1;
        self.heap.push(Reverse((at, self.made, event)));
    }

    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Takes the next event that is due by `until`.
    pub(crate) fn pop_due(&mut self, until: Instant) -> Option<(Instant, E)> {
        if self.next_time()? > until {
            return None;
        }
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_come_in_the_order_of_making() {
        let mut queue = EventQueue::new();
        for event in [5, 3, 9, 1] {
            queue.push(Instant::from_millis(7), event);
        }
        queue.push(Instant::from_millis(6), 8);
        let due = |queue: &mut EventQueue<u8>, at| queue.pop_due(Instant::from_millis(at));
        assert_eq!(due(&mut queue, 5), None);
        let order: Vec<u8> = core::iter::from_fn(|| due(&mut queue, 7)).map(|e| e.1).collect();
        assert_eq!(order, [8, 5, 3, 9, 1]);
    }
}
