//! Ebb: an idle connection gives back the memory that its lists and queues kept for use.
//!
//! While data flows nothing is allocated for a segment, because what was needed once is kept. Ten seconds
//! after data was last sent, taken in or acknowledged, that memory serves nobody. The timer is looked at once
//! in ten seconds, not moved with every segment.

use marline_time::{Duration, Instant};

use super::Connection;

/// Idle for so long, a connection gives memory back.
const IDLE: Duration = Duration::from_secs(10);

/// When data last moved, and when that is looked at.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Ebb {
    busy_at: Instant,
    due_at: Option<Instant>,
}

impl Ebb {
    /// Data moves.
    pub(super) fn note_busy(&mut self, now: Instant) {
        self.busy_at = now;
        self.due_at.get_or_insert(now + IDLE);
    }

    pub(super) const fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// The time has come. Whether the connection was idle for long enough.
    fn is_over(&mut self, now: Instant) -> bool {
        let idle_at = self.busy_at + IDLE;
        self.due_at = Some(idle_at).filter(|at| *at > now);
        self.due_at.is_none()
    }
}

impl Connection {
    /// Looks whether memory is to be given back.
    pub(super) fn on_ebb_timeout(&mut self, now: Instant) {
        if self.ebb.due_at().is_none_or(|at| at > now) || !self.ebb.is_over(now) {
            return;
        }
        for leg in self.legs.iter_mut().flatten() {
            leg.tcp.shrink();
        }
        self.sender.shrink();
        self.receiver.shrink();
    }

    /// Bytes of memory that lists hold, beside the bytes of the stream.
    pub(super) fn bookkeeping(&self) -> u64 {
        let legs = self.legs.iter().flatten();
        let of_legs: u64 = legs.map(|leg| leg.tcp.bookkeeping()).sum();
        of_legs + self.sender.bookkeeping() + self.receiver.bookkeeping()
    }

    /// What may wait behind holes of all subflows together, beyond what does: as much as the largest window.
    pub(super) fn out_of_order_room(&self) -> u64 {
        let held: u64 = self.legs.iter().flatten().map(|leg| leg.tcp.held_out_of_order()).sum();
        self.config.receive_buffer.saturating_sub(held)
    }
}
