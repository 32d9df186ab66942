//! Report of an application: the bytes and times it observed.

use marline_core::CloseReason;
use marline_time::{Duration, Instant, Rate};

/// A delivery gap: a time without arrivals.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Hole {
    /// Time of the arrival before the gap.
    pub from: Instant,
    /// Duration until the next arrival.
    pub length: Duration,
}

/// Observations of an application.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of bytes that the connection accepted.
    pub written: u64,
    /// Number of bytes read.
    pub read: u64,
    /// Offset of the first byte that differs from the expected content.
    pub wrong_at: Option<u64>,
    /// Time at which the application was first woken on an open connection.
    pub opened_at: Option<Instant>,
    /// First and latest arrival.
    pub arrived: Option<(Instant, Instant)>,
    /// Arrivals over time: time and total bytes so far. At most one entry per millisecond.
    pub arrivals: Vec<(Instant, u64)>,
    /// The longest time between two arrivals.
    pub longest_gap: Hole,
    /// True while the application deliberately pauses reading.
    pub pausing: bool,
    /// Latency of each message or response, in the order of arrival.
    pub latencies: Vec<Duration>,
    /// Time at which each unit was written, for applications that write units.
    pub sent: Vec<Instant>,
    /// Time at which each of the peer's units had been read, for applications that write units.
    pub received: Vec<Instant>,
    /// Number of due units that were skipped.
    pub skipped: u64,
    /// Time at which the write side was shut down.
    pub shutdown_at: Option<Instant>,
    /// Time at which the end of the peer's stream was read.
    pub eof_at: Option<Instant>,
    /// Time and reason of the connection's end.
    pub closed: Option<(Instant, CloseReason)>,
}

impl Report {
    /// Records that `bytes` bytes were read.
    pub(crate) fn on_read(&mut self, now: Instant, bytes: u64) {
        self.read += bytes;
        let (first, before) = self.arrived.unwrap_or((now, now));
        let length = now.since(before);
        if length > self.longest_gap.length {
            self.longest_gap = Hole { from: before, length };
        }
        self.arrived = Some((first, now));
        match self.arrivals.last_mut() {
            Some((at, total)) if now.as_millis() == at.as_millis() => *total = self.read,
            _ => self.arrivals.push((now, self.read)),
        }
    }

    /// Number of bytes that had arrived by `at`.
    #[must_use]
    pub fn read_by(&self, at: Instant) -> u64 {
        let after = self.arrivals.partition_point(|(time, _)| *time <= at);
        after.checked_sub(1).map_or(0, |index| self.arrivals[index].1)
    }

    /// Mean rate of arrivals between two times.
    #[must_use]
    pub fn goodput(&self, from: Instant, to: Instant) -> Rate {
        Rate::over(self.read_by(to) - self.read_by(from), to.since(from))
    }

    /// The longest time without arrivals that overlaps `from..to`. Its end is the first arrival after it, or `to` if
    /// there was none.
    #[must_use]
    pub fn longest_gap_within(&self, from: Instant, to: Instant) -> Hole {
        let mut longest = Hole::default();
        let mut before = self.arrivals.first().map_or(from, |first| first.0);
        for (at, _) in self.arrivals.iter().copied().chain([(to, 0)]) {
            let overlaps = at > from && before < to;
            if overlaps && at.since(before) > longest.length {
                longest = Hole { from: before, length: at.since(before) };
            }
            before = at;
        }
        longest
    }
}
