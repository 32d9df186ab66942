//! Memory that a lane uses for datagrams, and an external limit on it, set by a memory budget.

use super::Lane;
use super::sent_frames::KeptLimits;

impl Lane {
    /// Returns the number of bytes that wait to be sent for the first time, on all paths.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.paths.iter().map(|path| path.queued_bytes()).sum()
    }

    /// Returns the number of bytes that the lane holds: datagrams that wait to be sent, frames kept for retransmission,
    /// incomplete frames, and datagrams that the driver has not yet taken.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.queued_bytes() + self.kept.bytes() + self.halves.bytes() + self.inbox.held_bytes()
    }

    /// Limits each queue to this number of bytes because memory is short. Current contents are kept, and lower
    /// configured limits still apply.
    pub const fn limit_memory(&mut self, bytes: usize) {
        self.max_queue_bytes = bytes;
    }

    /// Maximum number of bytes that wait on a path to be sent for the first time.
    pub(super) fn max_queued_bytes(&self) -> usize {
        self.config.limits.queue_bytes.min(self.max_queue_bytes)
    }

    /// Maximum number of bytes that wait for the driver.
    pub(super) fn max_received_bytes(&self) -> usize {
        self.config.limits.inbox_bytes.min(self.max_queue_bytes)
    }

    /// Limits on frames kept for retransmission, and on their bytes.
    pub(super) fn kept_limits(&self) -> KeptLimits {
        let limits = &self.config.limits;
        let bytes = limits.kept_bytes.min(self.max_queue_bytes);
        KeptLimits { frames: limits.kept_frames, bytes }
    }
}
