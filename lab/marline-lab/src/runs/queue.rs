//! Queue of parallel runs, limited to the machine's capacity, because a run that was delayed by another run proves
//! nothing.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

/// Waiting items by number, and number of free half processors.
struct Queue<'a, T> {
    items: &'a [T],
    weights: Vec<u32>,
    state: Mutex<(VecDeque<usize>, u32)>,
    changed: Condvar,
}

impl<T> Queue<'_, T> {
    /// Takes the next item that fits. `None` if no items are left.
    fn next(&self) -> Option<RunningItem<'_, T>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (waiting, free) = &mut *state;
            if waiting.is_empty() {
                return None;
            }
            if let Some(at) = waiting.iter().position(|item| self.weights[*item] <= *free) {
                let item = waiting.remove(at)?;
                *free -= self.weights[item];
                return Some(RunningItem { queue: self, item });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A running item. Its share of the processors is released on drop, also after a panic.
struct RunningItem<'a, T> {
    queue: &'a Queue<'a, T>,
    item: usize,
}

impl<T> Drop for RunningItem<'_, T> {
    fn drop(&mut self) {
        let Queue { weights, state, changed, .. } = self.queue;
        state.lock().unwrap_or_else(PoisonError::into_inner).1 += weights[self.item];
        changed.notify_all();
    }
}

/// Calls `run` with each item and the number of the worker. Items run in parallel while the sum of their weights (in
/// half processors) is at most `halves`. A heavier item runs alone. Items that fit overtake those that do not. Results
/// are in the order of the items.
///
/// # Panics
/// If `run` panics.
pub fn run_weighted<T: Sync, R: Send>(
    halves: u32,
    items: &[T],
    weight: impl Fn(&T) -> u32,
    run: impl Fn(&T, u32) -> R + Sync,
) -> Vec<R> {
    let halves = halves.max(1);
    let weights: Vec<u32> = items.iter().map(|item| weight(item).clamp(1, halves)).collect();
    let state = Mutex::new(((0..items.len()).collect(), halves));
    let queue = Queue { items, weights, state, changed: Condvar::new() };
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let (queue, done, run) = (&queue, &done, &run);
        for worker in 0..halves.min(items.len() as u32) {
            scope.spawn(move || {
                while let Some(running) = queue.next() {
                    let result = run(&queue.items[running.item], worker);
                    done.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((running.item, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(item, _)| *item);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn weights_and_order_are_respected() {
        let items: Vec<u32> = (0..40).map(|number| 1 + number % 5).collect();
        let (busy, most) = (AtomicU32::new(0), AtomicU32::new(0));
        let run = |item: &u32, worker: u32| {
            assert!(worker < 4);
            let weight = (*item).min(4);
            let now = busy.fetch_add(weight, Ordering::SeqCst) + weight;
            most.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
            busy.fetch_sub(weight, Ordering::SeqCst);
            item * 10
        };
        let results = run_weighted(4, &items, |item| *item, run);
        assert_eq!(results, items.iter().map(|item| item * 10).collect::<Vec<_>>());
        let most = most.load(Ordering::SeqCst);
        assert!((3..=4).contains(&most), "{most}");
        assert!(run_weighted(4, &[], |item: &u32| *item, run).is_empty());
    }

    #[test]
    fn a_panicking_item_releases_its_capacity() {
        let ran = AtomicU32::new(0);
        let outcome = std::panic::catch_unwind(|| {
            // The panicking item takes both halves of the processor, and the others need one each.
            run_weighted(
                2,
                &[2, 1, 1, 2],
                |item| *item,
                |item, _| {
                    assert!(ran.fetch_add(1, Ordering::SeqCst) > 0, "the first");
                    *item
                },
            )
        });
        assert!(outcome.is_err(), "the panic propagates");
        assert_eq!(ran.load(Ordering::SeqCst), 4, "no worker waits forever");
    }
}
