//! MP_JOIN: further subflows (RFC 8684 section 3.2).
//!
//! ```text
//! opener                                    answerer
//!   SYN      MP_JOIN(token, nonce A)    ->
//!                                       <-  SYN/ACK  MP_JOIN(HMAC-B, nonce B)
//!   ACK      MP_JOIN(HMAC-A)            ->           repeated until the fourth ACK
//!                                       <-  ACK      data may go both ways
//! ```
//! A wrong HMAC ends the subflow with a RST, never the connection.

use marline_policy::{AddressId, LocalAddress, RemoteAddress, SubflowId};
use marline_time::Duration;
use marline_wire::mptcp::{MpJoin, MptcpOption};
use marline_wire::{TcpFlags, TcpSegment};

use super::leg::{FastOpened, Joined, Joining, Membership};
use super::open::Accepted;
use super::{Connection, SubflowPathPair};
use crate::crypto::left_160;
use crate::subflow::Subflow;
use crate::tables::Context;
use crate::{CloseReason, FourTuple};

/// RFC 8684 section 3.6: reason codes of MP_TCPRST that Marline sends.
pub(crate) mod reason {
    pub(crate) const UNSPECIFIED: u8 = 0;
    pub(crate) const MPTCP_ERROR: u8 = 1;
    pub(crate) const PROHIBITED: u8 = 3;
    pub(crate) const BAD_PERFORMANCE: u8 = 5;
    pub(crate) const MIDDLEBOX: u8 = 6;
}

/// The MP_JOIN option of a segment, if it has one.
pub(crate) fn mp_join(segment: &TcpSegment<'_>) -> Option<MpJoin> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Join(join) => Some(join),
        _ => None,
    })
}

/// Third ACKs without an answer after which a join is given up.
const MAX_REPEATS: u32 = 6;
/// Third ACKs are at least this far apart.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

impl Connection {
    /// Opens a subflow from one of our addresses to one of the peer's.
    pub(super) fn open_join(
        &mut self,
        cx: &mut Context<'_>,
        pair: SubflowPathPair,
        (backup, fast): (bool, bool),
    ) -> Option<SubflowId> {
        if !self.session.is_confirmed() || self.closing.is_closing() {
            return None;
        }
        let SubflowPathPair { local, remote } = pair;
        let mut from = local.address;
        if from.port() == 0 || cx.flows.has_tuple(&FourTuple { local: from, remote }) {
            from.set_port(cx.flows.free_port(cx.rng, from, remote)?);
        }
        let path = FourTuple { local: from, remote };
        let tcp = self.active_subflow(cx, path, self.config.join_syn_retries);
        let key = cx.new_flow(path, 0);
        let fast = fast && self.may_join_fast(cx, &pair);
        let fast = fast.then_some(FastOpened::WANTED);
        let joining = Joining { nonce: cx.rng.next_u32(), fast, ..Joining::default() };
        let remote_id = self.addresses.remote_id(remote);
        let local = LocalAddress { backup: backup || local.backup, ..local };
        cx.out.counters.mp_join_syn_tx += 1;
        self.add_leg(cx, tcp, key, Membership::Joining(joining), local, remote_id)
    }

    /// Answers a SYN that joins this connection. The error is the reason for its RST.
    pub(crate) fn answer_join(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &Accepted<'_>,
    ) -> Result<(), u8> {
        if mp_join(syn.segment).is_none() {
            return self.accept_fast_join(cx, path, syn);
        }
        let accepted = self.accept_join(cx, path, syn);
        if accepted { Ok(()) } else { Err(reason::PROHIBITED) }
    }

    /// `false`: it must be refused with a RST.
    fn accept_join(&mut self, cx: &mut Context<'_>, path: FourTuple, syn: &Accepted<'_>) -> bool {
        let Some(MpJoin::Syn { backup, address_id, nonce, .. }) = mp_join(syn.segment) else {
            return false;
        };
        if !self.has_room_for_join(cx) || !self.path_manager_accepts(cx, path) {
            cx.out.counters.mp_join_rejected += 1;
            return false;
        }
        let nonces = (cx.rng.next_u32(), nonce);
        let joined = Joined { nonce: nonces.0, peer_nonce: nonces.1, verified: false, fast: None };
        let added = self.add_joined(cx, path, syn, (joined, address_id));
        let Some(leg) = added.and_then(|id| self.leg_mut(id)) else {
            cx.out.counters.mp_join_rejected += 1;
            return false;
        };
        leg.backup_there = backup;
        true
    }

    /// Whether another join may begin: half-open ones are bounded.
    pub(super) fn has_room_for_join(&self, cx: &Context<'_>) -> bool {
        let pending = |l: &&super::Leg| {
            matches!(l.membership, Membership::Joined(_)) && !l.was_joined() && !l.shut
        };
        let pending = self.legs.iter().flatten().map(|l| &**l).filter(pending).count();
        self.session.is_multipath()
            && !self.closing.is_closing()
            && pending < cx.config.limits.pending_joins
    }

    /// A subflow that the peer opens, in the state of its SYN.
    pub(super) fn add_joined(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &Accepted<'_>,
        (joined, address_id): (Joined, u8),
    ) -> Option<SubflowId> {
        let tcp = self.passive_subflow(cx, path, syn, self.config.join_syn_retries);
        let key = cx.new_flow(path, syn.peer_flow);
        let local = self.addresses.local_for(path.local);
        let remote_id = AddressId(address_id);
        self.add_leg(cx, tcp, key, Membership::Joined(joined), local, remote_id)
    }

    /// Looks at a segment of a subflow whose join is not through, before TCP does. `false`: the
    /// segment must not reach TCP.
    pub(super) fn admit(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> bool {
        let Some(leg) = self.leg(id) else { return false };
        match leg.membership {
            Membership::Joining(j) if j.hmac.is_none() && !j.confirmed => {
                self.admit_syn_ack(cx, id, segment, j)
            }
            Membership::Joined(j) if !j.verified => self.admit_third_ack(cx, id, segment, j),
            Membership::Joined(Joined { fast: Some(_), .. }) if !leg.was_joined() => {
                self.admit_half_open_fast_join(cx, id, segment)
            }
            Membership::Initial => {
                self.on_repeated_handshake(cx, id, segment);
                self.on_repeated_first_data(cx, id, segment);
                !self.overtook_the_keys(segment)
            }
            _ => true,
        }
    }

    fn admit_syn_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        joining: Joining,
    ) -> bool {
        let flags = segment.header.flags;
        if !flags.contains(TcpFlags::SYN.with(TcpFlags::ACK)) || flags.contains(TcpFlags::RST) {
            return true;
        }
        let Some(leg) = self.leg(id) else { return false };
        if !leg.tcp.acks_syn(segment.header.ack) {
            return true;
        }
        let took_data = leg.tcp.acks_syn_data(segment.header.ack);
        if let Some(admitted) = self.admit_fast_syn_ack(cx, id, segment) {
            return admitted;
        }
        // Nobody who answers the ordinary SYN has its predecessor's data.
        let join = mp_join(segment).filter(|_| !took_data);
        let Some(MpJoin::SynAck { backup, hmac, nonce, .. }) = join else {
            self.reset_leg(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
            return false;
        };
        if !self.session.keys().proves_syn_ack(hmac, joining.nonce, nonce) {
            cx.out.counters.mp_join_bad_hmac += 1;
            self.reset_leg(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            return false;
        }
        let ours = self.session.keys().join_hmac(joining.nonce, nonce);
        let Some(leg) = self.leg_mut(id) else { return false };
        leg.backup_there = backup;
        leg.membership =
            Membership::Joining(Joining { hmac: ours.map(|ours| left_160(&ours)), ..joining });
        true
    }

    fn admit_third_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        joined: Joined,
    ) -> bool {
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::RST) || flags.contains(TcpFlags::SYN) {
            return true;
        }
        let Some(leg) = self.leg(id) else { return false };
        // Only who saw our SYN/ACK may be judged by his HMAC: others would end a join that is not
        // theirs. Data that overtook the third ACK is dropped, too; it will come again.
        let first = marline_policy::Ssn(1);
        let header = &segment.header;
        if header.ack != leg.tcp.to_wire(first) || header.seq != leg.tcp.peer_to_wire(first) {
            return false;
        }
        let Some(MpJoin::Ack { hmac }) = mp_join(segment) else {
            // What completes the handshake without any option lost it on the way.
            if !segment.options.has_mptcp() {
                self.reset_leg(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
            }
            return false;
        };
        cx.out.counters.mp_join_ack_rx += 1;
        if !self.session.keys().proves_third_ack(&hmac, joined.nonce, joined.peer_nonce) {
            cx.out.counters.mp_join_bad_hmac += 1;
            self.reset_leg(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            return false;
        }
        let Some(leg) = self.leg_mut(id) else { return false };
        leg.membership = Membership::Joined(Joined { verified: true, ..joined });
        true
    }

    /// The peer still shows its third ACK, so the fourth did not reach it, and it must send nothing before
    /// that (RFC 8684 section 3.2). To TCP a pure ACK that comes again is nothing to answer.
    pub(super) fn on_third_ack_again(&mut self, id: SubflowId) {
        let Some(leg) = self.leg_mut(id) else { return };
        if matches!(leg.membership, Membership::Joined(joined) if joined.verified) {
            leg.tcp.ack_now();
        }
    }

    /// A join's TCP handshake is complete on our side.
    pub(super) fn on_join_established(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(leg) = self.leg_mut(id) else { return };
        match &mut leg.membership {
            Membership::Joining(joining) if joining.confirmed => {
                leg.up = true;
                leg.tcp.ack_now();
                self.settle_fast_join(cx, id);
                self.subflow_is_up(cx, id);
            }
            Membership::Joining(joining) => {
                joining.repeat_at = Some(now + third_ack_pause(&leg.tcp, 0));
                leg.tcp.ack_now();
            }
            Membership::Joined(joined) => {
                let fast = joined.fast.is_some();
                leg.up = true;
                leg.tcp.ack_now();
                self.subflow_is_up(cx, id);
                if fast {
                    self.follow_fast_join(cx, id);
                }
            }
            Membership::Initial => {}
        }
    }

    /// A valid segment came on a subflow that we joined: if its third ACK was out, this is the fourth.
    pub(super) fn on_fourth_ack(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(leg) = self.leg_mut(id) else { return };
        let Membership::Joining(joining) = &mut leg.membership else { return };
        if joining.confirmed || joining.hmac.is_none() || !leg.tcp.is_established() {
            return;
        }
        joining.confirmed = true;
        joining.repeat_at = None;
        leg.up = true;
        self.settle_fast_join(cx, id);
        self.subflow_is_up(cx, id);
    }

    /// Repeats the third ACK when the fourth does not come.
    pub(super) fn repeat_third_ack(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(leg) = self.leg_mut(id) else { return };
        let tcp = &leg.tcp;
        let Membership::Joining(joining) = &mut leg.membership else { return };
        if joining.repeat_at.is_none_or(|at| at > now) {
            return;
        }
        joining.repeats += 1;
        joining.repeat_at = Some(now + third_ack_pause(tcp, joining.repeats));
        let give_up = joining.repeats > MAX_REPEATS;
        leg.tcp.ack_now();
        if give_up {
            self.reset_leg(cx, id, reason::BAD_PERFORMANCE, CloseReason::TimedOut);
        }
    }

    /// Whether this subflow still has to show its third ACK.
    pub(super) fn third_ack(&self, id: SubflowId) -> Option<MpJoin> {
        match self.leg(id)?.membership {
            Membership::Joining(Joining { hmac: Some(hmac), confirmed: false, .. }) => {
                Some(MpJoin::Ack { hmac })
            }
            _ => None,
        }
    }
}

/// How long a third ACK waits for the fourth, which nobody delays: two round trips for the first two, then the
/// timeout, backed off.
fn third_ack_pause(tcp: &Subflow, repeats: u32) -> Duration {
    let rto = tcp.rto();
    match tcp.srtt() {
        Some(srtt) if repeats < 2 => (srtt * 2).clamp(LEAST_PAUSE, rto.max(LEAST_PAUSE)),
        _ => (rto * (1 << repeats.min(6))).min(Duration::from_secs(10)),
    }
}

/// Keeps the list of remote addresses free of doubles.
pub(super) fn is_same(a: &RemoteAddress, b: &RemoteAddress) -> bool {
    a.id == b.id || a.address == b.address
}
