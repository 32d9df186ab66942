//! Delivery delay as the application has it: from writing to the DATA_ACK.
//!
//! What was written is not timed byte for byte: the end of one write is, and when it has been acknowledged that of
//! the next. That is a sample each time all that was in the send buffer has gone through, and each message of an
//! application that waits for answers. The time until the acknowledgement came is in it, and what the data waited
//! for: a window, a path, a repeat.

use marline_policy::Dsn;
use marline_time::Instant;

use crate::compact_instant::CompactInstant;

/// The write that is being timed. Every connection has one, so it takes eight bytes.
#[derive(Debug, Default)]
pub(super) struct DeliveryDelay {
    /// Its end, the lower half: buffers are shorter. `NONE` while none is timed.
    end: u32,
    written_at: CompactInstant,
}

/// A write that ends there is not timed.
const NONE: u32 = 0;

impl DeliveryDelay {
    /// The stream was written up to there.
    pub(super) fn on_written(&mut self, now: Instant, end: Dsn) {
        if self.end == NONE {
            (self.end, self.written_at) = (end.0 as u32, CompactInstant::of(now));
        }
    }

    /// What is being timed took longer than this process saw: the next write is timed.
    pub(super) const fn forget(&mut self) {
        self.end = NONE;
    }

    /// The peer has everything before `una`. Returns how long the write took that was timed, in microseconds.
    pub(super) fn on_acked(&mut self, now: Instant, una: Dsn) -> Option<u64> {
        let is_missing = (una.0 as u32).wrapping_sub(self.end) > u32::MAX / 2;
        if self.end == NONE || is_missing {
            return None;
        }
        self.end = NONE;
        Some(self.written_at.elapsed_us(now))
    }
}
