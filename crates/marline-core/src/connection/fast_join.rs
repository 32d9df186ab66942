//! Fast JOIN: a subflow whose SYN already carries the connection's urgent data.
//!
//! *Problem.* If the only path dies, MP_JOIN delivers the first byte at best two and a half round trips after the
//! first SYN (SYN, SYN/ACK, third ACK, fourth ACK, data), often on a radio that has just woken up. The idea comes
//! from MultiMob (Fast Join, for version 0 of MPTCP and HMAC-SHA1). docs/spec/experimental.md defines the layouts,
//! and docs/decisions/opening.md explains the security.
//!
//! ```text
//! active opener                                   passive opener
//!   SYN      OUT(token, DSN, HMAC) + data    ->            delivered at once
//!            or IN(token, DATA_ACK, HMAC)    ->            data after it is sent again
//!                                            <-  SYN/ACK   OUT: HMAC, DATA_ACK; IN: HMAC, DSN
//!   ACK, and data at once                    ->            data from this point, too
//! ```
//! The third ACK carries no HMAC, and neither side waits for a fourth ACK, because each side has authenticated itself
//! with its first segment. Unlike the original, the HMAC also covers the SYN's data, so that an attacker on the path
//! cannot replace it, and the answer's HMAC covers the HMAC of the request. The original does not define the handling
//! of a lost or refused Fast JOIN. Here the next SYN of the attempt is an ordinary MP_JOIN (same ports, no data), and
//! after a refusal an ordinary attempt follows immediately. Fast JOIN is then not tried on that pair of addresses for
//! a while.

use marline_policy::{DataRange, Dsn, ReinjectionCause, SubflowId};
use marline_time::Instant;
use marline_wire::mptcp::{
    DataAck, ExperimentalMessage, Extensions, FastJoinForm, MptcpOption, WireDsn,
};
use marline_wire::{MAX_OPTIONS, TCP_HEADER_LEN, TcpSegment, dss_checksum};

use super::addresses::JoinAddresses;
use super::handshake::reason;
use super::joins::{JoinCheck, Joins};
use super::origin::AcceptedSyn;
use super::replay_guard::SeenSyn;
use super::subflow_context::{FastAccepted, FastOpened, HalfOpen, SubflowContext};
use crate::CloseReason;
use crate::tables::Context;

/// Content of a Fast JOIN's SYN, with full 64-bit values.
pub(super) struct FastSyn {
    pub(super) form: FastJoinForm,
    pub(super) backup: bool,
    pub(super) address_id: u8,
    pub(super) hmac: u64,
    /// Sequence number of the SYN, if SYNs are numbered.
    count: Option<u64>,
    /// Stream position of the data or of the DATA_ACK.
    pub(super) at: Dsn,
}

/// Ends of both streams and the maximum buffer sizes, which limit the positions in a SYN.
#[derive(Copy, Clone, Debug)]
struct ValidPositions {
    receive_buffer: u64,
    send_buffer: u64,
    received: Dsn,
    sent: Dsn,
    acked: Dsn,
}

impl ValidPositions {
    /// True if the position is older than a valid SYN can refer to: one receive window behind. The configured
    /// limits are used, because a growing window must not make old positions valid again.
    fn is_stale(&self, form: FastJoinForm, at: Dsn) -> bool {
        match form {
            FastJoinForm::Out => at.plus(self.receive_buffer) < self.received,
            FastJoinForm::In => at > self.sent || at.plus(self.send_buffer) < self.acked,
        }
    }
}

/// Handshakes of Fast JOINs.
impl Joins<'_> {
    /// True if a join between these addresses may be a Fast JOIN.
    pub(super) fn may_join_fast(&self, cx: &mut Context<'_>, pair: &JoinAddresses) -> bool {
        self.session.agreed_on(Extensions::FAST_JOIN)
            && !cx.fast_joins.contains(cx.now, pair.local.address.ip(), pair.remote)
    }

    /// Builds the option of a Fast JOIN's first SYN and selects the data of the SYN. `None` for an ordinary join,
    /// or a repeated SYN.
    pub(super) fn fast_syn_option(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
    ) -> Option<MptcpOption> {
        self.session.keys().remote()?;
        let subflow = self.paths.get(id)?;
        if subflow.fast_opened()?.is_sent() {
            return None;
        }
        let backup = subflow.is_backup_here();
        let address_id = self.paths.addresses().wire_id(subflow.local_id());
        let room = subflow.tcp().settled_segment().saturating_sub(TCP_HEADER_LEN + MAX_OPTIONS);
        let urgent_range = self.sender.urgent_range(self.paths.healthy());
        let range = urgent_range.map(|range| range.prefix(room as u64)).filter(|r| !r.is_empty());
        let mut payload = Vec::new();
        if let Some(range) = range {
            payload = self.take_for_syn(cx.now, id, range)?;
        }
        let range = range.filter(|_| !payload.is_empty());
        let (form, point) = match range {
            Some(range) => (FastJoinForm::Out, self.session.keys().local_wire(range.start)),
            None => (FastJoinForm::In, self.data_ack_number()),
        };
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
        self.paths.get_mut(id)?.send_fast(FastOpened::sent(form, range, hmac));
        cx.out.counters.fast_join_syn_tx += 1;
        Some(MptcpOption::Experimental(head.with_hmac(hmac).option()))
    }

    /// Assigns this data to the SYN.
    fn take_for_syn(&mut self, now: Instant, id: SubflowId, range: DataRange) -> Option<Vec<u8>> {
        let mut payload = vec![0; range.len() as usize];
        let sum = self.sender.copy(range.start, &mut payload)?;
        let wire = self.session.keys().local_wire(range.start);
        let checksum = match self.session.uses_checksum() {
            true => dss_checksum(wire, 1, range.len() as u16, sum),
            false => 0,
        };
        self.paths.get_mut(id)?.tcp_mut().carry_with_syn(range, checksum);
        self.sender.carry_with_syn(now, id, range);
        Some(payload)
    }

    /// Checks the SYN/ACK of a Fast JOIN that we opened. `None` if it is a different segment.
    pub(super) fn check_fast_syn_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> Option<JoinCheck> {
        let fast = self.paths.get(id)?.fast_opened().filter(FastOpened::is_sent)?;
        let answer = segment.options.mptcp.experimental().find_map(|message| match message {
            ExperimentalMessage::FastJoinSynAck { form, backup, hmac, point }
                if form == fast.form =>
            {
                Some((message, backup, hmac, point))
            }
            _ => None,
        });
        let (message, backup, hmac, point) = answer?;
        let keys = self.session.keys();
        let wire = match fast.form {
            FastJoinForm::Out => {
                let at = self
                    .session
                    .unwrap_ack(DataAck::Short(point), self.closing.acked_end(self.sender));
                at.map(|at| keys.local_wire(at))
            }
            FastJoinForm::In => {
                let at = self.session.unwrap_dsn(WireDsn::Short(point), self.receiver.next());
                at.map(|at| keys.remote_wire(at))
            }
        };
        let proven = wire.is_some_and(|wire| keys.proves_fast_ack(hmac, &message, wire, fast.hmac));
        if !proven {
            cx.out.counters.fast_join_bad_hmac += 1;
            return Some(JoinCheck::Reset(reason::MPTCP_ERROR));
        }
        cx.out.counters.fast_join_syn_ack_rx += 1;
        self.paths.get_mut(id)?.confirm_fast(backup);
        let data_ack = (fast.form == FastJoinForm::Out).then_some(DataAck::Short(point));
        Some(JoinCheck::ProvenFast(data_ack))
    }

    /// Checks a SYN with a Fast JOIN. The error is the reason code for its RST.
    pub(super) fn check_fast_syn(
        &mut self,
        cx: &mut Context<'_>,
        syn: &AcceptedSyn<'_>,
    ) -> Result<FastSyn, u8> {
        if !self.session.agreed_on(Extensions::FAST_JOIN)
            || !self.has_room_for_join(cx)
            || !self.replay_guard.may_check_hmac(cx.now)
        {
            cx.out.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        }
        let said = self.read_fast_syn(cx, syn)?;
        if self.positions().is_stale(said.form, said.at) {
            cx.out.counters.fast_join_stale += 1;
            return Err(reason::PROHIBITED);
        }
        if !self.is_fresh(&said) {
            cx.out.counters.fast_join_replayed += 1;
            return Err(reason::PROHIBITED);
        }
        Ok(said)
    }

    /// Records an authenticated SYN. `false` if it is, or may be, a replay.
    fn is_fresh(&mut self, said: &FastSyn) -> bool {
        if let Some(number) = said.count {
            return self.replay_guard.admit_number(number);
        }
        let syn = SeenSyn { form: said.form, hmac: said.hmac, at: said.at };
        let positions = self.positions();
        self.replay_guard.admit(syn, |form, at| positions.is_stale(form, at))
    }

    /// Checks the SYN's content against its HMAC.
    fn read_fast_syn(
        &mut self,
        cx: &mut Context<'_>,
        syn: &AcceptedSyn<'_>,
    ) -> Result<FastSyn, u8> {
        let mut messages = syn.segment.options.mptcp.experimental();
        let found = messages.find(|m| matches!(m, ExperimentalMessage::FastJoinSyn { .. }));
        let Some(message) = found else { return Err(reason::MPTCP_ERROR) };
        let ExperimentalMessage::FastJoinSyn { form, backup, address_id, point, hmac, .. } =
            message
        else {
            return Err(reason::MPTCP_ERROR);
        };
        let payload = syn.segment.payload;
        if payload.is_empty() && form == FastJoinForm::Out {
            // A middlebox removed the SYN's data.
            cx.out.counters.fast_join_empty += 1;
            return Err(reason::MIDDLEBOX);
        }
        let at = match form {
            FastJoinForm::Out => {
                self.session.unwrap_dsn(WireDsn::Short(point), self.receiver.next())
            }
            FastJoinForm::In => {
                self.session.unwrap_ack(DataAck::Short(point), self.closing.acked_end(self.sender))
            }
        };
        let counted = self.session.agreed_on(Extensions::COUNTED_JOIN);
        let count = counted.then(|| self.replay_guard.unwrap((hmac >> 56) as u8));
        let keys = self.session.keys();
        let proven = at.filter(|at| {
            let full = match form {
                FastJoinForm::Out => keys.remote_wire(*at),
                FastJoinForm::In => keys.local_wire(*at),
            };
            keys.proves_fast_syn(hmac, &message, full, payload, count)
        });
        let Some(at) = proven else {
            cx.out.counters.fast_join_bad_hmac += 1;
            self.replay_guard.failed(cx.now);
            return Err(reason::MPTCP_ERROR);
        };
        Ok(FastSyn { form, backup, address_id, hmac, count, at })
    }

    /// Positions of both streams to which a SYN may refer.
    fn positions(&self) -> ValidPositions {
        ValidPositions {
            receive_buffer: self.config.receive_buffer,
            send_buffer: self.config.send_buffer,
            received: self.receiver.next(),
            sent: self.closing.sent_end(self.sender),
            acked: self.closing.acked_end(self.sender),
        }
    }

    /// Delivers data of a SYN. `false` if it is outside the window; the peer then sends it again.
    pub(super) fn take_syn_data(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        at: Dsn,
        payload: &[u8],
    ) -> bool {
        let len = payload.len() as u64;
        let edge = self.receiver.next().plus(self.receiver.window());
        if at.plus(len) > edge || self.closing.is_released() {
            cx.out.counters.fast_join_data_ignored += 1;
            return false;
        }
        let duplicate = self.receiver.take_syn_data(id, at, payload);
        cx.out.counters.duplicate_data += u64::from(duplicate > 0);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().take_syn_payload(len);
            subflow.tcp_mut().stats_mut().count_duplicate(duplicate);
        }
        true
    }

    /// Builds the option of the SYN/ACK that answers a Fast JOIN.
    pub(super) fn fast_syn_ack_option(
        &self,
        backup: bool,
        fast: FastAccepted,
    ) -> Option<MptcpOption> {
        let point = match fast.form {
            FastJoinForm::Out => self.data_ack_number(),
            FastJoinForm::In => self.session.keys().local_wire(self.sender.sent()),
        };
        let form = fast.form;
        let head =
            ExperimentalMessage::FastJoinSynAck { form, backup, hmac: 0, point: point as u32 };
        let hmac = self.session.keys().fast_ack_hmac(&head, point, fast.hmac)?;
        Some(MptcpOption::Experimental(head.with_hmac(hmac).option()))
    }

    /// Our full 64-bit DATA_ACK.
    fn data_ack_number(&self) -> u64 {
        self.session.keys().remote_wire(self.receiver.data_ack())
    }

    /// Checks a segment on the peer's Fast JOIN whose handshake is not complete. `false` if it must not reach TCP.
    pub(super) fn admit_half_open_fast_join(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> bool {
        let Some(subflow) = self.paths.get_mut(id) else { return false };
        match subflow.on_half_open_fast(segment, self.session.keys()) {
            HalfOpen::Admitted => true,
            HalfOpen::FellBack => {
                self.receiver.forget_syn_data(id);
                true
            }
            HalfOpen::BadHmac => {
                cx.out.counters.mp_join_bad_hmac += 1;
                false
            }
        }
    }

    /// Handles the end of a subflow whose Fast JOIN was refused or not answered. No subflow carries the SYN's data
    /// anymore, and an ordinary join from new ports follows immediately. If the network dropped answers to the first
    /// SYN, the peer's half-open subflow still occupies the old ports.
    pub(super) fn on_fast_join_failed(
        &mut self,
        cx: &mut Context<'_>,
        subflow: &mut SubflowContext,
        id: SubflowId,
        why: CloseReason,
    ) -> Option<(JoinAddresses, bool)> {
        if let Some(range) = subflow.tcp_mut().abandon_syn_payload() {
            self.sender.unpin(range);
        }
        let fast = subflow.fast_opened()?;
        self.sender.forget_mappings(id);
        let (una, plain) = (self.sender.una(), self.session.is_plain());
        if let Some(range) = fast.range.filter(|range| range.end > una && !plain) {
            let range = DataRange::new(range.start.max(una), range.end);
            self.sender.reinject(cx.now, range, ReinjectionCause::SubflowClosed, None);
        }
        // A subflow that was closed deliberately is not replaced.
        if !fast.is_sent() || why == CloseReason::Finished || self.closing.is_closed() {
            return None;
        }
        let path = subflow.path();
        let (local, remote) = (path.local.ip(), path.remote);
        let from = self.paths.addresses().find_local(subflow.local_id());
        // If the local address is also gone, the failure is not evidence about the network.
        let from = from.filter(|from| from.up)?;
        cx.out.counters.fast_join_fallback += 1;
        match why {
            CloseReason::TimedOut => cx.fast_joins.on_lost(cx.now, local, remote),
            _ => cx.fast_joins.on_refused(cx.now, local, remote),
        }
        Some((JoinAddresses { local: from, remote }, subflow.is_backup_here()))
    }
}
