//! Address validation: challenges, responses and moves (spec section 4).

use marline_time::Instant;

use super::frame::{ControlFrame, Nonce, Proof};
use super::keys::equals_in_constant_time;
use super::{CHALLENGE_INTERVAL, Datagram, ReceivedDatagram, UdpCarrier};

impl UdpCarrier {
    /// Checks that a datagram with a known id comes from the flow's current address.
    pub(super) fn check_address(&mut self, now: Instant, id: u64, datagram: &Datagram<'_>) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.outer == datagram.outer {
            if !flow.is_opener {
                flow.heard_at = now;
            }
            if !flow.validated {
                self.mark_validated(id);
                self.record_carrier(id);
            }
            return;
        }
        if flow.is_opener && flow.outer.has_same_addresses(&datagram.outer) {
            // The datagram arrived on another of our sockets: the peer has not yet followed the move.
            return;
        }
        if let Some((outer, at)) = flow.challenged
            && outer == datagram.outer
            && now < at + CHALLENGE_INTERVAL
        {
            return;
        }
        flow.challenged = Some((datagram.outer, now));
        let (peer_flow, moves) = (flow.peer_flow, flow.moves);
        if peer_flow == 0 {
            return;
        }
        let nonce = self.keys.nonce(id, moves, &datagram.outer);
        self.counters.challenges += 1;
        self.push_control(datagram.outer, ControlFrame::challenge(peer_flow, &nonce));
    }

    /// Handles a challenge. Only the peer may send one, from its current address: any other sender could use our answer
    /// to pass its own challenge.
    pub(super) fn on_challenge<'a>(
        &mut self,
        datagram: &Datagram<'a>,
        id: u64,
        nonce: &Nonce,
    ) -> ReceivedDatagram<'a> {
        let Some(flow) = self.flows.get_mut(&id) else {
            return self.owner_of_foreign_frame(datagram, id).unwrap_or(ReceivedDatagram::Nothing);
        };
        let asked_by_peer = flow.outer.remote == datagram.outer.remote;
        if flow.peer_flow == 0 || !asked_by_peer {
            return ReceivedDatagram::Nothing;
        }
        if let Some(proof) = self.keys.response(&mut flow.bond, flow.peer_flow, id, nonce) {
            let frame = ControlFrame::response(flow.peer_flow, &proof);
            self.push_control(datagram.outer, frame);
        }
        ReceivedDatagram::Nothing
    }

    pub(super) fn on_response<'a>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'a>,
        id: u64,
        proof: &Proof,
    ) -> ReceivedDatagram<'a> {
        let Some(flow) = self.flows.get_mut(&id) else {
            return self.owner_of_foreign_frame(datagram, id).unwrap_or(ReceivedDatagram::Nothing);
        };
        if flow.outer == datagram.outer && flow.validated {
            // The response to a challenge that was repeated before the first response arrived.
            return ReceivedDatagram::Nothing;
        }
        let nonce = self.keys.nonce(id, flow.moves, &datagram.outer);
        let expected = match flow.peer_flow {
            0 => None,
            peer_flow => self.keys.response(&mut flow.bond, id, peer_flow, &nonce),
        };
        if !expected.is_some_and(|expected| equals_in_constant_time(&expected, proof)) {
            self.counters.bad_responses += 1;
            return ReceivedDatagram::Nothing;
        }
        tracing::debug!(from = %flow.outer.remote, to = %datagram.outer.remote, "the peer moved");
        self.mark_validated(id);
        let Some(flow) = self.flows.get_mut(&id) else { return ReceivedDatagram::Nothing };
        let new_host = flow.outer.remote.ip() != datagram.outer.remote.ip();
        flow.outer = datagram.outer;
        flow.moves += 1;
        flow.challenged = None;
        (flow.sent_at, flow.heard_at) = (now, now);
        self.counters.moves += 1;
        self.record_carrier(id);
        ReceivedDatagram::Moved { flow: id, new_host }
    }
}
