//! Delivery delay as the application experiences it: from writing to the DATA_ACK.
//!
//! One write is timed at a time, by its last byte; the next write is timed after that byte is acknowledged. This gives
//! a sample whenever the content of the send buffer is delivered, and for each message of an application that waits for
//! answers. The delay includes the time until the acknowledgment and the wait for a window, a path, or a
//! retransmission.

use marline_policy::Dsn;
use marline_time::Instant;

use crate::compact_instant::CompactInstant;

/// Timing of one write. Every connection has one, so it uses eight bytes.
#[derive(Debug, Default)]
pub(super) struct DeliveryDelay {
    /// Low 32 bits of the end of the timed write (enough, because buffers are smaller). `NONE` while no write is
    /// timed.
    end: u32,
    written_at: CompactInstant,
}

/// No write is timed. A write that really ends at this value is not timed either.
const NONE: u32 = 0;

impl DeliveryDelay {
    /// Handles a write up to this position.
    pub(super) fn on_written(&mut self, now: Instant, end: Dsn) {
        if self.end == NONE {
            (self.end, self.written_at) = (end.0 as u32, CompactInstant::from_instant(now));
        }
    }

    /// Discards the current sample because the process was paused. The next write is timed.
    pub(super) const fn forget(&mut self) {
        self.end = NONE;
    }

    /// Handles a DATA_ACK up to `una`. Returns the delay of the timed write, in microseconds.
    pub(super) fn on_acked(&mut self, now: Instant, una: Dsn) -> Option<u64> {
        let is_missing = (una.0 as u32).wrapping_sub(self.end) > u32::MAX / 2;
        if self.end == NONE || is_missing {
            return None;
        }
        self.end = NONE;
        Some(self.written_at.elapsed_us(now))
    }
}
