//! Memory that a lane holds for datagrams, and a bound of it from outside: what is charged to a budget.

use super::Lane;

impl Lane {
    /// Bytes that wait to be sent for the first time, on all paths.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.paths.iter().map(|path| path.queued_bytes()).sum()
    }

    /// Bytes that it holds for datagrams: those that wait to leave, those that were sent and may be sent again, those
    /// of which pieces have arrived, and those that nobody has taken.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.queued_bytes() + self.kept.bytes() + self.halves.bytes() + self.inbox.held_bytes()
    }

    /// From now on each of its queues holds no more than so many bytes: memory is short. What it holds beyond, it
    /// keeps; bounds that are smaller stay.
    pub const fn limit_memory(&mut self, bytes: usize) {
        self.most_held = bytes;
    }

    /// Bytes that may wait on a path to be sent for the first time.
    pub(super) fn most_queued(&self) -> usize {
        self.config.limits.queue_bytes.min(self.most_held)
    }

    /// Bytes that may wait to be taken.
    pub(super) fn most_received(&self) -> usize {
        self.config.limits.inbox_bytes.min(self.most_held)
    }

    /// Frames that are kept to be sent again, and their bytes.
    pub(super) fn most_kept(&self) -> (usize, usize) {
        let limits = &self.config.limits;
        (limits.kept_frames, limits.kept_bytes.min(self.most_held))
    }
}
