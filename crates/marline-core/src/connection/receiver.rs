//! Receive side of a connection: it maps in-order bytes of subflows into the peer's stream, and announces the window.
//!
//! It owns the reassembly of the stream and, for each subflow, its mappings and delivered position. Once both sides
//! have agreed on repairs, it recovers lost data from them:
//!
//! *Mapping.* A REPAIR option maps payload of a subflow as a DSS does, but not onto the stream: once all of it is
//! received (with a valid checksum, if checksums are on), it is passed to the decoder. The rules for mappings apply:
//! they never change, their number is limited, and payload without a mapping ends the subflow. A repair with a wrong
//! checksum is dropped, because unlike data it is not needed.
//!
//! *Behind gaps.* A lost segment is recovered from later ones, which wait on the subflow for the lost one. So data
//! behind a gap in its subflow is used immediately if a mapping covers it. (TCP on the subflow acknowledges and
//! retransmits as usual, and the repeated data is dropped as a duplicate.) As a side effect, any copy of a lost segment
//! that arrives on another path releases the data behind it.
//!
//! *Memory.* The receive buffer keeps the last 64 KiB that were read, the decoder at most 96 KiB of repairs, both
//! only if REPAIR was agreed on.
//!
//! *Trust.* Recovered data fills gaps and never replaces received data. It counts as received: it advances the
//! DATA_ACK, and the window applies to it. A peer that sends wrong sums damages its own data, as it could by sending
//! wrong data. `fec/decoder.rs` describes the possible cost.

use marline_policy::{DataRange, Dsn, Ssn, SubflowId};
use marline_time::{Duration, Instant};

use super::delivery_watch::DeliveryWatch;
use super::fallback::Point;
use super::mapping_rx::{MappingError, MappingRx, RxMapping};
use super::receive_buffer::ReceiveBuffer;
use super::window_updates::WindowUpdates;
use crate::fec::Decoder;
use crate::on_demand::OnDemand;
use crate::tables::chunks::ChunkSource;
use crate::{BufferTuning, ConnectionConfig, Limits, MemoryAccount};

/// A connection may keep one mapping for this many bytes of its largest receive window.
const BYTES_PER_MAPPING: u64 = 128;
/// Step by which the limit on a subflow is raised.
const MAPPING_LIMIT_STEP: usize = 256;
/// Number of bytes kept after they were read: the range of a repair.
const HISTORY_BYTES: u64 = u16::MAX as u64;

/// Received state of one subflow.
#[derive(Debug)]
struct IncomingState {
    mappings: MappingRx,
    /// First position of the peer that has not been delivered.
    delivered: Ssn,
    /// `delivered` corresponds to the first missing position of the stream.
    is_at_stream_head: bool,
    /// Bytes received with the keys.
    keyed: u16,
    /// Number of bytes from behind a gap that were already used; at most one window. They will be processed again in
    /// order.
    early: u32,
}

/// Result of the delivery of in-order bytes of a subflow.
#[derive(Debug)]
pub(super) struct DeliveryOutcome {
    pub(super) result: Result<(), MappingError>,
    /// Bytes that were already received, except those that were taken early.
    pub(super) duplicate: u64,
    /// Some bytes were new to the stream.
    pub(super) has_new_bytes: bool,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Receiver {
    buffer: ReceiveBuffer,
    subflows: Box<[Option<IncomingState>]>,
    /// Decoder of repairs, once they are agreed on.
    decoder: Option<Box<Decoder>>,
    /// Minimum number of mappings that a subflow keeps.
    mappings: usize,
    /// The application was notified that it may read, and has not emptied the buffer since then.
    is_reader_notified: bool,
    /// Records when in-order bytes became due.
    watch: DeliveryWatch,
    bytes_read: u64,
    window_updates: OnDemand<WindowUpdates>,
}

impl Receiver {
    pub(super) fn new(config: &ConnectionConfig, limits: &Limits, source: ChunkSource) -> Self {
        let fixed = config.buffer_tuning == BufferTuning::Fixed;
        let (window, ranges) = (config.receive_buffer, limits.out_of_order_ranges);
        Receiver {
            buffer: ReceiveBuffer::new(window, fixed, ranges, source),
            subflows: Box::default(),
            decoder: None,
            mappings: limits.mappings,
            is_reader_notified: false,
            watch: DeliveryWatch::default(),
            bytes_read: 0,
            window_updates: OnDemand::new(),
        }
    }

    /// Adds a subflow in this slot. On plain TCP it needs no mappings.
    pub(super) fn add_subflow(&mut self, id: SubflowId, plain: bool) {
        let slot = usize::from(id.0);
        if self.subflows.len() <= slot {
            let there = core::mem::take(&mut self.subflows).into_iter();
            self.subflows = there.chain([const { None }]).collect();
        }
        let mut mappings = MappingRx::new(self.mappings, self.buffer.max_window());
        if plain {
            mappings.set_infinite(Ssn(1), Dsn(0));
        }
        let (delivered, is_at_stream_head) = (Ssn(1), self.buffer.next() == Dsn(0));
        let incoming = IncomingState { mappings, delivered, is_at_stream_head, keyed: 0, early: 0 };
        self.subflows[slot] = Some(incoming);
    }

    /// Removes a subflow.
    pub(super) fn remove_subflow(&mut self, id: SubflowId) {
        if let Some(slot) = self.subflows.get_mut(usize::from(id.0)) {
            *slot = None;
        }
    }

    fn subflow(&self, id: SubflowId) -> Option<&IncomingState> {
        self.subflows.get(usize::from(id.0))?.as_ref()
    }

    fn subflow_mut(&mut self, id: SubflowId) -> Option<&mut IncomingState> {
        self.subflows.get_mut(usize::from(id.0))?.as_mut()
    }

    /// The account to which the buffer's memory is charged.
    pub(super) const fn account(&self) -> &MemoryAccount {
        self.buffer.account()
    }

    /// Charges the buffer's memory to another account. Returns true if the window opened enough for an update.
    pub(super) fn charge_to(&mut self, account: &MemoryAccount) -> bool {
        self.buffer.charge_to(account)
    }

    /// True if the buffer holds more than its minimum and its account allows no more memory.
    pub(super) fn is_memory_short(&self) -> bool {
        self.buffer.is_memory_short()
    }

    /// Limit on bytes that may wait behind gaps in all subflows together.
    pub(super) fn out_of_order_room(&self, most: u64) -> u64 {
        self.buffer.out_of_order_room(most)
    }

    /// First missing position of the stream.
    pub(super) const fn next(&self) -> Dsn {
        self.buffer.next()
    }

    /// DATA_ACK: all data before it is received, including the DATA_FIN if that was reached.
    pub(super) fn data_ack(&self) -> Dsn {
        self.buffer.data_ack()
    }

    /// One past the last position that the peer may send.
    pub(super) const fn edge(&self) -> Dsn {
        self.buffer.edge()
    }

    /// Current window: the number of bytes after [`next`](Self::next).
    pub(super) fn window(&self) -> u64 {
        self.buffer.window()
    }

    /// Refuses payload within the window because memory is short.
    pub(super) fn refuse_payload(&mut self) {
        if self.buffer.readable() > 0 {
            self.buffer.withdraw_window();
        }
    }

    /// Window that a segment advertises now.
    pub(super) fn advertise(&mut self) -> u64 {
        self.buffer.refresh_edge();
        self.buffer.window()
    }

    /// Current window size, which subflows use to check segments.
    pub(super) const fn window_size(&self) -> u64 {
        self.buffer.window_size()
    }

    /// True if received bytes cannot be read because earlier ones are missing.
    pub(super) fn has_gap(&self) -> bool {
        !self.buffer.has_no_gap()
    }

    /// The delivery watch of received data.
    pub(super) const fn delivery_watch(&self) -> DeliveryWatch {
        self.watch
    }

    /// Mutable access to the delivery watch.
    pub(super) const fn watch_mut(&mut self) -> &mut DeliveryWatch {
        &mut self.watch
    }

    /// Number of bytes that the application can read.
    pub(super) const fn readable(&self) -> u64 {
        self.buffer.readable()
    }

    /// True if all data was read and the stream has ended.
    pub(super) const fn at_end(&self) -> bool {
        self.buffer.at_end()
    }

    /// True if all data up to the end of the stream was received.
    pub(super) const fn fin_reached(&self) -> bool {
        self.buffer.fin_reached()
    }

    /// Sets the end of the stream. `false` if another end was announced.
    pub(super) fn set_fin(&mut self, at: Dsn) -> bool {
        self.buffer.set_fin(at)
    }

    /// Copies bytes to the application. Returns their number, and true if the window opened enough for an update.
    /// `None` if there are none.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Option<(usize, bool)> {
        if self.buffer.readable() == 0 {
            return None;
        }
        let (n, opened) = self.buffer.read(out);
        self.bytes_read += n as u64;
        Some((n, opened))
    }

    /// True if the window is too small for the peer to send a segment.
    pub(super) fn is_window_closed(&self) -> bool {
        self.buffer.is_window_closed()
    }

    /// Handles the update of a window that was closed.
    pub(super) fn on_window_reopened(&mut self, now: Instant, rto: Duration) {
        self.window_updates.on_reopened(now, self.buffer.next(), rto);
    }

    /// True if the update of the reopened window must be repeated now.
    pub(super) fn is_window_update_due(&mut self, now: Instant, rto: Duration) -> bool {
        let next = self.buffer.next();
        self.window_updates.if_used().is_some_and(|updates| updates.is_repeat_due(now, next, rto))
    }

    /// Time at which the update may be repeated.
    pub(super) fn next_window_update(&self) -> Option<Instant> {
        self.window_updates.get_used().and_then(WindowUpdates::next_timeout)
    }

    /// Like [`read`](Self::read), but leaves the bytes in the buffer.
    pub(super) fn peek(&self, out: &mut [u8]) -> Option<usize> {
        (self.buffer.readable() > 0).then(|| self.buffer.peek(out))
    }

    /// Number of bytes that the application has read.
    pub(super) const fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Adjusts the window to the application's reading speed, which is measured over a round trip.
    pub(super) fn adapt_to_reader(&mut self, now: Instant, rtt: Duration) {
        self.buffer.adapt_to_reader(now, rtt);
    }

    /// Drops data because the application no longer reads.
    pub(super) fn discard(&mut self) {
        self.buffer.discard();
    }

    /// True if the application must be notified: once, until it finds nothing to read.
    pub(super) const fn take_readable(&mut self) -> bool {
        !core::mem::replace(&mut self.is_reader_notified, true)
    }

    /// Records that the application found nothing to read.
    pub(super) const fn record_nothing_to_read(&mut self) {
        self.is_reader_notified = false;
    }

    /// First position of the peer on a subflow that has not been delivered.
    pub(super) fn delivered(&self, id: SubflowId) -> Ssn {
        self.subflow(id).map_or(Ssn(1), |subflow| subflow.delivered)
    }

    /// True if the subflow has been contiguous with the stream since the first byte.
    pub(super) fn is_contiguous(&self, id: SubflowId) -> bool {
        self.delivered(id).0 == self.next().0 + 1
    }

    /// Records the number of bytes received with the keys.
    pub(super) fn record_keyed(&mut self, id: SubflowId, bytes: u16) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.keyed = subflow.keyed.max(bytes);
        }
    }

    /// Number of bytes received with the keys. Their DATA_ACK proves nothing about mappings.
    pub(super) fn keyed(&self, id: SubflowId) -> u16 {
        self.subflow(id).map_or(0, |subflow| subflow.keyed)
    }

    /// True if, on plain TCP, the next bytes on the subflow would be the next bytes of the stream.
    pub(super) fn is_in_step(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.is_at_stream_head)
    }

    /// True if a position from `start` to `end` has no mapping, and is not part of a segment in which another mapping
    /// survived.
    pub(super) fn lacks_mapping(&self, id: SubflowId, start: Ssn, end: Ssn) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.lacks_mapping(start, end))
    }

    /// On plain TCP, true if bytes were discarded that the peer considers delivered.
    pub(super) fn has_lost_bytes(&self, id: SubflowId) -> bool {
        let Some(subflow) = self.subflow(id) else { return false };
        subflow.mappings.plain_position(subflow.delivered).is_some_and(|place| place > self.next())
    }

    /// True if an infinite mapping with this point leaves no gap. Earlier bytes that have not arrived have their own
    /// mappings.
    pub(super) fn continues_at(&self, id: SubflowId, Point { ssn, dsn }: Point) -> bool {
        let delivered = self.delivered(id);
        delivered < ssn || dsn.plus(delivered.since(ssn)) <= self.next()
    }

    /// Adds a mapping. The limit on a subflow follows the buffer: all subflows together may have a mapping for
    /// every `BYTES_PER_MAPPING` bytes of the largest window.
    pub(super) fn announce(
        &mut self,
        id: SubflowId,
        mapping: RxMapping,
    ) -> Result<(), MappingError> {
        let Some(subflow) = self.subflow_mut(id) else { return Ok(()) };
        let delivered = subflow.delivered;
        let result = subflow.mappings.announce(mapping, delivered);
        if result != Err(MappingError::TooMany) || !self.has_room_for_mappings() {
            return result;
        }
        let Some(subflow) = self.subflow_mut(id) else { return Ok(()) };
        subflow.mappings.raise_limit(MAPPING_LIMIT_STEP);
        subflow.mappings.announce(mapping, delivered)
    }

    fn has_room_for_mappings(&self) -> bool {
        let kept: usize = self.subflows.iter().flatten().map(|s| s.mappings.count()).sum();
        let most = (self.buffer.max_window() / BYTES_PER_MAPPING) as usize;
        kept.saturating_add(MAPPING_LIMIT_STEP) <= most.max(self.mappings)
    }

    /// Stream positions of this many bytes, starting at this position, as far as mappings are known.
    pub(super) fn stream_ranges(&self, id: SubflowId, ssn: Ssn, bytes: u64) -> Vec<DataRange> {
        self.subflow(id)
            .map(|subflow| subflow.mappings.stream_ranges(ssn, bytes))
            .unwrap_or_default()
    }

    /// Number of bytes in a range that were already received.
    pub(super) fn received_bytes_in(&self, range: DataRange) -> u64 {
        let mut holes = Vec::new();
        self.buffer.holes(range, &mut holes);
        range.len() - holes.iter().map(DataRange::len).sum::<u64>()
    }

    /// True if one mapping covers all positions from `start` to `end`.
    pub(super) fn maps(&self, id: SubflowId, start: Ssn, end: Ssn) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.maps(start, end))
    }

    /// Records segment boundaries to detect a middlebox that merged segments and kept the options of only one.
    /// Returns true if it did.
    pub(super) fn record_segment_bounds(
        &mut self,
        id: SubflowId,
        start: Ssn,
        end: Ssn,
        mapped: bool,
    ) -> bool {
        let Some(subflow) = self.subflow_mut(id) else { return false };
        let delivered = subflow.delivered;
        subflow.mappings.record_segment_bounds(start, end, mapped, delivered)
    }

    /// Inserts in-order bytes of a subflow into the stream.
    pub(super) fn deliver(&mut self, id: SubflowId, ssn: Ssn, bytes: &[u8]) -> DeliveryOutcome {
        let subflow = self.subflows.get_mut(usize::from(id.0)).and_then(Option::as_mut);
        let Some(subflow) = subflow else {
            return DeliveryOutcome { result: Ok(()), duplicate: 0, has_new_bytes: false };
        };
        subflow.delivered = ssn.plus(bytes.len() as u64);
        let buffer = &mut self.buffer;
        let (mut duplicate, mut news) = (0, false);
        let (mut placed, mut end) = (0, Dsn(0));
        let mut insert = |dsn: Dsn, bytes: &[u8]| {
            let known = buffer.insert(dsn, bytes).duplicate;
            duplicate += known;
            news |= known < bytes.len() as u64;
            placed += bytes.len();
            end = dsn.plus(bytes.len() as u64);
        };
        let result = subflow.mappings.translate(ssn, bytes, &mut insert);
        let whole = placed > 0 && !subflow.mappings.has_torn_end(subflow.delivered);
        subflow.is_at_stream_head = whole && end == buffer.next();
        let early = duplicate.min(subflow.early.into());
        subflow.early -= early as u32;
        DeliveryOutcome { result, duplicate: duplicate - early, has_new_bytes: news }
    }

    /// Counts data kept after a failed checksum against the window.
    pub(super) fn count_kept_bytes(&mut self, id: SubflowId) {
        if let Some(kept) = self.subflow(id).and_then(|subflow| subflow.mappings.kept_bytes()) {
            self.buffer.set_held(kept);
        }
    }

    /// Stops counting kept data against the window, because none is left.
    pub(super) fn uncount_kept_bytes(&mut self) {
        self.buffer.set_held(0);
    }

    /// Accepts data of a SYN. Returns the number of bytes that were already received.
    pub(super) fn take_syn_data(&mut self, id: SubflowId, at: Dsn, payload: &[u8]) -> u64 {
        let duplicate = self.buffer.insert(at, payload).duplicate;
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.delivered = Ssn(1).plus(payload.len() as u64);
            subflow.is_at_stream_head = false;
        }
        duplicate
    }

    /// Accepts data of the first SYN, which starts the stream and has no mapping.
    pub(super) fn take_unmapped(&mut self, id: SubflowId, payload: &[u8]) {
        self.buffer.insert(Dsn(0), payload);
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.delivered = Ssn(1).plus(payload.len() as u64);
        }
    }

    /// Moves the position back before the SYN's data, because the opener fell back to an ordinary join and will send it
    /// again.
    pub(super) fn forget_syn_data(&mut self, id: SubflowId) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.delivered = Ssn(1);
            subflow.is_at_stream_head = false;
        }
    }

    /// Switches a subflow to plain TCP from this point on and delivers the data that waited for it. Returns true
    /// if the stream advanced.
    pub(super) fn receive_plain(&mut self, id: SubflowId, Point { ssn, dsn }: Point) -> bool {
        let waiting =
            self.subflow_mut(id).and_then(|subflow| subflow.mappings.set_infinite(ssn, dsn));
        self.buffer.set_held(0);
        // The DATA_FIN's position is no longer valid; a FIN marks the end.
        self.buffer.forget_fin();
        let Some((dsn, bytes)) = waiting else { return false };
        let before = self.buffer.next();
        self.buffer.insert(dsn, &bytes);
        self.buffer.next() > before
    }

    /// True if a mapping covers the position or none is needed.
    pub(super) fn covers(&self, id: SubflowId, ssn: Ssn) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.covers(ssn))
    }

    /// Start of the mapping whose checksum failed on the subflow.
    pub(super) fn failed_at(&self, id: SubflowId) -> Option<Dsn> {
        self.subflow(id)?.mappings.failed_at()
    }

    /// True if unmapped bytes may be plain TCP.
    pub(super) fn expects_plain(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.expects_plain())
    }

    /// True if the peer maps everything one to one.
    pub(super) fn is_infinite(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.is_infinite())
    }

    /// True if the peer has mapped everything one to one since its first byte.
    pub(super) fn is_plain_from_start(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.is_plain_from_start())
    }

    /// True if repairs are accepted.
    pub(super) const fn takes_repairs(&self) -> bool {
        self.decoder.is_some()
    }

    /// Starts the decoder after both sides agreed on repairs.
    pub(super) fn start_coding(&mut self) {
        if self.decoder.is_none() {
            self.decoder = Some(Box::default());
            self.buffer.keep_history(HISTORY_BYTES);
        }
    }

    /// Stops the decoder, for plain TCP or after the end of the connection.
    pub(super) fn stop_coding(&mut self) {
        if self.decoder.take().is_some() {
            self.buffer.keep_history(0);
        }
    }

    /// Uses payload behind a gap in its subflow. Returns the number of bytes that are new to the stream.
    pub(super) fn take_early(&mut self, id: SubflowId, ssn: Ssn, payload: &[u8]) -> u64 {
        let subflow = self.subflows.get_mut(usize::from(id.0)).and_then(Option::as_mut);
        let Some(subflow) = subflow else { return 0 };
        let buffer = &mut self.buffer;
        let mut early = 0;
        subflow.mappings.peek(ssn, payload, &mut |dsn, bytes| {
            early += buffer.insert(dsn, bytes).new;
        });
        subflow.early = subflow.early.saturating_add(u32::try_from(early).unwrap_or(u32::MAX));
        early
    }

    /// Recovers missing data after a segment. Returns the number of bytes recovered.
    pub(super) fn repair_missing(&mut self, id: SubflowId) -> u64 {
        let Some(decoder) = self.decoder.as_mut() else { return 0 };
        let subflow = self.subflows.get_mut(usize::from(id.0)).and_then(Option::as_mut);
        for (repair, sum) in subflow.into_iter().flat_map(|s| s.mappings.take_repairs()) {
            decoder.add(repair, &sum, &self.buffer);
        }
        if decoder.is_empty() {
            return 0;
        }
        let found = decoder.solve(&self.buffer);
        found.into_iter().map(|(dsn, bytes)| self.buffer.insert(dsn, &bytes).new).sum()
    }

    /// Releases unused memory.
    pub(super) fn shrink(&mut self) {
        self.subflows.iter_mut().flatten().for_each(|subflow| subflow.mappings.shrink());
        self.buffer.shrink();
        if self.next_window_update().is_none() {
            self.window_updates.retire();
        }
    }

    /// Memory that the stream and repairs use, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.buffer.memory() + self.decoder.as_ref().map_or(0, |decoder| decoder.memory() as u64)
    }

    /// Memory that lists use, in bytes.
    pub(super) fn bookkeeping(&self) -> u64 {
        let of_subflows = self.subflows.iter().flatten().map(|s| s.mappings.memory());
        of_subflows.sum::<u64>() + self.buffer.bookkeeping()
    }
}
