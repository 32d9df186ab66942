//! Receiver probes: a client that waits for data checks whether its peer is still there.
//!
//! *Problem.* A pure receiver sends nothing, so it does not learn that its peer is gone: a restarted server does not
//! know the connection, and would answer any segment with a RST (RESET on the UDP carrier). TCP detects this only by
//! keepalives after two hours.
//!
//! *How.* The client sends an empty segment that every TCP answers immediately, [`first`] after the last data in
//! either direction. The interval then doubles, up to [`longest`]. One subflow is probed; if there is no answer, all
//! are. A reset ends only its subflow. The connection ends when no subflow is left and the peer also rejects the next
//! one (`wait`). Unanswered probes count as silence, so that a peer that vanished without notice is given up after
//! [`Linger`](crate::Linger).
//!
//! Only data restarts the sequence, not an answer, so that the cost of silence decreases with its length. While our
//! own data is unacknowledged, its timers probe the peer, and receiver probes are suspended.
//!
//! [`first`]: crate::ReceiveProbes::first
//! [`longest`]: crate::ReceiveProbes::longest

use marline_time::{Duration, Instant};

use super::repeats::PendingProbes;
use crate::ReceiveProbes;

/// Number of probes on a reserve path (a cellular radio), sent in the seconds in which the radio is awake anyway.
/// Then it may sleep until data is transferred.
const MAX_RESERVE_PROBES: u32 = 3;

/// Timer and count of probes since the last data.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct ProbeTimer {
    /// Time of the last data.
    since: Instant,
    /// Time of the next check. It may be early; the due time is computed then.
    check_at: Option<Instant>,
    /// Number of probes since the last data.
    count: u32,
    pending_probes: PendingProbes,
}

impl ProbeTimer {
    /// A timer that is not running.
    pub(super) const STOPPED: ProbeTimer = ProbeTimer {
        since: Instant::ZERO,
        check_at: None,
        count: 0,
        pending_probes: PendingProbes::NONE_SENT,
    };

    /// Starts the timer, because data may arrive.
    pub(super) fn start(&mut self, now: Instant, probes: ReceiveProbes) {
        if self.check_at.is_none() {
            self.on_data(now, probes);
        }
    }

    /// Handles data or an acknowledgment.
    pub(super) fn on_data(&mut self, now: Instant, probes: ReceiveProbes) {
        *self = ProbeTimer { since: now, check_at: self.check_at, ..ProbeTimer::default() };
        // The check is only moved to an earlier time: an extra check costs less than moving it each time.
        let at = now + probes.first;
        self.check_at = Some(self.check_at.map_or(at, |look_at| look_at.min(at)));
    }

    /// Time of the next check.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.check_at
    }

    /// True if reserve paths may still be probed.
    pub(super) const fn may_probe_reserve(&self) -> bool {
        self.count < MAX_RESERVE_PROBES
    }

    /// Stops the timer until the next data.
    pub(super) const fn stop(&mut self) {
        self.check_at = None;
    }

    /// True if a probe is due; otherwise the next check is scheduled.
    pub(super) fn is_due(&mut self, now: Instant, probes: ReceiveProbes) -> bool {
        let due_at = match self.pending_probes.last_sent_at() {
            None => self.since + probes.first,
            Some(at) => at + pause(probes, self.count),
        };
        if due_at > now {
            self.check_at = Some(due_at);
        }
        due_at <= now
    }

    /// Records a probe. The peer's last segment arrived at `last_rx_at`. Returns the number of consecutive unanswered
    /// probes.
    pub(super) fn record_probe(&mut self, now: Instant, last_rx_at: Option<Instant>) -> u32 {
        self.count = self.count.saturating_add(1);
        self.pending_probes.record_probe_at(now, last_rx_at)
    }

    /// Schedules the next check, after a probe.
    pub(super) fn rearm(&mut self, now: Instant, probes: ReceiveProbes) {
        self.check_at = Some(now + pause(probes, self.count));
    }
}

/// Time from probe number `count` to the next probe. It is as long as the silence so far, within limits.
fn pause(probes: ReceiveProbes, count: u32) -> Duration {
    let doubled = probes.first * (1 << count.saturating_sub(1).min(16));
    doubled.min(probes.longest.max(probes.first))
}
