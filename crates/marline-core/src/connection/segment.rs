//! Building segments: header, options and payload, written once, straight into the batch.

use marline_policy::{Dsn, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::mptcp::MptcpOption;
use marline_wire::{Checksum, dss_checksum, store_tcp_checksum, tcp_pseudo_header};
use marline_wire::{TcpHeader, TcpOptions};

use super::Connection;
use super::idle::Frame;
use super::scheduling::{Choice, Kind};
use crate::subflow::{Egress, HeaderFor};
use crate::tables::Context;
use crate::transmit::TransmitBuf;
use crate::{ChecksumScope, Ecn, Transmit};

/// Bytes of a TCP header without options.
const HEADER: usize = marline_wire::TCP_HEADER_LEN;

impl Connection {
    /// Builds what TCP, or a signal, asked for. `None`: the subflow is gone.
    #[expect(clippy::too_many_arguments, reason = "all that one segment is made of")]
    pub(super) fn emit(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        egress: &Egress,
        signal: Option<MptcpOption>,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let now = cx.now;
        if let Egress::Retransmit(segment) = egress
            && segment.repair
        {
            return self.repeat_repair(cx, id, egress, buf);
        }
        let mut options = TcpOptions::default();
        self.control_options(cx, id, egress, signal, &mut options);
        let window = self.receiver.advertise();
        let tcp = &mut self.leg_mut(id)?.tcp;
        let owes_sack = signal.is_some() && tcp.owes_sack();
        let (header, ecn) = tcp.fill_header(now, HeaderFor::Egress(egress), window, &mut options);
        if !options.fits() {
            options.timestamps = None;
        }
        // Data has no room to spare, and a signal perhaps none: SACK blocks go in an ACK of their own.
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
        self.write_segment(cx, id, &header, &options, payload, buf)?;
        if matches!(egress, Egress::Rst) {
            self.after_reset(cx, id);
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
        let handshake = matches!(egress, Egress::Syn | Egress::SynAck);
        Some(Transmit { handshake, ..self.batch(id, 1, buf.bytes().len(), ecn)? })
    }

    fn after_reset(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        cx.out.counters.resets_out += 1;
        if let Some(leg) = self.leg_mut(id) {
            leg.reset_sent = true;
        }
    }

    /// Sends data that was chosen. Returns the bytes of the segment, or `None` if it must wait.
    /// `limit` is the largest segment that still fits the batch.
    pub(super) fn emit_data(
        &mut self,
        cx: &mut Context<'_>,
        choice: &Choice,
        limit: usize,
        buf: &mut TransmitBuf,
    ) -> Option<(usize, Ecn)> {
        let now = cx.now;
        let id = choice.subflow;
        self.session.watch_dsn_speed(now, self.sender.sent());
        let leg = self.leg(id)?;
        let ssn = leg.tcp.snd_nxt();
        let max_segment = leg.tcp.max_segment();
        let timestamps = leg.tcp.uses_timestamps();
        let overhead = HEADER + self.data_option_len(id, choice.range.start, ssn, timestamps);
        let room = max_segment.checked_sub(overhead)?.min(usize::from(u16::MAX));
        let choice = &self.whole_segment(choice, room);
        let frame = Frame { overhead, room, idle: false };
        let Frame { overhead, room, idle } = self.frame_with_mark(choice, frame, timestamps);
        let dsn = choice.range.start;
        let (len, ends_record) =
            self.sender.nagle().within_record(dsn, (choice.range.len() as usize).min(room));
        let is_last = dsn.plus(len as u64) == self.sender.written();
        let is_stub = len < room && !ends_record && choice.kind != Kind::Repeat;
        if len == 0 || overhead + len > limit || is_stub && is_last && self.is_held(now) {
            return None;
        }
        if (!ends_record || is_last) && self.is_silly(now, choice, len, room) {
            return None;
        }
        self.sender.on_segment();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.grow(overhead + len);
        let sum = self.sender.copy(dsn, &mut segment[overhead..])?;
        let mapping_checksum = if self.session.uses_checksum() {
            let wire = self.session.keys().local_wire(dsn);
            dss_checksum(wire, ssn.0 as u32, len as u16, sum)
        } else {
            0
        };
        let sent = self.leg_mut(id)?.tcp.push_data(now, dsn, len as u16, mapping_checksum);
        self.account(id, ssn, choice, len as u64);
        let released = !is_last || self.sender.take_release();
        let ends_message = ends_record || is_last && released;
        let takes_fin = is_last && self.takes_fin(choice);
        let bursts = self.config.conduct.push_bursts > 0;
        let another = self.sender.written().since(dsn.plus(len as u64)) >= room as u64;
        let (whole, place) = (len == room, self.batched);
        let mut options = TcpOptions::default();
        self.mapping_options(id, &sent, &mut options);
        if options.dss.is_none() && self.session.is_multipath() {
            self.sender.note_keyed(id, sent.end);
        }
        if idle {
            self.push_mark(cx, &mut options);
        }
        let window = self.receiver.advertise();
        let tcp = &mut self.legs.get_mut(usize::from(id.0))?.as_deref_mut()?.tcp;
        let ends_burst = bursts && whole && tcp.ends_burst(place, another);
        if bursts && ends_message {
            tcp.mark_message_end_for_good();
        } else if ends_message || ends_burst {
            tcp.mark_message_end();
        } else if !released {
            tcp.withhold_push();
        }
        let sent = if takes_fin { tcp.add_fin().unwrap_or(sent) } else { sent };
        let (header, ecn) = tcp.fill_header(now, HeaderFor::Data(&sent), window, &mut options);
        debug_assert_eq!(HEADER + options.encoded_len(), overhead);
        let bytes = &mut buf.bytes_mut()[start..];
        self.finish_segment(cx, id, &header, &options, sum, bytes)?;
        Some((overhead + len, ecn))
    }

    /// Whether the stream's last data takes the FIN along.
    const fn takes_fin(&self, choice: &Choice) -> bool {
        let last = self.session.is_plain() && self.closing.shutdown;
        last && !matches!(choice.kind, Kind::Repeat) && self.config.conduct.fin_with_data
    }

    /// Who gives a subflow a full segment gives it what the next one really holds: more than its MSS while a
    /// larger size is tried, or when options are shorter than usual.
    fn whole_segment(&self, choice: &Choice, room: usize) -> Choice {
        let mss = self.leg(choice.subflow).map_or(u32::MAX, |leg| leg.tcp.mss());
        let full = choice.kind == Kind::New && choice.range.len() >= u64::from(mss);
        if !full || choice.range.len() >= room as u64 {
            return *choice;
        }
        Choice { range: self.sender.unsent().prefix(room as u64), ..*choice }
    }

    /// A segment cut short by the end of the peer's window is not worth sending while more data waits. If
    /// something is in flight, that will bring a window update; if not, half of the largest window the peer
    /// ever had is worth it, and less than that after a while (RFC 9293 section 3.8.6.2.1). One that the
    /// scheduler wants short is as long as it should be, and one that is full by the size in use needs no
    /// larger one that is only tried.
    fn is_silly(&mut self, now: Instant, choice: &Choice, len: usize, room: usize) -> bool {
        let id = choice.subflow;
        let full = room.min(self.leg(id).map_or(room, |leg| leg.tcp.mss() as usize));
        if choice.kind != Kind::New || len >= full {
            return false;
        }
        let end = choice.range.start.plus(len as u64);
        let is_last = end == self.sender.written();
        let cut = !is_last && end == self.sender.window_end();
        let nagle = is_last && self.sender.nagle().is_on() && !self.closing.shutdown;
        let views = self.scheduling.views();
        let in_flight =
            views.iter().any(|v| v.bytes_in_flight > 0 && (v.id == id || !v.potentially_failed));
        if in_flight {
            return cut || nagle;
        }
        let largest = self.leg(id).map_or(0, |leg| leg.tcp.largest_peer_window());
        let rto = self.largest_rto();
        cut && (len as u64) < largest / 2 && self.sender.waits_for_window(now, rto)
    }

    fn account(&mut self, id: SubflowId, ssn: Ssn, choice: &Choice, len: u64) {
        let repeat = choice.kind == Kind::Repeat;
        self.sender.carry(id, ssn, choice.range.prefix(len), repeat);
        if let Some(leg) = self.leg_mut(id).filter(|_| repeat) {
            leg.tcp.stats_mut().bytes_reinjected += len;
        }
    }

    /// The last bytes there are, fewer than a segment holds, wait for more.
    fn is_held(&mut self, now: Instant) -> bool {
        let rto = self.largest_rto();
        !self.closing.shutdown && self.sender.holds_back(now, rto)
    }

    /// Appends a whole segment to the buffer.
    #[expect(clippy::too_many_arguments, reason = "all that one segment is made of")]
    pub(super) fn write_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        header: &TcpHeader,
        options: &TcpOptions,
        (dsn, len): (Dsn, usize),
        buf: &mut TransmitBuf,
    ) -> Option<()> {
        let overhead = HEADER + options.encoded_len();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.grow(overhead + len);
        let sum = self.sender.copy(dsn, &mut segment[overhead..])?;
        self.finish_segment(cx, id, header, options, sum, &mut buf.bytes_mut()[start..])
    }

    /// Writes the header before a payload that is in place already.
    #[expect(clippy::too_many_arguments, reason = "all that one segment is made of")]
    pub(super) fn finish_segment(
        &mut self,
        cx: &mut Context<'_>,
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
        let addresses = match cx.config.capabilities.checksum {
            ChecksumScope::WithAddresses => Some((path.local.ip(), path.remote.ip())),
            ChecksumScope::WithoutAddresses => None,
        };
        let mut sum = tcp_pseudo_header(addresses, segment.len());
        sum.add_bytes(&segment[..header_len]);
        sum.append(payload);
        store_tcp_checksum(segment, sum.finish());
        cx.out.counters.segments_out += 1;
        cx.out.counters.bytes_out += (segment.len() - header_len) as u64;
        Some(())
    }
}
