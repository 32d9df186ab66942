//! Release of memory after a flood of connections.
//!
//! A connection costs some 10 kB, more while it is opened, in dozens of pieces, and those of ten thousand lie mixed
//! with what outlives them (TIME-WAIT, tables). glibc returns only free memory at the end of an arena to
//! the system; the rest stays resident and unused: after 10,000 connections some hundred megabytes.
//! It has a call that returns all free pages, which is made when a flood is over (many connections
//! ended, and now hardly any do), and once more when their TIME-WAIT is over as well. With a steady
//! rate of connections it is made rarely, since the memory would be needed again at once. A process that takes no new
//! ones any more needs none of it again: there few that ended are enough.
//!
//! Another allocator (jemalloc, mimalloc) would do this by itself, at the price of another C
//! library in every build and of a different behaviour under load; with the current cost of a
//! connection the call is enough. docs/research/endurance.md has the figures.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Connections that this process has carried to their end.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// No new ones come.
static RETIRED: AtomicBool = AtomicBool::new(false);

/// Fewer connections than this leave nothing worth the call behind.
const FLOOD: u64 = 256;
/// How often to look.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Looks until what a flood left to TIME-WAIT, or to ends that were late, is gone as well: 65 s.
const AFTERMATH: u32 = 13;

/// Another process has what is new from now on: whatever ends here leaves memory that is not needed any more.
pub fn retire() {
    RETIRED.store(true, Ordering::Relaxed);
}

/// Counts a connection's end, when it is dropped.
#[derive(Debug)]
pub(super) struct Carried;

impl Drop for Carried {
    fn drop(&mut self) {
        ENDED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Notices when a flood is over, from how many connections have ended by each look.
#[derive(Debug, Default)]
struct FloodWatch {
    last: u64,
    /// Connections ended when memory was last released.
    settled: u64,
    /// Looks until it is given back once more.
    aftermath: u32,
}

impl FloodWatch {
    /// Whether it is time to give memory back: since the last time many connections ended, and of them
    /// not one in twenty since the last look; or that was so [`AFTERMATH`] ago.
    fn look(&mut self, ended: u64, retired: bool) -> bool {
        let flood = if retired { 1 } else { FLOOD };
        let (new, since) = (ended - self.last, ended - self.settled);
        self.last = ended;
        let over = since >= flood && new * 20 <= since;
        if over {
            (self.settled, self.aftermath) = (ended, AFTERMATH);
            return true;
        }
        // The next one is under way, and has an end of its own.
        if since >= flood {
            self.aftermath = 0;
        }
        let waits = self.aftermath > 0;
        self.aftermath = self.aftermath.saturating_sub(1);
        waits && self.aftermath == 0
    }
}

/// Releases memory after floods; never returns.
pub async fn give_back() {
    let mut watch = FloodWatch::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if !watch.look(ENDED.load(Ordering::Relaxed), RETIRED.load(Ordering::Relaxed)) {
            continue;
        }
        let begin = Instant::now();
        // It may take a while, in which nothing may wait for this thread.
        let given = tokio::task::spawn_blocking(marline_io::release_free_memory).await;
        let took_ms = begin.elapsed().as_millis();
        tracing::debug!(
            given = given.unwrap_or(false),
            took_ms,
            "free memory returned to the system"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said at each look, for so many connections ended in the time before it.
    fn looks(ended: &[u64]) -> Vec<bool> {
        let (mut watch, mut all) = (FloodWatch::default(), 0);
        let mut look = |new: &u64| {
            all += new;
            watch.look(all, false)
        };
        ended.iter().map(&mut look).collect()
    }

    #[test]
    fn a_flood_is_over_once_when_hardly_any_end() {
        assert_eq!(
            looks(&[0, 4_000, 6_000, 600, 100, 0, 0]),
            [false, false, false, false, true, false, false]
        );
        assert_eq!(looks(&[300, 0, 300, 0]), [false, true, false, true]);
    }

    #[test]
    fn what_it_left_to_time_wait_is_given_back_a_minute_later_and_once() {
        let mut ended = [0; 40];
        ended[0] = 400;
        let mut expected = [false; 40];
        (expected[1], expected[1 + AFTERMATH as usize]) = (true, true);
        assert_eq!(looks(&ended), expected);
    }

    #[test]
    fn where_nothing_new_comes_a_few_are_enough() {
        let mut watch = FloodWatch::default();
        let looks = [1, 1, 30, 100, 100, 100].map(|ended| watch.look(ended, true));
        assert_eq!(looks, [false, true, false, false, true, false]);
    }

    #[test]
    fn few_and_steady_ones_are_left_alone() {
        assert!(looks(&[10; 20]).iter().all(|now| !now));
        // A steady rate is looked after once in twenty times, at most.
        let steady = looks(&[15_000; 100]).iter().filter(|now| **now).count();
        assert!(steady <= 5, "{steady}");
    }
}
