//! Arrival traces (`t_ms,len_bytes,tcp_seq`): data segments that a path delivered under some congestion control. They
//! are a lower bound on the path's capacity.

use std::sync::Arc;

use marline_time::{Duration, Rate};

use super::{TraceError, millis, number, rows, text};
use crate::Steps;

/// An arrived segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Arrival time within the capture (paths captured together share it).
    pub at: Duration,
    /// Payload size in bytes.
    pub bytes: u32,
    /// Relative TCP sequence number.
    pub seq: u64,
}

/// Arrivals in order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivalTrace {
    arrivals: Vec<Arrival>,
}

impl ArrivalTrace {
    /// Largest tolerated decrease of timestamps. Captures on several cores interleave by fractions of a millisecond,
    /// so such arrivals are sorted.
    const MAX_DISORDER: Duration = Duration::from_millis(5);

    /// Parses a file's contents, gzip or plain.
    ///
    /// # Errors
    /// The header or a field is invalid, times decrease by more than 5 ms, or there are no arrivals.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, TraceError> {
        let text = text(file, bytes)?;
        let mut arrivals: Vec<Arrival> = Vec::new();
        let mut latest = Duration::ZERO;
        for row in rows::<3>(file, &text, "t_ms,len_bytes,tcp_seq")? {
            let (line, [at, bytes, seq]) = row?;
            let at = Duration::from_nanos(millis(file, line, "t_ms", at)?);
            latest = latest.max(at);
            if at + Self::MAX_DISORDER < latest {
                let why = "t_ms is more than 5 ms earlier than in a previous line";
                return Err(TraceError::for_line(file, line, why));
            }
            let bytes = number(file, line, "len_bytes", bytes)?;
            arrivals.push(Arrival { at, bytes, seq: number(file, line, "tcp_seq", seq)? });
        }
        if arrivals.is_empty() {
            return Err(TraceError::for_file(file, "the file contains no arrivals"));
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        Ok(ArrivalTrace { arrivals })
    }

    /// The arrivals.
    #[must_use]
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// Longest time between two arrivals.
    #[must_use]
    pub fn longest_pause(&self) -> Duration {
        let holes = self.arrivals.windows(2).map(|pair| pair[1].at - pair[0].at);
        holes.max().unwrap_or_default()
    }

    /// The achieved rate in windows of `window`, as repeating rate steps: the recorded link was at least as fast.
    /// `packet_overhead` bytes of headers are added to each segment.
    ///
    /// # Errors
    /// If `window` is shorter than 1 ms.
    pub fn rate_steps(
        &self,
        window: Duration,
        packet_overhead: u32,
    ) -> Result<Arc<Steps<Rate>>, &'static str> {
        if window < Duration::from_millis(1) {
            return Err("the window is shorter than 1 ms");
        }
        let width = window.as_nanos();
        let last = self.arrivals[self.arrivals.len() - 1].at.as_nanos() / width;
        let mut sums = vec![0u64; last as usize + 1];
        for arrival in &self.arrivals {
            let index = (arrival.at.as_nanos() / width) as usize;
            sums[index] += u64::from(arrival.bytes) + u64::from(packet_overhead);
        }
        let start = |index: usize| Duration::from_nanos((index as u128 * width) as u64);
        let points = sums.iter().enumerate().map(|(i, sum)| (start(i), Rate::over(*sum, window)));
        Steps::new(points.collect(), Some(start(sums.len()))).map(Arc::new)
    }
}
