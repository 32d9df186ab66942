//! Fast JOIN: a subflow whose SYN already carries what the connection is in a hurry for.
//!
//! The problem: when the only path dies, MP_JOIN lets the first byte pass no sooner than two and a
//! half round trips after the first SYN (SYN, SYN/ACK, third ACK, fourth ACK, data), on a radio that
//! just woke. The idea is that of MultiMob (Fast Join, there for version 0 of MPTCP and HMAC-SHA1);
//! docs/spec/experimental.md has the layouts, docs/adr/0014 why it may be believed.
//!
//! ```text
//! opener                                          answerer
//!   SYN      OUT(token, DSN, HMAC) + data    ->            delivered at once
//!            or IN(token, DATA_ACK, HMAC)    ->            what lies behind it goes out again
//!                                            <-  SYN/ACK   OUT: HMAC, DATA_ACK; IN: HMAC, DSN
//!   ACK, and data at once                    ->            data from here on, too
//! ```
//! There is no HMAC in the third ACK and no fourth ACK is waited for: each side has proven itself with
//! its first segment. What differs from the original: the HMAC also covers the SYN's data, so that nobody
//! on the way can swap it, and the answer's HMAC covers the question's. What the original leaves open is
//! what becomes of one that is lost or refused: the next SYN of the attempt is that of an ordinary
//! MP_JOIN (same ports, no data), and after a refusal an ordinary attempt follows at once. The pair
//! of addresses is then spared for a while.

use marline_policy::{DataRange, Dsn, ReinjectionCause, SubflowId};
use marline_time::Instant;
use marline_wire::mptcp::{
    DataAck, ExperimentalMessage, Extensions, FastJoinForm, MptcpOption, WireDsn,
};
use marline_wire::{MAX_OPTIONS, TCP_HEADER_LEN, TcpSegment, dss_checksum};

use super::join::reason;
use super::leg::{FastOpened, Joining, Leg, Membership};
use super::{Connection, SubflowPathPair};
use crate::CloseReason;
use crate::tables::Context;

/// The Fast JOIN message of a SYN, if it has one and is no MP_CAPABLE.
pub(crate) fn fast_join_token(segment: &TcpSegment<'_>) -> Option<u32> {
    if segment.options.mptcp.capable().is_some() {
        return None;
    }
    segment.options.mptcp.experimental().find_map(|message| match message {
        ExperimentalMessage::FastJoinSyn { token, .. } => Some(token),
        _ => None,
    })
}

impl Connection {
    /// Whether a join between these addresses may be a fast one.
    pub(super) fn may_join_fast(&self, cx: &mut Context<'_>, pair: &SubflowPathPair) -> bool {
        let now = cx.now;
        self.session.agreed_on(Extensions::FAST_JOIN)
            && !cx.fast_joins.contains(now, pair.local.address.ip(), pair.remote)
    }

    /// The option of a Fast JOIN's first SYN; what data goes with it is settled here. `None`: an
    /// ordinary join, or a repeat.
    pub(super) fn fast_syn_option(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
    ) -> Option<MptcpOption> {
        let now = cx.now;
        let leg = self.leg(id)?;
        let Membership::Joining(Joining { fast: Some(fast), .. }) = leg.membership else {
            return None;
        };
        if fast.sent {
            return None;
        }
        let (backup, address_id) = (leg.backup_here, self.addresses.wire_id(leg.local_id));
        let room = leg.tcp.settled_segment().saturating_sub(TCP_HEADER_LEN + MAX_OPTIONS);
        let range = self.sender.hurried(self.healthy()).map(|range| range.prefix(room as u64));
        let mut payload = Vec::new();
        if let Some(range) = range.filter(|range| !range.is_empty()) {
            payload = self.take_for_syn(now, id, range)?;
        }
        let (form, point) = match range.filter(|_| !payload.is_empty()) {
            Some(range) => (FastJoinForm::Out, self.session.keys().local_wire(range.start)),
            None => (FastJoinForm::In, self.session.keys().remote_wire(self.receiver.data_ack())),
        };
        let range = range.filter(|_| form == FastJoinForm::Out);
        let token = self.session.keys().remote_token().0;
        let head = ExperimentalMessage::FastJoinSyn {
            form,
            backup,
            address_id,
            token,
            point: point as u32,
            hmac: 0,
        };
        let counted = self.session.agreed_on(Extensions::COUNTED_JOIN);
        let count = counted.then(|| self.replay_guard.count_opened());
        let hmac = self.session.keys().fast_syn_hmac(&head, point, &payload, count)?;
        let fast = FastOpened { form, sent: true, range, hmac };
        if let Membership::Joining(joining) = &mut self.leg_mut(id)?.membership {
            joining.fast = Some(fast);
        }
        cx.out.counters.fast_join_syn_tx += 1;
        Some(MptcpOption::Experimental(head.with_hmac(hmac).option()))
    }

    /// Bytes of the SYN that is being built.
    pub(super) fn syn_payload(&self, id: SubflowId) -> (Dsn, usize) {
        let carried = self.leg(id).and_then(|leg| leg.tcp.payload_of_next_syn());
        carried.map_or((Dsn(0), 0), |range| (range.start, range.len() as usize))
    }

    /// This data goes with the SYN.
    fn take_for_syn(&mut self, now: Instant, id: SubflowId, range: DataRange) -> Option<Vec<u8>> {
        let mut payload = vec![0; range.len() as usize];
        let sum = self.sender.copy(range.start, &mut payload)?;
        let wire = self.session.keys().local_wire(range.start);
        let checksum = self.session.uses_checksum();
        let checksum = if checksum { dss_checksum(wire, 1, range.len() as u16, sum) } else { 0 };
        self.leg_mut(id)?.tcp.carry_with_syn(range, checksum);
        self.sender.carry_with_syn(now, id, range);
        Some(payload)
    }

    /// The SYN/ACK of a Fast JOIN that we opened. `None`: it is none.
    pub(super) fn admit_fast_syn_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> Option<bool> {
        let fast = match self.leg(id)?.membership {
            Membership::Joining(Joining { fast: Some(fast), .. }) if fast.sent => fast,
            _ => return None,
        };
        let answer = segment.options.mptcp.experimental().find_map(|message| match message {
            ExperimentalMessage::FastJoinSynAck { form, backup, hmac, point }
                if form == fast.form =>
            {
                Some((message, backup, hmac, point))
            }
            _ => None,
        });
        let (message, backup, hmac, point) = answer?;
        let wire = match fast.form {
            FastJoinForm::Out => {
                let at = self.session.unwrap_ack(DataAck::Short(point), self.acked());
                at.map(|at| self.session.keys().local_wire(at))
            }
            FastJoinForm::In => {
                let at = self.session.unwrap_dsn(WireDsn::Short(point), self.receiver.next());
                at.map(|at| self.session.keys().remote_wire(at))
            }
        };
        let keys = self.session.keys();
        let proven = wire.is_some_and(|wire| keys.proves_fast_ack(hmac, &message, wire, fast.hmac));
        if !proven {
            cx.out.counters.fast_join_bad_hmac += 1;
            self.reset_leg(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            return Some(false);
        }
        cx.out.counters.fast_join_syn_ack_rx += 1;
        let leg = self.leg_mut(id)?;
        leg.backup_there = backup;
        if let Membership::Joining(joining) = &mut leg.membership {
            joining.confirmed = true;
        }
        if fast.form == FastJoinForm::Out {
            self.on_data_ack(cx, DataAck::Short(point), 0);
        }
        Some(true)
    }

    /// The subflow is up: what its SYN carried was taken, or goes again as first of all.
    pub(super) fn settle_fast_join(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(leg) = self.leg_mut(id) else { return };
        let Membership::Joining(joining) = &mut leg.membership else { return };
        let Some(fast) = joining.fast.take() else { return };
        // Third and fourth ACK: only the ordinary SYN was answered.
        let ordinary = joining.hmac.is_some();
        let (local, remote) = (leg.key.path.local.ip(), leg.key.path.remote);
        leg.tcp.settle_syn_payload(now);
        if let Some(range) = fast.range {
            self.sender.withdraw_reinjection(range);
        }
        if ordinary && fast.sent {
            cx.out.counters.fast_join_fallback += 1;
            cx.fast_joins.on_lost(now, local, remote);
        }
        self.rearm_data_rto(now);
    }

    /// A subflow went whose Fast JOIN was not answered, or refused. What its SYN carried is nobody's
    /// now, and an ordinary join from new ports follows at once: where answers to the first SYN are
    /// dropped, the answerer's half-open subflow keeps the old ports.
    pub(super) fn on_fast_join_failed(
        &mut self,
        cx: &mut Context<'_>,
        leg: &mut Leg,
        (id, why): (SubflowId, CloseReason),
    ) -> Option<(SubflowPathPair, bool)> {
        let now = cx.now;
        if let Some(range) = leg.tcp.abandon_syn_payload() {
            self.sender.unpin(range);
        }
        let Membership::Joining(Joining { fast: Some(fast), .. }) = leg.membership else {
            return None;
        };
        self.sender.forget_mappings(id);
        let una = self.sender.una();
        if let Some(range) = fast.range.filter(|range| range.end > una && !self.session.is_plain())
        {
            let range = DataRange::new(range.start.max(una), range.end);
            self.sender.reinject(now, range, ReinjectionCause::SubflowClosed, None);
        }
        let (local, remote) = (leg.key.path.local.ip(), leg.key.path.remote);
        // Who closed it did not want another one.
        if !fast.sent || why == CloseReason::Finished || self.closing.closed.is_some() {
            return None;
        }
        cx.out.counters.fast_join_fallback += 1;
        match why {
            CloseReason::TimedOut => cx.fast_joins.on_lost(now, local, remote),
            _ => cx.fast_joins.on_refused(now, local, remote),
        }
        let local = self.addresses.find_local(leg.local_id).filter(|local| local.up)?;
        Some((SubflowPathPair { local, remote }, leg.backup_here))
    }

    /// The ordinary join after a refused one, unless the path manager thought of it already.
    pub(super) fn join_as_usual(
        &mut self,
        cx: &mut Context<'_>,
        pair: SubflowPathPair,
        backup: bool,
    ) {
        let same = |leg: &Leg| {
            leg.key.path.local.ip() == pair.local.address.ip() && leg.key.path.remote == pair.remote
        };
        if !self.legs.iter().flatten().any(|leg| same(leg)) {
            self.open_join(cx, pair, (backup, false));
        }
    }
}
