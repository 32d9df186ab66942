//! Sender of repairs: sums of data in flight, from which the peer recovers losses.
//!
//! *Format.* A repair is payload of a subflow, mapped by a REPAIR option instead of a DSS: bytes of the subflow that
//! are not bytes of the stream. To TCP, and to every middlebox that knows only TCP, it is a segment like any other:
//! in sequence, congestion-controlled, acknowledged. It uses none of the peer's receive window, which is counted in
//! data sequence numbers.
//!
//! *Loss.* The subflow retransmits it unchanged. Nothing else is allowed: a middlebox that stores the data it has
//! seen (a normalizer) must see the same bytes again, and the position cannot be skipped. The sum is kept until it is
//! acknowledged, because it could not be recomputed once its data is gone. This costs one segment on that path and
//! causes no delay: the peer immediately uses data behind a gap in the subflow (`receiver.rs`).
//!
//! *Exclusions.* No repairs are sent before the peer has agreed, in plain TCP, beyond 2^31 bytes in two minutes (the
//! option's 32-bit DSN would be ambiguous), or while too many are unacknowledged. They stop permanently when the peer
//! resets a subflow with a repair in flight, because a middlebox on that path may pass HELLO but remove REPAIR.

use marline_policy::{DataRange, Dsn, SentSegment, Ssn};
use marline_wire::mptcp::{ExperimentalMessage, MpRepair, MptcpOption, repair_checksum};
use marline_wire::repair_code::ROWS;
use marline_wire::{Checksum, TcpOptions, Timestamps};

use super::send_buffer::SendBuffer;
use super::session::Session;
use crate::fec::Repair;

/// Limit on the unacknowledged repairs that a subflow keeps, in bytes.
const MAX_KEPT_BYTES: usize = 128 * 1024;

/// Sender state of repairs.
#[derive(Debug, Default)]
pub(super) struct RepairTx {
    /// Repairs are off, because a middlebox may interfere with them.
    refused: bool,
    /// The last repair. Repairs that overlap it use other rows.
    last: Option<Repair>,
    /// Scratch buffer for the data of a sum.
    data: Vec<u8>,
}

impl RepairTx {
    pub(super) const fn are_refused(&self) -> bool {
        self.refused
    }

    /// Stops repairs, because a middlebox may pass HELLO but remove REPAIR.
    pub(super) const fn refuse(&mut self) {
        self.refused = true;
    }

    /// Returns the next repair of `range`, whose longest segment has `longest` bytes, on a subflow that keeps `kept`
    /// bytes of repairs. The repair is as long as the longest segment, or an equal part of that size that fits.
    pub(super) fn next(
        &self,
        range: DataRange,
        longest: u64,
        kept: usize,
        room: usize,
    ) -> Option<Repair> {
        let parts = longest.div_ceil(room.max(1) as u64);
        let symbol = u16::try_from(longest.div_ceil(parts)).ok()?;
        let range = Repair::cover(range, symbol);
        let overlaps =
            |last: &Repair| last.symbol == symbol && !last.range.intersection(&range).is_empty();
        let row = self.last.filter(overlaps).map_or(0, |last| (last.row + 1) % ROWS);
        let repair = Repair { range, symbol, row };
        (room > 0 && kept < MAX_KEPT_BYTES && repair.is_valid()).then_some(repair)
    }

    /// Computes the sum of a repair's data.
    pub(super) fn compute_sum(&mut self, repair: &Repair, buffer: &SendBuffer) -> Option<Vec<u8>> {
        self.data.resize(repair.range.len() as usize, 0);
        let mut sum = vec![0; usize::from(repair.symbol)];
        let there = buffer.copy(repair.range.start, &mut self.data).is_some();
        debug_assert!(there, "bytes of {repair:?} were dropped");
        repair.add(repair.range.start, &self.data, &mut sum);
        there.then_some(sum)
    }

    pub(super) const fn record_repair_sent(&mut self, repair: Repair) {
        self.last = Some(repair);
    }
}

#[derive(Debug)]
pub(super) struct SentRepair {
    /// Position of the first byte on the subflow.
    start: Ssn,
    repair: Repair,
    checksum: Option<u16>,
    sum: Vec<u8>,
}

impl SentRepair {
    /// Creates a repair to be sent at `start`, with a checksum if checksums are on.
    pub(super) fn new(start: Ssn, repair: Repair, sum: Vec<u8>, session: &Session) -> Self {
        let mut sent = SentRepair { start, repair, checksum: None, sum };
        if session.uses_checksum() {
            let wire = sent.message(session, Dsn(0));
            let dsn = session.keys().local_wire(repair.range.start);
            let payload = Checksum::of(&sent.sum);
            sent.checksum = Some(repair_checksum(&wire, dsn, start.0 as u32, payload));
        }
        sent
    }

    pub(super) const fn start(&self) -> Ssn {
        self.start
    }

    pub(super) const fn repair(&self) -> Repair {
        self.repair
    }

    /// Payload size in bytes.
    pub(super) const fn len(&self) -> usize {
        self.sum.len()
    }

    /// Checksum of the option; 0 if there is none.
    pub(super) fn checksum(&self) -> u16 {
        self.checksum.unwrap_or_default()
    }

    /// One past the last byte.
    pub(super) const fn end(&self) -> Ssn {
        self.start.plus(self.sum.len() as u64)
    }

    /// Builds the option, with our DATA_ACK of data before `next`.
    fn message(&self, session: &Session, next: Dsn) -> MpRepair {
        let Repair { range, symbol, row } = self.repair;
        MpRepair {
            ssn: self.start.0 as u16,
            length: symbol,
            dsn: session.keys().local_wire(range.start) as u32,
            span: range.len() as u16,
            row,
            data_ack: session.keys().remote_wire(next) as u32,
            checksum: self.checksum,
        }
    }

    pub(super) fn option(&self, session: &Session, next: Dsn) -> MptcpOption {
        option_of(self.message(session, next))
    }

    /// Part of the repair that belongs to a segment. Its boundaries may differ from those of the first transmission.
    pub(super) fn part_for_segment(&self, segment: &SentSegment) -> Option<&[u8]> {
        let offset = segment.start.since(segment.mapping_start) as usize;
        self.sum.get(offset..offset + segment.payload_len() as usize)
    }
}

/// Length of the options of a segment with a repair, in bytes.
pub(super) fn option_len(checksum: bool, timestamps: bool) -> usize {
    let template = MpRepair {
        ssn: 0,
        length: 0,
        dsn: 0,
        span: 0,
        row: 0,
        data_ack: 0,
        checksum: checksum.then_some(0),
    };
    let timestamps = timestamps.then(Timestamps::default);
    let mut options = TcpOptions { timestamps, ..TcpOptions::default() };
    options.mptcp.push(option_of(template));
    options.encoded_len()
}

fn option_of(repair: MpRepair) -> MptcpOption {
    MptcpOption::Experimental(ExperimentalMessage::Repair(repair).option())
}
