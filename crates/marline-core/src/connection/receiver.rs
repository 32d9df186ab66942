//! Receive side of a connection: in-order bytes of subflows are mapped into the peer's stream, and
//! the window is announced.
//!
//! It owns the reassembly of the stream and, of each subflow, what the peer mapped on it and how far that
//! was delivered. What is lost it computes from repairs, once both sides agreed on them:
//!
//! *Mapping.* A REPAIR option maps payload of a subflow as a DSS does, only not onto the stream: when all of
//! it is there (and its checksum right, if checksums are on), it goes to the decoder. The rules are
//! those of mappings: it never changes, is bounded in number, and payload without any ends the subflow.
//! A repair with a wrong checksum is dropped; unlike data, nothing depends on it.
//!
//! *Behind holes.* A lost segment is computed from those after it, which wait on the subflow for just
//! that segment. So data behind a hole of its subflow is taken at once where a mapping covers it (the
//! subflow acknowledges and repairs as ever, and what it brings later is dropped as known). This alone
//! lets any copy of a lost segment that comes by another path release what waits behind it.
//!
//! *Memory.* The receive buffer keeps the last 64 KiB that were read, the decoder at most 96 KiB of repairs,
//! both only if REPAIR was agreed on.
//!
//! *Trust.* What is computed fills holes, never what was received, and counts as received: it moves the
//! DATA_ACK, and the window applies to it. A peer that sends wrong sums damages its own data, as it
//! could by sending wrong data. `fec/decoder.rs` says what it can cost.

use marline_policy::{DataRange, Dsn, Ssn, SubflowId};
use marline_time::{Duration, Instant};

use super::delivery_watch::DeliveryWatch;
use super::mapping_rx::{MappingError, MappingRx, RxMapping};
use super::receive_buffer::ReceiveBuffer;
use super::window_updates::WindowUpdates;
use crate::fec::Decoder;
use crate::on_demand::OnDemand;
use crate::tables::chunks::ChunkSource;
use crate::{BufferTuning, ConnectionConfig, Limits, MemoryAccount};

/// A connection keeps a mapping for so many bytes of its largest receive window.
const BYTES_PER_MAPPING: u64 = 128;
/// So many more a subflow gets at once.
const MORE_MAPPINGS: usize = 256;
/// Bytes that were read and are kept: as far back as a repair of a missing byte can reach.
const HISTORY: u64 = u16::MAX as u64;

/// What the peer sends on one subflow.
#[derive(Debug)]
struct Incoming {
    mappings: MappingRx,
    /// First position of the peer that was not delivered yet.
    delivered: Ssn,
    /// The byte before `delivered` is the one before the first that is missing in the stream.
    in_step: bool,
    /// Bytes that came with the keys.
    keyed: u16,
    /// Bytes taken from behind a hole of it that will come once more, in order: of one window at most.
    early: u32,
}

/// What became of bytes that were in order on a subflow.
#[derive(Debug)]
pub(super) struct Delivered {
    pub(super) result: Result<(), MappingError>,
    /// Bytes that were here already, less those that were taken early.
    pub(super) duplicate: u64,
    /// Some of them were new to the stream.
    pub(super) news: bool,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Receiver {
    buffer: ReceiveBuffer,
    subflows: Box<[Option<Incoming>]>,
    /// Repair by coding, once it is agreed on.
    decoder: Option<Box<Decoder>>,
    /// Mappings that a subflow keeps at least.
    mappings: usize,
    /// The application was told that it may read, and has not come back empty-handed since.
    told: bool,
    /// Since when bytes in order are due.
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
            told: false,
            watch: DeliveryWatch::default(),
            bytes_read: 0,
            window_updates: OnDemand::new(),
        }
    }

    /// A subflow takes this slot. On plain TCP it needs no mappings.
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
        let (delivered, in_step) = (Ssn(1), self.buffer.next() == Dsn(0));
        let incoming = Incoming { mappings, delivered, in_step, keyed: 0, early: 0 };
        self.subflows[slot] = Some(incoming);
    }

    /// The subflow is gone.
    pub(super) fn remove_subflow(&mut self, id: SubflowId) {
        if let Some(slot) = self.subflows.get_mut(usize::from(id.0)) {
            *slot = None;
        }
    }

    fn subflow(&self, id: SubflowId) -> Option<&Incoming> {
        self.subflows.get(usize::from(id.0))?.as_ref()
    }

    fn subflow_mut(&mut self, id: SubflowId) -> Option<&mut Incoming> {
        self.subflows.get_mut(usize::from(id.0))?.as_mut()
    }

    /// Who is charged for the buffer.
    pub(super) const fn account(&self) -> &MemoryAccount {
        self.buffer.account()
    }

    /// Another account is charged for the buffer from now on. Tells whether the peer should hear of a larger window.
    pub(super) fn charge_to(&mut self, account: &MemoryAccount) -> bool {
        self.buffer.charge_to(account)
    }

    /// It holds more than it needs at least, while there is no memory for that.
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.buffer.is_short_of_memory()
    }

    /// Bytes that may wait behind holes of all subflows together.
    pub(super) fn out_of_order_room(&self, most: u64) -> u64 {
        self.buffer.out_of_order_room(most)
    }

    /// The first position of the stream that is missing.
    pub(super) const fn next(&self) -> Dsn {
        self.buffer.next()
    }

    /// What a DATA_ACK acknowledges: all before it, and the DATA_FIN if that was reached.
    pub(super) fn data_ack(&self) -> Dsn {
        self.buffer.data_ack()
    }

    /// One past the last position that the peer was ever allowed to send.
    pub(super) const fn edge(&self) -> Dsn {
        self.buffer.edge()
    }

    /// The window that there is, bytes from [`next`](Self::next) on.
    pub(super) fn window(&self) -> u64 {
        self.buffer.window()
    }

    /// Payload that the window allowed is refused for want of memory.
    pub(super) fn refuse_payload(&mut self) {
        if self.buffer.readable() > 0 {
            self.buffer.withdraw_window();
        }
    }

    /// The window that a segment advertises now.
    pub(super) fn advertise(&mut self) -> u64 {
        self.buffer.refresh_edge();
        self.buffer.window()
    }

    /// The largest window at present, by which subflows judge what is acceptable.
    pub(super) const fn window_size(&self) -> u64 {
        self.buffer.window_size()
    }

    /// Bytes are here that cannot be read, as something before them is missing.
    pub(super) fn has_hole(&self) -> bool {
        !self.buffer.has_no_hole()
    }

    /// Since when bytes in order are due.
    pub(super) const fn watch(&self) -> DeliveryWatch {
        self.watch
    }

    /// Since when bytes in order are due, to take note of what came.
    pub(super) const fn watch_mut(&mut self) -> &mut DeliveryWatch {
        &mut self.watch
    }

    /// Bytes that the application can read.
    pub(super) const fn readable(&self) -> u64 {
        self.buffer.readable()
    }

    /// All was read, and the stream ended.
    pub(super) const fn at_end(&self) -> bool {
        self.buffer.at_end()
    }

    /// All came, and the stream ended.
    pub(super) const fn fin_reached(&self) -> bool {
        self.buffer.fin_reached()
    }

    /// The stream ends there. `false`: it was said to end elsewhere.
    pub(super) fn set_fin(&mut self, at: Dsn) -> bool {
        self.buffer.set_fin(at)
    }

    /// Gives bytes to the application: how many, and whether the window opened enough for the peer to be told.
    /// `None`: there are none.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Option<(usize, bool)> {
        if self.buffer.readable() == 0 {
            return None;
        }
        let (n, opened) = self.buffer.read(out);
        self.bytes_read += n as u64;
        Some((n, opened))
    }

    /// The peer cannot send a segment.
    pub(super) fn is_window_shut(&self) -> bool {
        self.buffer.is_window_shut()
    }

    /// The window was shut, and an update goes out.
    pub(super) fn on_window_reopened(&mut self, now: Instant, rto: Duration) {
        self.window_updates.on_reopened(now, self.buffer.next(), rto);
    }

    /// Whether such an update is to be repeated now.
    pub(super) fn is_window_update_due(&mut self, now: Instant, rto: Duration) -> bool {
        let next = self.buffer.next();
        self.window_updates.if_used().is_some_and(|updates| updates.is_repeat_due(now, next, rto))
    }

    /// When an update may be repeated.
    pub(super) fn next_window_update(&self) -> Option<Instant> {
        self.window_updates.used().and_then(WindowUpdates::next_timeout)
    }

    /// As [`read`](Self::read), and the bytes stay to be read.
    pub(super) fn peek(&self, out: &mut [u8]) -> Option<usize> {
        (self.buffer.readable() > 0).then(|| self.buffer.peek(out))
    }

    /// Bytes that the application has read.
    pub(super) const fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The window follows the reader, measured by a round trip.
    pub(super) fn follow_reader(&mut self, now: Instant, rtt: Duration) {
        self.buffer.follow_reader(now, rtt);
    }

    /// Nobody reads any more.
    pub(super) fn discard(&mut self) {
        self.buffer.discard();
    }

    /// The application has to be told that it may read: once, until it found nothing.
    pub(super) const fn tell(&mut self) -> bool {
        !core::mem::replace(&mut self.told, true)
    }

    /// The application found nothing to read.
    pub(super) const fn found_nothing(&mut self) {
        self.told = false;
    }

    /// First position of the peer on a subflow that was not delivered yet.
    pub(super) fn delivered(&self, id: SubflowId) -> Ssn {
        self.subflow(id).map_or(Ssn(1), |subflow| subflow.delivered)
    }

    /// The subflow is contiguous with the stream from the first byte on.
    pub(super) fn is_contiguous(&self, id: SubflowId) -> bool {
        self.delivered(id).0 == self.next().0 + 1
    }

    /// So many bytes came with the keys.
    pub(super) fn note_keyed(&mut self, id: SubflowId, bytes: u16) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.keyed = subflow.keyed.max(bytes);
        }
    }

    /// How many bytes came with the keys. Their DATA_ACK says nothing of mappings.
    pub(super) fn keyed(&self, id: SubflowId) -> u16 {
        self.subflow(id).map_or(0, |subflow| subflow.keyed)
    }

    /// Bytes that are next on the subflow, and that nothing maps, would be next in the stream on plain TCP.
    pub(super) fn is_in_step(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.in_step)
    }

    /// Something from `start` to `end` has lost its mapping, and not in a segment that kept another.
    pub(super) fn lacks_mapping(&self, id: SubflowId, start: Ssn, end: Ssn) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.lacks_mapping(start, end))
    }

    /// On plain TCP: bytes are missing that were discarded before, and that the peer takes for delivered.
    pub(super) fn has_lost_bytes(&self, id: SubflowId) -> bool {
        let Some(subflow) = self.subflow(id) else { return false };
        subflow.mappings.plain_place(subflow.delivered).is_some_and(|place| place > self.next())
    }

    /// An infinite mapping that names this point leaves no hole. Bytes before it that are still to come have
    /// mappings of their own.
    pub(super) fn fits(&self, id: SubflowId, (ssn, dsn): (Ssn, Dsn)) -> bool {
        let delivered = self.delivered(id);
        delivered < ssn || dsn.plus(delivered.since(ssn)) <= self.next()
    }

    /// Takes note of a mapping. The bound of a subflow follows the buffer: all subflows together may have a
    /// mapping for every few bytes of the largest window.
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
        subflow.mappings.raise_limit(MORE_MAPPINGS);
        subflow.mappings.announce(mapping, delivered)
    }

    fn has_room_for_mappings(&self) -> bool {
        let kept: usize = self.subflows.iter().flatten().map(|s| s.mappings.count()).sum();
        let most = (self.buffer.max_window() / BYTES_PER_MAPPING) as usize;
        kept.saturating_add(MORE_MAPPINGS) <= most.max(self.mappings)
    }

    /// Places in the stream of so many bytes from this position on, as far as mappings are known.
    pub(super) fn places(&self, id: SubflowId, ssn: Ssn, bytes: u64) -> Vec<DataRange> {
        self.subflow(id).map(|subflow| subflow.mappings.places(ssn, bytes)).unwrap_or_default()
    }

    /// How many bytes of a range were received before.
    pub(super) fn already_here(&self, range: DataRange) -> u64 {
        let mut holes = Vec::new();
        self.buffer.holes(range, &mut holes);
        range.len() - holes.iter().map(DataRange::len).sum::<u64>()
    }

    /// One mapping covers all positions from `start` to `end`.
    pub(super) fn maps(&self, id: SubflowId, start: Ssn, end: Ssn) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.maps(start, end))
    }

    /// Looks at what a segment holds beside what is mapped: a middlebox has put segments together
    /// and kept the options of one. Whether it has.
    pub(super) fn note_segment(&mut self, id: SubflowId, range: (Ssn, Ssn), mapped: bool) -> bool {
        let Some(subflow) = self.subflow_mut(id) else { return false };
        let delivered = subflow.delivered;
        subflow.mappings.note_segment(range, mapped, delivered)
    }

    /// Puts bytes that are in order on a subflow at their places in the stream.
    pub(super) fn deliver(&mut self, id: SubflowId, ssn: Ssn, bytes: &[u8]) -> Delivered {
        let subflow = self.subflows.get_mut(usize::from(id.0)).and_then(Option::as_mut);
        let Some(subflow) = subflow else {
            return Delivered { result: Ok(()), duplicate: 0, news: false };
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
        let whole = placed > 0 && !subflow.mappings.ends_torn(subflow.delivered);
        subflow.in_step = whole && end == buffer.next();
        let early = duplicate.min(subflow.early.into());
        subflow.early -= early as u32;
        Delivered { result, duplicate: duplicate - early, news }
    }

    /// What is kept of a failed mapping takes its share of the window.
    pub(super) fn hold_kept(&mut self, id: SubflowId) {
        if let Some(kept) = self.subflow(id).and_then(|subflow| subflow.mappings.kept()) {
            self.buffer.set_held(kept);
        }
    }

    /// Nothing is kept of it any more.
    pub(super) fn release_kept(&mut self) {
        self.buffer.set_held(0);
    }

    /// Data of a SYN: how much of it was here already.
    pub(super) fn take_syn_data(&mut self, id: SubflowId, at: Dsn, payload: &[u8]) -> u64 {
        let duplicate = self.buffer.insert(at, payload).duplicate;
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.delivered = Ssn(1).plus(payload.len() as u64);
            subflow.in_step = false;
        }
        duplicate
    }

    /// Data of the first SYN, which begins the stream and has no mapping.
    pub(super) fn take_unmapped(&mut self, id: SubflowId, payload: &[u8]) {
        self.buffer.insert(Dsn(0), payload);
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.delivered = Ssn(1).plus(payload.len() as u64);
        }
    }

    /// The SYN's data will come again: the opener went over to an ordinary join.
    pub(super) fn forget_syn_data(&mut self, id: SubflowId) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.delivered = Ssn(1);
            subflow.in_step = false;
        }
    }

    /// The peer sends plain TCP on the subflow from this point on: what waited for that is delivered. Whether
    /// the stream moved on.
    pub(super) fn receive_plain(&mut self, id: SubflowId, (ssn, dsn): (Ssn, Dsn)) -> bool {
        let waiting =
            self.subflow_mut(id).and_then(|subflow| subflow.mappings.set_infinite(ssn, dsn));
        self.buffer.set_held(0);
        // Its place was told in positions that no longer count; a FIN marks the end.
        self.buffer.forget_fin();
        let Some((dsn, bytes)) = waiting else { return false };
        let before = self.buffer.next();
        self.buffer.insert(dsn, &bytes);
        self.buffer.next() > before
    }

    /// A mapping covers the position, or none is needed.
    pub(super) fn covers(&self, id: SubflowId, ssn: Ssn) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.covers(ssn))
    }

    /// Where the mapping begins whose checksum failed on the subflow.
    pub(super) fn failed_at(&self, id: SubflowId) -> Option<Dsn> {
        self.subflow(id)?.mappings.failed_at()
    }

    /// Bytes that no mapping covers may be plain TCP.
    pub(super) fn expects_plain(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.expects_plain())
    }

    /// The peer maps everything one to one.
    pub(super) fn is_infinite(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.is_infinite())
    }

    /// It does so since its first byte.
    pub(super) fn is_plain_from_the_start(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.mappings.is_plain_from_the_start())
    }

    /// Whether repairs are taken.
    pub(super) const fn takes_repairs(&self) -> bool {
        self.decoder.is_some()
    }

    /// Both sides agreed on repairs.
    pub(super) fn start_coding(&mut self) {
        if self.decoder.is_none() {
            self.decoder = Some(Box::default());
            self.buffer.keep_history(HISTORY);
        }
    }

    /// Plain TCP has no place for repairs, and a connection that is over no use.
    pub(super) fn stop_coding(&mut self) {
        if self.decoder.take().is_some() {
            self.buffer.keep_history(0);
        }
    }

    /// Takes payload behind a hole of its subflow. How many bytes of it are new to the stream.
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

    /// After a segment was taken: computes what can be computed now. How many bytes that were.
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

    /// Gives back memory that lists kept for use.
    pub(super) fn shrink(&mut self) {
        self.subflows.iter_mut().flatten().for_each(|subflow| subflow.mappings.shrink());
        self.buffer.shrink();
        if self.next_window_update().is_none() {
            self.window_updates.retire();
        }
    }

    /// Bytes of memory of the stream, and of what it is computed from.
    pub(super) fn memory(&self) -> u64 {
        self.buffer.memory() + self.decoder.as_ref().map_or(0, |decoder| decoder.memory() as u64)
    }

    /// Bytes of memory that lists hold beside.
    pub(super) fn bookkeeping(&self) -> u64 {
        let of_subflows = self.subflows.iter().flatten().map(|s| s.mappings.memory());
        of_subflows.sum::<u64>() + self.buffer.bookkeeping()
    }
}
