//! Unit application: writes messages of the same size at scheduled times or as fast as they are accepted, and records
//! when each unit was written and when each of the peer's units was read.

use marline_time::Instant;

use super::stream::Stream;
use super::{App, Report, Socket};

/// Schedule of the units.
#[derive(Clone, Debug)]
pub enum Pace {
    /// Never: it only reads.
    Never,
    /// Each unit at its time, or after that when the previous one has been accepted.
    At {
        /// Size of a unit, at least 1.
        bytes: u64,
        /// The times, in order.
        times: Vec<Instant>,
    },
    /// Like `At`, with a separate size (at least 1) for each unit.
    Sized {
        /// Times, in order, and sizes in bytes.
        units: Vec<(Instant, u64)>,
    },
    /// One after another, as fast as the connection accepts them.
    Flood {
        /// Size of a unit, at least 1.
        bytes: u64,
        /// Time at which the first unit is written.
        from: Instant,
        /// Time at which sending ends.
        until: Instant,
    },
}

/// The peer's units.
#[derive(Debug)]
enum Reads {
    /// All units have this size.
    Even(u64),
    /// Total bytes up to and including each unit.
    Ends(Vec<u64>),
}

impl Reads {
    /// Number of complete units in this many bytes.
    fn complete(&self, bytes: u64) -> usize {
        match self {
            Reads::Even(each) => (bytes / each) as usize,
            Reads::Ends(ends) => ends.partition_point(|end| *end <= bytes),
        }
    }
}

/// Running sums of the sizes.
fn ends(sizes: impl Iterator<Item = u64>) -> Vec<u64> {
    let sum = |total: &mut u64, bytes| {
        *total += bytes;
        Some(*total)
    };
    sizes.scan(0, sum).collect()
}

/// Writes units at a pace and records arriving units. Never shuts down on its own.
#[derive(Debug)]
pub struct Units {
    pace: Pace,
    reads: Reads,
    /// Total bytes up to and including each unit of [`Pace::Sized`].
    ends: Vec<u64>,
    started_count: usize,
    /// True if a unit was partly accepted. The socket wakes the application when there is more room.
    blocked: bool,
    stream: Stream,
}

impl Units {
    /// Writes at this pace. The peer's units have `read_bytes` (at least 1). In the report,
    /// `sent` contains the time at which writing of each unit began ([`Pace::Flood`]: at which it had been accepted),
    /// and `received` the time at which the last byte of each of the peer's units had been read.
    #[must_use]
    pub fn new(pace: Pace, read_bytes: u64, write_seed: u64, read_seed: u64) -> Self {
        let stream = Stream::new(write_seed, read_seed);
        let ends = match &pace {
            Pace::Sized { units } => ends(units.iter().map(|(_, bytes)| *bytes)),
            _ => Vec::new(),
        };
        let reads = Reads::Even(read_bytes.max(1));
        Units { pace, reads, ends, started_count: 0, blocked: false, stream }
    }

    /// Sets individual sizes for the peer's units.
    #[must_use]
    pub fn with_reads(self, sizes: &[u64]) -> Self {
        Units { reads: Reads::Ends(ends(sizes.iter().copied())), ..self }
    }

    fn write_due(&mut self, socket: &mut Socket<'_>) {
        while self.finish(socket) && self.due_at().is_some_and(|at| at <= socket.now()) {
            self.started_count += 1;
            if matches!(self.pace, Pace::At { .. } | Pace::Sized { .. }) {
                self.stream.report.sent.push(socket.now());
            }
        }
    }

    /// Writes the rest of a pending unit. Returns whether all of it was accepted.
    fn finish(&mut self, socket: &mut Socket<'_>) -> bool {
        let target = match &self.pace {
            Pace::Never => 0,
            Pace::At { bytes, .. } | Pace::Flood { bytes, .. } => self.started_count as u64 * bytes,
            Pace::Sized { .. } => {
                self.started_count.checked_sub(1).map_or(0, |last| self.ends[last])
            }
        };
        self.blocked = !self.stream.write_to(socket, target);
        if matches!(self.pace, Pace::Flood { .. }) && !self.blocked {
            self.stream.report.sent.resize(self.started_count, socket.now());
        }
        !self.blocked
    }

    /// Time at which the next unit is due.
    fn due_at(&self) -> Option<Instant> {
        match &self.pace {
            Pace::Never => None,
            Pace::At { times, .. } => times.get(self.started_count).copied(),
            Pace::Sized { units } => units.get(self.started_count).map(|(at, _)| *at),
            Pace::Flood { from, until, .. } => {
                Some(self.stream.report.sent.last().map_or(*from, |last| *from.max(last)))
                    .filter(|at| at < until)
            }
        }
    }
}

impl App for Units {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        if !self.stream.begin(socket) {
            return;
        }
        self.stream.read(socket, u64::MAX);
        let complete = self.reads.complete(self.stream.report.read);
        self.stream.report.received.resize(complete, socket.now());
        self.write_due(socket);
        self.stream.release_if_finished(socket);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.due_at().filter(|_| !self.blocked).and_then(|at| self.stream.timer(at))
    }

    fn report(&self) -> &Report {
        &self.stream.report
    }
}
