//! Sending repairs: sums of data that is under way, from which the peer computes what it misses.
//!
//! *Where a repair stands.* It is payload of a subflow, mapped by a REPAIR option instead of a DSS: bytes of
//! the subflow that are not bytes of the stream. To TCP, and to every box on the way that knows only
//! TCP, it is a segment like any other: in sequence, congestion-controlled, acknowledged. It takes nothing of
//! the peer's receive window, for that is counted in data sequence numbers.
//!
//! *When it is lost.* The subflow repeats it as it was. Nothing else is allowed there: a box that keeps
//! what it has seen (a normaliser) must see the same bytes again, and the position cannot be left
//! out. The sum is kept for that until it is acknowledged; it could not be made anew once its data is
//! gone. This costs one segment on that path and delays nobody: the peer takes data behind a hole
//! of the subflow at once (`repair_rx.rs`).
//!
//! *When not.* Before the peer agreed; in plain TCP; beyond 2^31 bytes in two minutes (the 32 bits of DSN
//! in the option would be ambiguous); with too much of it unacknowledged; and never again once the peer
//! reset a subflow with a repair under way: a box on that path may let HELLO pass and cut REPAIR off.

use marline_policy::{DataRange, SentSegment, Ssn, SubflowId};
use marline_wire::mptcp::{
    ExperimentalMessage, Extensions, MpRepair, MptcpOption, repair_checksum,
};
use marline_wire::{Checksum, TCP_HEADER_LEN, TcpOptions, Timestamps};

use super::Connection;
use super::scheduling::Choice;
use crate::repair::{ROWS, Repair};
use crate::subflow::{Egress, HeaderFor};
use crate::tables::Context;
use crate::transmit::TransmitBuf;
use crate::{Ecn, Transmit};

/// Most bytes of repairs that a subflow keeps for repeating them.
const MAX_KEPT: usize = 128 * 1024;

/// What the sending side remembers of its repairs.
#[derive(Debug, Default)]
pub(super) struct RepairTx {
    /// Something on the way does not like them.
    refused: bool,
    /// The last one: those that overlap it take other rows.
    last: Option<Repair>,
    /// Scratch: the data of a sum.
    data: Vec<u8>,
}

/// A repair that a subflow carries.
#[derive(Debug)]
pub(super) struct SentRepair {
    /// Where it stands on the subflow.
    start: Ssn,
    repair: Repair,
    checksum: Option<u16>,
    sum: Vec<u8>,
}

impl SentRepair {
    /// One past its last byte.
    pub(super) const fn end(&self) -> Ssn {
        self.start.plus(self.sum.len() as u64)
    }
}

impl Connection {
    /// Repairs may be sent, and be of use.
    pub(super) fn may_repair(&self) -> bool {
        let willing = self.repairs.as_ref().is_some_and(|repairs| !repairs.refused);
        willing
            && self.session.agreed_on(Extensions::REPAIR)
            && self.session.is_confirmed()
            && !self.session.sends_long_dsn()
    }

    /// The peer reset a subflow: if that carried a repair, it may be why.
    pub(super) fn note_reset(&mut self, id: SubflowId) {
        let repairing = self.leg(id).is_some_and(|leg| !leg.repairs.is_empty());
        if let Some(repairs) = self.repairs.as_mut().filter(|_| repairing) {
            repairs.refused = true;
        }
    }

    /// The repair of `range` that fits the subflow: a symbol is as long as the longest segment of the
    /// range, or an equal part of it.
    fn next_repair(&self, id: SubflowId, range: DataRange, room: usize) -> Option<Repair> {
        let longest = self.mappings.parts(range).map(|part| part.range.len()).max()?;
        let kept: usize = self.leg(id)?.repairs.iter().map(|repair| repair.sum.len()).sum();
        let parts = longest.div_ceil(room.max(1) as u64);
        let symbol = u16::try_from(longest.div_ceil(parts)).ok()?;
        let range = Repair::cover(range, symbol);
        let overlaps =
            |last: &Repair| last.symbol == symbol && !last.range.intersection(&range).is_empty();
        let last = self.repairs.as_ref()?.last;
        let row = last.filter(overlaps).map_or(0, |last| (last.row + 1) % ROWS);
        let repair = Repair { range, symbol, row };
        (room > 0 && kept < MAX_KEPT && repair.is_valid()).then_some(repair)
    }

    /// Sends a repair that was chosen. Returns the bytes of the segment, or `None` if it must wait.
    /// `limit` is the largest segment that still fits the batch.
    pub(super) fn emit_repair(
        &mut self,
        cx: &mut Context<'_>,
        choice: &Choice,
        limit: usize,
        buf: &mut TransmitBuf,
    ) -> Option<(usize, Ecn)> {
        let now = cx.now;
        let id = choice.subflow;
        let leg = self.leg(id)?;
        let ssn = leg.tcp.snd_nxt();
        let overhead = TCP_HEADER_LEN + self.repair_option_len(leg.tcp.uses_timestamps());
        let room = leg.tcp.settled_segment().checked_sub(overhead)?;
        let repair = self.next_repair(id, choice.range, room)?;
        if overhead + usize::from(repair.symbol) > limit {
            return None;
        }
        let sum = self.sum(&repair)?;
        let mut sent = SentRepair { start: ssn, repair, checksum: None, sum };
        if self.session.uses_checksum() {
            let wire = self.repair_option(&sent);
            let dsn = self.session.keys().local_wire(repair.range.start);
            let payload = Checksum::of(&sent.sum);
            sent.checksum = Some(repair_checksum(&wire, dsn, ssn.0 as u32, payload));
        }
        let (len, checksum) = (repair.symbol, sent.checksum.unwrap_or_default());
        let segment = self.leg_mut(id)?.tcp.push_repair(now, len, checksum);
        self.leg_mut(id)?.repairs.push_back(sent);
        self.repairs.as_mut()?.last = Some(repair);
        cx.out.counters.repair_tx += 1;
        self.write_repair(cx, id, HeaderFor::Data(&segment), buf)
    }

    /// A repair, or a part of one, once more.
    pub(super) fn repeat_repair(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        egress: &Egress,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let (size, ecn) = self.write_repair(cx, id, HeaderFor::Egress(egress), buf)?;
        self.batch(id, 1, size + buf.headroom(), ecn)
    }

    fn write_repair(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        what: HeaderFor<'_>,
        buf: &mut TransmitBuf,
    ) -> Option<(usize, Ecn)> {
        let now = cx.now;
        let segment = match what {
            HeaderFor::Data(segment) | HeaderFor::Egress(Egress::Retransmit(segment)) => segment,
            HeaderFor::Egress(_) => return None,
        };
        let start = segment.mapping_start;
        let sent = self.leg(id)?.repairs.iter().find(|repair| repair.start == start);
        debug_assert!(sent.is_some(), "the repair at {start:?} is gone");
        let payload = part_of(sent?, segment)?.to_vec();
        let mut options = TcpOptions::default();
        options.mptcp.push(option_of(self.repair_option(sent?)));
        let window = self.receiver.advertise();
        let tcp = &mut self.leg_mut(id)?.tcp;
        let (header, ecn) = tcp.fill_header(now, what, window, &mut options);
        let size = TCP_HEADER_LEN + options.encoded_len() + payload.len();
        let at = buf.bytes().len() + buf.headroom();
        let place = buf.grow(size);
        let header_len = size - payload.len();
        place[header_len..].copy_from_slice(&payload);
        let sum = Checksum::of(&payload);
        self.finish_segment(cx, id, &header, &options, sum, &mut buf.bytes_mut()[at..])?;
        Some((size, ecn))
    }

    /// Adds up the data of a repair.
    fn sum(&mut self, repair: &Repair) -> Option<Vec<u8>> {
        let mut data = core::mem::take(&mut self.repairs.as_mut()?.data);
        data.resize(repair.range.len() as usize, 0);
        let mut sum = vec![0; usize::from(repair.symbol)];
        let there = self.send.copy(repair.range.start, &mut data).is_some();
        debug_assert!(there, "bytes of {repair:?} are gone");
        repair.add(repair.range.start, &data, &mut sum);
        self.repairs.as_mut()?.data = data;
        there.then_some(sum)
    }

    fn repair_option(&self, sent: &SentRepair) -> MpRepair {
        let Repair { range, symbol, row } = sent.repair;
        let ack = self.session.keys().remote_wire(self.receiver.data_ack());
        MpRepair {
            ssn: sent.start.0 as u16,
            length: symbol,
            dsn: self.session.keys().local_wire(range.start) as u32,
            span: range.len() as u16,
            row,
            data_ack: ack as u32,
            checksum: sent.checksum,
        }
    }

    fn repair_option_len(&self, timestamps: bool) -> usize {
        let template = MpRepair {
            ssn: 0,
            length: 0,
            dsn: 0,
            span: 0,
            row: 0,
            data_ack: 0,
            checksum: self.session.uses_checksum().then_some(0),
        };
        let timestamps = timestamps.then(Timestamps::default);
        let mut options = TcpOptions { timestamps, ..TcpOptions::default() };
        options.mptcp.push(option_of(template));
        options.encoded_len()
    }
}

fn option_of(repair: MpRepair) -> MptcpOption {
    MptcpOption::Experimental(ExperimentalMessage::Repair(repair).option())
}

/// The bytes of a repair that a segment, perhaps cut anew, has.
fn part_of<'a>(sent: &'a SentRepair, segment: &SentSegment) -> Option<&'a [u8]> {
    let offset = segment.start.since(segment.mapping_start) as usize;
    sent.sum.get(offset..offset + segment.payload_len() as usize)
}
