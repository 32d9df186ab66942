//! Evidence that a window reduction was unnecessary and can be undone.

use marline_policy::Ssn;

/// Evidence about the last reduction.
#[derive(Copy, Clone, Debug)]
pub(super) struct UndoState {
    /// SND.UNA when the window was reduced.
    pub(super) marker: Ssn,
    /// Bytes retransmitted since, not yet reported by a DSACK.
    pub(super) unproven: u64,
    /// Our timestamp on the first retransmission.
    pub(super) first_retransmission: Option<u32>,
}

impl UndoState {
    pub(super) const fn new(marker: Ssn) -> Self {
        UndoState { marker, unproven: 0, first_retransmission: None }
    }

    /// Records a retransmission of `bytes`, with this timestamp.
    pub(super) fn on_retransmission(&mut self, bytes: u64, timestamp: u32) {
        self.unproven += bytes;
        self.first_retransmission.get_or_insert(timestamp);
    }

    /// Handles a DSACK for `bytes` from `start` on that arrived twice. Returns true if that proves that no
    /// retransmission was needed.
    pub(super) fn on_dsack(&mut self, start: Ssn, bytes: u64) -> bool {
        if start < self.marker || self.first_retransmission.is_none() || self.unproven == 0 {
            return false;
        }
        self.unproven = self.unproven.saturating_sub(bytes);
        self.unproven == 0
    }

    /// True if the echoed `timestamp` in an ACK for a retransmitted segment is older than the first retransmission.
    pub(super) fn is_echo_older(&self, timestamp: u32) -> bool {
        self.first_retransmission.is_some_and(|first| (timestamp.wrapping_sub(first) as i32) < 0)
    }
}
