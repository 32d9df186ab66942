//! Fast Open on a subflow (RFC 7413 section 4.2.2): the answerer may send before the third ACK.
//!
//! The subflow stays in SYN-RECEIVED. New data goes out behind the SYN/ACK; what is lost of it is repeated once the
//! handshake is through, and until then only the SYN/ACK is. A FIN waits for the third ACK.

use super::Subflow;
use crate::SubflowState;

/// How far Fast Open has come on a subflow.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct FastOpen {
    /// Answerer: data may be sent in SYN-RECEIVED.
    open: bool,
    /// All data of the SYN was taken: by the peer, or from it.
    took_data: bool,
}

impl Subflow {
    /// Answerer: a cookie shows that the opener is where its SYN came from, so that data may be sent.
    pub(crate) fn open_early(&mut self) {
        debug_assert!(self.state.is(SubflowState::SynReceived));
        self.fast_open.open = true;
    }

    /// Data of a SYN was taken, all of it.
    pub(crate) const fn note_syn_data_taken(&mut self) {
        self.fast_open.took_data = true;
    }

    /// Answerer: no room for timestamps in the SYN/ACK, hence none in what follows.
    pub(crate) fn forgo_timestamps(&mut self) {
        self.timestamps.enabled = false;
        self.apply_mss();
    }

    /// Whether all the data of a SYN was taken.
    pub(super) const fn took_syn_data(&self) -> bool {
        self.fast_open.took_data
    }

    /// New data may be sent as far as the state goes.
    pub(super) fn may_send(&self) -> bool {
        self.state.may_send() || self.fast_open.open && self.state.is(SubflowState::SynReceived)
    }
}
