//! Building segments: which MPTCP options go with what, and writing header and payload once.
//!
//! Options share 40 bytes. Timestamps come first, then what MPTCP needs here, then as many SACK
//! blocks as still fit. A pure ACK that carries an option too long to stand beside timestamps (ADD_ADDR
//! with an IPv6 address) goes without them.

use marline_policy::{Dsn, SentSegment, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::mptcp::{
    CapableData, DataAck, Dss, MpCapableForm, MpFastclose, MpJoin, MpTcpRst, MptcpOption, WireDsn,
    WireMapping,
};
use marline_wire::{Checksum, dss_checksum, store_tcp_checksum, tcp_pseudo_header};
use marline_wire::{TcpHeader, TcpOptions, Timestamps};

use super::idle::Frame;
use super::leg::{Farewell, Joined, Membership};
use super::scheduling::{Choice, Kind};
use super::{Connection, Mode};
use crate::shared::Shared;
use crate::subflow::{Egress, HeaderFor};
use crate::transmit::TransmitBuf;
use crate::{ChecksumScope, Ecn, FallbackReason, Transmit};

/// Bytes of a TCP header without options.
const HEADER: usize = marline_wire::TCP_HEADER_LEN;
/// From this many bytes in one time to live of a segment on, 32 bits of DSN are ambiguous.
const SHORT_DSN_SPAN: u64 = 1 << 31;

impl Connection {
    /// Builds what TCP, or a signal, asked for. `None`: the subflow is gone.
    #[expect(clippy::too_many_arguments, reason = "all that one segment is made of")]
    pub(super) fn emit(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        egress: &Egress,
        signal: Option<MptcpOption>,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        if let Egress::Retransmit(segment) = egress
            && segment.repair
        {
            return self.repeat_repair(now, sh, id, egress, buf);
        }
        let mut options = TcpOptions::default();
        self.control_options(now, sh, id, egress, signal, &mut options);
        self.receive.refresh_edge();
        let window = self.receive.window();
        let tcp = &mut self.leg_mut(id)?.tcp;
        let (header, ecn) = tcp.fill_header(now, HeaderFor::Egress(egress), window, &mut options);
        if !options.fits() {
            options.timestamps = None;
        }
        // A repeated segment has no room to spare: its SACK blocks go in an ACK of their own.
        if let Egress::Ack | Egress::Probe | Egress::Fin = egress {
            let room = options.room();
            tcp.fill_sack(&mut options, room);
        }
        let payload = match egress {
            Egress::Retransmit(segment) => (segment.dsn, segment.payload_len() as usize),
            Egress::Syn => self.syn_payload(id),
            _ => (Dsn(0), 0),
        };
        self.write_segment(sh, id, &header, &options, payload, buf)?;
        if matches!(egress, Egress::Rst) {
            self.after_reset(now, sh, id);
        }
        self.transmit(id, egress, ecn, buf)
    }

    fn transmit(
        &self,
        id: SubflowId,
        egress: &Egress,
        ecn: Ecn,
        buf: &TransmitBuf,
    ) -> Option<Transmit> {
        let key = self.leg(id)?.key;
        Some(Transmit {
            path: key.path,
            ecn,
            local_flow: key.local_flow,
            peer_flow: key.peer_flow,
            handshake: matches!(egress, Egress::Syn | Egress::SynAck),
            datagrams: 1,
            stride: buf.bytes().len(),
        })
    }

    fn after_reset(&mut self, _now: Instant, sh: &mut Shared, id: SubflowId) {
        sh.counters.resets_out += 1;
        if let Some(leg) = self.leg_mut(id) {
            leg.reset_sent = true;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all that one segment is made of")]
    fn control_options(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        egress: &Egress,
        signal: Option<MptcpOption>,
        options: &mut TcpOptions,
    ) {
        match egress {
            Egress::Syn => self.syn_options(now, sh, id, options),
            Egress::SynAck => self.syn_ack_options(id, options),
            Egress::Rst => self.farewell_options(id, options),
            Egress::Retransmit(segment) => {
                self.mapping_options(id, segment, options);
                self.mark_repeated(sh, id, segment, options);
            }
            Egress::Ack | Egress::Probe | Egress::Fin => {
                self.ack_options(id, options);
                if let Some(option) = signal {
                    options.mptcp.push(option);
                }
                // An option that leaves no room beside a DATA_ACK stands alone.
                let lone = self.config.conduct.lone_add_addr
                    && matches!(signal, Some(MptcpOption::AddAddr(_)));
                if lone || signal.is_some() && options.encoded_len() + 12 > 40 {
                    options.dss = None;
                }
            }
        }
    }

    fn syn_options(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        options: &mut TcpOptions,
    ) {
        if let Some(option) = self.fast_syn_option(now, sh, id) {
            options.mptcp.push(option);
            return;
        }
        let Some(leg) = self.leg(id) else { return };
        let (backup, local_id) = (leg.backup_here, leg.local_id);
        if let Membership::Joining(joining) = leg.membership {
            options.mptcp.push(MptcpOption::Join(MpJoin::Syn {
                backup,
                address_id: self.addresses.wire_id(local_id),
                token: self.keys.remote_token.0,
                nonce: joining.nonce,
            }));
            return;
        }
        self.syns_sent += 1;
        if self.mode == Mode::Offered && self.syns_sent > self.config.mptcp_syn_retries + 1 {
            self.fall_back(now, sh, FallbackReason::SynRetries);
        }
        if self.mode == Mode::Offered {
            sh.counters.mp_capable_syn_tx += 1;
            options.mptcp.push(self.capable_option(MpCapableForm::Syn));
        }
    }

    fn syn_ack_options(&self, id: SubflowId, options: &mut TcpOptions) {
        let Some(leg) = self.leg(id) else { return };
        match leg.membership {
            Membership::Joined(Joined { fast: Some(fast), .. }) if !fast.ordinary => {
                if let Some(option) = self.fast_syn_ack_option(id, fast) {
                    options.mptcp.push(option);
                }
            }
            Membership::Joined(joined) => {
                let Some(remote) = self.keys.remote else { return };
                let local = self.keys.local;
                let hmac = crate::crypto::join_hmac(local, remote, joined.nonce, joined.peer_nonce);
                options.mptcp.push(MptcpOption::Join(MpJoin::SynAck {
                    backup: leg.backup_here,
                    address_id: self.addresses.wire_id(leg.local_id),
                    hmac: crate::crypto::left_64(&hmac),
                    nonce: joined.nonce,
                }));
            }
            _ if self.is_plain() => {}
            _ => {
                let listener_key = self.keys.local.0;
                let form = MpCapableForm::SynAck { listener_key };
                options.mptcp.push(self.capable_option(form));
            }
        }
    }

    fn farewell_options(&self, id: SubflowId, options: &mut TcpOptions) {
        let Some(leg) = self.leg(id) else { return };
        match (leg.farewell, self.keys.remote) {
            (Farewell::Reason(reason), _) => {
                options.mptcp.push(MptcpOption::TcpRst(reason));
            }
            (Farewell::Fail(fail), _) => {
                options.mptcp.push(MptcpOption::Fail(fail));
                let reason = super::rst_reason::MIDDLEBOX;
                options.mptcp.push(MptcpOption::TcpRst(MpTcpRst { transient: false, reason }));
            }
            (Farewell::Fastclose, Some(key)) => {
                let receiver_key = key.0;
                options.mptcp.push(MptcpOption::Fastclose(MpFastclose { receiver_key }));
            }
            _ => {}
        }
    }

    fn ack_options(&self, id: SubflowId, options: &mut TcpOptions) {
        if self.is_plain() || self.mode == Mode::Offered {
            return;
        }
        if let Some(join) = self.third_ack(id) {
            options.mptcp.push(MptcpOption::Join(join));
            return;
        }
        if let Some(form) = self.unconfirmed_keys(id, None) {
            options.mptcp.push(self.capable_option(form));
            return;
        }
        options.dss = Some(Dss { data_ack: Some(self.data_ack()), mapping: None, data_fin: false });
    }

    /// Both keys, as long as the client cannot know that the server has them.
    fn unconfirmed_keys(&self, id: SubflowId, data: Option<CapableData>) -> Option<MpCapableForm> {
        let initial = self.leg(id)?.is_initial();
        let client = self.role == marline_policy::Role::Client;
        if !initial || !client || self.mode != (Mode::Multipath { confirmed: false }) {
            return None;
        }
        let (initiator_key, listener_key) = (self.keys.local.0, self.keys.remote?.0);
        Some(MpCapableForm::Ack { initiator_key, listener_key, data })
    }

    /// Our DATA_ACK, all 64 bits.
    pub(super) fn data_ack_number(&self) -> u64 {
        self.keys.remote_first.wrapping_add(self.receive.data_ack().0)
    }

    pub(super) fn data_ack(&self) -> DataAck {
        let ack = self.data_ack_number();
        if self.peer_uses_long_dsn { DataAck::Long(ack) } else { DataAck::Short(ack as u32) }
    }

    fn wire_dsn(&self, dsn: Dsn) -> WireDsn {
        let wire = self.keys.local_first.wrapping_add(dsn.0);
        if self.sends_long_dsn { WireDsn::Long(wire) } else { WireDsn::Short(wire as u32) }
    }

    /// Thirty-two bits of DSN are unambiguous while fewer than 2^31 bytes pass within two minutes, the
    /// longest a segment may live. A faster connection uses 64 bits from then on.
    fn watch_dsn_speed(&mut self, now: Instant) {
        if self.mappings.end().since(self.dsn_span_start.1) < SHORT_DSN_SPAN {
            return;
        }
        let took = now.since(self.dsn_span_start.0);
        self.sends_long_dsn |= took < marline_time::Duration::from_secs(120);
        self.dsn_span_start = (now, self.mappings.end());
    }

    /// The mapping of a data segment, new or repeated.
    fn mapping_options(&self, id: SubflowId, segment: &SentSegment, options: &mut TcpOptions) {
        let back = segment.start.since(segment.mapping_start);
        let first = Dsn(segment.dsn.0.saturating_sub(back));
        if self.is_plain() && self.infinite_from.is_none_or(|(ssn, _)| segment.start >= ssn) {
            options.dss = self.infinite_mapping(segment);
            return;
        }
        let checksum = self.checksum.then_some(segment.mapping_checksum);
        // MP_CAPABLE maps the first bytes of both sequence spaces onto each other; the same data sent
        // again further on needs a mapping of its own.
        let is_first = first == Dsn(0) && segment.mapping_start == Ssn(1);
        if is_first && segment.payload_len() > 0 {
            let data = CapableData { length: segment.mapping_len, checksum };
            if let Some(form) = self.unconfirmed_keys(id, Some(data)) {
                options.mptcp.push(self.capable_option(form));
                return;
            }
        }
        let mapping = (segment.payload_len() > 0).then(|| WireMapping {
            dsn: self.wire_dsn(first),
            ssn: segment.mapping_start.0 as u32,
            length: segment.mapping_len,
            checksum,
        });
        // What was mapped before a fallback keeps its mapping; DATA_ACKs are over.
        let data_ack = (!self.is_plain()).then(|| self.data_ack());
        options.dss = Some(Dss { data_ack, mapping, data_fin: false });
    }

    /// The infinite mapping goes with the first data after the fallback. It names the first byte that
    /// was not DATA_ACKed then: from there on, positions map one to one.
    fn infinite_mapping(&self, segment: &SentSegment) -> Option<Dss> {
        let (first, (ssn, dsn)) = self.infinite_from?;
        let is_first = segment.start == first && segment.payload_len() > 0;
        let wire = WireDsn::Long(self.keys.local_first.wrapping_add(dsn.0));
        let checksum = self.checksum.then_some(0);
        let mapping = WireMapping { dsn: wire, ssn: ssn.0 as u32, length: 0, checksum };
        is_first.then_some(Dss { data_ack: None, mapping: Some(mapping), data_fin: false })
    }

    /// Sends data that was chosen. Returns the bytes of the segment, or `None` if it must wait.
    /// `limit` is the largest segment that still fits the batch.
    pub(super) fn emit_data(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        choice: &Choice,
        limit: usize,
        buf: &mut TransmitBuf,
    ) -> Option<(usize, Ecn)> {
        let id = choice.subflow;
        self.watch_dsn_speed(now);
        let leg = self.leg(id)?;
        let ssn = leg.tcp.snd_nxt();
        let max_segment = leg.tcp.max_segment();
        let timestamps = leg.tcp.uses_timestamps();
        let overhead = HEADER + self.data_option_len(id, choice.range.start, ssn, timestamps);
        let room = max_segment.checked_sub(overhead)?.min(usize::from(u16::MAX));
        let frame = Frame { overhead, room, idle: false };
        let Frame { overhead, room, idle } = self.frame_with_mark(choice, frame, timestamps);
        let dsn = choice.range.start;
        let (len, ends_record) = self.within_record(dsn, (choice.range.len() as usize).min(room));
        let is_last = dsn.plus(len as u64) == self.send.end();
        let is_stub = len < room && !ends_record && choice.kind != Kind::Repeat;
        if len == 0 || overhead + len > limit || is_stub && is_last && self.is_held(now) {
            return None;
        }
        if (!ends_record || is_last) && self.is_silly(id, choice, len, room) {
            return None;
        }
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.grow(overhead + len);
        let sum = self.send.copy(dsn, &mut segment[overhead..]);
        debug_assert!(sum.is_some(), "bytes at {dsn:?} are gone");
        let sum = sum?;
        let mapping_checksum = if self.checksum {
            let wire = self.keys.local_first.wrapping_add(dsn.0);
            dss_checksum(wire, ssn.0 as u32, len as u16, sum)
        } else {
            0
        };
        let sent = self.leg_mut(id)?.tcp.push_data(now, dsn, len as u16, mapping_checksum);
        self.account(id, choice, len as u64);
        if let Some(leg) = self.leg_mut(id) {
            leg.note_sent(ssn, dsn);
        }
        let released = !is_last || self.take_release();
        let ends_message = ends_record || is_last && released;
        let takes_fin = is_last && self.is_plain() && self.closing.shutdown;
        let takes_fin =
            takes_fin && choice.kind != Kind::Repeat && self.config.conduct.fin_with_data;
        let ends_pair = self.config.conduct.push_bursts && len == room && self.batched % 2 == 1;
        let mut options = TcpOptions::default();
        self.mapping_options(id, &sent, &mut options);
        if idle {
            self.push_mark(sh, &mut options);
        }
        self.receive.refresh_edge();
        let window = self.receive.window();
        let tcp = &mut self.legs.get_mut(usize::from(id.0))?.as_deref_mut()?.tcp;
        if ends_message && self.config.conduct.push_bursts {
            tcp.mark_message_end_for_good();
        } else if ends_message || ends_pair {
            tcp.mark_message_end();
        } else if !released {
            tcp.withhold_push();
        }
        let sent = if takes_fin { tcp.add_fin().unwrap_or(sent) } else { sent };
        let (header, ecn) = tcp.fill_header(now, HeaderFor::Data(&sent), window, &mut options);
        debug_assert_eq!(HEADER + options.encoded_len(), overhead);
        let bytes = &mut buf.bytes_mut()[start..];
        self.finish_segment(sh, id, &header, &options, sum, bytes)?;
        Some((overhead + len, ecn))
    }

    /// A segment cut short by the end of the peer's window is not worth sending while more data waits
    /// and something is in flight that will bring a window update (RFC 9293 section 3.8.6.2.1).
    fn is_silly(&self, id: SubflowId, choice: &Choice, len: usize, room: usize) -> bool {
        if choice.kind != Kind::New || len == room {
            return false;
        }
        let cut = choice.range.start.plus(len as u64) < self.send.end();
        let nagle = self.config.nagle && !self.closing.shutdown;
        let in_flight = self
            .views
            .iter()
            .any(|v| v.bytes_in_flight > 0 && (v.id == id || !v.potentially_failed));
        (cut || nagle) && in_flight
    }

    pub(super) fn data_option_len(
        &self,
        id: SubflowId,
        dsn: Dsn,
        ssn: Ssn,
        timestamps: bool,
    ) -> usize {
        self.data_options(id, dsn, ssn, timestamps).encoded_len()
    }

    /// Options as long as those of a data segment.
    pub(super) fn data_options(
        &self,
        id: SubflowId,
        dsn: Dsn,
        ssn: Ssn,
        timestamps: bool,
    ) -> TcpOptions {
        let template = SentSegment {
            start: ssn,
            end: ssn.plus(1),
            dsn,
            mapping_start: ssn,
            mapping_len: 1,
            ..SentSegment::default()
        };
        let timestamps = timestamps.then(Timestamps::default);
        let mut options = TcpOptions { timestamps, ..TcpOptions::default() };
        self.mapping_options(id, &template, &mut options);
        options
    }

    fn account(&mut self, id: SubflowId, choice: &Choice, len: u64) {
        let range = choice.range.prefix(len);
        self.send.pin(range);
        if choice.kind == Kind::Repeat {
            self.mappings.add(range, id);
            self.reinjections.remove(range);
            if let Some(leg) = self.leg_mut(id) {
                leg.tcp.stats_mut().bytes_reinjected += len;
            }
        } else {
            self.mappings.push(range, id);
        }
    }

    /// Appends a whole segment to the buffer.
    #[expect(clippy::too_many_arguments, reason = "all that one segment is made of")]
    pub(super) fn write_segment(
        &mut self,
        sh: &mut Shared,
        id: SubflowId,
        header: &TcpHeader,
        options: &TcpOptions,
        (dsn, len): (Dsn, usize),
        buf: &mut TransmitBuf,
    ) -> Option<()> {
        let overhead = HEADER + options.encoded_len();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.grow(overhead + len);
        let sum = self.send.copy(dsn, &mut segment[overhead..]);
        debug_assert!(sum.is_some(), "bytes at {dsn:?} are gone");
        let sum = sum?;
        self.finish_segment(sh, id, header, options, sum, &mut buf.bytes_mut()[start..])
    }

    /// Writes the header before a payload that is in place already.
    #[expect(clippy::too_many_arguments, reason = "all that one segment is made of")]
    pub(super) fn finish_segment(
        &mut self,
        sh: &mut Shared,
        id: SubflowId,
        header: &TcpHeader,
        options: &TcpOptions,
        payload: Checksum,
        segment: &mut [u8],
    ) -> Option<()> {
        let written = header.emit(options, segment);
        debug_assert!(written.is_ok(), "{written:?} for {options:?}");
        let header_len = written.ok()?;
        let path = self.leg(id)?.key.path;
        let addresses = match sh.config.capabilities.checksum {
            ChecksumScope::WithAddresses => Some((path.local.ip(), path.remote.ip())),
            ChecksumScope::WithoutAddresses => None,
        };
        let mut sum = tcp_pseudo_header(addresses, segment.len());
        sum.add_bytes(&segment[..header_len]);
        sum.append(payload);
        store_tcp_checksum(segment, sum.finish());
        sh.counters.segments_out += 1;
        sh.counters.bytes_out += (segment.len() - header_len) as u64;
        Some(())
    }
}
