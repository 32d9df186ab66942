//! Receiver probes: a client that waits for data checks whether its peer is still there.
//!
//! *Problem.* A pure receiver sends nothing and so does not learn that its peer is gone: a server
//! that was restarted does not know the connection, and would answer any segment with RST (on the
//! UDP carrier RESET). TCP leaves that to keepalives after two hours.
//!
//! *How.* The client sends an empty segment that every TCP answers at once, [`first`] after data
//! moved last in either direction, then after twice as long, and so on, at most [`longest`] apart.
//! One subflow is probed; if that brings no answer, all are, for a reset ends a subflow, not the
//! connection, and the connection ends when no subflow is left and the peer does not know the next
//! one either (`wait`). Unanswered probes count as silence, so that a peer that vanished without
//! notice is given up after [`Linger`](crate::Linger).
//!
//! Only data restarts the sequence, not an answer, so that the cost of silence decreases with its
//! length. While our own data is unacknowledged its timers probe the peer, and these probes are
//! suspended.
//!
//! [`first`]: crate::ReceiveProbes::first
//! [`longest`]: crate::ReceiveProbes::longest

use marline_time::{Duration, Instant};

use super::asked::Asked;
use crate::ReceiveProbes;

/// Where only the reserve is left (a cellular radio), so many are asked, in the seconds in which the radio
/// is awake anyway; then it may sleep until data moves.
const ON_RESERVE: u32 = 3;

/// Questions since data moved last.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct ProbeTimer {
    /// When data moved last.
    since: Instant,
    /// When to look again. May be early: what is due is computed then.
    look_at: Option<Instant>,
    /// How many questions were asked since.
    count: u32,
    asked: Asked,
}

impl ProbeTimer {
    /// One that waits for nothing.
    pub(super) const STOPPED: ProbeTimer =
        ProbeTimer { since: Instant::ZERO, look_at: None, count: 0, asked: Asked::NEVER };

    /// The peer is there; something may come.
    pub(super) fn begin(&mut self, now: Instant, probes: ReceiveProbes) {
        if self.look_at.is_none() {
            self.on_data(now, probes);
        }
    }

    /// Data came, or was acknowledged.
    pub(super) fn on_data(&mut self, now: Instant, probes: ReceiveProbes) {
        *self = ProbeTimer { since: now, look_at: self.look_at, ..ProbeTimer::default() };
        // Moved to an earlier time only: looking once too often costs less than moving it each time.
        let at = now + probes.first;
        self.look_at = Some(self.look_at.map_or(at, |look_at| look_at.min(at)));
    }

    /// When there is something to look at.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.look_at
    }

    /// So few were asked that the reserve's radio may be asked, too.
    pub(super) const fn spares_reserve(&self) -> bool {
        self.count < ON_RESERVE
    }

    /// Nothing is waited for: the next segment begins it anew.
    pub(super) const fn stop(&mut self) {
        self.look_at = None;
    }

    /// Whether a question is due; if not, when to look again is set.
    pub(super) fn is_due(&mut self, now: Instant, probes: ReceiveProbes) -> bool {
        let due_at = match self.asked.at() {
            None => self.since + probes.first,
            Some(at) => at + pause(probes, self.count),
        };
        if due_at > now {
            self.look_at = Some(due_at);
        }
        due_at <= now
    }

    /// A question goes out, the peer having been heard at `heard_at`: how many in a row went unanswered.
    pub(super) fn ask(&mut self, now: Instant, heard_at: Option<Instant>) -> u32 {
        self.count = self.count.saturating_add(1);
        self.asked.again(now, heard_at)
    }

    /// When to look again after what was due was done.
    pub(super) fn rearm(&mut self, now: Instant, probes: ReceiveProbes) {
        self.look_at = Some(now + pause(probes, self.count));
    }
}

/// The time to the question after `count` of them: the silence so far, as long as that is not too long.
fn pause(probes: ReceiveProbes, count: u32) -> Duration {
    let doubled = probes.first * (1 << count.saturating_sub(1).min(16));
    doubled.min(probes.longest.max(probes.first))
}
