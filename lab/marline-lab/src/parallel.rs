//! Independent runs on several threads.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use marline_sim::digest;

/// Number of threads that this machine can run in parallel.
#[must_use]
pub fn available() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Calls `run` for each item on at most `jobs` threads (at least one). Results are in the order of the items, so
/// they do not depend on the number of threads. Neither does the result of [`digest::digest_of_runs`], which contains
/// the digest of each item that ran a scene, in the order of the items.
///
/// # Panics
/// If `run` panics. The other items may or may not have been run.
pub fn parallel<T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    run: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, (R, digest::Digest))>> =
        Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        let work = || {
            // Taking an item needs no ordering with other memory.
            while let Some((index, item)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                items.get(index).map(|item| (index, item))
            } {
                let result = digest::digest_of_runs(|| run(item));
                done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
            }
        };
        for _ in 0..jobs.clamp(1, items.len().max(1)) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    let ended = |(_, (result, runs)): (usize, (R, digest::Digest))| {
        // An item that collected its own runs passes on their digest, even if it is not run again.
        if runs != digest::Digest::default() {
            digest::run_ended(runs.value());
        }
        result
    };
    done.into_iter().map(ended).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_the_items() {
        let items: Vec<u64> = (0..200).collect();
        let slow_first = |item: &u64| {
            std::thread::sleep(std::time::Duration::from_micros(200 - item));
            item * 3
        };
        for jobs in [0, 1, 4, 500] {
            let expected: Vec<u64> = items.iter().map(|item| item * 3).collect();
            assert_eq!(parallel(jobs, &items, slow_first), expected);
        }
        assert!(parallel(3, &[], slow_first).is_empty());
    }

    #[test]
    fn every_item_is_in_the_digest_of_all() {
        let digest_of = |jobs, runs: &[Option<u64>]| {
            let run = |run: &Option<u64>| run.iter().for_each(|digest| digest::run_ended(*digest));
            digest::digest_of_runs(|| parallel(jobs, runs, run)).1
        };
        let runs: Vec<Option<u64>> = (0..6).map(Some).collect();
        let all = digest_of(1, &runs);
        assert_eq!(all, digest_of(4, &runs));
        for changed in 0..runs.len() {
            let mut other = runs.clone();
            other[changed] = Some(99);
            assert_ne!(all, digest_of(2, &other), "item {changed}");
        }
        // An item without a run has no digest and does not hide other digests.
        let beside: Vec<Option<u64>> = [None].into_iter().chain(runs).chain([None]).collect();
        assert_eq!(all, digest_of(3, &beside));
        assert_eq!(digest_of(2, &[None, None]), digest::Digest::default());
    }

    #[test]
    #[should_panic(expected = "scoped thread panicked")]
    fn panics_propagate() {
        parallel(2, &[1, 2, 3], |item| assert!(*item != 2));
    }
}
