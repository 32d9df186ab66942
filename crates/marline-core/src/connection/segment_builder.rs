//! Construction of segments: header, options and payload are written once, directly into the batch. This file has the
//! segments that TCP or a signal requests, and repairs; `data_segments.rs` has data, and completes every segment.

use marline_policy::{DataRange, Dsn, Phase, SubflowId};
use marline_wire::mptcp::MptcpOption;
use marline_wire::{Checksum, FastOpenOption, TCP_HEADER_LEN, TcpHeader, TcpOptions};

use super::assignment::Assignment;
use super::closing::Closing;
use super::delivery_watch::DeliveryWatch;
use super::fallback::Point;
use super::fast_open::FastOpening;
use super::fast_open_handshake::FastOpenHandshake;
use super::fec_tx::{self, SentRepair};
use super::joins::Joins;
use super::memory_trim::MemoryTrim;
use super::path_set::PathSet;
use super::receiver::Receiver;
use super::replay_guard::ReplayGuard;
use super::scheduling::{Choice, Scheduling};
use super::sender::Sender;
use super::session::Session;
use super::traffic_trace::report_traffic;
use crate::on_demand::OnDemand;
use crate::subflow::{Egress, HeaderFor, PayloadRoom};
use crate::tables::Context;
use crate::{
    ConnectionConfig, ConnectionId, Ecn, Purpose, SegmentSent, Traffic, Transmit, TransmitBuf,
};

/// Parts of a connection that are used to build segments.
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

/// Header and options of a segment.
#[derive(Debug)]
pub(super) struct SegmentHead<'a> {
    pub(super) header: &'a TcpHeader,
    pub(super) options: &'a TcpOptions,
    /// Fast Open option of a handshake segment.
    pub(super) fast_open: Option<&'a FastOpenOption>,
}

impl<'a> SegmentHead<'a> {
    pub(super) const fn new(header: &'a TcpHeader, options: &'a TcpOptions) -> Self {
        SegmentHead { header, options, fast_open: None }
    }

    /// Size of the header with all options, in bytes.
    fn len(&self) -> usize {
        let fast_open = self.fast_open.map_or(0, FastOpenOption::encoded_len);
        TCP_HEADER_LEN + self.options.encoded_len() + fast_open
    }
}

/// Segments of equal size on one subflow.
#[derive(Copy, Clone, Debug)]
pub(super) struct Batch {
    pub(super) id: SubflowId,
    pub(super) count: usize,
    /// Distance in bytes from the start of one segment to the next.
    pub(super) stride: usize,
    pub(super) ecn: Ecn,
}

/// Segments that were added to a batch.
#[derive(Copy, Clone, Debug)]
pub(super) struct EmittedSegments {
    /// Size of each segment in bytes.
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

    pub(super) fn joins(&mut self) -> Joins<'_> {
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

    pub(super) fn fast_opening(&mut self) -> FastOpenHandshake<'_> {
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
        let owes_sack = signal.is_some() && tcp.has_pending_sack();
        let what = HeaderFor::Egress(egress);
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        if !options.fits_header() {
            options.timestamps = None;
        }
        if fast_open.is_some_and(|option| !option.fits_with(&options)) {
            // A Fast Open cookie for the client is more useful than timestamps (as in Linux).
            options.timestamps = None;
            tcp.disable_timestamps();
        }
        // Data and signals may leave no room for SACK blocks, which are sent in a separate ACK.
        if let Egress::Ack | Egress::Probe | Egress::Fin = egress {
            let room = options.room();
            tcp.fill_sack(&mut options, room);
        }
        if owes_sack && options.sack.is_empty() {
            tcp.ack_now();
        }
        let data = match egress {
            Egress::Retransmit(segment) => {
                DataRange::new(segment.dsn, segment.dsn.plus(segment.payload_len()))
            }
            Egress::Syn => self.syn_payload(id),
            _ => DataRange::default(),
        };
        let purpose =
            if cx.out.traces_traffic(self.id) { self.purpose_of(id, egress) } else { None };
        let fast_open = fast_open.as_ref();
        let head = SegmentHead { header: &header, options: &options, fast_open };
        self.write_segment(cx, id, &head, data, buf)?;
        if let Some(purpose) = purpose {
            let (payload_bytes, seq) = (data.len(), header.seq);
            let sent = SegmentSent { on: id, purpose, seq, data, payload_bytes, segments: 1 };
            cx.out.traffic(cx.now, self.id, Traffic::Sent(sent));
        }
        if matches!(egress, Egress::Rst) {
            cx.out.counters.resets_out += 1;
            self.paths.get_mut(id)?.record_reset_sent();
        }
        let handshake = matches!(egress, Egress::Syn | Egress::SynAck);
        let batch = Batch { id, count: 1, stride: buf.bytes().len(), ecn };
        Some(Transmit { handshake, ..self.transmit(batch)? })
    }

    /// Builds a segment that carries only the DATA_FIN.
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
        let owes_sack = tcp.has_pending_sack();
        let what = HeaderFor::Egress(&egress);
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        let room = options.room();
        tcp.fill_sack(&mut options, room);
        if owes_sack && options.sack.is_empty() {
            tcp.ack_now();
        }
        self.write_segment(
            cx,
            id,
            &SegmentHead::new(&header, &options),
            DataRange::default(),
            buf,
        )?;
        let end = DataRange::new(self.sender.written_end(), self.sender.written_end());
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
        let usable = self.paths.active_set();
        if usable.is_empty() {
            return None;
        }
        let signal = self.paths.addresses_mut().next_signal(|id| usable.contains(id))?;
        let on = signal.on.or_else(|| self.paths.best_subflow())?;
        self.emit(cx, on, &Egress::Ack, Some(signal.option), buf)
    }

    /// Room for the payload of a retransmitted segment on this subflow, in bytes.
    pub(super) fn repeat_room(&self, id: SubflowId) -> PayloadRoom {
        let Some(subflow) = self.paths.get(id) else { return PayloadRoom::default() };
        self.payload_room(subflow, Point { ssn: subflow.tcp().snd_una(), dsn: Dsn(1) })
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
            Egress::Probe | Egress::Plain(_) => Purpose::AckRequest,
            Egress::Retransmit(_) if tcp.repeats_as_probe() => Purpose::Probe,
            Egress::Retransmit(_) => {
                Purpose::Retransmission { after_timeout: tcp.metrics(id).phase == Phase::Loss }
            }
        })
    }

    /// Range of the data in the SYN that is being built.
    fn syn_payload(&self, id: SubflowId) -> DataRange {
        self.paths.get(id).and_then(|s| s.tcp().payload_of_next_syn()).unwrap_or_default()
    }

    /// Appends a complete segment to the buffer.
    fn write_segment(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        head: &SegmentHead<'_>,
        data: DataRange,
        buf: &mut TransmitBuf,
    ) -> Option<()> {
        let overhead = head.len();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.append_datagram(overhead + data.len() as usize);
        let sum = self.sender.copy(data.start, &mut segment[overhead..])?;
        self.finish_segment(cx, id, head, sum, &mut buf.bytes_mut()[start..])
    }

    /// Sends a chosen repair. `None` if it must wait. `limit` is the largest segment that still fits the batch.
    pub(super) fn emit_repair(
        &mut self,
        cx: &mut Context<'_>,
        choice: &Choice,
        limit: usize,
        buf: &mut TransmitBuf,
    ) -> Option<EmittedSegments> {
        let id = choice.subflow;
        let tcp = self.paths.get(id)?.tcp();
        let ssn = tcp.snd_nxt();
        let checksum = self.session.uses_checksum();
        let options = fec_tx::option_len(checksum, tcp.uses_timestamps());
        let overhead = TCP_HEADER_LEN + options;
        let room = tcp.settled_segment().checked_sub(overhead)?;
        let repair = self.sender.next_repair(id, choice.range, room)?;
        if overhead + usize::from(repair.symbol) > limit {
            return None;
        }
        let sum = self.sender.compute_sum(&repair)?;
        let sent = SentRepair::new(ssn, repair, sum, self.session);
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let segment = tcp.push_repair(cx.now, repair.symbol, sent.checksum());
        self.sender.keep_repair(id, sent);
        cx.out.counters.repair_tx += 1;
        self.write_repair(cx, id, HeaderFor::Data(&segment), buf)
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
    ) -> Option<EmittedSegments> {
        let segment = match what {
            HeaderFor::Data(segment) | HeaderFor::Egress(Egress::Retransmit(segment)) => segment,
            HeaderFor::Egress(_) => return None,
        };
        let window = self.receiver.advertise();
        let sent = self.sender.sent_repair(id, segment.mapping_start)?;
        let payload = sent.part_for_segment(segment)?;
        let mut options = TcpOptions::default();
        options.mptcp.push(sent.option(self.session, self.receiver.data_ack()));
        let sum = Checksum::of(payload);
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        let size = TCP_HEADER_LEN + options.encoded_len() + payload.len();
        let at = buf.bytes().len() + buf.headroom();
        let place = buf.append_datagram(size);
        let header_len = size - payload.len();
        place[header_len..].copy_from_slice(payload);
        let (payload_bytes, repeated) =
            (payload.len() as u64, matches!(what, HeaderFor::Egress(_)));
        let bytes = &mut buf.bytes_mut()[at..];
        self.finish_segment(cx, id, &SegmentHead::new(&header, &options), sum, bytes)?;
        let purpose = match repeated {
            true => Purpose::Retransmission { after_timeout: false },
            false => Purpose::Repair,
        };
        let (seq, data) = (header.seq, DataRange::default());
        report_traffic(cx, self.id, || {
            Traffic::Sent(SegmentSent { on: id, purpose, seq, data, payload_bytes, segments: 1 })
        });
        Some(EmittedSegments { size, count: 1, ecn })
    }
}
