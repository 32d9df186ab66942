//! Count of unanswered probes, for those without a TCP timer of their own: window probes, DATA_FINs, a receiver's
//! probes.

use marline_time::Instant;

/// Time of the last probe, and number of unanswered ones.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct UnansweredProbes {
    at: Option<Instant>,
    /// Consecutive probes without any segment from the peer after them.
    unanswered: u32,
}

impl UnansweredProbes {
    /// No probe was sent.
    pub(super) const NEVER: UnansweredProbes = UnansweredProbes { at: None, unanswered: 0 };

    /// Time of the last probe.
    pub(super) const fn last_probe_at(&self) -> Option<Instant> {
        self.at
    }

    /// Records a new probe. The peer was last heard at `heard_at`. Returns the number of consecutive unanswered
    /// probes.
    pub(super) fn record_probe(&mut self, now: Instant, heard_at: Option<Instant>) -> u32 {
        let silent = self.at.is_some_and(|at| heard_at.is_none_or(|heard| heard <= at));
        self.unanswered = if silent { self.unanswered.saturating_add(1) } else { 0 };
        self.at = Some(now);
        self.unanswered
    }
}
