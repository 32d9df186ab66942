//! Which MPTCP options go with what.
//!
//! Options share 40 bytes. Timestamps come first, then what MPTCP needs here, then as many SACK
//! blocks as still fit. A pure ACK that carries an option too long to stand beside timestamps (ADD_ADDR
//! with an IPv6 address) goes without them.

use marline_policy::{Dsn, SentSegment, Ssn, SubflowId};
use marline_wire::TcpOptions;
use marline_wire::mptcp::{Dss, MpCapableForm, MpFastclose, MpJoin, MpTcpRst, MptcpOption};

use super::Connection;
use super::leg::{Farewell, Joined, Membership};
use crate::FallbackReason;
use crate::subflow::Egress;
use crate::tables::Context;

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
                if matches!(egress, Egress::Fin) && self.session.is_plain() {
                    let end = self.leg(id).map(|leg| leg.tcp.snd_nxt());
                    options.dss = end.and_then(|end| self.session.infinite_mapping_of_fin(end));
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
                token: self.session.keys().remote_token().0,
                nonce: joining.nonce,
            }));
            return;
        }
        let syns = self.session.count_syn();
        if self.session.is_offered() && syns > self.config.mptcp_syn_retries + 1 {
            self.fall_back(cx, FallbackReason::SynRetries);
        }
        if self.session.is_offered() {
            cx.out.counters.mp_capable_syn_tx += 1;
            options.mptcp.push(self.session.capable_option(&self.config, MpCapableForm::Syn));
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
                let (nonce, peer_nonce) = (joined.nonce, joined.peer_nonce);
                let Some(hmac) = self.session.keys().join_hmac(nonce, peer_nonce) else { return };
                options.mptcp.push(MptcpOption::Join(MpJoin::SynAck {
                    backup: leg.backup_here || self.config.conduct.echo_backup && leg.backup_there,
                    address_id: self.addresses.wire_id(leg.local_id),
                    hmac: crate::crypto::left_64(&hmac),
                    nonce: joined.nonce,
                }));
            }
            _ if self.session.is_plain() => {}
            _ => {
                let listener_key = self.session.keys().local().0;
                let form = MpCapableForm::SynAck { listener_key };
                options.mptcp.push(self.session.capable_option(&self.config, form));
            }
        }
    }

    fn farewell_options(&self, id: SubflowId, options: &mut TcpOptions) {
        let Some(leg) = self.leg(id) else { return };
        match (leg.farewell, self.session.keys().remote()) {
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
        if self.session.is_plain() || self.session.is_offered() {
            return;
        }
        if let Some(join) = self.third_ack(id) {
            options.mptcp.push(MptcpOption::Join(join));
            return;
        }
        let initial = self.leg(id).is_some_and(super::Leg::is_initial);
        if let Some(form) = self.session.unconfirmed_keys(None).filter(|_| initial) {
            options.mptcp.push(self.session.capable_option(&self.config, form));
            return;
        }
        options.dss = Some(Dss {
            data_ack: Some(self.session.data_ack(self.receiver.data_ack())),
            mapping: None,
            data_fin: false,
        });
    }

    /// The mapping of a data segment, new or repeated.
    pub(super) fn mapping_options(
        &self,
        id: SubflowId,
        segment: &SentSegment,
        options: &mut TcpOptions,
    ) {
        let initial = self.leg(id).is_some_and(super::Leg::is_initial);
        let next = self.receiver.data_ack();
        self.session.mapping_options(&self.config, initial, segment, next, options);
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
        let initial = self.leg(id).is_some_and(super::Leg::is_initial);
        self.session.data_options(&self.config, initial, (dsn, ssn), timestamps)
    }
}
