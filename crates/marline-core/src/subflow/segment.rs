//! Sizes of segments, headers of segments without data (SYN, SYN/ACK, RST and plain ACKs), and the SACK option.

use marline_policy::{SentSegment, Ssn};
use marline_time::Instant;
use marline_wire::{SackBlock, SackBlocks, TcpFlags, TcpHeader, TcpOptions};

use super::{PayloadRoom, PlainSegment, Rst, Subflow};
use crate::SubflowState;

/// Size of a header without options, in bytes.
pub(super) const HEADER_BYTES: usize = 20;
/// Size of a padded timestamps option, in bytes.
pub(super) const TIMESTAMP_OPTION_BYTES: usize = 12;
/// Number of additional option bytes in a full Multipath TCP segment (DSS with mapping and DATA_ACK).
pub(super) const DSS_OPTION_BYTES: usize = 20;

impl Subflow {
    /// Maximum payload of a retransmitted segment of at most `most` bytes. A former MTU probe must be split. The first
    /// part carries the mapping, which the peer also applies to the rest, because bytes are processed in order.
    pub(super) fn payload_limit(
        &self,
        segment: &SentSegment,
        room: PayloadRoom,
        most: u16,
    ) -> Option<u64> {
        let first = segment.start <= segment.mapping_start;
        let payload = if first { room.mapped } else { room.plain };
        let header =
            HEADER_BYTES + if self.timestamps.enabled { TIMESTAMP_OPTION_BYTES } else { 0 };
        let limit = usize::from(most).saturating_sub(header).min(payload);
        (limit > 0).then_some(limit as u64)
    }

    pub(super) fn syn_header(
        &mut self,
        now: Instant,
        mut header: TcpHeader,
        rcv_window: u64,
        options: &mut TcpOptions,
    ) -> TcpHeader {
        header.seq = self.iss;
        header.flags = TcpFlags::SYN;
        if self.config.ecn {
            header.flags = header.flags.with(TcpFlags::ECE).with(TcpFlags::CWR);
        }
        header.window = u16::try_from(rcv_window).unwrap_or(u16::MAX);
        options.mss = Some(self.announced_mss());
        options.window_scale = Some(self.config.window_scale);
        options.sack_permitted = true;
        if self.timestamps.enabled {
            options.timestamps = Some(self.timestamps.option(now, false));
        }
        header
    }

    pub(super) fn syn_ack_header(
        &mut self,
        now: Instant,
        mut header: TcpHeader,
        rcv_window: u64,
        options: &mut TcpOptions,
    ) -> TcpHeader {
        header.seq = self.iss;
        let taken = if self.syn_alone { Ssn(1) } else { self.rx.nxt };
        header.ack = self.irs.add(taken.0 as u32);
        header.flags = TcpFlags::SYN.with(TcpFlags::ACK);
        if self.ecn.negotiated {
            header.flags = header.flags.with(TcpFlags::ECE);
        }
        // The window of a SYN is never scaled.
        header.window = u16::try_from(rcv_window).unwrap_or(u16::MAX);
        let offered = u64::from(header.window);
        self.rx.edge = self.rx.edge.max(self.rx.nxt.plus(offered));
        self.rx.max_offered = self.rx.max_offered.max(offered);
        options.mss = Some(self.announced_mss());
        options.window_scale = self.peer_scales.then_some(self.config.window_scale);
        options.sack_permitted = self.tx.sack_enabled;
        if self.timestamps.enabled {
            options.timestamps = Some(self.timestamps.option(now, true));
        }
        self.timestamps.on_ack_sent(self.rx.nxt);
        self.ack.on_ack_sent();
        header
    }

    pub(super) fn rst_header(
        &mut self,
        now: Instant,
        mut header: TcpHeader,
        options: &mut TcpOptions,
    ) -> TcpHeader {
        header.flags = TcpFlags::RST;
        match self.rst_to_fill.take() {
            Some(Rst::Answer(seq)) => header.seq = seq,
            // The peer's SYN was not seen, or not accepted. If the peer has our SYN, the RST lets it free its state.
            _ if self.rx.nxt == Ssn(0) => header.seq = self.to_wire(Ssn(1)),
            _ => {
                header.seq = self.to_wire(self.tx.nxt);
                header.ack = self.irs.add(self.rx.nxt.0 as u32);
                header.flags = header.flags.with(TcpFlags::ACK);
                if self.timestamps.enabled {
                    options.timestamps = Some(self.timestamps.option(now, true));
                }
            }
        }
        header
    }

    pub(super) fn plain_header(
        &mut self,
        now: Instant,
        plain: PlainSegment,
        mut header: TcpHeader,
        rcv_window: u64,
        options: &mut TcpOptions,
    ) -> TcpHeader {
        header.seq = self.to_wire(match plain {
            PlainSegment::Probe => Ssn(self.tx.una.0.saturating_sub(1)),
            PlainSegment::Ack => self.tx.nxt,
        });
        header.ack = self.irs.add(1);
        header.flags = TcpFlags::ACK;
        header.window = u16::try_from(rcv_window >> self.rx.window_shift).unwrap_or(u16::MAX);
        if self.timestamps.enabled {
            options.timestamps = Some(self.timestamps.option(now, true));
        }
        header
    }

    fn announced_mss(&self) -> u16 {
        self.config.max_segment.saturating_sub(HEADER_BYTES as u16)
    }

    /// Adds as many SACK blocks as fit into `room_bytes` of option space: first a duplicate (RFC 2883), then the ranges
    /// that changed most recently.
    pub(crate) fn fill_sack(&mut self, options: &mut TcpOptions, room_bytes: usize) {
        let mut room = SackBlocks::fitting_block_count(room_bytes);
        if room == 0 || !self.tx.sack_enabled || !self.has_sack_blocks() {
            return;
        }
        let dsack = self.rx.dsack.take();
        let ranges = self.rx.queue.recent().map(|(start, end)| (Ssn(start), Ssn(end)));
        for (start, end) in dsack.into_iter().chain(ranges) {
            let block =
                SackBlock { left: self.irs.add(start.0 as u32), right: self.irs.add(end.0 as u32) };
            if room == 0 || !options.sack.push(block) {
                break;
            }
            room -= 1;
        }
    }

    /// True if there are SACK blocks to report.
    pub(crate) fn has_sack_blocks(&self) -> bool {
        self.rx.dsack.is_some() || !self.rx.queue.is_empty()
    }

    /// State for monitoring.
    pub(crate) fn state(&self) -> SubflowState {
        self.state.get()
    }
}
