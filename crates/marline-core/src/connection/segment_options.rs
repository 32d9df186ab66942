//! Options of segments: the up to 40 bytes of options in handshake segments, ACKs, RSTs and data segments.
//!
//! Timestamps come first, then the required MPTCP options, then as many SACK blocks as still fit. A pure ACK with an
//! option too long to fit together with timestamps (ADD_ADDR with an IPv6 address) is sent without them.

use super::fallback::Point;
use super::handshake::reason;
use super::scheduling::Choice;
use super::segment_builder::SegmentBuilder;
use super::subflow_context::{ClosingOption, Membership, SubflowContext};
use crate::crypto::leftmost_64;
use crate::subflow::Egress;
use crate::tables::Context;
use marline_policy::{Dsn, SentSegment, Ssn, SubflowId};
use marline_wire::mptcp::{
    Dss, ExperimentalMessage, MpCapableForm, MpFastclose, MpJoin, MpTcpRst, MptcpOption,
    WireMapping,
};
use marline_wire::{Checksum, FastOpenOption, TCP_HEADER_LEN, TcpOptions, dss_checksum};

/// Maximum number of transmissions of a segment on one subflow that carry MP_IDLE.
const MARKED_TRANSMISSIONS: u16 = 2;

/// Layout of a data segment, before its payload is known.
#[derive(Copy, Clone, Debug)]
pub(super) struct Frame {
    /// Size of the header and its options, in bytes.
    pub(super) overhead: usize,
    /// Room for payload in bytes.
    pub(super) room: usize,
    /// This segment ends the data to send and carries MP_IDLE.
    pub(super) idle: bool,
}

/// Options by kind of segment.
impl SegmentBuilder<'_> {
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
            Egress::Rst => self.reset_options(id, options),
            Egress::Retransmit(segment) => {
                let room = self.repeat_room(id);
                if segment.payload_len() <= room.mapped as u64 {
                    self.mapping_options(id, segment, options);
                }
                self.mark_repeated(cx, id, segment, options);
            }
            Egress::Plain(_) => {}
            Egress::Ack | Egress::Probe | Egress::Fin => {
                self.ack_options(id, options);
                if matches!(egress, Egress::Fin) && self.session.is_plain() {
                    let end = self.paths.get(id).map(|subflow| subflow.tcp().snd_nxt());
                    options.dss = end.and_then(|end| self.session.infinite_mapping_of_fin(end));
                }
                if let Some(option) = signal {
                    options.mptcp.push(option);
                }
                // An option that leaves no room for a DATA_ACK is sent alone.
                if signal.is_some() && options.encoded_len() + 12 > 40 {
                    options.dss = None;
                }
            }
        }
    }

    fn syn_options(&mut self, cx: &mut Context<'_>, id: SubflowId, options: &mut TcpOptions) {
        if let Some(option) = self.joins().fast_syn_option(cx, id) {
            options.mptcp.push(option);
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        if let Membership::Joining(joining) = subflow.membership() {
            options.mptcp.push(MptcpOption::Join(MpJoin::Syn {
                backup: subflow.is_backup_here(),
                address_id: self.paths.addresses().wire_id(subflow.local_id()),
                token: self.session.keys().remote_token().0,
                nonce: joining.nonce(),
            }));
            return;
        }
        if self.session.is_offered() {
            cx.out.counters.mp_capable_syn_tx += 1;
            let capable = self.session.capable_option(self.config, MpCapableForm::Syn);
            options.mptcp.push(capable);
        }
        self.fast_opening().plan_fast_open(cx, id, options);
    }

    fn syn_ack_options(&mut self, id: SubflowId, options: &mut TcpOptions) {
        let Some(subflow) = self.paths.get(id) else { return };
        let here = subflow.is_backup_here();
        match subflow.membership() {
            Membership::Joined(joined) => {
                if let Some(fast) = joined.pending_fast_join() {
                    if let Some(option) = self.joins().fast_syn_ack_option(here, fast) {
                        options.mptcp.push(option);
                    }
                    return;
                }
                let (nonce, peer_nonce) = joined.nonces();
                let Some(hmac) = self.session.keys().join_hmac(nonce, peer_nonce) else { return };
                options.mptcp.push(MptcpOption::Join(MpJoin::SynAck {
                    backup: here,
                    address_id: self.paths.addresses().wire_id(subflow.local_id()),
                    hmac: leftmost_64(&hmac),
                    nonce,
                }));
            }
            _ if self.session.is_plain() => {}
            _ => {
                let listener_key = self.session.keys().local().0;
                let form = MpCapableForm::SynAck { listener_key };
                options.mptcp.push(self.session.capable_option(self.config, form));
            }
        }
    }

    /// Adds the options of a RST.
    fn reset_options(&self, id: SubflowId, options: &mut TcpOptions) {
        let Some(subflow) = self.paths.get(id) else { return };
        match (subflow.closing_option(), self.session.keys().remote()) {
            (ClosingOption::Reason(reason), _) => {
                options.mptcp.push(MptcpOption::TcpRst(reason));
            }
            (ClosingOption::Fail(fail), _) => {
                options.mptcp.push(MptcpOption::Fail(fail));
                let reason = reason::MIDDLEBOX;
                options.mptcp.push(MptcpOption::TcpRst(MpTcpRst { transient: false, reason }));
            }
            (ClosingOption::Fastclose, Some(key)) => {
                let receiver_key = key.0;
                options.mptcp.push(MptcpOption::Fastclose(MpFastclose { receiver_key }));
            }
            _ => {}
        }
    }

    fn ack_options(&self, id: SubflowId, options: &mut TcpOptions) {
        if !self.session.is_multipath() {
            return;
        }
        let subflow = self.paths.get(id);
        if let Some(join) = subflow.and_then(SubflowContext::third_ack) {
            options.mptcp.push(MptcpOption::Join(join));
            return;
        }
        let initial = subflow.is_some_and(SubflowContext::is_initial);
        if let Some(form) = self.session.unconfirmed_keys(None).filter(|_| initial) {
            options.mptcp.push(self.session.capable_option(self.config, form));
            return;
        }
        let data_ack = Some(self.session.data_ack(self.receiver.data_ack()));
        options.dss = Some(Dss { data_ack, mapping: None, data_fin: false });
    }

    /// Adds the mapping of a data segment, new or repeated.
    pub(super) fn mapping_options(
        &self,
        id: SubflowId,
        segment: &SentSegment,
        options: &mut TcpOptions,
    ) {
        let (initial, next) = (self.paths.is_initial(id), self.receiver.data_ack());
        self.session.mapping_options(self.config, initial, segment, next, options);
    }

    /// Options of the same length as those of a data segment.
    pub(super) fn data_options(
        &self,
        subflow: &SubflowContext,
        at: Point,
        timestamps: bool,
    ) -> TcpOptions {
        self.session.data_options(self.config, subflow.is_initial(), at, timestamps)
    }

    pub(super) fn data_fin_dss(&self) -> Dss {
        let fin = self.sender.written_end();
        let wire = self.session.keys().local_wire(fin);
        let checksum = self.session.uses_checksum();
        let checksum = checksum.then(|| dss_checksum(wire, 0, 1, Checksum::new()));
        let dsn = self.session.wire_dsn(fin);
        Dss {
            data_ack: Some(self.session.data_ack(self.receiver.data_ack())),
            mapping: Some(WireMapping { dsn, ssn: 0, length: 1, checksum }),
            data_fin: true,
        }
    }

    /// The Fast Open option of a handshake segment.
    pub(super) fn fast_open_option(
        &self,
        id: SubflowId,
        egress: &Egress,
    ) -> Option<FastOpenOption> {
        let option = self.fast_open.get_used()?.option()?;
        let subflow = self.paths.get(id).filter(|subflow| subflow.is_initial())?;
        match egress {
            Egress::Syn => (subflow.tcp().syns_sent() == 1).then_some(option),
            Egress::SynAck => Some(option),
            _ => None,
        }
    }

    /// Marks a repeated segment if its mapping ends the data to send, and the mark fits.
    fn mark_repeated(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &SentSegment,
        options: &mut TcpOptions,
    ) {
        let back = segment.start.since(segment.mapping_start);
        let end = Dsn((segment.dsn.0 + u64::from(segment.mapping_len)).saturating_sub(back));
        let persists = segment.transmissions > MARKED_TRANSMISSIONS;
        let last = end == self.sender.written_end() && self.session.marks_idle();
        if persists || segment.payload_len() == 0 || !last {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let overhead = self.marked_overhead(subflow, segment.dsn, subflow.tcp().snd_nxt());
        let size = overhead.map(|overhead| overhead + segment.payload_len() as usize);
        let fits = size.is_some_and(|size| size <= subflow.tcp().settled_segment());
        if options.dss.is_some() && fits && options.mptcp.push(mp_idle_option()) {
            cx.out.counters.mp_idle_tx += 1;
        }
    }

    /// Makes room for MP_IDLE if the chosen data ends the data to send.
    ///
    /// MP_IDLE states that no data follows, so that a receiver can distinguish the end of a burst from a dead path
    /// (docs/spec/experimental.md). MultiMob sets a bit of DSS on a segment that is the last in the connection's send
    /// queue when it is scheduled. Version 1 of the protocol has no such bit, so a separate option accompanies DSS.
    ///
    /// The source leaves some cases open. The mark belongs to the *mapping*, not to the segment. It states that the
    /// stream written so far ends where the mapping ends. All segments with these bytes carry it: the first
    /// transmission, a copy on another subflow, a reinjection, and each part of a mapping that was split to be
    /// repeated. A repetition after more data was written does not carry it. Nor does a second repetition on a
    /// subflow, so that a middlebox that drops segments with unknown options cannot block the bytes. (The first
    /// repetition does: a lost tail is common, and a lost mark causes a false alarm.) If a burst's last segment would
    /// be full except for the mark's four bytes, those bytes are sent in one more segment: a missing mark causes a
    /// false alarm at the receiver, but a small segment costs almost nothing. Only if the 40 bytes of options are
    /// used up (64-bit sequence numbers in both directions, with timestamps) is the mark left out. Only the server
    /// sends marks, because it cannot open paths and does not need them itself.
    pub(super) fn frame_with_mark(
        &self,
        subflow: &SubflowContext,
        choice: &Choice,
        frame: Frame,
        ssn: Ssn,
    ) -> Frame {
        let last = choice.range.end == self.sender.written_end() && self.session.marks_idle();
        if !last || choice.range.len() > frame.room as u64 {
            return frame;
        }
        let Some(marked) = self.marked_overhead(subflow, choice.range.start, ssn) else {
            return frame;
        };
        let room = frame.room.saturating_sub(marked - frame.overhead);
        if choice.range.len() <= room as u64 {
            return Frame { overhead: marked, room, idle: true };
        }
        Frame { room, ..frame }
    }

    /// Size in bytes of the header and options of a data segment with MP_IDLE; `None` if there is no room for it.
    pub(super) fn marked_overhead(
        &self,
        subflow: &SubflowContext,
        dsn: Dsn,
        ssn: Ssn,
    ) -> Option<usize> {
        let timestamps = subflow.tcp().uses_timestamps();
        let mut options = self.data_options(subflow, Point { ssn, dsn }, timestamps);
        let fits =
            options.dss.is_some() && options.mptcp.push(mp_idle_option()) && options.fits_header();
        fits.then(|| TCP_HEADER_LEN + options.encoded_len())
    }
}

/// The MP_IDLE option.
pub(super) fn mp_idle_option() -> MptcpOption {
    MptcpOption::Experimental(ExperimentalMessage::Idle.option())
}
