//! The connection as the endpoint's tables know it: tokens, subflow ids, paths of the carrier.

use std::sync::Arc;

use marline_policy::{SubflowId, Token};
use marline_time::Instant;
use marline_wire::{SeqNum, TcpFlags, TcpSegment};

use super::Connection;
use crate::tables::Context;
use crate::{CloseReason, ConnectionId, NetworkError};

impl Connection {
    pub(crate) const fn id(&self) -> ConnectionId {
        self.id
    }

    /// Joins find the connection by our token.
    pub(crate) const fn token(&self) -> Token {
        self.session.keys().local_token()
    }

    /// It holds a place among the half-open: its first subflow's handshake on the server's side is neither
    /// through nor given up.
    pub(crate) fn holds_syn_place(&self) -> bool {
        let unanswered = self.session.is_server() && !self.closing.announced_to_application;
        unanswered && self.legs.iter().flatten().any(|leg| leg.is_initial())
    }

    /// The peer said by which id it wants to be addressed. Only a handshake segment may say so, and
    /// only once: a later one is somebody else's.
    pub(crate) fn learn_peer_flow(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        peer_flow: u64,
        segment: &TcpSegment<'_>,
    ) {
        let slot = self.slot;
        let Some(leg) = self.leg_mut(id).filter(|leg| leg.key.peer_flow == 0) else { return };
        let flags = segment.header.flags;
        // A SYN with data (Fast JOIN) is acknowledged together with that.
        let beyond = segment.header.ack.offset_from(leg.tcp.to_wire(marline_policy::Ssn(1)));
        let answers_syn = flags.contains(TcpFlags::SYN)
            && flags.contains(TcpFlags::ACK)
            && beyond as usize <= leg.tcp.max_segment();
        if answers_syn {
            leg.key.peer_flow = peer_flow;
            let key = leg.key;
            cx.route(key, slot, id);
        }
    }

    /// The first subflow's handshake on the server's side is not through.
    pub(crate) const fn is_half_open(&self) -> bool {
        !self.closing.announced_to_application && self.closing.closed.is_none()
    }

    /// Gives way to a newer SYN, silently.
    pub(crate) fn drop_if_half_open(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_half_open() {
            return false;
        }
        self.finish(cx, CloseReason::ResourceLimit);
        for id in self.leg_ids() {
            self.drop_leg(cx, id, CloseReason::ResourceLimit);
        }
        true
    }

    /// An ICMP error about a segment of one subflow. `false`: nothing like it is on its way.
    pub(crate) fn on_network_error(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (seq, error): (SeqNum, NetworkError),
    ) -> bool {
        if !self.leg(id).is_some_and(|leg| leg.tcp.is_in_flight(seq)) {
            return false;
        }
        self.on_error(cx, id, error);
        true
    }

    /// The same, of a subflow that it surely is about.
    pub(crate) fn on_error(&mut self, cx: &mut Context<'_>, id: SubflowId, error: NetworkError) {
        match error {
            NetworkError::TooBig { max_segment } => {
                if let Some(leg) = self.leg_mut(id) {
                    leg.tcp.mss_lowered(max_segment);
                }
            }
            NetworkError::Unreachable => self.on_unreachable(cx, id),
        }
    }

    /// The peer has forgotten this subflow, and whoever says so has proven it.
    pub(crate) fn on_proven_reset(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(leg) = self.leg_mut(id) else { return };
        leg.tcp.accept_reset();
        self.drain_subflow_events(cx, id);
        self.drain_released(now, id);
        self.advance_closing(cx);
    }

    /// The peer is at another address, to which the carrier sends from now on.
    pub(crate) fn on_path_moved(&mut self, now: Instant, id: SubflowId, new_host: bool) {
        let congestion = new_host.then(|| Arc::clone(&self.config.policies.congestion));
        let Some(leg) = self.leg_mut(id) else { return };
        if let Some(congestion) = congestion {
            leg.tcp.start_afresh(now, &*congestion);
        }
        leg.tcp.repeat_at_once(now);
    }

    /// The SYN of a subflow that we open is wanted again.
    pub(crate) fn repeat_syn(&mut self, id: SubflowId) {
        if let Some(leg) = self.leg_mut(id) {
            leg.tcp.repeat_syn();
        }
    }
}
