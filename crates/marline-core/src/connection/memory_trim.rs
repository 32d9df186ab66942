//! Memory trimming: an idle connection releases the spare capacity of its lists and queues.
//!
//! While data flows, no segment causes an allocation, because memory is kept for reuse. Ten seconds after data was
//! last sent, received or acknowledged, that memory is unused. The timer is checked every ten seconds instead of
//! being moved with every segment.

use marline_time::{Duration, Instant};

/// Idle time after which a connection releases memory.
const IDLE: Duration = Duration::from_secs(10);

/// Time of the last data, and of the next check.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct MemoryTrim {
    busy_at: Instant,
    due_at: Option<Instant>,
}

impl MemoryTrim {
    /// Records that data was transferred.
    pub(super) fn record_activity(&mut self, now: Instant) {
        self.busy_at = now;
        self.due_at.get_or_insert(now + IDLE);
    }

    /// True if data was transferred within this time.
    pub(super) fn was_busy_within(&self, now: Instant, time: Duration) -> bool {
        self.due_at.is_some() && now.since(self.busy_at) <= time
    }

    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.due_at
    }

    /// True if the connection has been idle for long enough.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if self.due_at.is_none_or(|at| at > now) {
            return false;
        }
        let idle_at = self.busy_at + IDLE;
        self.due_at = Some(idle_at).filter(|at| *at > now);
        self.due_at.is_none()
    }
}
