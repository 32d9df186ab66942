//! Falling back to plain TCP, at every stage (RFC 8684 section 3.7).
//!
//! Options that do not pass are noticed in the handshake, or when the first data comes without a
//! mapping, or is acknowledged without a DATA_ACK. Then the stream is plain TCP from byte one, as
//! both sides see it: all data so far is contiguous on the one subflow.
//!
//! Later only a failed checksum on the only subflow leads here. The receiver keeps what it got and
//! sends MP_FAIL; the sender answers with MP_FAIL and marks its next data with an infinite mapping.
//! Nothing is sent twice: either sign tells the receiver that the kept bytes continue the stream.
//! MP_FAIL travels on a pure ACK, which may be lost, so it is repeated until one of them comes. Where
//! the data is not contiguous (another subflow carried some of it), the subflow is reset instead, and
//! the data goes by the others, or by the next one.

use marline_policy::{Dsn, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::mptcp::{MpFail, MptcpOption};

use super::Connection;
use super::addresses::Signal;
use super::join::reason;
use super::leg::Farewell;
use super::mapping_rx::MappingError;
use crate::tables::Context;
use crate::{CloseReason, FallbackReason, MonitorKind};

/// MP_FAILs without an answer after which the subflow is reset, and answers given.
const MAX_FAIL_REPEATS: u32 = 6;

impl Connection {
    /// The handshake or the first data showed that MPTCP does not pass: plain TCP from byte one.
    pub(super) fn fall_back(&mut self, cx: &mut Context<'_>, reason: FallbackReason) {
        let now = cx.now;
        if self.session.is_plain() {
            return;
        }
        cx.out.counters.mp_capable_fallback += 1;
        // The peer may have understood our mappings: it must hear that they end.
        let initial = self.legs.iter().flatten().find(|leg| leg.is_initial());
        let una = self.sender.una();
        let mapped = initial
            .filter(|_| self.session.is_multipath())
            .map(|leg| (leg.tcp.snd_nxt(), (Ssn(una.0 + 1), una)));
        self.session.fall_back(reason, mapped);
        self.leave_multipath(cx);
        for id in self.leg_ids() {
            if self.leg(id).is_some_and(super::Leg::is_initial) {
                self.receive_plain(cx, id, (Ssn(1), Dsn(0)));
            }
        }
        if self.config.conduct.plain_counts_full_segments {
            self.legs.iter_mut().flatten().for_each(|leg| leg.tcp.count_full_segments());
        }
        cx.out.monitor(now, self.id, MonitorKind::Fallback(reason));
    }

    /// Mid-stream, on the only subflow. `false`: what is not DATA_ACKed is not contiguous there, and
    /// the subflow was reset.
    fn continue_plain(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        reason: FallbackReason,
    ) -> bool {
        let now = cx.now;
        let (una, end) = (self.sender.una(), self.sender.sent());
        let Some(leg) = self.leg(id) else { return false };
        let next = leg.tcp.snd_nxt();
        let (from, first) = if una == end { (next, una) } else { self.sender.run(id) };
        if first > una || end.since(first) != next.since(from) {
            self.reset_with_mp_fail(cx, id, self.receiver.next());
            return false;
        }
        cx.out.counters.mp_capable_fallback += 1;
        let infinite = (next, (from.plus(una.since(first)), una));
        self.session.continue_plain(reason, (from, first), infinite);
        self.leave_multipath(cx);
        cx.out.monitor(now, self.id, MonitorKind::Fallback(reason));
        true
    }

    /// What plain TCP has no use for: reinjections, data-level timers, joins.
    fn leave_multipath(&mut self, cx: &mut Context<'_>) {
        self.sender.leave_multipath();
        self.receiver.stop_coding();
        self.addresses.fall_silent();
        self.scheduling.void_all();
        self.timers.fin_at = None;
        for id in self.leg_ids() {
            let other = self.leg(id).is_some_and(|leg| !leg.is_usable() && !leg.is_initial());
            if other && self.legs_count() > 1 {
                self.reset_leg(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            }
        }
    }

    /// The peer sends plain TCP from now on: what waited for that is delivered.
    pub(super) fn receive_plain(&mut self, cx: &mut Context<'_>, id: SubflowId, at: (Ssn, Dsn)) {
        let Some(leg) = self.leg_mut(id) else { return };
        leg.fail.repeat_at = None;
        if self.receiver.receive_plain(id, at) {
            if self.closing.released {
                self.receiver.discard();
            }
            self.tell_readable(cx);
        }
    }

    pub(super) fn legs_count(&self) -> usize {
        self.legs.iter().flatten().count()
    }

    /// A DSS checksum failed on what came on this subflow; its bytes are kept.
    pub(super) fn on_bad_checksum(&mut self, cx: &mut Context<'_>, id: SubflowId, dsn: Dsn) {
        let now = cx.now;
        cx.out.counters.data_csum_err += 1;
        if self.session.is_plain() {
            // Our own direction failed before, and both sides know.
            self.receive_plain(cx, id, (Ssn(0), dsn));
            return;
        }
        // With a hole before it, the rest came, or must come, by another subflow.
        if self.usable_legs() > 1 || dsn != self.receiver.next() {
            self.reset_with_mp_fail(cx, id, dsn);
            return;
        }
        let Some(leg) = self.leg_mut(id) else { return };
        leg.fail.repeat_at = Some(now);
        self.repeat_mp_fail(cx, id);
    }

    fn reset_with_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId, dsn: Dsn) {
        cx.out.counters.mp_fail_tx += 1;
        let fail = MpFail { dsn: self.session.keys().remote_wire(dsn) };
        self.reset_leg(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
        if let Some(leg) = self.leg_mut(id) {
            leg.farewell = Farewell::Fail(fail);
        }
        self.receiver.release_kept();
    }

    /// Sends MP_FAIL, until the peer shows that it came through. A peer that does not answer cannot
    /// be understood any more.
    pub(super) fn repeat_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(dsn) = self.receiver.failed_at(id) else { return };
        let Some(leg) = self.leg_mut(id) else { return };
        if leg.fail.repeat_at.is_none_or(|at| at > now) {
            return;
        }
        if leg.fail.count > MAX_FAIL_REPEATS || leg.shut {
            leg.fail.repeat_at = None;
            self.reset_with_mp_fail(cx, id, dsn);
            return;
        }
        leg.fail.repeat_at = Some(now + leg.tcp.rto() * (1 << leg.fail.count.min(6)));
        leg.fail.count += 1;
        self.signal_mp_fail(cx, id, dsn);
    }

    fn signal_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId, dsn: Dsn) {
        cx.out.counters.mp_fail_tx += 1;
        let fail = MpFail { dsn: self.session.keys().remote_wire(dsn) };
        self.addresses.signal(Signal { on: Some(id), option: MptcpOption::Fail(fail) });
    }

    /// The peer found a bad checksum in what we sent, or answers our own MP_FAIL.
    pub(super) fn on_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId, fail: MpFail) {
        let now = cx.now;
        cx.out.counters.mp_fail_rx += 1;
        if self.session.is_plain() {
            self.answer_mp_fail(cx, id);
            return;
        }
        if self.usable_legs() > 1 {
            self.on_failed_reset(now, id, fail);
            self.reset_leg(cx, id, reason::MIDDLEBOX, CloseReason::PeerReset);
            return;
        }
        if !self.leg(id).is_some_and(super::Leg::is_usable) {
            return;
        }
        if let Some(dsn) = self.receiver.failed_at(id) {
            let at = (self.receiver.delivered(id), dsn);
            if self.continue_plain(cx, id, FallbackReason::ChecksumFailed) {
                self.receive_plain(cx, id, at);
            }
            return;
        }
        let from = Dsn(self.session.keys().local_offset(fail.dsn));
        if from < self.sender.una() || from > self.sender.sent() {
            cx.out.counters.dss_not_matching += 1;
            return;
        }
        if self.continue_plain(cx, id, FallbackReason::PeerFailed) {
            self.answer_mp_fail(cx, id);
        }
    }

    /// A RST with MP_FAIL: what came on this subflow from there on the peer has acknowledged perhaps, and
    /// could not use. It goes by another subflow at once; the data-level timer would be long in coming.
    pub(super) fn on_failed_reset(&mut self, now: Instant, id: SubflowId, fail: MpFail) {
        let first = Dsn(self.session.keys().local_offset(fail.dsn));
        let (una, end) = (self.sender.una(), self.sender.sent());
        if first < una || first >= end || self.may_still_fall_back() {
            return;
        }
        self.sender.reinject_carried_alone(now, first, id);
    }

    /// The answer may be lost as well: whoever asks again gets it again, within bounds, since two
    /// sides that both answer must come to an end.
    fn answer_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let next = self.receiver.next();
        let mid_stream = self.session.fell_back_mid_stream();
        let Some(leg) = self.leg_mut(id) else { return };
        if mid_stream && leg.fail.count <= MAX_FAIL_REPEATS {
            leg.fail.count += 1;
            self.signal_mp_fail(cx, id, next);
        }
    }

    /// The peer maps everything one to one from here on: plain TCP.
    pub(super) fn on_infinite_mapping(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        at: (Ssn, Dsn),
    ) {
        if self.leg(id).is_none() || self.usable_legs() > 1 || self.receiver.is_infinite(id) {
            return;
        }
        let reason = match self.receiver.failed_at(id) {
            Some(_) => FallbackReason::ChecksumFailed,
            None => FallbackReason::InfiniteMapping,
        };
        if self.session.is_plain() || self.continue_plain(cx, id, reason) {
            self.receive_plain(cx, id, at);
        }
    }

    /// Mappings that contradict each other or are too many, or bytes without one: options vanished
    /// on the way.
    pub(super) fn on_bad_mapping(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        error: MappingError,
    ) {
        let code = match error {
            MappingError::Unmapped => reason::MIDDLEBOX,
            _ => reason::MPTCP_ERROR,
        };
        self.reset_leg(cx, id, code, CloseReason::PeerMisbehaved);
    }
}
