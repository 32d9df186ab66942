//! No stall: while one side has written what the other has not read and wants to read, bytes arrive
//! again within a given time.

use marline_time::{Duration, Instant};

use crate::Report;

/// One direction of a connection as it stands.
#[derive(Copy, Clone, Debug)]
pub struct StreamState {
    /// Bytes one side wrote.
    pub written: u64,
    /// Bytes the other read.
    pub read: u64,
    /// The reader does not read at the moment by its own will.
    pub pausing: bool,
    /// The writer finished and the reader has not seen the end yet.
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

/// A time in which a stream stood still.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// Since then.
    pub from: Instant,
    /// For so long, to the precision of the sampling.
    pub length: Duration,
}

/// Watches one direction, shown to it at intervals.
#[derive(Copy, Clone, Debug, Default)]
pub struct Liveness {
    read: u64,
    since: Option<Instant>,
    longest: Stall,
}

impl Liveness {
    /// The stream as it stands now.
    pub fn sample(&mut self, now: Instant, state: StreamState) {
        let outstanding = state.written > state.read || state.end_outstanding;
        if !outstanding || state.pausing || state.read != self.read {
            self.read = state.read;
            self.since = outstanding.then_some(now);
            return;
        }
        let from = *self.since.get_or_insert(now);
        let length = now.since(from);
        if length > self.longest.length {
            self.longest = Stall { from, length };
        }
    }

    /// The longest stall so far.
    #[must_use]
    pub const fn longest(&self) -> Stall {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wanted_and_missing_byte_is_a_stall() {
        let mut oracle = Liveness::default();
        let mut show = |ms, written, read, pausing| {
            let state = StreamState { written, read, pausing, end_outstanding: false };
            oracle.sample(Instant::from_millis(ms), state);
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
    }
}
