//! Measurement of the time for which the emulator's thread was runnable but not scheduled.
//!
//! A thread that waits for a processor reads packets late without noticing, because an interface has no arrival
//! timestamps. The kernel counts the waiting time of each thread and how often it got a processor (schedstat).
//! Read after every longer sleep, the counters give each single wait. For a busy thread they give only the mean of
//! several waits, but then packets are always due, so a stall appears as lateness. Time stolen by a hypervisor is not
//! included, but also appears as lateness.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use marline_time::Duration;

use crate::report::ProcessorWait;

/// Measures the waits of the thread that created it.
#[derive(Debug)]
pub(crate) struct ProcessorWaitMeter {
    statistics: Option<File>,
    first: Waits,
    last: Waits,
    longest_ns: u64,
}

/// Totals since the thread's start.
#[derive(Copy, Clone, Debug, Default)]
struct Waits {
    total_ns: u64,
    count: u64,
}

impl ProcessorWaitMeter {
    /// Shortest sleep after which the counters are read, since reading costs about a microsecond.
    pub(crate) const CHECK_THRESHOLD: Duration = Duration::from_micros(200);

    /// Starts measuring the calling thread. Without the kernel's counters the result is zero.
    pub(crate) fn for_this_thread() -> Self {
        let statistics = File::open("/proc/thread-self/schedstat").ok();
        let first = statistics.as_ref().and_then(|file| read(file).ok()).unwrap_or_default();
        ProcessorWaitMeter { statistics, first, last: first, longest_ns: 0 }
    }

    /// Adds the waits since the last call.
    pub(crate) fn add_waits(&mut self) {
        let Some(Ok(now)) = self.statistics.as_ref().map(read) else { return };
        let count = now.count.saturating_sub(self.last.count).max(1);
        let mean_ns = now.total_ns.saturating_sub(self.last.total_ns) / count;
        self.longest_ns = self.longest_ns.max(mean_ns);
        self.last = now;
    }

    pub(crate) fn report(&mut self) -> ProcessorWait {
        self.add_waits();
        let total_ns = self.last.total_ns.saturating_sub(self.first.total_ns);
        ProcessorWait { total_us: total_ns / 1_000, longest_us: self.longest_ns / 1_000 }
    }
}

/// Reads the second and third number of the line: nanoseconds waited, and times the thread got a processor.
fn read(statistics: &File) -> io::Result<Waits> {
    let mut line = [0; 64];
    let length = statistics.read_at(&mut line, 0)?;
    let text = std::str::from_utf8(&line[..length]).map_err(io::Error::other)?;
    let mut numbers = text.split_ascii_whitespace().skip(1).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(total_ns)), Some(Ok(count))) => Ok(Waits { total_ns, count }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
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
        // Both threads on the first processor that this thread may use.
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
                let mut starvation = ProcessorWaitMeter::for_this_thread();
                busy();
                starvation.add_waits();
                starvation.report()
            });
            watched.join().expect("thread")
        });
        // A fair share would be half of the time; at least one time slice is certain.
        assert!(starved.total_us > 1_000, "{starved:?}");
        assert!((100..=starved.total_us).contains(&starved.longest_us), "{starved:?}");
    }
}
