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
//! its first segment. What differs from the seed: the HMAC also covers the SYN's data, so that nobody
//! on the way can swap it, and the answer's HMAC covers the question's. What the seed leaves open is
//! what becomes of one that is lost or refused: the next SYN of the attempt is that of an ordinary
//! MP_JOIN (same ports, no data), and after a refusal an ordinary attempt follows at once. The pair
//! of addresses is then spared for a while.

use core::net::{IpAddr, SocketAddr};

use marline_policy::{DataRange, Dsn, ReinjectionCause, SubflowId};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{
    DataAck, ExperimentalMessage, Extensions, FastJoinForm, MpJoin, MptcpOption, WireDsn,
};
use marline_wire::{MAX_OPTIONS, TCP_HEADER_LEN, TcpFlags, TcpSegment, dss_checksum};

use super::join::{mp_join, reason};
use super::leg::{FastAccepted, FastOpened, Joined, Joining, Leg, Membership};
use super::open::Accepted;
use super::reinjection::Queued;
use super::{Connection, SubflowPathPair};
use crate::crypto::{equal_in_constant_time, fast_ack_hmac, fast_syn_hmac, join_hmac, left_160};
use crate::shared::Shared;
use crate::{CloseReason, FourTuple};

/// How long a pair of addresses is spared after a refusal: what stands in the way there stays there.
const SPARE_REFUSED: Duration = Duration::from_secs(600);
/// And after a SYN without an answer, which may have been an accident.
const SPARE_LOST: Duration = Duration::from_secs(60);
/// Pairs of addresses remembered.
const MAX_SPARED: usize = 64;
/// Wrong HMACs that a connection bears, and how long one of them is held against it.
const MAX_FAILURES: u32 = 8;
const FORGIVE_AFTER: Duration = Duration::from_secs(10);
/// Accepted SYNs that a connection remembers as long as they are fresh.
const MAX_REMEMBERED: usize = 32;

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

/// Pairs of addresses between which Fast JOIN did not get through.
#[derive(Debug, Default)]
pub(crate) struct SparedPaths {
    pairs: Vec<(IpAddr, SocketAddr, Instant)>,
}

impl SparedPaths {
    fn contains(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) -> bool {
        self.pairs.retain(|(_, _, until)| *until > now);
        self.pairs.iter().any(|(l, r, _)| (*l, *r) == (local, remote))
    }

    fn insert(&mut self, local: IpAddr, remote: SocketAddr, until: Instant) {
        self.pairs.retain(|(l, r, _)| (*l, *r) != (local, remote));
        if self.pairs.len() >= MAX_SPARED {
            self.pairs.remove(0);
        }
        self.pairs.push((local, remote, until));
    }
}

/// What the answerer remembers, so that nobody plays a SYN twice, or tries for long.
#[derive(Debug, Default)]
pub(super) struct ReplayGuard {
    /// HMACs of accepted SYNs, with the point that each speaks of.
    seen: Vec<(FastJoinForm, u64, Dsn)>,
    failures: u32,
    forgive_at: Option<Instant>,
}

impl ReplayGuard {
    /// Whether another HMAC is looked at.
    fn has_patience(&mut self, now: Instant) -> bool {
        while let Some(at) = self.forgive_at.filter(|at| *at <= now && self.failures > 0) {
            self.failures -= 1;
            self.forgive_at = Some(at + FORGIVE_AFTER);
        }
        self.failures < MAX_FAILURES
    }

    fn failed(&mut self, now: Instant) {
        if self.failures == 0 {
            self.forgive_at = Some(now + FORGIVE_AFTER);
        }
        self.failures += 1;
    }

    /// Takes note of an accepted SYN. `false`: it was here before, or more are fresh than are
    /// remembered, so that this one could come again unnoticed.
    fn admit(
        &mut self,
        syn: (FastJoinForm, u64, Dsn),
        is_stale: impl Fn(FastJoinForm, Dsn) -> bool,
    ) -> bool {
        self.seen.retain(|(form, _, point)| !is_stale(*form, *point));
        let known = self.seen.iter().any(|(form, hmac, _)| (*form, *hmac) == (syn.0, syn.1));
        if known || self.seen.len() >= MAX_REMEMBERED {
            return false;
        }
        self.seen.push(syn);
        true
    }
}

/// What a SYN says, with all 64 bits.
struct Said {
    form: FastJoinForm,
    backup: bool,
    address_id: u8,
    hmac: u64,
    /// Position in the stream: of the data, or of the DATA_ACK.
    at: Dsn,
}

impl Connection {
    /// Whether a join between these addresses may be a fast one.
    pub(super) fn may_join_fast(
        &self,
        now: Instant,
        sh: &mut Shared,
        pair: &SubflowPathPair,
    ) -> bool {
        self.agreed_on(Extensions::FAST_JOIN)
            && !sh.spared.contains(now, pair.local.address.ip(), pair.remote)
    }

    /// The option of a Fast JOIN's first SYN; what data goes with it is settled here. `None`: an
    /// ordinary join, or a repeat.
    pub(super) fn fast_syn_option(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
    ) -> Option<MptcpOption> {
        let remote = self.keys.remote?;
        let leg = self.leg(id)?;
        let Membership::Joining(Joining { fast: Some(fast), .. }) = leg.membership else {
            return None;
        };
        if fast.sent {
            return None;
        }
        let (backup, address_id) = (leg.backup_here, self.addresses.wire_id(leg.local_id));
        let room = leg.tcp.settled_segment().saturating_sub(TCP_HEADER_LEN + MAX_OPTIONS);
        let range = self.hurried().map(|range| range.prefix(room as u64));
        let mut payload = Vec::new();
        if let Some(range) = range.filter(|range| !range.is_empty()) {
            payload = self.take_for_syn(now, id, range)?;
        }
        let (form, point) = match range.filter(|_| !payload.is_empty()) {
            Some(range) => (FastJoinForm::Out, self.keys.local_first.wrapping_add(range.start.0)),
            None => (FastJoinForm::In, self.data_ack_number()),
        };
        let range = range.filter(|_| form == FastJoinForm::Out);
        let token = self.keys.remote_token.0;
        let head = ExperimentalMessage::FastJoinSyn {
            form,
            backup,
            address_id,
            token,
            point: point as u32,
            hmac: 0,
        };
        let hmac = fast_syn_hmac(self.keys.local, remote, &head, point, &payload);
        let fast = FastOpened { form, sent: true, range, hmac };
        if let Membership::Joining(joining) = &mut self.leg_mut(id)?.membership {
            joining.fast = Some(fast);
        }
        sh.counters.fast_join_syn_tx += 1;
        Some(MptcpOption::Experimental(head.with_hmac(hmac).option()))
    }

    /// Bytes of the SYN that is being built.
    pub(super) fn syn_payload(&self, id: SubflowId) -> (Dsn, usize) {
        let carried = self.leg(id).and_then(|leg| leg.tcp.payload_of_next_syn());
        carried.map_or((Dsn(0), 0), |range| (range.start, range.len() as usize))
    }

    /// Data that should have been there already: what is to go again, what only failed subflows
    /// carry, and new data if no healthy subflow can take it.
    fn hurried(&self) -> Option<DataRange> {
        let una = self.send.una();
        let healthy = self.healthy();
        let stranded = || {
            let sent = DataRange::new(una, self.mappings.end());
            let lonely =
                |m: &marline_policy::Mapping| !m.carried_by.iter().any(|id| healthy.contains(id));
            self.mappings.parts(sent).find(lonely).map(|m| m.range)
        };
        let queued = self.reinjections.iter().map(|queued| queued.range).next();
        let unsent =
            || Some(self.unsent()).filter(|unsent| healthy.is_empty() && !unsent.is_empty());
        queued.or_else(stranded).or_else(unsent)
    }

    /// This data goes with the SYN. Until that is answered others may carry it, too.
    fn take_for_syn(&mut self, now: Instant, id: SubflowId, range: DataRange) -> Option<Vec<u8>> {
        let mut payload = vec![0; range.len() as usize];
        let sum = self.send.copy(range.start, &mut payload)?;
        let wire = self.keys.local_first.wrapping_add(range.start.0);
        let checksum =
            if self.checksum { dss_checksum(wire, 1, range.len() as u16, sum) } else { 0 };
        self.send.pin(range);
        let leg = self.leg_mut(id)?;
        leg.tcp.carry_with_syn(range, checksum);
        leg.note_sent(marline_policy::Ssn(1), range.start);
        if range.start == self.mappings.end() {
            self.mappings.push(range, id);
        } else {
            self.mappings.add(range, id);
        }
        let cause = ReinjectionCause::SubflowClosed;
        self.reinjections.push(Queued { range, cause, since: now, from: id, on: None });
        Some(payload)
    }

    /// The SYN/ACK of a Fast JOIN that we opened. `None`: it is none.
    pub(super) fn admit_fast_syn_ack(
        &mut self,
        now: Instant,
        sh: &mut Shared,
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
        let remote = self.keys.remote?;
        let full = match fast.form {
            FastJoinForm::Out => {
                self.unwrap_ack(DataAck::Short(point)).map(|at| (at, self.keys.local_first))
            }
            FastJoinForm::In => {
                self.unwrap_dsn(WireDsn::Short(point)).map(|at| (at, self.keys.remote_first))
            }
        };
        let proven = full.is_some_and(|(at, first)| {
            let wire = first.wrapping_add(at.0);
            let expected = fast_ack_hmac(remote, self.keys.local, &message, wire, fast.hmac);
            equal_in_constant_time(&hmac.to_be_bytes(), &expected.to_be_bytes())
        });
        if !proven {
            sh.counters.fast_join_bad_hmac += 1;
            self.reset_leg(now, sh, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            return Some(false);
        }
        sh.counters.fast_join_syn_ack_rx += 1;
        let leg = self.leg_mut(id)?;
        leg.backup_there = backup;
        if let Membership::Joining(joining) = &mut leg.membership {
            joining.confirmed = true;
        }
        if fast.form == FastJoinForm::Out {
            self.on_data_ack(now, sh, DataAck::Short(point), 0);
        }
        Some(true)
    }

    /// The subflow is up: what its SYN carried was taken, or goes again as first of all.
    pub(super) fn settle_fast_join(&mut self, now: Instant, sh: &mut Shared, id: SubflowId) {
        let Some(leg) = self.leg_mut(id) else { return };
        let Membership::Joining(joining) = &mut leg.membership else { return };
        let Some(fast) = joining.fast.take() else { return };
        // Third and fourth ACK: only the ordinary SYN was answered.
        let ordinary = joining.hmac.is_some();
        let (local, remote) = (leg.key.path.local.ip(), leg.key.path.remote);
        leg.tcp.settle_syn_payload(now);
        if let Some(range) = fast.range {
            self.reinjections.remove(range);
        }
        if ordinary && fast.sent {
            sh.counters.fast_join_fallback += 1;
            sh.spared.insert(local, remote, now + SPARE_LOST);
        }
        self.rearm_data_rto(now);
    }

    /// A subflow went whose Fast JOIN was not answered, or refused. What its SYN carried is nobody's
    /// now, and an ordinary join from new ports follows at once: where answers to the first SYN are
    /// dropped, the answerer's half-open subflow keeps the old ports.
    pub(super) fn on_fast_join_failed(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        leg: &mut Leg,
        (id, why): (SubflowId, CloseReason),
    ) -> Option<(SubflowPathPair, bool)> {
        if let Some(range) = leg.tcp.abandon_syn_payload() {
            self.send.unpin(range);
        }
        let Membership::Joining(Joining { fast: Some(fast), .. }) = leg.membership else {
            return None;
        };
        self.mappings.forget(id);
        let una = self.send.una();
        if let Some(range) = fast.range.filter(|range| range.end > una && !self.is_plain()) {
            let range = DataRange::new(range.start.max(una), range.end);
            let cause = ReinjectionCause::SubflowClosed;
            self.reinjections.push(Queued { range, cause, since: now, from: id, on: None });
        }
        let (local, remote) = (leg.key.path.local.ip(), leg.key.path.remote);
        // Who closed it did not want another one.
        if !fast.sent || why == CloseReason::Finished || self.closing.closed.is_some() {
            return None;
        }
        let spare = if why == CloseReason::TimedOut { SPARE_LOST } else { SPARE_REFUSED };
        sh.counters.fast_join_fallback += 1;
        sh.spared.insert(local, remote, now + spare);
        let local = self.addresses.find_local(leg.local_id).filter(|local| local.up)?;
        Some((SubflowPathPair { local, remote }, leg.backup_here))
    }

    /// The ordinary join after a refused one, unless the path manager thought of it already.
    pub(super) fn join_as_usual(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        pair: SubflowPathPair,
        backup: bool,
    ) {
        let same = |leg: &Leg| {
            leg.key.path.local.ip() == pair.local.address.ip() && leg.key.path.remote == pair.remote
        };
        if !self.legs.iter().flatten().any(|leg| same(leg)) {
            self.open_join(now, sh, pair, (backup, false));
        }
    }

    /// Answers a SYN with a Fast JOIN. The error is the reason for its RST.
    pub(super) fn accept_fast_join(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        path: FourTuple,
        syn: &Accepted<'_>,
    ) -> Result<(), u8> {
        if !self.agreed_on(Extensions::FAST_JOIN)
            || !self.has_room_for_join(sh)
            || !self.replay_guard.has_patience(now)
        {
            sh.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        }
        let said = self.read_fast_syn(now, sh, syn)?;
        if self.is_stale(said.form, said.at) {
            sh.counters.fast_join_stale += 1;
            return Err(reason::PROHIBITED);
        }
        let mut guard = core::mem::take(&mut self.replay_guard);
        let fresh =
            guard.admit((said.form, said.hmac, said.at), |form, at| self.is_stale(form, at));
        self.replay_guard = guard;
        if !fresh {
            sh.counters.fast_join_replayed += 1;
            return Err(reason::PROHIBITED);
        }
        if !self.path_manager_accepts(now, sh, path) {
            sh.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        }
        let fast = FastAccepted { form: said.form, hmac: said.hmac, ordinary: false };
        let nonce = sh.rng.next_u32();
        let joined = Joined { nonce, peer_nonce: 0, verified: true, fast: Some(fast) };
        let leg = self.add_joined(now, sh, path, syn, (joined, said.address_id));
        let Some(id) = leg else {
            sh.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        };
        if let Some(leg) = self.leg_mut(id) {
            leg.backup_there = said.backup;
        }
        match said.form {
            FastJoinForm::Out => self.take_syn_data(sh, id, said.at, syn.segment.payload),
            FastJoinForm::In => self.advance_una(now, sh, said.at, 0),
        }
        Ok(())
    }

    /// Checks what the SYN says against its HMAC.
    fn read_fast_syn(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        syn: &Accepted<'_>,
    ) -> Result<Said, u8> {
        let mut messages = syn.segment.options.mptcp.experimental();
        let found = messages.find(|m| matches!(m, ExperimentalMessage::FastJoinSyn { .. }));
        let (Some(remote), Some(message)) = (self.keys.remote, found) else {
            return Err(reason::MPTCP_ERROR);
        };
        let ExperimentalMessage::FastJoinSyn { form, backup, address_id, point, hmac, .. } =
            message
        else {
            return Err(reason::MPTCP_ERROR);
        };
        let payload = syn.segment.payload;
        if payload.is_empty() && form == FastJoinForm::Out {
            // A box dropped what the SYN is about.
            sh.counters.fast_join_empty += 1;
            return Err(reason::MIDDLEBOX);
        }
        let at = match form {
            FastJoinForm::Out => self.unwrap_dsn(WireDsn::Short(point)),
            FastJoinForm::In => self.unwrap_ack(DataAck::Short(point)),
        };
        let first = match form {
            FastJoinForm::Out => self.keys.remote_first,
            FastJoinForm::In => self.keys.local_first,
        };
        let proven = at.filter(|at| {
            let full = first.wrapping_add(at.0);
            let expected = fast_syn_hmac(remote, self.keys.local, &message, full, payload);
            equal_in_constant_time(&hmac.to_be_bytes(), &expected.to_be_bytes())
        });
        let Some(at) = proven else {
            sh.counters.fast_join_bad_hmac += 1;
            self.replay_guard.failed(now);
            return Err(reason::MPTCP_ERROR);
        };
        Ok(Said { form, backup, address_id, hmac, at })
    }

    /// Older than anything that an honest SYN could still be about: one receive window behind. The
    /// configured bounds count, since a window that grows must not make old things fresh again.
    fn is_stale(&self, form: FastJoinForm, at: Dsn) -> bool {
        match form {
            FastJoinForm::Out => at.plus(self.config.receive_buffer) < self.receive.next(),
            FastJoinForm::In => {
                let beyond = at > self.sent_end();
                beyond || at.plus(self.config.send_buffer) < self.acked()
            }
        }
    }

    /// Data of a SYN: into the stream if it lies in the window, else the peer sends it again.
    fn take_syn_data(&mut self, sh: &mut Shared, id: SubflowId, at: Dsn, payload: &[u8]) {
        let len = payload.len() as u64;
        let edge = self.receive.next().plus(self.receive.window());
        if at.plus(len) > edge || self.closing.released {
            sh.counters.fast_join_data_ignored += 1;
            return;
        }
        let duplicate = self.receive.insert(at, payload).duplicate;
        sh.counters.duplicate_data += u64::from(duplicate > 0);
        if let Some(leg) = self.leg_mut(id) {
            leg.tcp.take_syn_payload(len);
            leg.tcp.stats_mut().bytes_duplicate += duplicate;
            leg.delivered = marline_policy::Ssn(1).plus(len);
            leg.mapped = true;
        }
        self.tell_readable(sh);
    }

    /// The option of the SYN/ACK that answers a Fast JOIN.
    pub(super) fn fast_syn_ack_option(
        &self,
        id: SubflowId,
        fast: FastAccepted,
    ) -> Option<MptcpOption> {
        let (local, remote) = (self.keys.local, self.keys.remote?);
        let point = match fast.form {
            FastJoinForm::Out => self.data_ack_number(),
            FastJoinForm::In => self.keys.local_first.wrapping_add(self.mappings.end().0),
        };
        let backup = self.leg(id)?.backup_here;
        let form = fast.form;
        let head =
            ExperimentalMessage::FastJoinSynAck { form, backup, hmac: 0, point: point as u32 };
        let hmac = fast_ack_hmac(local, remote, &head, point, fast.hmac);
        Some(MptcpOption::Experimental(head.with_hmac(hmac).option()))
    }

    /// A segment on a Fast JOIN of the peer whose handshake is not through. Its opener may have gone
    /// over to an ordinary join, with the same ports, because our answer did not get through. It gets the
    /// answer to the SYN that it sent last; by its third ACK it says which of the two it has. `false`:
    /// the segment must not reach TCP.
    pub(super) fn admit_half_open_fast_join(
        &mut self,
        sh: &mut Shared,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> bool {
        let (Some(remote), local) = (self.keys.remote, self.keys.local) else { return false };
        let Some(leg) = self.leg_mut(id) else { return false };
        let first = marline_policy::Ssn(1);
        let (seq, flags) = (segment.header.seq, segment.header.flags);
        let in_turn =
            seq == leg.tcp.peer_to_wire(first) && segment.header.ack == leg.tcp.to_wire(first);
        let again = seq == leg.tcp.peer_to_wire(marline_policy::Ssn(0));
        let Membership::Joined(joined) = &mut leg.membership else { return true };
        let Some(fast) = &mut joined.fast else { return true };
        match mp_join(segment) {
            Some(MpJoin::Syn { nonce, .. }) if again && flags.contains(TcpFlags::SYN) => {
                fast.ordinary = true;
                joined.peer_nonce = nonce;
                leg.tcp.acknowledge_syn_alone(true);
                true
            }
            Some(MpJoin::Ack { hmac }) if fast.ordinary && in_turn => {
                let expected = join_hmac(remote, local, joined.peer_nonce, joined.nonce);
                if !equal_in_constant_time(&hmac, &left_160(&expected)) {
                    sh.counters.mp_join_bad_hmac += 1;
                    return false;
                }
                joined.fast = None;
                leg.tcp.forget_syn_payload();
                leg.delivered = first;
                leg.mapped = false;
                true
            }
            _ => {
                if fast_join_token(segment).is_some() && again {
                    fast.ordinary = false;
                    leg.tcp.acknowledge_syn_alone(false);
                }
                true
            }
        }
    }

    /// The third ACK shows that the peer is where its SYN came from. It opened this subflow because
    /// the others fail it: they are suspected until they are heard again, and what they hold goes
    /// out here.
    pub(super) fn follow_fast_join(&mut self, now: Instant, sh: &mut Shared, new: SubflowId) {
        for id in self.leg_ids().filter(|id| *id != new) {
            let Some(leg) = self.leg_mut(id).filter(|leg| leg.is_usable()) else { continue };
            leg.tcp.suspect();
            self.suspect(now, sh, id, ReinjectionCause::UnansweredProbe);
        }
    }
}
