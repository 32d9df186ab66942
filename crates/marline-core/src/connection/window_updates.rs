//! Repeated window updates: a sender learns that a shut window is open although an update was lost.
//!
//! *Problem.* While the window is shut nothing is in flight, so that no later segment makes up for an update that is
//! lost. The sender then waits for its next window probe. The pauses between these double (RFC 9293 section 3.8.6.1),
//! and behind a reader that is slow for minutes they have grown to a minute when it reads on.
//!
//! *How.* An update that reopens a shut window goes again after a retransmission timeout and then after twice as long,
//! a few times ([`Repeats`]), unless data comes first. If the peer has no more to send, that is all that it costs.

use marline_policy::Dsn;
use marline_time::{Duration, Instant};

use super::repeats::Repeats;
use crate::on_demand::Unused;

/// The last update that reopened a shut window.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct WindowUpdates {
    repeats: Repeats,
    /// Next byte wanted when it was sent.
    next: Dsn,
}

impl Unused for WindowUpdates {
    const UNUSED: &'static Self = &WindowUpdates { repeats: Repeats::NONE, next: Dsn(0) };
}

impl WindowUpdates {
    /// An update goes out that reopens a shut window. `next`: the next byte that is wanted.
    pub(super) fn on_reopened(&mut self, now: Instant, next: Dsn, rto: Duration) {
        *self = WindowUpdates { repeats: Repeats::begin(now, rto), next };
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.repeats.next_timeout()
    }

    /// Whether the update is to be repeated now. `next`: the next byte that is wanted now.
    pub(super) fn is_repeat_due(&mut self, now: Instant, next: Dsn, rto: Duration) -> bool {
        self.repeats.is_due(now, rto, next == self.next)
    }
}
