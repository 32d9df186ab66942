//! Liveness check: while one side has written data that the other has not read but wants to read, more bytes arrive
//! within a given time.

use marline_time::{Duration, Instant};

use marline_sim::Report;

/// Current state of one direction of a connection.
#[derive(Copy, Clone, Debug)]
pub struct StreamState {
    /// Bytes one side wrote.
    pub written: u64,
    /// Bytes the other read.
    pub read: u64,
    /// True if the reader pauses on its own.
    pub pausing: bool,
    /// True if the writer finished, but the reader has not seen the end.
    pub end_outstanding: bool,
}

impl StreamState {
    /// The stream between two applications.
    #[must_use]
    pub fn between(writer: &Report, reader: &Report) -> Self {
        StreamState {
            written: writer.written,
            read: reader.read,
            pausing: reader.pausing,
            end_outstanding: writer.shutdown_at.is_some() && reader.eof_at.is_none(),
        }
    }
}

/// A time during which a stream stalled.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// Start of the stall.
    pub from: Instant,
    /// Duration, to the precision of the sampling.
    pub length: Duration,
}

/// Watches one direction by samples.
///
/// The allowed length of a stall depends on the fault in it: the time from the start of the stall to the last packet
/// that the network dropped or damaged. A sender with exponential backoff tries again within twice that time; `grace`
/// covers the rest. If a world planned a longer fault than a stall shows (all packets of a path may have been lost
/// before the stall began), it passes this as `planned`.
#[derive(Copy, Clone, Debug, Default)]
pub struct Liveness {
    planned: Duration,
    grace: Duration,
    read: u64,
    since: Option<Instant>,
    longest: Stall,
    worst: Option<Stall>,
}

impl Liveness {
    /// A check that allows twice the observed or planned fault, plus `grace`.
    #[must_use]
    pub fn new(planned: Duration, grace: Duration) -> Self {
        Liveness { planned, grace, ..Liveness::default() }
    }

    /// Samples the stream's current state, and the time of the last fault on the best path.
    pub fn sample(&mut self, now: Instant, state: StreamState, last_fault: Instant) {
        let outstanding = state.written > state.read || state.end_outstanding;
        if !outstanding || state.pausing || state.read != self.read {
            self.read = state.read;
            self.since = outstanding.then_some(now);
            return;
        }
        let from = *self.since.get_or_insert(now);
        let stall = Stall { from, length: now.since(from) };
        if stall.length > self.longest.length {
            self.longest = stall;
        }
        let allowed = last_fault.since(from).max(self.planned) * 2 + self.grace;
        if stall.length > allowed && self.worst.is_none_or(|worst| stall.length > worst.length) {
            self.worst = Some(stall);
        }
    }

    /// The longest stall so far, excused or not.
    #[must_use]
    pub const fn longest(&self) -> Stall {
        self.longest
    }

    /// The longest stall that is not excused by a fault.
    #[must_use]
    pub const fn worst(&self) -> Option<Stall> {
        self.worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wanted_and_missing_byte_is_a_stall() {
        let mut oracle = Liveness::new(Duration::from_millis(100), Duration::from_millis(50));
        let mut show = |ms, written, read, pausing| {
            let state = StreamState { written, read, pausing, end_outstanding: false };
            oracle.sample(Instant::from_millis(ms), state, Instant::ZERO);
            oracle.longest()
        };
        show(0, 0, 0, false);
        assert_eq!(show(500, 0, 0, false).length, Duration::ZERO);
        show(510, 100, 0, false);
        show(600, 100, 50, false);
        assert_eq!(show(900, 100, 50, false).length, Duration::from_millis(300));
        show(950, 100, 50, true);
        show(2_000, 100, 50, true);
        let longest = show(2_100, 100, 100, false);
        assert_eq!(longest.length, Duration::from_millis(300));
        assert_eq!(longest.from, Instant::from_millis(600));
        assert_eq!(oracle.worst(), Some(longest));
    }

    #[test]
    fn a_fault_excuses_twice_its_length() {
        let grace = Duration::from_millis(100);
        let mut oracle = Liveness::new(Duration::ZERO, grace);
        let state = StreamState { written: 1, read: 0, pausing: false, end_outstanding: false };
        let fault = Instant::from_millis(400);
        oracle.sample(Instant::from_millis(100), state, fault);
        oracle.sample(Instant::from_millis(800), state, fault);
        assert_eq!(oracle.worst(), None);
        oracle.sample(Instant::from_millis(801), state, fault);
        assert_eq!(oracle.worst().map(|stall| stall.length), Some(Duration::from_millis(701)));
    }
}
