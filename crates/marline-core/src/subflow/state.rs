//! TCP states of RFC 9293 section 3.3.2 and the transitions between them.
//!
//! LISTEN does not occur: the endpoint creates a subflow when a SYN is received. CLOSED is the final state.

use crate::SubflowState;

/// Current state of a subflow.
#[derive(Copy, Clone, Debug)]
pub(super) struct State {
    current: SubflowState,
}

impl State {
    /// Initial state of an active opener.
    pub(super) const fn syn_sent() -> Self {
        State { current: SubflowState::SynSent }
    }

    /// Initial state of a passive opener.
    pub(super) const fn syn_received() -> Self {
        State { current: SubflowState::SynReceived }
    }

    pub(super) const fn get(self) -> SubflowState {
        self.current
    }

    pub(super) fn matches_state(self, state: SubflowState) -> bool {
        self.current == state
    }

    pub(super) const fn is_handshake(self) -> bool {
        matches!(self.current, SubflowState::SynSent | SubflowState::SynReceived)
    }

    /// True if new data and our FIN may be sent.
    pub(super) const fn may_send(self) -> bool {
        matches!(self.current, SubflowState::Established | SubflowState::CloseWait)
    }

    /// True if the peer may still send data and its FIN.
    pub(super) const fn may_receive(self) -> bool {
        matches!(
            self.current,
            SubflowState::Established | SubflowState::FinWait1 | SubflowState::FinWait2
        )
    }

    /// Handles a simultaneous open: our SYN and the peer's crossed.
    pub(super) fn move_to_syn_received(&mut self) {
        debug_assert!(self.matches_state(SubflowState::SynSent));
        self.current = SubflowState::SynReceived;
    }

    pub(super) fn move_to_established(&mut self) {
        debug_assert!(self.is_handshake());
        self.current = SubflowState::Established;
    }

    /// Handles the first transmission of our FIN.
    pub(super) fn move_on_fin_sent(&mut self) {
        self.current = match self.current {
            SubflowState::Established => SubflowState::FinWait1,
            SubflowState::CloseWait => SubflowState::LastAck,
            other => {
                debug_assert!(false, "FIN sent in {other:?}");
                other
            }
        };
    }

    /// Handles the acknowledgment of our FIN.
    pub(super) fn move_on_fin_acked(&mut self) {
        self.current = match self.current {
            SubflowState::FinWait1 => SubflowState::FinWait2,
            SubflowState::Closing => SubflowState::TimeWait,
            SubflowState::LastAck => SubflowState::Closed,
            other => other,
        };
    }

    /// Handles the peer's FIN, once it is in order.
    pub(super) fn move_on_fin_received(&mut self) {
        self.current = match self.current {
            SubflowState::Established => SubflowState::CloseWait,
            SubflowState::FinWait1 => SubflowState::Closing,
            SubflowState::FinWait2 => SubflowState::TimeWait,
            other => other,
        };
    }

    /// Handles a reset, a refusal, giving up, or the end of TIME-WAIT.
    pub(super) fn move_to_closed(&mut self) {
        self.current = SubflowState::Closed;
    }
}
