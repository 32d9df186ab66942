//! Which MPTCP options go with what.
//!
//! Options share 40 bytes. Timestamps come first, then what MPTCP needs here, then as many SACK
//! blocks as still fit. A pure ACK that carries an option too long to stand beside timestamps (ADD_ADDR
//! with an IPv6 address) goes without them.

use marline_policy::{Dsn, SentSegment, Ssn, SubflowId};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{
    CapableData, DataAck, Dss, MpCapableForm, MpFastclose, MpJoin, MpTcpRst, MptcpOption, WireDsn,
    WireMapping,
};
use marline_wire::{TcpOptions, Timestamps};

use super::leg::{Farewell, Joined, Membership};
use super::{Connection, Mode};
use crate::FallbackReason;
use crate::subflow::Egress;
use crate::tables::Context;

/// From this many bytes in one time to live of a segment on, 32 bits of DSN are ambiguous.
const SHORT_DSN_SPAN: u64 = 1 << 31;
/// How long a segment may live (RFC 9293 section 3.4.2).
const MAX_SEGMENT_LIFETIME: Duration = Duration::from_secs(120);

impl Connection {
    #[expect(clippy::too_many_arguments, reason = "all that one segment is made of")]
    pub(super) fn control_options(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        egress: &Egress,
        signal: Option<MptcpOption>,
        options: &mut TcpOptions,
    ) {
        match egress {
            Egress::Syn => self.syn_options(cx, id, options),
            Egress::SynAck => self.syn_ack_options(id, options),
            Egress::Rst => self.farewell_options(id, options),
            Egress::Retransmit(segment) => {
                self.mapping_options(id, segment, options);
                self.mark_repeated(cx, id, segment, options);
            }
            Egress::Ack | Egress::Probe | Egress::Fin => {
                self.ack_options(id, options);
                if matches!(egress, Egress::Fin) && self.is_plain() {
                    options.dss = self.infinite_mapping_of_fin(id);
                }
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

    fn syn_options(&mut self, cx: &mut Context<'_>, id: SubflowId, options: &mut TcpOptions) {
        if let Some(option) = self.fast_syn_option(cx, id) {
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
            self.fall_back(cx, FallbackReason::SynRetries);
        }
        if self.mode == Mode::Offered {
            cx.out.counters.mp_capable_syn_tx += 1;
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
                    backup: leg.backup_here || self.config.conduct.echo_backup && leg.backup_there,
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

    pub(super) fn wire_dsn(&self, dsn: Dsn) -> WireDsn {
        let wire = self.keys.local_first.wrapping_add(dsn.0);
        if self.sends_long_dsn { WireDsn::Long(wire) } else { WireDsn::Short(wire as u32) }
    }

    /// Thirty-two bits of DSN are unambiguous while fewer than 2^31 bytes pass within two minutes, the
    /// longest a segment may live. A faster connection uses 64 bits from then on.
    pub(super) fn watch_dsn_speed(&mut self, now: Instant) {
        if self.mappings.end().since(self.dsn_span_start.1) < SHORT_DSN_SPAN {
            return;
        }
        let took = now.since(self.dsn_span_start.0);
        self.sends_long_dsn |= took < MAX_SEGMENT_LIFETIME;
        self.dsn_span_start = (now, self.mappings.end());
    }

    /// The mapping of a data segment, new or repeated.
    pub(super) fn mapping_options(
        &self,
        id: SubflowId,
        segment: &SentSegment,
        options: &mut TcpOptions,
    ) {
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

    /// The infinite mapping of a FIN that goes out for the first time.
    fn infinite_mapping_of_fin(&self, id: SubflowId) -> Option<Dss> {
        let end = self.leg(id)?.tcp.snd_nxt();
        let start = Ssn(end.0.saturating_sub(1));
        self.infinite_mapping(&SentSegment { start, end, fin: true, ..SentSegment::default() })
    }

    /// The infinite mapping goes with the first data after the fallback, or with the FIN if there is none: a
    /// peer that does not learn of the fallback takes a FIN for the end of a subflow only. It names the first
    /// byte that was not DATA_ACKed then: from there on, positions map one to one.
    fn infinite_mapping(&self, segment: &SentSegment) -> Option<Dss> {
        let (first, (ssn, dsn)) = self.infinite_from?;
        let is_first = segment.start == first && !segment.is_empty();
        let wire = WireDsn::Long(self.keys.local_first.wrapping_add(dsn.0));
        let checksum = self.checksum.then_some(0);
        let mapping = WireMapping { dsn: wire, ssn: ssn.0 as u32, length: 0, checksum };
        is_first.then_some(Dss { data_ack: None, mapping: Some(mapping), data_fin: false })
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
}
