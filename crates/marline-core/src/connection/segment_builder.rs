//! Construction of segments: header, options and payload are written once, directly into the batch.
//!
//! Options share 40 bytes. Timestamps come first, then the required MPTCP options, then as many SACK blocks as
//! still fit. A pure ACK with an option too long to fit beside timestamps (ADD_ADDR with an IPv6 address) is sent
//! without them.

use marline_policy::{DataRange, Dsn, Phase, SentSegment, Ssn, SubflowId};
use marline_wire::mptcp::{
    Dss, ExperimentalMessage, MpCapableForm, MpFastclose, MpJoin, MpTcpRst, MptcpOption,
    WireMapping,
};
use marline_wire::{
    Checksum, FastOpenOption, TCP_HEADER_LEN, TcpHeader, TcpOptions, dss_checksum,
    store_tcp_checksum, tcp_pseudo_header,
};

use super::assignment::Assignment;
use super::closing::Closing;
use super::delivery_watch::DeliveryWatch;
use super::fast_open::FastOpening;
use super::fast_open_handshake::FastOpenHandshake;
use super::handshake::reason;
use super::joins::Joins;
use super::memory_trim::MemoryTrim;
use super::path_set::PathSet;
use super::receiver::Receiver;
use super::replay_guard::ReplayGuard;
use super::scheduling::Scheduling;
use super::sender::Sender;
use super::session::Session;
use super::subflow_context::{ClosingOption, Membership, SubflowContext};
use super::traffic_trace::report_traffic;
use crate::crypto::left_64;
use crate::on_demand::OnDemand;
use crate::subflow::{Egress, HeaderFor, PayloadRoom};
use crate::tables::Context;
use crate::{
    ConnectionConfig, ConnectionId, Ecn, Purpose, SegmentSent, Traffic, Transmit, TransmitBuf,
};

/// Transmissions of a segment on one subflow that may carry MP_IDLE.
const MARKED_TRANSMISSIONS: u16 = 2;

/// Parts of a connection that a segment is made of.
pub(super) struct SegmentBuilder<'a> {
    pub(super) id: ConnectionId,
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a mut Session,
    pub(super) paths: &'a mut PathSet,
    pub(super) sender: &'a mut Sender,
    pub(super) receiver: &'a mut Receiver,
    pub(super) scheduling: &'a mut Scheduling,
    pub(super) closing: &'a mut Closing,
    pub(super) ack_watch: &'a mut DeliveryWatch,
    pub(super) trim: &'a mut MemoryTrim,
    pub(super) fast_open: &'a mut OnDemand<FastOpening>,
    pub(super) replay_guard: &'a mut OnDemand<ReplayGuard>,
}

/// Segments of equal size on one subflow.
#[derive(Copy, Clone, Debug)]
pub(super) struct Batch {
    pub(super) id: SubflowId,
    pub(super) count: usize,
    /// Bytes from one segment to the next.
    pub(super) stride: usize,
    pub(super) ecn: Ecn,
}

/// Segments that were added to a batch.
#[derive(Copy, Clone, Debug)]
pub(super) struct Emitted {
    /// Bytes of each segment.
    pub(super) size: usize,
    pub(super) count: usize,
    pub(super) ecn: Ecn,
}

impl SegmentBuilder<'_> {
    #[inline]
    pub(super) fn assignment(&mut self) -> Assignment<'_> {
        Assignment {
            config: self.config,
            session: self.session,
            paths: self.paths,
            sender: self.sender,
            scheduling: self.scheduling,
            closing: self.closing,
            ack_watch: self.ack_watch,
            trim: self.trim,
        }
    }

    fn joins(&mut self) -> Joins<'_> {
        Joins {
            config: self.config,
            session: self.session,
            paths: self.paths,
            sender: self.sender,
            receiver: self.receiver,
            closing: self.closing,
            replay_guard: self.replay_guard,
        }
    }

    fn fast_opening(&mut self) -> FastOpenHandshake<'_> {
        FastOpenHandshake {
            config: self.config,
            session: self.session,
            paths: self.paths,
            sender: self.sender,
            receiver: self.receiver,
            fast_open: self.fast_open,
        }
    }

    /// Builds a segment that TCP or a signal requested. `None` if the subflow is gone.
    pub(super) fn emit(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        egress: &Egress,
        signal: Option<MptcpOption>,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        if let Egress::Retransmit(segment) = egress
            && segment.repair
        {
            return self.repeat_repair(cx, id, egress, buf);
        }
        let mut options = TcpOptions::default();
        self.control_options(cx, id, egress, signal, &mut options);
        let fast_open = self.fast_open_option(id, egress);
        let window = self.receiver.advertise();
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let owes_sack = signal.is_some() && tcp.owes_sack();
        let what = HeaderFor::Egress(egress);
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        if !options.fits() {
            options.timestamps = None;
        }
        if fast_open.is_some_and(|option| !option.fits_with(&options)) {
            // A Fast Open cookie for the client is worth more than timestamps (as in Linux).
            options.timestamps = None;
            tcp.forgo_timestamps();
        }
        // Data has no room to spare, and a signal may have none: SACK blocks go in a separate ACK.
        if let Egress::Ack | Egress::Probe | Egress::Fin = egress {
            let room = options.room();
            tcp.fill_sack(&mut options, room);
        }
        if owes_sack && options.sack.is_empty() {
            tcp.ack_now();
        }
        let payload = match egress {
            Egress::Retransmit(segment) => (segment.dsn, segment.payload_len() as usize),
            Egress::Syn => self.syn_payload(id),
            _ => (Dsn(0), 0),
        };
        let purpose =
            if cx.out.traces_traffic(self.id) { self.purpose_of(id, egress) } else { None };
        match fast_open {
            None => self.write_segment(cx, id, (&header, &options), payload, buf)?,
            Some(option) => {
                self.write_handshake(cx, id, (&header, &options, &option), payload, buf)?;
            }
        }
        if let Some(purpose) = purpose {
            let data = DataRange::new(payload.0, payload.0.plus(payload.1 as u64));
            let (payload_bytes, seq) = (data.len(), header.seq);
            let sent = SegmentSent { on: id, purpose, seq, data, payload_bytes, segments: 1 };
            cx.out.traffic(cx.now, self.id, Traffic::Sent(sent));
        }
        if matches!(egress, Egress::Rst) {
            cx.out.counters.resets_out += 1;
            self.paths.get_mut(id)?.note_reset_sent();
        }
        let handshake = matches!(egress, Egress::Syn | Egress::SynAck);
        let batch = Batch { id, count: 1, stride: buf.bytes().len(), ecn };
        Some(Transmit { handshake, ..self.transmit(batch)? })
    }

    /// Builds a segment with the DATA_FIN alone.
    pub(super) fn write_data_fin(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let mut options = TcpOptions { dss: Some(self.data_fin_dss()), ..TcpOptions::default() };
        let window = self.receiver.advertise();
        let egress = Egress::Ack;
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let owes_sack = tcp.owes_sack();
        let what = HeaderFor::Egress(&egress);
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        let room = options.room();
        tcp.fill_sack(&mut options, room);
        if owes_sack && options.sack.is_empty() {
            tcp.ack_now();
        }
        self.write_segment(cx, id, (&header, &options), (Dsn(0), 0), buf)?;
        let end = DataRange::new(self.sender.written(), self.sender.written());
        report_traffic(cx, self.id, || {
            Traffic::Sent(SegmentSent {
                on: id,
                purpose: Purpose::DataFin,
                seq: header.seq,
                data: end,
                payload_bytes: 0,
                segments: 1,
            })
        });
        self.transmit(Batch { id, count: 1, stride: buf.bytes().len(), ecn })
    }

    pub(super) fn emit_signal(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        if !self.paths.addresses().has_signals() {
            return None;
        }
        let usable = self.paths.usable_set();
        if usable.is_empty() {
            return None;
        }
        let signal = self.paths.addresses_mut().next_signal(|id| usable.contains(id))?;
        let on = signal.on.or_else(|| self.paths.best())?;
        self.emit(cx, on, &Egress::Ack, Some(signal.option), buf)
    }

    /// Room for payload of a retransmitted segment on this subflow.
    pub(super) fn repeat_room(&self, id: SubflowId) -> PayloadRoom {
        let Some(subflow) = self.paths.get(id) else { return PayloadRoom::default() };
        self.payload_room(subflow, (Dsn(1), subflow.tcp().snd_una()))
    }

    /// Room for payload of a full segment with data from `at` on.
    pub(super) fn payload_room(&self, subflow: &SubflowContext, at: (Dsn, Ssn)) -> PayloadRoom {
        let tcp = subflow.tcp();
        let mut options = self.data_options(subflow, at, tcp.uses_timestamps());
        let room = |options: &TcpOptions| {
            tcp.settled_segment().saturating_sub(TCP_HEADER_LEN + options.encoded_len())
        };
        let mapped = room(&options);
        if self.session.maps_runs(&self.config) {
            options.dss = None;
        }
        PayloadRoom { mapped, plain: room(&options) }
    }

    pub(super) fn transmit(&self, batch: Batch) -> Option<Transmit> {
        let Batch { id, count, stride, ecn } = batch;
        let key = self.paths.get(id)?.key();
        Some(Transmit {
            path: key.path,
            ecn,
            local_flow: key.local_flow,
            peer_flow: key.peer_flow,
            handshake: false,
            datagrams: count,
            stride,
        })
    }

    /// Reason for sending a segment that TCP or a signal requested.
    #[cold]
    fn purpose_of(&self, id: SubflowId, egress: &Egress) -> Option<Purpose> {
        let tcp = self.paths.get(id)?.tcp();
        Some(match egress {
            Egress::Syn | Egress::SynAck => Purpose::Handshake,
            Egress::Rst => Purpose::Reset,
            Egress::Ack => Purpose::Ack,
            Egress::Fin => Purpose::Fin,
            Egress::Probe | Egress::Plain(_) => Purpose::Ask,
            Egress::Retransmit(_) if tcp.repeats_as_probe() => Purpose::Probe,
            Egress::Retransmit(_) => {
                Purpose::Retransmission { after_timeout: tcp.metrics(id).phase == Phase::Loss }
            }
        })
    }

    fn control_options(
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
            let capable = self.session.capable_option(&self.config, MpCapableForm::Syn);
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
                    hmac: left_64(&hmac),
                    nonce,
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
            options.mptcp.push(self.session.capable_option(&self.config, form));
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
        self.session.mapping_options(&self.config, initial, segment, next, options);
    }

    /// Options of the same length as those of a data segment.
    pub(super) fn data_options(
        &self,
        subflow: &SubflowContext,
        at: (Dsn, Ssn),
        timestamps: bool,
    ) -> TcpOptions {
        self.session.data_options(&self.config, subflow.is_initial(), at, timestamps)
    }

    fn data_fin_dss(&self) -> Dss {
        let fin = self.sender.written();
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
    fn fast_open_option(&self, id: SubflowId, egress: &Egress) -> Option<FastOpenOption> {
        let option = self.fast_open.used()?.option()?;
        let subflow = self.paths.get(id).filter(|subflow| subflow.is_initial())?;
        match egress {
            Egress::Syn => (subflow.tcp().syns_sent() == 1).then_some(option),
            Egress::SynAck => Some(option),
            _ => None,
        }
    }

    /// Range of data in the SYN that is being built.
    fn syn_payload(&self, id: SubflowId) -> (Dsn, usize) {
        let carried = self.paths.get(id).and_then(|s| s.tcp().payload_of_next_syn());
        carried.map_or((Dsn(0), 0), |range| (range.start, range.len() as usize))
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
        let last = end == self.sender.written() && self.session.marks_idle();
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

    /// Bytes of header and options of a data segment with MP_IDLE; `None` if there is no room for it.
    pub(super) fn marked_overhead(
        &self,
        subflow: &SubflowContext,
        dsn: Dsn,
        ssn: Ssn,
    ) -> Option<usize> {
        let timestamps = subflow.tcp().uses_timestamps();
        let mut options = self.data_options(subflow, (dsn, ssn), timestamps);
        let fits = options.dss.is_some() && options.mptcp.push(mp_idle_option()) && options.fits();
        fits.then(|| TCP_HEADER_LEN + options.encoded_len())
    }

    /// Appends a complete segment to the buffer.
    fn write_segment(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (header, options): (&TcpHeader, &TcpOptions),
        (dsn, len): (Dsn, usize),
        buf: &mut TransmitBuf,
    ) -> Option<()> {
        let overhead = TCP_HEADER_LEN + options.encoded_len();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.grow(overhead + len);
        let sum = self.sender.copy(dsn, &mut segment[overhead..])?;
        self.finish_segment(cx, id, (header, options), sum, &mut buf.bytes_mut()[start..])
    }

    /// As [`write_segment`](Self::write_segment), with a Fast Open option.
    fn write_handshake(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (header, options, fast_open): (&TcpHeader, &TcpOptions, &FastOpenOption),
        (dsn, len): (Dsn, usize),
        buf: &mut TransmitBuf,
    ) -> Option<()> {
        let overhead = TCP_HEADER_LEN + options.encoded_len() + fast_open.encoded_len();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.grow(overhead + len);
        let sum = self.sender.copy(dsn, &mut segment[overhead..])?;
        let segment = &mut buf.bytes_mut()[start..];
        let written = header.emit_with(options, fast_open, segment);
        debug_assert!(written.is_ok(), "{written:?} for {options:?} and {fast_open:?}");
        self.complete_segment(cx, id, written.ok()?, sum, segment)
    }

    /// Writes the header before a payload that is already in place.
    pub(super) fn finish_segment(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (header, options): (&TcpHeader, &TcpOptions),
        payload: Checksum,
        segment: &mut [u8],
    ) -> Option<()> {
        let written = header.emit(options, segment);
        debug_assert!(written.is_ok(), "{written:?} for {options:?}");
        self.complete_segment(cx, id, written.ok()?, payload, segment)
    }

    /// Puts the checksum into a segment whose header and payload are in place.
    fn complete_segment(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        header_len: usize,
        payload: Checksum,
        segment: &mut [u8],
    ) -> Option<()> {
        let tcp = self.paths.get(id)?.tcp();
        let addresses = tcp.checksum_addresses(cx.config.capabilities.checksum);
        let mut sum = tcp_pseudo_header(addresses, segment.len());
        sum.add_bytes(&segment[..header_len]);
        sum.append(payload);
        store_tcp_checksum(segment, sum.finish());
        cx.out.counters.segments_out += 1;
        cx.out.counters.bytes_out += (segment.len() - header_len) as u64;
        Some(())
    }

    /// Repeats a repair, or a part of one.
    fn repeat_repair(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        egress: &Egress,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let sent = self.write_repair(cx, id, HeaderFor::Egress(egress), buf)?;
        let stride = sent.size + buf.headroom();
        self.transmit(Batch { id, count: 1, stride, ecn: sent.ecn })
    }

    pub(super) fn write_repair(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        what: HeaderFor<'_>,
        buf: &mut TransmitBuf,
    ) -> Option<Emitted> {
        let segment = match what {
            HeaderFor::Data(segment) | HeaderFor::Egress(Egress::Retransmit(segment)) => segment,
            HeaderFor::Egress(_) => return None,
        };
        let window = self.receiver.advertise();
        let sent = self.sender.sent_repair(id, segment.mapping_start)?;
        let payload = sent.part(segment)?;
        let mut options = TcpOptions::default();
        options.mptcp.push(sent.option(&self.session, self.receiver.data_ack()));
        let sum = Checksum::of(payload);
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        let size = TCP_HEADER_LEN + options.encoded_len() + payload.len();
        let at = buf.bytes().len() + buf.headroom();
        let place = buf.grow(size);
        let header_len = size - payload.len();
        place[header_len..].copy_from_slice(payload);
        let (payload_bytes, repeated) =
            (payload.len() as u64, matches!(what, HeaderFor::Egress(_)));
        let bytes = &mut buf.bytes_mut()[at..];
        self.finish_segment(cx, id, (&header, &options), sum, bytes)?;
        let purpose = match repeated {
            true => Purpose::Retransmission { after_timeout: false },
            false => Purpose::Repair,
        };
        let (seq, data) = (header.seq, DataRange::default());
        report_traffic(cx, self.id, || {
            Traffic::Sent(SegmentSent { on: id, purpose, seq, data, payload_bytes, segments: 1 })
        });
        Some(Emitted { size, count: 1, ecn })
    }
}

/// MP_IDLE.
pub(super) fn mp_idle_option() -> MptcpOption {
    MptcpOption::Experimental(ExperimentalMessage::Idle.option())
}
