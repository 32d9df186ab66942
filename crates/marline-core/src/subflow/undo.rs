//! Evidence that a reduction of the window was unnecessary, by which it is undone.

use marline_policy::Ssn;

/// The evidence collected about the last reduction.
#[derive(Copy, Clone, Debug)]
pub(super) struct Undo {
    /// SND.UNA when the window was reduced.
    pub(super) marker: Ssn,
    /// Bytes sent again since that no DSACK has named.
    pub(super) unproven: u64,
    /// Our timestamp on the first of them.
    pub(super) first_retransmission: Option<u32>,
}

impl Undo {
    pub(super) const fn new(marker: Ssn) -> Self {
        Undo { marker, unproven: 0, first_retransmission: None }
    }

    /// `bytes` go out again, with this timestamp.
    pub(super) fn on_retransmission(&mut self, bytes: u64, timestamp: u32) {
        self.unproven += bytes;
        self.first_retransmission.get_or_insert(timestamp);
    }

    /// A DSACK names `bytes` from `start` on that arrived twice. Returns whether that proves that
    /// no retransmission was needed.
    pub(super) fn on_dsack(&mut self, start: Ssn, bytes: u64) -> bool {
        if start < self.marker || self.first_retransmission.is_none() || self.unproven == 0 {
            return false;
        }
        self.unproven = self.unproven.saturating_sub(bytes);
        self.unproven == 0
    }

    /// An ACK for a segment that was sent twice echoes `timestamp`: whether it was sent before the
    /// first retransmission.
    pub(super) fn echo_is_older(&self, timestamp: u32) -> bool {
        self.first_retransmission.is_some_and(|first| (timestamp.wrapping_sub(first) as i32) < 0)
    }
}
