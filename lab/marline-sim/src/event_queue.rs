//! Event queue, ordered by time and, at equal times, by insertion.

use core::cmp::Ordering;
use std::collections::BinaryHeap;

use marline_time::Instant;

/// A queue of events.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    pushed_count: u64,
}

/// An event with its order: nanoseconds and insertion number in a single number, because comparisons dominate the cost
/// of a queue.
#[derive(Debug)]
struct Entry<E> {
    order: u128,
    event: E,
}

impl<E> Entry<E> {
    const fn at(&self) -> Instant {
        Instant::from_nanos((self.order >> 64) as u64)
    }
}

/// Reversed, because the heap returns the greatest entry and the queue the earliest.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.order.cmp(&self.order)
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<E> Eq for Entry<E> {}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        EventQueue { heap: BinaryHeap::new(), pushed_count: 0 }
    }

    pub(crate) fn push(&mut self, at: Instant, event: E) {
        self.pushed_count += 1;
        let order = u128::from(at.as_nanos()) << 64 | u128::from(self.pushed_count);
        self.heap.push(Entry { order, event });
    }

    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.heap.peek().map(Entry::at)
    }

    /// Takes the next event that is due by `until`.
    pub(crate) fn pop_due(&mut self, until: Instant) -> Option<(Instant, E)> {
        if self.next_time()? > until {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at(), entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_insertion_order() {
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
