//! Falling back to plain TCP, at every stage (RFC 8684 section 3.7).
//!
//! Before the first DSS a missing option is enough. Later only a failed checksum on the only subflow
//! leads here: MP_FAIL tells the peer from which DSN it must start over under an infinite mapping.

use marline_policy::{Dsn, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::mptcp::{MpFail, MptcpOption};

use super::addresses::Signal;
use super::join::reason;
use super::mapping_rx::MappingError;
use super::{Connection, Mode};
use crate::shared::Shared;
use crate::{CloseReason, FallbackReason, MonitorKind};

impl Connection {
    /// The handshake or the first data showed that MPTCP does not pass: plain TCP from byte one.
    pub(super) fn fall_back(&mut self, now: Instant, sh: &mut Shared, reason: FallbackReason) {
        if self.is_plain() {
            return;
        }
        sh.counters.mp_capable_fallback += 1;
        self.mode = Mode::Plain { reason: Some(reason), tx: (Ssn(1), Dsn(0)) };
        for leg in self.legs.iter_mut().flatten().filter(|leg| leg.is_initial()) {
            leg.mappings.set_infinite(Ssn(1), Dsn(0));
        }
        self.drop_joins(now, sh);
        sh.monitor(now, self.id, MonitorKind::Fallback(reason));
    }

    /// Mid-stream: what is not DATA_ACKed is sent again on the only subflow under an infinite mapping.
    pub(super) fn continue_plain(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        reason: FallbackReason,
    ) {
        let Some(leg) = self.leg(id) else { return };
        let next = leg.tcp.snd_nxt();
        let una = self.send.una();
        sh.counters.mp_capable_fallback += 1;
        self.mode = Mode::Plain { reason: Some(reason), tx: (next, una) };
        self.infinite_from = Some((next, una));
        self.checksum = false;
        self.mappings.rewind();
        self.reinjections.clear();
        self.decided = None;
        self.drop_joins(now, sh);
        sh.monitor(now, self.id, MonitorKind::Fallback(reason));
    }

    fn drop_joins(&mut self, now: Instant, sh: &mut Shared) {
        for id in self.leg_ids() {
            if self.leg(id).is_some_and(|leg| !leg.is_initial()) && self.legs_count() > 1 {
                self.reset_leg(now, sh, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            }
        }
    }

    pub(super) fn legs_count(&self) -> usize {
        self.legs.iter().flatten().count()
    }

    /// A DSS checksum failed on what came on this subflow.
    pub(super) fn on_bad_checksum(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        dsn: Dsn,
    ) {
        sh.counters.data_csum_err += 1;
        sh.counters.mp_fail_tx += 1;
        let fail = MpFail { dsn: self.keys.remote_first.wrapping_add(dsn.0) };
        if self.usable_legs() > 1 {
            self.addresses.signal(Signal { on: Some(id), option: MptcpOption::Fail(fail) });
            self.reset_leg(now, sh, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
            return;
        }
        if let Some(leg) = self.leg_mut(id) {
            leg.deaf = Some(dsn);
        }
        self.addresses.signal(Signal { on: Some(id), option: MptcpOption::Fail(fail) });
    }

    /// Bytes came although we asked the peer to start over: the MP_FAIL may be lost.
    pub(super) fn repeat_mp_fail(&mut self, sh: &mut Shared, id: SubflowId, dsn: Dsn) {
        if !self.addresses.has_signals() {
            sh.counters.mp_fail_tx += 1;
            let fail = MpFail { dsn: self.keys.remote_first.wrapping_add(dsn.0) };
            self.addresses.signal(Signal { on: Some(id), option: MptcpOption::Fail(fail) });
        }
    }

    /// The peer found a bad checksum in what we sent.
    pub(super) fn on_mp_fail(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        fail: MpFail,
    ) {
        sh.counters.mp_fail_rx += 1;
        if self.legs_count() > 1 {
            self.reset_leg(now, sh, id, reason::MIDDLEBOX, CloseReason::PeerReset);
            return;
        }
        if self.is_plain() {
            return;
        }
        let from = Dsn(fail.dsn.wrapping_sub(self.keys.local_first));
        if from < self.send.una() || from > self.mappings.end() {
            sh.counters.dss_not_matching += 1;
            return;
        }
        self.continue_plain(now, sh, id, FallbackReason::PeerFailed);
        // The peer's own direction changes too: it maps one to one from the next byte it sends us.
        if let Some(leg) = self.leg_mut(id) {
            leg.tcp.ack_now();
        }
    }

    /// Mappings that contradict each other or are too many, or bytes without one: options vanished
    /// on the way.
    pub(super) fn on_bad_mapping(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        error: MappingError,
    ) {
        let code = match error {
            MappingError::Unmapped => reason::MIDDLEBOX,
            _ => reason::MPTCP_ERROR,
        };
        self.reset_leg(now, sh, id, code, CloseReason::PeerMisbehaved);
    }
}
