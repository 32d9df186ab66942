//! Data segments: batches chosen by the scheduler, runs of full segments under one mapping, and the completion of all
//! segments.

use marline_policy::{DataRange, Dsn, ReinjectionCause, RunLayout, SentSegment, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::{
    Checksum, HeaderTemplate, TCP_HEADER_LEN, TcpFlags, TcpHeader, TcpOptions, dss_checksum,
    store_tcp_checksum, tcp_pseudo_header,
};

use super::fallback::Point;
use super::scheduling::{Choice, Kind};
use super::segment_builder::{Batch, EmittedSegments, SegmentBuilder, SegmentHead};
use super::segment_options::{Frame, mp_idle_option};
use super::subflow_context::SubflowContext;
use crate::subflow::{HeaderFor, PayloadRoom};
use crate::tables::Context;
use crate::{Ecn, Event, Purpose, SegmentSent, Traffic, Transmit, TransmitBuf};

/// Maximum length of a mapping in bytes: the maximum of its length field, less one for a FIN.
pub(super) const MAX_MAPPING_BYTES: u64 = 0xffff - 1;
/// Every eighth segment of a run repeats the mapping. The first would be enough if segments always arrived unchanged,
/// but a middlebox that merges segments may drop the options of the appended ones.
const MAPPING_REPEAT_INTERVAL: u16 = 8;

/// Position of a segment in the batch that is being filled.
#[derive(Copy, Clone, Debug)]
struct BatchSlot {
    /// Number of segments before it.
    number: usize,
    /// Size in bytes of the largest segment that still fits.
    limit: usize,
}

impl BatchSlot {
    const FIRST: BatchSlot = BatchSlot { number: 0, limit: usize::MAX };
}

/// Full segments that are sent together under one mapping.
#[derive(Copy, Clone, Debug)]
struct Run {
    range: DataRange,
    layout: RunLayout,
    segments: usize,
    /// Scheduling decision that this run is part of.
    rest: Choice,
}

/// Headers of a run's segments.
#[derive(Debug)]
struct RunHeaders {
    /// Header of the first segment, if it reports that the congestion window was reduced.
    with_cwr: Option<HeaderTemplate>,
    mapped: HeaderTemplate,
    plain: HeaderTemplate,
}

impl RunHeaders {
    fn template_for(&self, number: u64, layout: RunLayout) -> &HeaderTemplate {
        match &self.with_cwr {
            Some(first) if number == 0 => first,
            _ if layout.is_mapped(number) => &self.mapped,
            _ => &self.plain,
        }
    }
}

/// Batches of data segments.
impl SegmentBuilder<'_> {
    /// Sends data as the scheduler decides, until it chooses another subflow.
    pub(super) fn emit_batch(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut TransmitBuf,
    ) -> Option<Batch> {
        let now = cx.now;
        if self.closing.is_closed() || self.session.is_offered() {
            return None;
        }
        if !self.sender.has_data() {
            self.assignment().record_nothing_to_send(now);
            return None;
        }
        self.assignment().refresh_views(now);
        let first = self.assignment().choose(now);
        let sent = first.and_then(|choice| self.emit_chosen(cx, &choice, BatchSlot::FIRST, buf));
        let (id, sent) = match (first, sent) {
            (Some(choice), Some(sent)) => (choice.subflow, sent),
            (first, _) => {
                match first {
                    None => self.assignment().record_nothing_to_send(now),
                    // The rest of the peer's window is too small for a segment.
                    Some(_) => self.assignment().report_blocked(now),
                }
                // The scheduler may have requested a repetition.
                let constraints = self.assignment().constraints(now);
                let repeat = self.scheduling.choose_reinjection(constraints, self.sender)?;
                (repeat.subflow, self.emit_data(cx, &repeat, BatchSlot::FIRST, buf)?)
            }
        };
        let stride = sent.size + buf.headroom();
        let count = self.fill_batch(cx, id, sent, buf);
        self.assignment().rearm_after_sending(now);
        self.assignment().watch_progress(now);
        if self.sender.take_writable_for_sent(now) && !self.closing.is_released() {
            cx.out.event(Event::Writable(self.id));
        }
        Some(Batch { id, count, stride, ecn: sent.ecn })
    }

    /// Adds segments of the same size for the same subflow. Returns the total number of segments in the batch.
    fn fill_batch(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        first: EmittedSegments,
        buf: &mut TransmitBuf,
    ) -> usize {
        let EmittedSegments { size, mut count, .. } = first;
        while count < buf.max_datagrams() {
            self.assignment().refresh_view(cx.now, id);
            let Some(next) = self.assignment().choose(cx.now) else { break };
            if next.subflow != id {
                self.scheduling.defer(cx.now, next);
                break;
            }
            let place = BatchSlot { number: count, limit: size };
            let Some(next) = self.emit_chosen(cx, &next, place, buf) else { break };
            count += next.count;
            if next.size != size {
                break;
            }
        }
        count
    }

    fn emit_chosen(
        &mut self,
        cx: &mut Context<'_>,
        choice: &Choice,
        place: BatchSlot,
        buf: &mut TransmitBuf,
    ) -> Option<EmittedSegments> {
        if let Some(run) = self.plan_run(cx.now, choice, place, buf) {
            return self.emit_run(cx, choice.subflow, run, buf);
        }
        match choice.kind {
            Kind::Repair => self.emit_repair(cx, choice, place.limit, buf),
            Kind::New if choice.run => {
                self.emit_data(cx, &self.extend_to_segment(choice), place, buf)
            }
            Kind::New | Kind::Repeat => self.emit_data(cx, choice, place, buf),
        }
    }

    /// Sends one segment of new data on this subflow, regardless of the scheduler.
    pub(super) fn emit_new_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let range = self.sender.unsent();
        let is_full = self.paths.get(id).is_none_or(|subflow| subflow.tcp().is_full());
        if range.is_empty() || is_full {
            return None;
        }
        self.scheduling.discard_all();
        self.assignment().refresh_views(cx.now);
        let choice = Choice::single(id, range, Kind::New);
        let EmittedSegments { size, ecn, .. } =
            self.emit_data(cx, &choice, BatchSlot::FIRST, buf)?;
        self.transmit(Batch { id, count: 1, stride: size + buf.headroom(), ecn })
    }

    /// Extends the last segment of a run to a full segment with following new data. It is short because the segments
    /// before it had more room than the MSS.
    fn extend_to_segment(&self, choice: &Choice) -> Choice {
        let mss = self.paths.get(choice.subflow).map_or(0, |subflow| subflow.tcp().mss());
        let range = choice.range;
        let least = range.start.plus(u64::from(mss)).min(self.sender.unsent().end);
        Choice { range: DataRange::new(range.start, range.end.max(least)), ..*choice }
    }

    /// True if new data may be sent in runs of segments under one mapping.
    fn sends_runs(&self) -> bool {
        self.session.maps_runs(self.config)
            && !self.sender.nagle().has_records()
            && !self.sender.may_repair()
    }

    /// Plans the full segments that may be sent at once under one mapping, if there are several. The last byte
    /// written is excluded: its segment may carry marks, wait for more data, or carry the FIN.
    fn plan_run(
        &self,
        now: Instant,
        choice: &Choice,
        place: BatchSlot,
        buf: &TransmitBuf,
    ) -> Option<Run> {
        // Until the peer has shown that options pass on the subflow, every segment carries its mapping: otherwise a
        // middlebox that drops only segments with options would alter the stream.
        let proven = self.session.is_plain() || self.sender.is_proven(choice.subflow);
        let runs = match choice.kind {
            Kind::New => choice.run,
            Kind::Repeat => true,
            Kind::Repair => false,
        };
        if !runs || !proven || !self.sends_runs() {
            return None;
        }
        let subflow = self.paths.get(choice.subflow)?;
        let tcp = subflow.tcp();
        let (size, mss) = (tcp.settled_segment(), u64::from(tcp.mss().max(1)));
        let begun = place.number > 0;
        if begun && place.limit != size {
            return None;
        }
        let most = tcp.run_segments(now, buf.max_datagrams() - place.number);
        if most < 2 {
            return None;
        }
        let room =
            self.payload_room(subflow, Point { ssn: tcp.snd_nxt(), dsn: choice.range.start });
        let (mapped, plain) = (room.mapped as u16, room.plain as u16);
        // New data uses as many full segments as the scheduler decided, although those without the mapping have
        // more room than the MSS.
        let last = self.sender.written_end().0 - 1;
        let (end, decided) = match choice.kind {
            Kind::New => (self.sender.unsent().end.0.min(last), choice.range.len().div_ceil(mss)),
            Kind::Repeat | Kind::Repair => (choice.range.end.0.min(last), u64::MAX),
        };
        let start = choice.range.start;
        let bytes = end.saturating_sub(start.0).min(MAX_MAPPING_BYTES);
        let count = |layout: RunLayout| layout.segments_within(bytes).min(most as u64).min(decided);
        let layout = RunLayout { mapped, plain, group: MAPPING_REPEAT_INTERVAL };
        let layout =
            match buf.combines_segments() && count(layout) > u64::from(MAPPING_REPEAT_INTERVAL) {
                true => RunLayout { mapped, plain: mapped, group: 1 },
                false => layout,
            };
        let fits = count(layout);
        let range = DataRange::new(start, start.plus(layout.len_of(fits)));
        (fits > 1).then_some(Run { range, layout, segments: fits as usize, rest: *choice })
    }

    /// Sends a run.
    fn emit_run(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        run: Run,
        buf: &mut TransmitBuf,
    ) -> Option<EmittedSegments> {
        let Run { range, layout, segments, rest } = run;
        self.session.watch_dsn_speed(cx.now, self.sender.sent());
        self.sender.on_segment();
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let size = tcp.settled_segment();
        let ssn = tcp.snd_nxt();
        let sent = tcp.push_run(cx.now, range.start, range.len() as u16, layout);
        let repeat = rest.kind == Kind::Repeat;
        if repeat {
            tcp.stats_mut().trouble.bytes_reinjected += range.len();
        }
        if cx.out.traces_traffic(self.id) {
            self.trace_data(cx, &rest, ssn, range, segments as u32);
        }
        self.sender.record_sent(id, ssn, range, repeat);
        if let Some(rest) = rest.remaining(range.end) {
            self.scheduling.defer(cx.now, rest);
        }
        let (headers, ecn) = self.run_headers(cx, id, &sent, size)?;
        let tcp = self.paths.get(id)?.tcp();
        for number in 0..segments as u64 {
            let template = headers.template_for(number, layout);
            let at = layout.len_of(number);
            let segment = buf.append_datagram(size);
            let payload = &mut segment[template.header_len()..];
            let sum = self.sender.copy(range.start.plus(at), payload)?;
            template.write(tcp.to_wire(ssn.plus(at)), sum, segment);
        }
        cx.out.counters.segments_out += segments as u64;
        cx.out.counters.bytes_out += range.len();
        Some(EmittedSegments { size, count: segments, ecn })
    }

    /// Headers of a run's segments.
    fn run_headers(
        &mut self,
        cx: &Context<'_>,
        id: SubflowId,
        sent: &SentSegment,
        size: usize,
    ) -> Option<(RunHeaders, Ecn)> {
        let mut options = TcpOptions::default();
        self.mapping_options(id, sent, &mut options);
        let window = self.receiver.advertise();
        let subflow = self.paths.get_mut(id)?;
        let what = HeaderFor::Data(sent);
        let (first, ecn) = subflow.tcp_mut().fill_header(cx.now, what, window, &mut options);
        let addresses = subflow.tcp().checksum_addresses(cx.config.capabilities.checksum);
        let template = |header: &TcpHeader, options: &TcpOptions| {
            let template = HeaderTemplate::new(header, options, addresses, size);
            debug_assert!(template.is_ok(), "{template:?}");
            template.ok()
        };
        let flags = first.flags.without(TcpFlags::CWR);
        let other = TcpHeader { flags, ..first };
        let with_cwr = match flags == first.flags {
            true => None,
            false => Some(template(&first, &options)?),
        };
        let mapped = template(&other, &options)?;
        options.dss = None;
        Some((RunHeaders { with_cwr, mapped, plain: template(&other, &options)? }, ecn))
    }

    /// Sends the chosen data. `None` if it must wait.
    fn emit_data(
        &mut self,
        cx: &mut Context<'_>,
        choice: &Choice,
        place: BatchSlot,
        buf: &mut TransmitBuf,
    ) -> Option<EmittedSegments> {
        let id = choice.subflow;
        self.session.watch_dsn_speed(cx.now, self.sender.sent());
        let subflow = self.paths.get(id)?;
        let ssn = subflow.tcp().snd_nxt();
        let timestamps = subflow.tcp().uses_timestamps();
        let (choice, frame) = self.frame(choice, ssn, timestamps)?;
        let Frame { overhead, room, idle } = frame;
        let dsn = choice.range.start;
        let most = (choice.range.len() as usize).min(room);
        let (len, ends_record) = self.sender.nagle().bytes_within_record(dsn, most);
        let is_last = dsn.plus(len as u64) == self.sender.written_end();
        let is_stub = len < room && !ends_record && choice.kind != Kind::Repeat;
        let too_long = overhead + len > place.limit;
        if len == 0 || too_long || is_stub && is_last && self.must_wait(cx.now) {
            return None;
        }
        if (!ends_record || is_last) && self.is_silly_segment(cx.now, &choice, len, room) {
            return None;
        }
        self.sender.on_segment();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.append_datagram(overhead + len);
        let sum = self.sender.copy(dsn, &mut segment[overhead..])?;
        let checksum = match self.session.uses_checksum() {
            true => {
                let wire = self.session.keys().local_wire(dsn);
                let at = self.session.wire_ssn(self.paths.is_initial(id), ssn);
                dss_checksum(wire, at, len as u16, sum)
            }
            false => 0,
        };
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let sent = tcp.push_data(cx.now, dsn, len as u16, checksum);
        if choice.kind == Kind::Repeat {
            tcp.stats_mut().trouble.bytes_reinjected += len as u64;
        }
        let range = choice.range.prefix(len as u64);
        if cx.out.traces_traffic(self.id) {
            self.trace_data(cx, &choice, ssn, range, 1);
        }
        self.sender.record_sent(id, ssn, range, choice.kind == Kind::Repeat);
        if let Some(rest) = choice.remaining(range.end) {
            self.scheduling.defer(cx.now, rest);
        }
        let mut options = TcpOptions::default();
        self.mapping_options(id, &sent, &mut options);
        if options.dss.is_none() && self.session.is_multipath() {
            self.sender.record_keyed(id, sent.end);
        }
        if idle && options.mptcp.push(mp_idle_option()) {
            cx.out.counters.mp_idle_tx += 1;
        }
        self.mark_push(id, ends_record, is_last);
        let window = self.receiver.advertise();
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let what = HeaderFor::Data(&sent);
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        debug_assert_eq!(TCP_HEADER_LEN + options.encoded_len(), overhead);
        let bytes = &mut buf.bytes_mut()[start..];
        self.finish_segment(cx, id, &SegmentHead::new(&header, &options), sum, bytes)?;
        Some(EmittedSegments { size: overhead + len, count: 1, ecn })
    }

    /// Sets or withholds PSH on a data segment. PSH requests that the peer deliver immediately.
    fn mark_push(&mut self, id: SubflowId, ends_record: bool, is_last: bool) {
        let released = !is_last || self.sender.take_release();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if ends_record || is_last && released {
            subflow.tcp_mut().mark_message_end();
        } else if !released {
            subflow.tcp_mut().withhold_push();
        }
    }

    /// Computes the layout of a segment for the choice, and the choice cut or extended to it. A full segment is
    /// filled to its real capacity: more than the MSS while a larger size is being tried, or if options are shorter
    /// than usual.
    fn frame(&self, choice: &Choice, ssn: Ssn, timestamps: bool) -> Option<(Choice, Frame)> {
        let subflow = self.paths.get(choice.subflow)?;
        let options =
            self.data_options(subflow, Point { ssn, dsn: choice.range.start }, timestamps);
        let overhead = TCP_HEADER_LEN + options.encoded_len();
        let most = subflow.tcp().max_segment().checked_sub(overhead)?;
        let room = most.min(usize::from(u16::MAX));
        let mss = u64::from(subflow.tcp().mss());
        let full = choice.kind == Kind::New && choice.range.len() >= mss;
        let choice = match full && choice.range.len() < room as u64 {
            true => Choice { range: self.sender.unsent().prefix(room as u64), ..*choice },
            false => *choice,
        };
        let frame = Frame { overhead, room, idle: false };
        Some((choice, self.frame_with_mark(subflow, &choice, frame, ssn)))
    }

    /// True if the last bytes, fewer than a segment, must wait for more data.
    fn must_wait(&mut self, now: Instant) -> bool {
        let rto = self.paths.largest_rto(self.config);
        !self.closing.is_shut_down() && self.sender.holds_back(now, rto)
    }

    /// True if the peer's window cuts the segment short while more data waits (RFC 9293 section 3.8.6.2.1), so that it
    /// should not be sent. If data is in flight, its ACK will bring a window update. Otherwise a segment is sent if it
    /// fills half of the peer's largest window so far, or less after a while. This does not apply to a segment that the
    /// scheduler cut short, or that is full at the size in use while a larger size is being tried.
    fn is_silly_segment(&mut self, now: Instant, choice: &Choice, len: usize, room: usize) -> bool {
        let id = choice.subflow;
        let mss = self.paths.get(id).map_or(room, |subflow| subflow.tcp().mss() as usize);
        if choice.kind != Kind::New || len >= room.min(mss) {
            return false;
        }
        let end = choice.range.start.plus(len as u64);
        let is_last = end == self.sender.written_end();
        let cut = !is_last && end == self.sender.window_end();
        let nagle = is_last && self.sender.nagle().is_on() && !self.closing.is_shut_down();
        let views = self.scheduling.views();
        let in_flight = views
            .iter()
            .any(|v| v.bytes_in_flight > 0 && (v.id == id || !v.health.is_unreachable()));
        if in_flight {
            return cut || nagle;
        }
        let largest = self.paths.get(id).map_or(0, |s| s.tcp().largest_peer_window());
        let rto = self.paths.largest_rto(self.config);
        cut && (len as u64) < largest / 2 && self.sender.waits_for_window(now, rto)
    }

    /// Reports sent data. `ssn` is the position on the subflow.
    #[cold]
    fn trace_data(
        &self,
        cx: &mut Context<'_>,
        choice: &Choice,
        ssn: Ssn,
        data: DataRange,
        segments: u32,
    ) {
        let on = choice.subflow;
        let Some(subflow) = self.paths.get(on) else { return };
        let purpose = self.purpose_of_choice(choice, data.start);
        let (seq, payload_bytes) = (subflow.tcp().to_wire(ssn), data.len());
        let sent = SegmentSent { on, purpose, seq, data, payload_bytes, segments };
        cx.out.traffic(cx.now, self.id, Traffic::Sent(sent));
    }

    /// Reason for sending the chosen data, whose first byte is at this position.
    fn purpose_of_choice(&self, choice: &Choice, at: Dsn) -> Purpose {
        match choice.kind {
            Kind::New => Purpose::New,
            Kind::Repair => Purpose::Repair,
            // A repetition that a policy requested on a specific subflow counts as its copy, queued or not.
            Kind::Repeat => match self.sender.reinjections().cause_at(at) {
                None | Some(ReinjectionCause::Policy) => Purpose::Copy,
                Some(cause) => Purpose::Reinjection(cause),
            },
        }
    }
}

/// Completion of segments, with data or without.
impl SegmentBuilder<'_> {
    /// Room in bytes for the payload of a full segment whose data starts at `at`.
    pub(super) fn payload_room(&self, subflow: &SubflowContext, at: Point) -> PayloadRoom {
        let tcp = subflow.tcp();
        let mut options = self.data_options(subflow, at, tcp.uses_timestamps());
        let room = |options: &TcpOptions| {
            tcp.settled_segment().saturating_sub(TCP_HEADER_LEN + options.encoded_len())
        };
        let mapped = room(&options);
        if self.session.maps_runs(self.config) {
            options.dss = None;
        }
        PayloadRoom { mapped, plain: room(&options) }
    }

    /// Describes a batch for the driver. `None` if the subflow is gone.
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

    /// Writes the header before a payload that is already in place.
    pub(super) fn finish_segment(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        head: &SegmentHead<'_>,
        payload: Checksum,
        segment: &mut [u8],
    ) -> Option<()> {
        let SegmentHead { header, options, fast_open } = head;
        let written = match fast_open {
            None => header.emit(options, segment),
            Some(fast_open) => header.emit_with(options, fast_open, segment),
        };
        debug_assert!(written.is_ok(), "{written:?} for {head:?}");
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
}
