//! Joins: checks of the handshakes of further subflows (RFC 8684 section 3.2).

use marline_policy::{Ssn, SubflowId};
use marline_wire::TcpFlags;
use marline_wire::TcpSegment;
use marline_wire::mptcp::{DataAck, MpJoin};

use super::closing::Closing;
use super::handshake::{mp_join, reason};
use super::path_set::PathSet;
use super::receiver::Receiver;
use super::replay_guard::ReplayGuard;
use super::sender::Sender;
use super::session::Session;
use super::subflow_context::{AcceptedJoin, OpenedJoin};
use crate::ConnectionConfig;
use crate::crypto::leftmost_160;
use crate::on_demand::OnDemand;
use crate::tables::Context;

/// Parts of a connection that the handshake of a join uses.
pub(super) struct Joins<'a> {
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a Session,
    pub(super) paths: &'a mut PathSet,
    pub(super) sender: &'a mut Sender,
    pub(super) receiver: &'a mut Receiver,
    pub(super) closing: &'a Closing,
    pub(super) replay_guard: &'a mut OnDemand<ReplayGuard>,
}

/// Result of a check on a segment of a join's handshake.
#[derive(Copy, Clone, Debug)]
pub(super) enum JoinCheck {
    /// TCP processes the segment.
    Pass,
    /// Like `Pass`. The server also proved that it has both keys.
    Proven,
    /// Like `Pass`. The peer also accepted a Fast JOIN, with this DATA_ACK.
    ProvenFast(Option<DataAck>),
    /// The segment must not reach TCP.
    Drop,
    /// The subflow is reset for this reason.
    Reset(u8),
}

impl Joins<'_> {
    /// True if another join may begin: the number of half-open joins is limited.
    pub(super) fn has_room_for_join(&self, cx: &Context<'_>) -> bool {
        self.session.is_multipath()
            && !self.closing.is_closed()
            && self.paths.pending() < cx.config.limits.pending_joins
    }

    /// Checks the answer to our SYN with MP_JOIN.
    pub(super) fn check_syn_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        joining: OpenedJoin,
    ) -> JoinCheck {
        let flags = segment.header.flags;
        if !flags.contains(TcpFlags::SYN.with(TcpFlags::ACK)) || flags.contains(TcpFlags::RST) {
            return JoinCheck::Pass;
        }
        if self.session.keys().remote().is_none() {
            return JoinCheck::Drop;
        }
        let Some(subflow) = self.paths.get(id) else { return JoinCheck::Drop };
        if !subflow.tcp().acks_syn(segment.header.ack) {
            return JoinCheck::Pass;
        }
        let took_data = subflow.tcp().acks_syn_data(segment.header.ack);
        if let Some(check) = self.check_fast_syn_ack(cx, id, segment) {
            return check;
        }
        // A server that answers the ordinary SYN does not have the Fast JOIN's data.
        let join = mp_join(segment).filter(|_| !took_data);
        let Some(MpJoin::SynAck { backup, hmac, nonce, .. }) = join else {
            return JoinCheck::Reset(reason::MIDDLEBOX);
        };
        let keys = self.session.keys();
        if !keys.proves_syn_ack(hmac, joining.nonce(), nonce) {
            cx.out.counters.mp_join_bad_hmac += 1;
            return JoinCheck::Reset(reason::MPTCP_ERROR);
        }
        let ours = keys.join_hmac(joining.nonce(), nonce).map(|hmac| leftmost_160(&hmac));
        let Some(subflow) = self.paths.get_mut(id) else { return JoinCheck::Drop };
        subflow.prove_syn_ack(backup, ours);
        JoinCheck::Proven
    }

    /// Checks the third ACK of a join that the peer opened.
    pub(super) fn check_third_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        joined: AcceptedJoin,
    ) -> JoinCheck {
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::RST) || flags.contains(TcpFlags::SYN) {
            return JoinCheck::Pass;
        }
        let Some(subflow) = self.paths.get(id) else { return JoinCheck::Drop };
        // Only a peer that received our SYN/ACK may be judged by its HMAC; otherwise an attacker could end another
        // host's join. Data that overtook the third ACK is also dropped, and the peer repeats it.
        let (header, tcp) = (&segment.header, subflow.tcp());
        if header.ack != tcp.to_wire(Ssn(1)) || header.seq != tcp.peer_to_wire(Ssn(1)) {
            return JoinCheck::Drop;
        }
        let Some(MpJoin::Ack { hmac }) = mp_join(segment) else {
            // If an ACK without any option completes the handshake, the option was removed on the path.
            let lost = !segment.options.has_mptcp();
            return if lost { JoinCheck::Reset(reason::MIDDLEBOX) } else { JoinCheck::Drop };
        };
        cx.out.counters.mp_join_ack_rx += 1;
        let (nonce, peer_nonce) = joined.nonces();
        if !self.session.keys().proves_third_ack(&hmac, nonce, peer_nonce) {
            cx.out.counters.mp_join_bad_hmac += 1;
            return JoinCheck::Reset(reason::MPTCP_ERROR);
        }
        let Some(subflow) = self.paths.get_mut(id) else { return JoinCheck::Drop };
        subflow.verify();
        JoinCheck::Pass
    }
}
