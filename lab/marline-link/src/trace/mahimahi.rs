//! Mahimahi packet-delivery traces: one timestamp in milliseconds per line, at which 1504 bytes may leave.

use marline_time::{Duration, Rate};

use super::{TraceError, text};

/// Number of bytes that may leave at one opportunity: a 1500-byte packet and mahimahi's 4 bytes of framing.
pub const OPPORTUNITY_BYTES: u64 = 1_504;

/// The opportunities of a trace, in ascending order. It repeats after its last value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opportunities {
    times_ms: Vec<u32>,
}

impl Opportunities {
    /// Parses a file's contents, gzip or plain.
    ///
    /// # Errors
    /// If the file is empty, a line is not a number, times decrease, or no time is after 0.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, TraceError> {
        let text = text(file, bytes)?;
        let mut times_ms: Vec<u32> = Vec::with_capacity(text.len() / 6);
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let time: u32 = super::number(file, index + 1, "time", line)?;
            if times_ms.last().is_some_and(|last| *last > time) {
                let why = format!("time {time} ms is earlier than in the previous line");
                return Err(TraceError::for_line(file, index + 1, why));
            }
            times_ms.push(time);
        }
        match times_ms.last() {
            None => Err(TraceError::for_file(file, "the file contains no delivery opportunities")),
            Some(0) => Err(TraceError::for_file(file, "the last time is 0 ms; it must be later")),
            Some(_) => Ok(Opportunities { times_ms }),
        }
    }

    /// Time of opportunity `number` (from 0, over all repetitions), in ms of trace time.
    #[must_use]
    pub fn time_ms(&self, number: u64) -> u64 {
        let count = self.times_ms.len() as u64;
        number / count * self.period_ms() + u64::from(self.times_ms[(number % count) as usize])
    }

    /// Index of the first opportunity at or after `time_ms`.
    #[must_use]
    pub fn first_at(&self, time_ms: u64) -> u64 {
        let (period, count) = (self.period_ms(), self.times_ms.len() as u64);
        // A multiple of the period is also the end of the previous repetition, whose opportunities come first.
        let cycle = time_ms.saturating_sub(1) / period;
        let within = time_ms - cycle * period;
        let index = self.times_ms.partition_point(|t| u64::from(*t) < within) as u64;
        cycle * count + index
    }

    /// Period after which the trace repeats.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms())
    }

    /// Number of opportunities in one repetition.
    #[must_use]
    pub fn len(&self) -> usize {
        self.times_ms.len()
    }

    /// Always false: a parsed trace has at least one opportunity.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times_ms.is_empty()
    }

    /// Rate over the whole trace.
    #[must_use]
    pub fn mean_rate(&self) -> Rate {
        Rate::over(self.times_ms.len() as u64 * OPPORTUNITY_BYTES, self.period())
    }

    fn period_ms(&self) -> u64 {
        self.times_ms.last().copied().map_or(1, u64::from)
    }
}
