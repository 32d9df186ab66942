//! Log of a driver's latest segments, which a diagnosis compares with the log of the other end.
//!
//! The log stores the header of each segment, and the length and checksum of its payload. Clones share the log.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use marline_core::FourTuple;

/// Length of a TCP header without options.
const HEADER: usize = 20;

/// Segment that was sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TappedSegment {
    /// Time since the log was created, in microseconds.
    pub at_us: u64,
    /// True if we sent the segment.
    pub sent: bool,
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// TCP header with its options.
    pub header: Vec<u8>,
    /// Length of the payload.
    pub payload_len: u16,
    /// Checksum of the payload, to detect changes.
    pub payload_sum: u32,
}

/// Latest segments of a driver.
#[derive(Clone, Debug)]
pub struct SegmentLog {
    start: Instant,
    most: usize,
    entries: Arc<Mutex<VecDeque<TappedSegment>>>,
}

impl SegmentLog {
    /// Creates a log for at most this many segments.
    #[must_use]
    pub fn new(most: usize) -> Self {
        SegmentLog { start: Instant::now(), most, entries: Arc::default() }
    }

    /// Returns the time since the log was created, in microseconds.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns the entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<TappedSegment> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().cloned().collect()
    }

    pub(crate) fn note(&self, sent: bool, path: &FourTuple, segment: &[u8]) {
        let at_us = self.now_us();
        let (local, remote) = (path.local, path.remote);
        let Some(entry) = TappedSegment::of(at_us, sent, local, remote, segment) else { return };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= self.most {
            entries.pop_front();
        }
        entries.push_back(entry);
    }
}

impl TappedSegment {
    /// Builds the log entry of a segment; `None` if the bytes are not a segment.
    #[must_use]
    pub fn of(
        at_us: u64,
        sent: bool,
        local: SocketAddr,
        remote: SocketAddr,
        segment: &[u8],
    ) -> Option<TappedSegment> {
        let end = usize::from(segment.get(12)? >> 4) * 4;
        let (header, payload) = segment.split_at_checked(end.max(HEADER))?;
        Some(TappedSegment {
            at_us,
            sent,
            local,
            remote,
            header: header.to_vec(),
            payload_len: u16::try_from(payload.len()).ok()?,
            payload_sum: sum(payload),
        })
    }
}

/// Computes an FNV-1a checksum.
fn sum(payload: &[u8]) -> u32 {
    payload.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_and_shared_and_rejects_invalid_segments() {
        let log = SegmentLog::new(2);
        let path = FourTuple {
            local: "10.0.0.1:1".parse().expect("an address"),
            remote: "10.0.0.2:2".parse().expect("an address"),
        };
        let mut segment = vec![0; 24];
        segment[12] = 0x50;
        let shared = log.clone();
        for last in 0..3 {
            segment[23] = last;
            shared.note(last == 1, &path, &segment);
        }
        shared.note(true, &path, &segment[..12]);
        segment[12] = 0xf0;
        shared.note(true, &path, &segment);
        let entries = log.entries();
        assert_eq!(entries.len(), 2);
        assert!(entries[0].sent && !entries[1].sent);
        assert_eq!((entries[0].header.len(), entries[0].payload_len), (20, 4));
        assert_ne!(entries[0].payload_sum, entries[1].payload_sum);
    }
}
