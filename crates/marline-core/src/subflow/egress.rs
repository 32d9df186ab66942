//! Output of a subflow: the segments it must send, the data it accepts from the connection, and their headers.
//!
//! Retransmissions come before new data: a gap on a subflow makes all later data useless until it is filled. A pure ACK
//! comes last, because any other segment also carries the acknowledgment.

use std::sync::Arc;

use marline_policy::{
    CongestionSignal, DataRange, Dsn, Eligibility, LimitedTransmit, Phase, RunLayout, SentKind,
    SentNotice, SentSegment, Ssn,
};
use marline_time::Instant;
use marline_wire::{TcpFlags, TcpHeader, TcpOptions};

use super::config::outstanding_limit;
use super::loss::{Frto, RetransmissionMode};
use super::reliable::SegmentCarrier;
use super::segment::{HEADER_BYTES, TIMESTAMP_OPTION_BYTES};
use super::transmission::Probe;
use super::{Egress, HeaderFor, PayloadRoom, PlainSegment, Rst, Subflow, SubflowEvent};
use crate::{Ecn, SubflowState};

impl Subflow {
    /// Next pending segment; it counts as sent now. `room` bounds retransmissions.
    pub(crate) fn next_egress(&mut self, now: Instant, room: PayloadRoom) -> Option<Egress> {
        self.next_egress_without_ack(now, room).or_else(|| self.next_ack())
    }

    /// Like [`next_egress`](Self::next_egress) without a pure ACK, which the next data will carry.
    pub(crate) fn next_egress_without_ack(
        &mut self,
        now: Instant,
        room: PayloadRoom,
    ) -> Option<Egress> {
        if let Some(rst) = self.pending.rst.take() {
            if matches!(rst, Rst::Own) {
                self.state.move_to_closed();
            }
            self.rst_to_fill = Some(rst);
            return Some(Egress::Rst);
        }
        if self.is_dead {
            return None;
        }
        match self.state.get() {
            SubflowState::Closed => return None,
            SubflowState::SynSent | SubflowState::SynReceived => {
                return self.next_syn(now).or_else(|| self.next_plain());
            }
            _ => {}
        }
        if let Some(segment) = self.next_retransmission(now, room) {
            return Some(Egress::Retransmit(segment));
        }
        if self.tx.probe == Probe::RepeatLast
            && let Some(segment) = self.repeat_last(now, room)
        {
            return Some(Egress::Retransmit(segment));
        }
        if self.tx.notes.early.is_wanted()
            && let Some(segment) = self.next_early_repeat(now, room)
        {
            return Some(Egress::Retransmit(segment));
        }
        if self.fin_wanted && self.state.may_send() {
            self.push_fin(now);
            return Some(Egress::Fin);
        }
        if core::mem::take(&mut self.pending.probe) {
            return Some(Egress::Probe);
        }
        self.next_plain()
    }

    fn next_plain(&mut self) -> Option<Egress> {
        self.pending.plain.take().map(Egress::Plain)
    }

    /// True if [`next_egress_without_ack`](Self::next_egress_without_ack) may return a segment. The check is cheap,
    /// because it is made at every turn.
    pub(crate) fn has_pending_besides_ack(&self) -> bool {
        self.pending.rst.is_some()
            || self.pending.probe
            || self.pending.plain.is_some()
            || self.fin_wanted
            || self.state.is_handshake()
            || self.tx.probe == Probe::RepeatLast
            || self.tx.notes.early.is_wanted()
            || self.tx.board.bytes_lost() > 0
    }

    fn next_ack(&mut self) -> Option<Egress> {
        let open = !self.is_dead
            && !self.state.is_handshake()
            && !self.state.matches_state(SubflowState::Closed);
        (open && self.ack.is_owed()).then_some(Egress::Ack)
    }

    fn next_syn(&mut self, now: Instant) -> Option<Egress> {
        if !self.pending.syn {
            return None;
        }
        self.on_syn_sent(now);
        Some(if self.state.matches_state(SubflowState::SynSent) {
            Egress::Syn
        } else {
            Egress::SynAck
        })
    }

    /// Lowest lost segment, if the window and the pacer allow it.
    fn next_retransmission(&mut self, now: Instant, room: PayloadRoom) -> Option<SentSegment> {
        if self.tx.board.bytes_lost() == 0 || self.repeats == RetransmissionMode::Paused {
            return None;
        }
        let forced = self.tx.force.take();
        if forced.is_none() {
            if self.tx.frto.defers_retransmissions() {
                return None;
            }
            // After a timeout without SACK, the segments represented by duplicate ACKs have left the network.
            let gone = if self.tx.phase == Phase::Loss { self.tx.unidentified_bytes } else { 0 };
            if self.tx.board.bytes_in_flight().saturating_sub(gone) >= self.send_window() {
                return None;
            }
            if let Some(at) = self.pacer.next_send_at(now) {
                self.pacer_wait.set(Some(at));
                return None;
            }
        }
        let index = self.tx.pop_lost()?;
        self.tx.cut_off_segment(index);
        let segment = self.tx.board.get(index)?;
        let repeats = self.tx.rto.count;
        let most = match forced {
            Some(_) => self.mtu.repeated_segment(repeats, segment.repair),
            None => self.mtu.current(),
        };
        if let Some(limit) = self.payload_limit(segment, room, most) {
            let at = segment.start.plus(limit);
            self.tx.cut(index, at);
        }
        self.retransmit(now, index, forced.unwrap_or(SentKind::Retransmission))
    }

    /// Tail loss probe that repeats the newest undelivered segment, or the end of it.
    fn repeat_last(&mut self, now: Instant, room: PayloadRoom) -> Option<SentSegment> {
        self.tx.probe.clear();
        let mut index = self.tx.board.iter().rposition(|segment| !segment.sacked)?;
        let at = self.tx.board.get(index)?.last_segment_start();
        index += usize::from(self.tx.cut(index, at));
        let last = self.tx.board.get(index)?;
        if let Some(limit) = self.payload_limit(last, room, self.mtu.current())
            && last.len() > limit
        {
            let at = Ssn(last.end.0 - limit);
            index += usize::from(self.tx.cut(index, at));
        }
        self.retransmit(now, index, SentKind::ProbeRepeat)
    }

    fn retransmit(&mut self, now: Instant, index: usize, kind: SentKind) -> Option<SentSegment> {
        let length = self.tx.board.get(index)?.len();
        let stamp = self.tx.stamp(now, length);
        self.tx.board.mark_retransmitted(index, now, stamp);
        let segment = *self.tx.board.get(index)?;
        if self.tx.phase != Phase::Open
            && let Some(undo) = self.tx.undo.as_mut()
        {
            undo.on_retransmission(segment.len(), self.timestamps.value(now));
        }
        if kind == SentKind::ProbeRepeat {
            self.stats.trouble.probes += 1;
            let data = if segment.repair { 0 } else { segment.payload_len() };
            let range = DataRange::new(segment.dsn, segment.dsn.plus(data));
            self.events.push_back(SubflowEvent::ProbeRepeated { range });
        }
        self.stats.bytes_sent += segment.payload_len();
        self.stats.trouble.bytes_retransmitted += segment.payload_len();
        let notice = SentNotice { start: segment.start, end: segment.end, kind };
        self.on_transmission(now, notice, segment.segments());
        Some(segment)
    }

    fn push_fin(&mut self, now: Instant) {
        self.fin_wanted = false;
        self.state.move_on_fin_sent();
        let dsn = self.tx.board.back().map_or(Dsn(0), |last| last.dsn.plus(last.payload_len()));
        self.push(now, SentSegment { dsn, fin: true, ..SentSegment::default() });
    }

    /// Send window in bytes.
    pub(super) fn send_window(&self) -> u64 {
        match self.tx.rto.carrier {
            SegmentCarrier::Datagrams => {}
            SegmentCarrier::Stream => return self.cwnd(),
            SegmentCarrier::FullStream => return 0,
        }
        if self.tx.phase == Phase::Recovery && !self.congestion.holds_window_in_recovery() {
            let by_acks = self.tx.board.bytes_in_flight() + self.tx.prr.allowance();
            by_acks.max(self.congestion.recovery_floor())
        } else {
            self.congestion.window()
        }
    }

    /// New data that may be sent now, if any. The last segment may extend beyond the window, so that windows that are
    /// not a multiple of the segment size cause no small segments.
    pub(crate) fn eligibility(&self, now: Instant) -> Eligibility {
        if self.is_dead || self.fin_wanted || self.pending.rst.is_some() || !self.may_send() {
            return Eligibility::NotActive;
        }
        let board = &self.tx.board;
        let mss = u64::from(self.tx.mss.max(1));
        let mut window = self.send_window();
        let taken = board.bytes_in_flight() + board.bytes_lost();
        if self.tx.phase == Phase::Open {
            match self.recovery.limited_transmit() {
                LimitedTransmit::BySack => {}
                LimitedTransmit::Off if board.bytes_sacked() > 0 => {
                    return Eligibility::CwndLimited;
                }
                LimitedTransmit::Off => {}
                LimitedTransmit::Beyond(bytes) => window += bytes,
            }
        }
        let room = window.saturating_sub(taken);
        if room == 0 || self.is_full() {
            return Eligibility::CwndLimited;
        }
        if let Some(at) = self.pacer.next_send_at(now) {
            self.pacer_wait.set(Some(at));
            return Eligibility::PacingLimited(at);
        }
        Eligibility::Ready { room: room.div_ceil(mss) * mss }
    }

    /// True if the limit on outstanding bytes, which the connection keeps, or on scoreboard entries is reached. No
    /// new data is then accepted, regardless of the window.
    pub(crate) fn is_full(&self) -> bool {
        self.tx.nxt.since(self.tx.una) >= self.config.outstanding_bytes
            || self.tx.board.len() >= self.config.outstanding_segments
    }

    /// Sets the maximum size of the send buffer that provides the subflow's data.
    pub(crate) fn set_send_buffer(&mut self, bytes: u64) {
        if self.config.outstanding_bytes != outstanding_limit(bytes) {
            Arc::make_mut(&mut self.config).set_send_buffer(bytes);
        }
    }

    /// True if an entry of the scoreboard may be a run of segments.
    fn sends_runs(&self) -> bool {
        self.recovery.allows_segment_runs()
            && self.tx.sack_enabled
            && self.max_segment() == self.settled_segment()
            && self.tx.probe == Probe::None
            && !self.awaits_frto_data()
    }

    /// Number of segments, at most `most`, that may be sent now as a run: one if each segment must be judged
    /// separately.
    pub(crate) fn run_segments(&self, now: Instant, most: usize) -> usize {
        let Eligibility::Ready { room } = self.eligibility(now) else { return 1 };
        if !self.sends_runs() {
            return 1;
        }
        let mss = u64::from(self.tx.mss.max(1));
        let paced = self.pacer.segments_before_closing(now, mss);
        usize::try_from((room / mss).min(paced)).unwrap_or(most).min(most)
    }

    /// Records a run of new segments, one mapping of `len` bytes, as sent now. The caller checked
    /// [`run_segments`](Self::run_segments) first.
    pub(crate) fn push_run(
        &mut self,
        now: Instant,
        dsn: Dsn,
        len: u16,
        layout: RunLayout,
    ) -> SentSegment {
        debug_assert!(len > 0 && self.may_send() && !self.is_dead);
        self.prepare_new_data(now);
        let content = SentSegment { dsn, mapping_len: len, layout, ..SentSegment::default() };
        let run = self.push(now, content);
        self.stats.bytes_sent += u64::from(len);
        self.ack.on_data_sent(now, self.tx.rtt.srtt());
        run
    }

    fn prepare_new_data(&mut self, now: Instant) {
        self.tx.starved = false;
        let idle = self.tx.board.is_empty() && self.tx.nxt > Ssn(1);
        if idle && now.since(self.tx.last_sent_at) > self.tx.timeout() {
            self.congestion.on_signal(CongestionSignal::Idle, now, self.id, &self.group);
        }
    }

    /// Records `len` bytes of new data with their own mapping as sent now. The caller checked
    /// [`eligibility`](Self::eligibility) first, or [`wants_new_data_probe`](Self::wants_new_data_probe).
    pub(crate) fn push_data(
        &mut self,
        now: Instant,
        dsn: Dsn,
        len: u16,
        mapping_checksum: u16,
    ) -> SentSegment {
        debug_assert!(len > 0 && self.may_send() && !self.is_dead);
        self.prepare_new_data(now);
        let segment = self.push(
            now,
            SentSegment { dsn, mapping_len: len, mapping_checksum, ..SentSegment::default() },
        );
        self.stats.bytes_sent += u64::from(len);
        self.ack.on_data_sent(now, self.tx.rtt.srtt());
        let overhead =
            HEADER_BYTES + if self.timestamps.enabled { TIMESTAMP_OPTION_BYTES } else { 0 };
        self.mtu.on_sent(segment.start, segment.end, overhead as u16);
        if u32::from(len) < self.tx.mss {
            self.mark_message_end();
        }
        segment
    }

    /// Records `len` bytes of a repair as sent now. The caller checked [`eligibility`](Self::eligibility) first.
    pub(crate) fn push_repair(&mut self, now: Instant, len: u16, checksum: u16) -> SentSegment {
        debug_assert!(len > 0 && self.may_send() && !self.is_dead);
        let content = SentSegment {
            mapping_len: len,
            mapping_checksum: checksum,
            repair: true,
            ..SentSegment::default()
        };
        let segment = self.push(now, content);
        self.stats.bytes_sent += u64::from(len);
        segment
    }

    /// Sets PSH on the data just pushed, which ends the application's data, so that the peer immediately acknowledges
    /// and delivers it.
    pub(crate) fn mark_message_end(&mut self) {
        self.push_end = self.tx.nxt;
    }

    /// Sends the data just pushed without PSH, although it is short.
    pub(crate) fn withhold_push(&mut self) {
        self.push_end = Ssn(0);
    }

    /// Appends a new segment with this content to the scoreboard.
    fn push(&mut self, now: Instant, content: SentSegment) -> SentSegment {
        self.repeats = RetransmissionMode::Always;
        let start = self.tx.nxt;
        let end = start.plus(u64::from(content.mapping_len) + u64::from(content.fin));
        let segment = SentSegment {
            start,
            end,
            mapping_start: start,
            sent_at: now,
            first_sent_at: now,
            transmissions: 1,
            rate: self.tx.stamp(now, end.since(start)),
            ..content
        };
        self.tx.board.push(segment);
        self.tx.nxt = end;
        if let Frto::WaitForNewData(left) = self.tx.frto {
            self.tx.frto = if left > 1 { Frto::WaitForNewData(left - 1) } else { Frto::Asked };
        }
        let kind = if self.tx.probe == Probe::Wanted && !content.fin {
            self.tx.probe.clear();
            self.stats.trouble.probes += 1;
            SentKind::ProbeNew
        } else {
            SentKind::New
        };
        self.on_transmission(now, SentNotice { start, end, kind }, segment.segments());
        segment
    }

    /// Updates all components after a transmission of sequence space.
    fn on_transmission(&mut self, now: Instant, notice: SentNotice, segments: usize) {
        let bytes = notice.end.since(notice.start);
        self.tx.last_sent_at = now;
        let segments = u32::try_from(segments).unwrap_or(u32::MAX);
        self.tx.tally.sent = self.tx.tally.sent.saturating_add(segments);
        let repeat = matches!(notice.kind, SentKind::Retransmission | SentKind::ProbeRepeat);
        if repeat {
            self.tx.tally.retransmitted = self.tx.tally.retransmitted.saturating_add(segments);
        }
        if self.tx.phase == Phase::Recovery {
            self.tx.prr.on_sent(bytes);
        }
        self.pacer.on_sent(now, bytes);
        self.congestion.on_sent(bytes, now);
        self.arm_rto(now);
        let in_flight = self.tx.board.bytes_in_flight();
        let limited = in_flight + u64::from(self.tx.mss) > self.cwnd();
        self.tx.window_use.on_sent(self.tx.una, self.tx.nxt, in_flight, limited);
        self.recovery.on_sent(&notice, &self.tx.context(now));
    }

    /// Records that the connection has no more data, either at all (`dry`) or for this subflow. After this, delivery
    /// rates are a lower bound.
    pub(crate) fn set_app_limited(&mut self, dry: bool) {
        let in_flight = self.tx.board.bytes_in_flight();
        let has_room = in_flight < self.send_window() && self.tx.board.bytes_lost() == 0;
        self.tx.starved |= dry || has_room;
        if has_room {
            self.tx.rate.set_app_limited(in_flight);
        }
    }

    /// True if the probe timer requests a probe. New data may be pushed for it, one segment beyond the window. If
    /// there is none, call [`repeat_last_as_probe`](Self::repeat_last_as_probe).
    pub(crate) fn wants_new_data_probe(&self) -> bool {
        self.tx.probe == Probe::Wanted && self.state.may_send() && !self.fin_wanted && !self.is_dead
    }

    /// Repeats the last segment with the next egress, because there is no new data for the probe.
    pub(crate) fn repeat_last_as_probe(&mut self) {
        if self.tx.probe == Probe::Wanted {
            self.tx.probe = Probe::RepeatLast;
        }
    }

    /// Requests an ACK as soon as possible.
    pub(crate) fn ack_now(&mut self) {
        self.ack.demand();
    }

    /// Requests an ACK within a few milliseconds, with or without data.
    pub(crate) fn ack_soon(&mut self, now: Instant) {
        self.ack.request_ack_soon(now);
    }

    /// True if an ACK is pending now.
    pub(crate) fn has_pending_ack(&self) -> bool {
        self.ack.is_owed()
    }

    /// Requests a probe as soon as possible: the peer answers it with an ACK.
    pub(crate) fn request_probe(&mut self) {
        self.pending.probe = !self.state.is_handshake();
    }

    /// Requests a probe without the connection's options as soon as possible, after retransmissions.
    pub(crate) fn request_plain_probe(&mut self) {
        if !self.state.is_handshake() {
            self.pending.plain = Some(PlainSegment::Probe);
        }
    }

    /// Requests an answer without options to a probe without options.
    pub(crate) fn answer_plain_probe(&mut self) {
        self.pending.plain = Some(PlainSegment::Ack);
    }

    /// Ends new data: a FIN follows the pushed data.
    pub(crate) fn close(&mut self) {
        match self.state.get() {
            // Data is in flight with the SYN, so the FIN follows when the SYN is answered.
            SubflowState::SynSent if self.syn_data.is_some() => self.fin_wanted = true,
            SubflowState::SynSent => self.finish_silently(),
            SubflowState::SynReceived | SubflowState::Established | SubflowState::CloseWait => {
                self.fin_wanted = true;
                // A wanted probe repeats the last segment instead of new data.
                self.repeat_last_as_probe();
            }
            _ => {}
        }
    }

    /// Like [`close`](Self::close), but an unanswered SYN is not abandoned: the FIN follows the answer.
    pub(crate) fn close_after_answer(&mut self) {
        if self.state.matches_state(SubflowState::SynSent) {
            self.fin_wanted = true;
        } else {
            self.close();
        }
    }

    /// Ends the subflow immediately with a pending RST, after which the state is closed.
    pub(crate) fn reset(&mut self) {
        match self.state.get() {
            SubflowState::Closed => {}
            SubflowState::TimeWait => self.finish_silently(),
            _ => {
                self.pending.rst = Some(Rst::Own);
                self.is_dead = true;
                self.stop_timers();
            }
        }
    }
}

/// Headers of outgoing segments.
impl Subflow {
    /// Fills header and TCP's own options of a segment; `rcv_window` is the window to offer, in bytes. Any segment
    /// with ACK counts as the pending ACK.
    pub(crate) fn fill_header(
        &mut self,
        now: Instant,
        what: HeaderFor<'_>,
        rcv_window: u64,
        options: &mut TcpOptions,
    ) -> (TcpHeader, Ecn) {
        let (src_port, dst_port) = self.path.ports();
        let mut header = TcpHeader { src_port, dst_port, ..TcpHeader::default() };
        let mut codepoint = Ecn::NotEct;
        let mut owes_sack = false;
        match what {
            HeaderFor::Egress(Egress::Syn) => {
                return (self.syn_header(now, header, rcv_window, options), codepoint);
            }
            HeaderFor::Egress(Egress::SynAck) => {
                return (self.syn_ack_header(now, header, rcv_window, options), codepoint);
            }
            HeaderFor::Egress(Egress::Rst) => {
                return (self.rst_header(now, header, options), codepoint);
            }
            HeaderFor::Egress(Egress::Plain(plain)) => {
                return (self.plain_header(now, *plain, header, rcv_window, options), codepoint);
            }
            HeaderFor::Egress(Egress::Ack) => header.seq = self.to_wire(self.tx.nxt),
            HeaderFor::Egress(Egress::Probe) => {
                header.seq = self.to_wire(Ssn(self.tx.una.0.saturating_sub(1)));
            }
            HeaderFor::Egress(Egress::Fin) => {
                header.seq = self.to_wire(Ssn(self.tx.nxt.0.saturating_sub(1)));
                header.flags = TcpFlags::FIN;
            }
            HeaderFor::Egress(Egress::Retransmit(segment)) => {
                owes_sack = self.has_pending_sack();
                self.data_header(segment, &mut header);
            }
            HeaderFor::Data(segment) => {
                owes_sack = self.has_pending_sack();
                self.data_header(segment, &mut header);
                let (flags, ect) = self.ecn.data_marks();
                header.flags = header.flags.with(flags);
                codepoint = ect;
            }
        }
        self.acknowledge(now, &mut header, rcv_window, options);
        if owes_sack {
            // Data segments have no room for SACK and do not count as duplicate ACKs.
            self.ack.demand();
        }
        (header, codepoint)
    }

    fn data_header(&self, segment: &SentSegment, header: &mut TcpHeader) {
        header.seq = self.to_wire(segment.start);
        if segment.fin {
            header.flags = TcpFlags::FIN;
        }
        let last = segment.end == self.tx.nxt && segment.retransmitted();
        let repeats_push = segment.push && segment.retransmitted();
        if segment.end == self.push_end || repeats_push || last && segment.payload_len() > 0 {
            header.flags = header.flags.with(TcpFlags::PSH);
        }
    }

    /// Fills the acknowledgment fields and options of a segment.
    fn acknowledge(
        &mut self,
        now: Instant,
        header: &mut TcpHeader,
        rcv_window: u64,
        options: &mut TcpOptions,
    ) {
        header.ack = self.irs.add(self.rx.nxt.0 as u32);
        header.flags = header.flags.with(TcpFlags::ACK).with(self.ecn.ack_flags());
        let shift = self.rx.window_shift;
        header.window = u16::try_from(rcv_window >> shift).unwrap_or(u16::MAX);
        let offered = u64::from(header.window) << shift;
        self.rx.edge = self.rx.edge.max(self.rx.nxt.plus(offered));
        self.rx.max_offered = self.rx.max_offered.max(offered);
        if self.timestamps.enabled {
            options.timestamps = Some(self.timestamps.option(now, true));
        }
        self.timestamps.on_ack_sent(self.rx.nxt);
        self.ack.on_ack_sent();
    }

    /// True if a pending ACK has SACK blocks to report.
    pub(crate) fn has_pending_sack(&self) -> bool {
        self.ack.is_owed() && self.tx.sack_enabled && self.has_sack_blocks()
    }
}
