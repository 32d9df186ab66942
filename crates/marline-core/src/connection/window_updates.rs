//! Repeated window updates: a sender learns that a shut window is open although an update was lost.
//!
//! *Problem.* While the window is shut nothing is in flight, so that no later segment makes up for an update that is
//! lost. The sender then waits for its next window probe. The pauses between these double (RFC 9293 section 3.8.6.1),
//! and behind a reader that is slow for minutes they have grown to a minute when it reads on.
//!
//! *How.* An update that reopens a shut window goes again after a retransmission timeout and then after twice as long,
//! [`REPEATS`] times at most, unless data comes first. If the peer has no more to send, that is all that it costs.

use marline_policy::Dsn;
use marline_time::{Duration, Instant};

use crate::on_demand::Unused;

/// Repeats of an update. With the least timeout of 200 ms they span six seconds.
const REPEATS: u8 = 5;

/// The last update that reopened a shut window.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct WindowUpdates {
    repeat_at: Option<Instant>,
    repeats: u8,
    /// Next byte wanted when it was sent.
    next: Dsn,
}

impl Unused for WindowUpdates {
    const UNUSED: &'static Self = &WindowUpdates { repeat_at: None, repeats: 0, next: Dsn(0) };
}

impl WindowUpdates {
    /// An update goes out that reopens a shut window. `next`: the next byte that is wanted.
    pub(super) fn on_reopened(&mut self, now: Instant, next: Dsn, rto: Duration) {
        *self = WindowUpdates { repeat_at: Some(now + rto), repeats: 0, next };
    }

    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.repeat_at
    }

    /// Whether the update is to be repeated now. `next`: the next byte that is wanted now.
    pub(super) fn is_repeat_due(&mut self, now: Instant, next: Dsn, rto: Duration) -> bool {
        if self.repeat_at.is_none_or(|at| at > now) {
            return false;
        }
        self.repeat_at = None;
        if next > self.next {
            return false;
        }
        self.repeats += 1;
        if self.repeats < REPEATS {
            self.repeat_at = Some(now + rto * (1 << self.repeats));
        }
        true
    }
}
