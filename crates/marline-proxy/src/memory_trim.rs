//! Release of memory after a flood of connections.
//!
//! A connection costs about 10 kB, and more while it is opened, in dozens of allocations. After ten thousand
//! connections, the freed memory lies between allocations that outlive them (TIME-WAIT, tables). glibc returns only
//! free memory at the end of an arena to the system. The rest stays resident and unused: some hundred megabytes after
//! 10,000 connections. glibc has a call that returns all free pages. It is made when a flood is over (many connections
//! have ended, and now hardly any do), and again when their TIME-WAIT is over. At a steady rate of connections it is
//! made rarely, since the memory would soon be needed again. A process that accepts no new connections does not need
//! the memory again, so a few ended connections are enough there.
//!
//! Another allocator (jemalloc, mimalloc) would do this by itself, at the cost of another C library in every build and
//! different behavior under load. With the current cost of a connection the call is enough. docs/research/endurance.md
//! has the numbers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of connections that have ended in this process.
static ENDED_CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// True if this process accepts no new connections.
static IS_RETIRED: AtomicBool = AtomicBool::new(false);

/// Minimum number of ended connections: fewer leave too little free memory to justify the call.
const MIN_ENDED: u64 = 256;
/// Interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Number of checks until the memory of TIME-WAIT and of late ends is free as well: 65 s.
const POST_END_PERIOD: u32 = 13;

/// Records that another process accepts new connections, so that freed memory is no longer needed here.
pub fn mark_retired() {
    IS_RETIRED.store(true, Ordering::Relaxed);
}

/// Counts a connection's end, when it is dropped.
#[derive(Debug)]
pub(super) struct EndCounter;

impl Drop for EndCounter {
    fn drop(&mut self) {
        ENDED_CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Detects the end of a flood from the number of ended connections at each check.
#[derive(Debug, Default)]
struct FloodDetector {
    last: u64,
    /// Connections ended when memory was last released.
    settled: u64,
    /// Checks until memory is released again.
    checks_until_release: u32,
}

impl FloodDetector {
    /// Returns true if memory should be released: many connections have ended since the last release, and less than
    /// one in twenty of them since the last check, or this was true [`POST_END_PERIOD`] checks ago.
    fn should_trim(&mut self, ended: u64, retired: bool) -> bool {
        let flood = if retired { 1 } else { MIN_ENDED };
        let (new, since) = (ended - self.last, ended - self.settled);
        self.last = ended;
        let over = since >= flood && new * 20 <= since;
        if over {
            (self.settled, self.checks_until_release) = (ended, POST_END_PERIOD);
            return true;
        }
        // The next flood has begun, and its own end will trigger a release.
        if since >= flood {
            self.checks_until_release = 0;
        }
        let waits = self.checks_until_release > 0;
        self.checks_until_release = self.checks_until_release.saturating_sub(1);
        waits && self.checks_until_release == 0
    }
}

/// Releases memory after floods. Never returns.
pub async fn release_after_floods() {
    let mut watch = FloodDetector::default();
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if !watch.should_trim(
            ENDED_CONNECTIONS.load(Ordering::Relaxed),
            IS_RETIRED.load(Ordering::Relaxed),
        ) {
            continue;
        }
        let begin = Instant::now();
        // The call may take a while, so it must not block this thread.
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

    /// Returns the results of successive checks, given the number of ended connections at each.
    fn looks(ended: &[u64]) -> Vec<bool> {
        let (mut watch, mut all) = (FloodDetector::default(), 0);
        let mut look = |new: &u64| {
            all += new;
            watch.should_trim(all, false)
        };
        ended.iter().map(&mut look).collect()
    }

    #[test]
    fn a_flood_ends_once_when_few_connections_close() {
        assert_eq!(
            looks(&[0, 4_000, 6_000, 600, 100, 0, 0]),
            [false, false, false, false, true, false, false]
        );
        assert_eq!(looks(&[300, 0, 300, 0]), [false, true, false, true]);
    }

    #[test]
    fn time_wait_memory_is_returned_once_a_minute_after_a_flood() {
        let mut ended = [0; 40];
        ended[0] = 400;
        let mut expected = [false; 40];
        (expected[1], expected[1 + POST_END_PERIOD as usize]) = (true, true);
        assert_eq!(looks(&ended), expected);
    }

    #[test]
    fn without_new_connections_a_few_closed_ones_trigger_a_trim() {
        let mut watch = FloodDetector::default();
        let looks = [1, 1, 30, 100, 100, 100].map(|ended| watch.should_trim(ended, true));
        assert_eq!(looks, [false, true, false, false, true, false]);
    }

    #[test]
    fn a_low_or_steady_rate_rarely_triggers_a_trim() {
        assert!(looks(&[10; 20]).iter().all(|now| !now));
        // A steady rate triggers a release at every twentieth check, at most.
        let steady = looks(&[15_000; 100]).iter().filter(|now| **now).count();
        assert!(steady <= 5, "{steady}");
    }
}
