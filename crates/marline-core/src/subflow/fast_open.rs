//! Fast Open on a subflow (RFC 7413 section 4.2.2): the passive opener may send before the third ACK.
//!
//! The subflow stays in SYN-RECEIVED. New data is sent after the SYN/ACK. Lost data is retransmitted once the
//! handshake is complete. Until then, only the SYN/ACK is. A FIN waits for the third ACK.

use super::Subflow;
use crate::SubflowState;

/// Fast Open state of a subflow.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct FastOpen {
    /// Passive opener: data may be sent in SYN-RECEIVED.
    open: bool,
    /// All data in the SYN was accepted, by the peer or by this side.
    took_data: bool,
}

impl Subflow {
    /// Passive opener: allows data early, because a cookie proves the opener's address.
    pub(crate) fn open_early(&mut self) {
        debug_assert!(self.state.matches_state(SubflowState::SynReceived));
        self.fast_open.open = true;
    }

    /// Records that all data of a SYN was accepted.
    pub(crate) const fn record_syn_data_taken(&mut self) {
        self.fast_open.took_data = true;
    }

    /// Passive opener: disables timestamps, because the SYN/ACK has no room for them.
    pub(crate) fn disable_timestamps(&mut self) {
        self.timestamps.enabled = false;
        self.apply_mss();
    }

    /// True if all data of a SYN was accepted.
    pub(super) const fn took_syn_data(&self) -> bool {
        self.fast_open.took_data
    }

    /// True if the state allows new data.
    pub(super) fn may_send(&self) -> bool {
        self.state.may_send()
            || self.fast_open.open && self.state.matches_state(SubflowState::SynReceived)
    }
}
