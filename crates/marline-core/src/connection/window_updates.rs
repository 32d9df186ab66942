//! Repeated window updates, so that the peer learns that a closed window has reopened even if an update is lost.
//!
//! *Problem.* While the window is closed, no data is in flight, so no later segment compensates for a lost update. The
//! sender then waits for its next window probe. The intervals between probes double (RFC 9293 section 3.8.6.1) and,
//! with a slow reader, reach a minute.
//!
//! *How.* An update that reopens a closed window is repeated after a retransmission timeout and then after twice as
//! long, a few times ([`Repeats`]), until data arrives. If the peer has no more data to send, these repeats are the
//! only cost.

use marline_policy::Dsn;
use marline_time::{Duration, Instant};

use super::repeats::Repeats;
use crate::on_demand::UnusedState;

/// The last update that reopened a closed window.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct WindowUpdates {
    repeats: Repeats,
    /// Next byte expected when the update was sent.
    next: Dsn,
}

impl UnusedState for WindowUpdates {
    const UNUSED: &'static Self = &WindowUpdates { repeats: Repeats::NONE, next: Dsn(0) };
}

impl WindowUpdates {
    /// Records an update that reopens a closed window. `next` is the next byte expected.
    pub(super) fn on_reopened(&mut self, now: Instant, next: Dsn, rto: Duration) {
        *self = WindowUpdates { repeats: Repeats::begin(now, rto), next };
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.repeats.next_timeout()
    }

    /// True if the update must be repeated now. `next` is the next byte expected now.
    pub(super) fn is_repeat_due(&mut self, now: Instant, next: Dsn, rto: Duration) -> bool {
        self.repeats.is_due(now, rto, next == self.next)
    }
}
