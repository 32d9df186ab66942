//! How long the emulator's thread could run and was not let: others had its processor.
//!
//! A thread that waits for a processor reads packets late without knowing: for an interface there is
//! no time of arrival to ask for. The kernel counts the waiting of each thread (schedstat); looked at
//! every second it shows what percentiles over a whole run hide. What a hypervisor takes away from the
//! machine is not in it: that shows as lateness.

use std::fs::File;
use std::io::{Read, Seek};

use marline_time::{Duration, Instant};

use super::report::Starved;

/// Watches the thread that made it.
#[derive(Debug)]
pub(super) struct Starvation {
    statistics: Option<File>,
    first: Duration,
    last: Duration,
    last_at: Instant,
    worst: Duration,
}

impl Starvation {
    /// The shortest time that is looked at by itself.
    const WINDOW: Duration = Duration::from_millis(900);

    /// Of the calling thread, from now on. Where the kernel does not count, nothing is seen.
    pub(super) fn of_this_thread(now: Instant) -> Self {
        let mut statistics = File::open("/proc/thread-self/schedstat").ok();
        let first = waited(&mut statistics);
        Starvation { statistics, first, last: first, last_at: now, worst: Duration::ZERO }
    }

    /// Looks, if a second is over.
    pub(super) fn look(&mut self, now: Instant) {
        if now.since(self.last_at) >= Self::WINDOW {
            let waited = waited(&mut self.statistics);
            self.worst = self.worst.max(waited.saturating_sub(self.last));
            (self.last, self.last_at) = (waited, now);
        }
    }

    pub(super) fn report(&mut self) -> Starved {
        let waited = waited(&mut self.statistics);
        let worst = self.worst.max(waited.saturating_sub(self.last));
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Starved { total_us: us(waited.saturating_sub(self.first)), worst_second_us: us(worst) }
    }
}

/// The second number: nanoseconds that the thread waited for a processor since its start.
fn waited(statistics: &mut Option<File>) -> Duration {
    let mut read = || {
        let file = statistics.as_mut()?;
        file.rewind().ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    read().map_or(Duration::ZERO, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_shares_its_processor_waits() {
        let busy = || {
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_millis(200) {
                std::hint::spin_loop();
            }
        };
        // Both on the first processor that this thread may use.
        let pin = || {
            let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
            let mut one = rustix::thread::CpuSet::new();
            let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
            first.into_iter().for_each(|cpu| one.set(cpu));
            rustix::thread::sched_setaffinity(None, &one).expect("affinity");
        };
        let starved = std::thread::scope(|scope| {
            scope.spawn(|| {
                pin();
                busy();
            });
            let watched = scope.spawn(|| {
                pin();
                let mut starvation = Starvation::of_this_thread(Instant::ZERO);
                busy();
                starvation.look(Instant::from_millis(100));
                starvation.report()
            });
            watched.join().expect("thread")
        });
        // Half of the time would be fair; a slice of it is certain.
        assert!(starved.total_us > 1_000, "{starved:?}");
        assert_eq!(starved.worst_second_us, starved.total_us);
    }
}
