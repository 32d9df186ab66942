//! Memory trimming: an idle connection releases the spare capacity of its lists and queues.
//!
//! While data flows nothing is allocated for a segment, because what was needed once is kept. Ten seconds
//! after data was last sent, taken in or acknowledged, that memory serves nobody. The timer is looked at once
//! in ten seconds, not moved with every segment.

use marline_time::{Duration, Instant};

/// Idle for so long, a connection gives memory back.
const IDLE: Duration = Duration::from_secs(10);

/// When data last moved, and when that is looked at.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct MemoryTrim {
    busy_at: Instant,
    due_at: Option<Instant>,
}

impl MemoryTrim {
    /// Data moves.
    pub(super) fn note_busy(&mut self, now: Instant) {
        self.busy_at = now;
        self.due_at.get_or_insert(now + IDLE);
    }

    /// Whether data moved within this time.
    pub(super) fn was_busy_within(&self, now: Instant, time: Duration) -> bool {
        self.due_at.is_some() && now.since(self.busy_at) <= time
    }

    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.due_at
    }

    /// Whether the connection was idle for long enough by now.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if self.due_at.is_none_or(|at| at > now) {
            return false;
        }
        let idle_at = self.busy_at + IDLE;
        self.due_at = Some(idle_at).filter(|at| *at > now);
        self.due_at.is_none()
    }
}
