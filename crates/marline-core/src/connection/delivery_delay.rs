//! Delivery delay as the application has it: from writing to the DATA_ACK.
//!
//! What was written is not timed byte for byte: the end of one write is, and when it has been acknowledged that of
//! the next. That is a sample each time all that was in the send buffer has gone through, and each message of an
//! application that waits for answers. The time until the acknowledgement came is in it, and what the data waited for: a
//! window, a path, a repeat.

use marline_policy::Dsn;
use marline_time::{Duration, Instant};

/// The write that is being timed.
#[derive(Debug, Default)]
pub(super) struct DeliveryDelay {
    /// Its end, and when it was written.
    awaited: Option<(Dsn, Instant)>,
}

impl DeliveryDelay {
    /// The stream was written up to there.
    pub(super) fn on_written(&mut self, now: Instant, end: Dsn) {
        self.awaited.get_or_insert((end, now));
    }

    /// The peer has everything before `una`. Returns how long the write took that was timed.
    pub(super) fn on_acked(&mut self, now: Instant, una: Dsn) -> Option<Duration> {
        let (_, written_at) = self.awaited.take_if(|(end, _)| *end <= una)?;
        Some(now.since(written_at))
    }
}
