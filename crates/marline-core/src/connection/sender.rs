//! Send side of a connection: it distributes the application's bytes to subflows, and tracks the data that must be
//! sent again.
//!
//! It owns the bytes, their mappings to subflows, the queue of reinjections, the peer's window, and the timers of
//! the data level: retransmission (RFC 8684 section 3.3.6) and window probes.

use std::collections::VecDeque;

use marline_policy::{
    DataRange, Dsn, Mapping, MappingIndex as _, ReinjectionCause, SchedulerContext, Ssn, SubflowId,
    SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};
use marline_wire::Checksum;

use super::fallback::Point;
use super::fec_tx::{RepairTx, SentRepair};
use super::mapping_tx::MappingTx;
use super::nagle::Nagle;
use super::reinjection::{QueuedRange, ReinjectionQueue};
use super::repeats::PendingProbes;
use super::send_buffer::{SendBuffer, WrittenBytes};
use crate::fec::Repair;
use crate::on_demand::{OnDemand, UnusedState};
use crate::subflow::SegmentSize;
use crate::tables::chunks::ChunkSource;
use crate::{BufferTuning, ConnectionConfig, Hold, MemoryAccount};

/// Maximum interval between zero-window probes.
const MAX_PERSIST: Duration = Duration::from_secs(60);
/// Maximum data-level RTO, for a gap that no subflow retransmits.
const MAX_DATA_RTO: Duration = Duration::from_secs(60);
/// Data-level timeouts fewer than this many RTOs apart, with progress in between, belong to one gap.
const SAME_GAP_RTOS: u32 = 4;

/// New data waits if mappings have fewer bytes than this, on average over the send buffer.
const BYTES_PER_MAPPING: u64 = 64;
/// Minimum limit on mappings without a DATA_ACK, for small send buffers.
const MIN_MAPPING_LIMIT: u64 = 1_024;

/// Sent state of one subflow.
#[derive(Debug)]
struct OutgoingState {
    /// End of the data that was sent with the keys. Their arrival proves nothing about mappings.
    keyed: Ssn,
    /// Mapped data was acknowledged together with a DATA_ACK, so options pass in both directions.
    proven: bool,
    /// The last ACK had no option.
    bare: bool,
    /// Start of the contiguous data that ends at the last byte sent on the subflow.
    run: Point,
    /// Unacknowledged repairs sent on the subflow, oldest first.
    repairs: OnDemand<VecDeque<SentRepair>>,
}

/// Data-level retransmission timer.
#[derive(Copy, Clone, Debug, Default)]
struct DataRto {
    at: Option<Instant>,
    count: u32,
}

/// State of the data-level timer's repetitions.
#[derive(Copy, Clone, Debug, Default)]
struct MissingData {
    /// Time of the timer's last expiry.
    fired_at: Option<Instant>,
    /// End of the first part of the last repetition, and number of segments to repeat together.
    gap_end: Option<Dsn>,
    gap_segments: u32,
}

impl UnusedState for MissingData {
    const UNUSED: &'static Self = &MissingData { fired_at: None, gap_end: None, gap_segments: 0 };
}

/// Result of an expiry of the data-level timer.
#[derive(Copy, Clone, Debug)]
pub(super) struct DataTimeout {
    /// Oldest missing data.
    pub(super) oldest: Mapping,
    /// Previous expiry, or now.
    pub(super) fired_at: Instant,
    /// Expiries since the last progress.
    pub(super) count: u32,
}

/// Probes of a closed window.
#[derive(Copy, Clone, Debug, Default)]
struct Persist {
    at: Option<Instant>,
    count: u32,
    /// Unanswered probes since the window closed.
    pending_probes: PendingProbes,
}

impl UnusedState for Persist {
    const UNUSED: &'static Self =
        &Persist { at: None, count: 0, pending_probes: PendingProbes::NONE_SENT };
}

/// Constraints of the connection during a scheduling decision.
#[derive(Copy, Clone, Debug)]
pub(super) struct Constraints {
    pub(super) now: Instant,
    /// True if repairs may be sent and are useful.
    pub(super) repairs: bool,
    /// True if data may be sent twice, which plain TCP does not allow.
    pub(super) repeats: bool,
}

/// Sending half of a connection.
#[derive(Debug)]
pub(super) struct Sender {
    buffer: SendBuffer,
    mappings: MappingTx,
    reinjections: ReinjectionQueue,
    /// First byte beyond the peer's receive window.
    window_end: Dsn,
    subflows: Box<[Option<OutgoingState>]>,
    /// Sender of repairs, once they are agreed on.
    repairs: Option<Box<RepairTx>>,
    /// Total number of stream bytes that were sent again on another subflow.
    repeated: u64,
    nagle: Nagle,
    rto: DataRto,
    holes: OnDemand<MissingData>,
    persist: OnDemand<Persist>,
}

impl Sender {
    pub(super) fn new(config: &ConnectionConfig, source: ChunkSource) -> Self {
        let fixed = config.buffer_tuning == BufferTuning::Fixed;
        Sender {
            buffer: SendBuffer::new(config.send_buffer, fixed, source),
            mappings: MappingTx::default(),
            reinjections: ReinjectionQueue::default(),
            window_end: Dsn(0),
            subflows: Box::default(),
            repairs: None,
            repeated: 0,
            nagle: Nagle::new(config.nagle),
            rto: DataRto::default(),
            holes: OnDemand::new(),
            persist: OnDemand::new(),
        }
    }

    /// Adds a subflow in this slot.
    pub(super) fn add_subflow(&mut self, id: SubflowId) {
        debug_assert!(
            !self.reinjections.names(id),
            "{id} is still queued for the slot's previous subflow"
        );
        let slot = usize::from(id.0);
        if self.subflows.len() <= slot {
            let there = core::mem::take(&mut self.subflows).into_iter();
            self.subflows = there.chain([const { None }]).collect();
        }
        let (keyed, run, repairs) = (Ssn(1), Point::FIRST, OnDemand::new());
        self.subflows[slot] =
            Some(OutgoingState { keyed, proven: false, bare: false, run, repairs });
    }

    /// Stops data on this subflow, which no longer counts as a carrier.
    pub(super) fn stop_carrying(&mut self, id: SubflowId) {
        self.reinjections.drop_subflow(id);
        self.mappings.forget_subflow(id);
    }

    /// Removes a subflow from the carriers of its data, because the data never arrived.
    pub(super) fn forget_mappings(&mut self, id: SubflowId) {
        self.mappings.forget_subflow(id);
    }

    /// Removes all references to a subflow, because its slot may be reused.
    pub(super) fn remove_subflow(&mut self, id: SubflowId) {
        self.stop_carrying(id);
        if let Some(slot) = self.subflows.get_mut(usize::from(id.0)) {
            *slot = None;
        }
    }

    fn subflow(&self, id: SubflowId) -> Option<&OutgoingState> {
        self.subflows.get(usize::from(id.0))?.as_ref()
    }

    fn subflow_mut(&mut self, id: SubflowId) -> Option<&mut OutgoingState> {
        self.subflows.get_mut(usize::from(id.0))?.as_mut()
    }

    /// First byte that is not DATA_ACKed.
    pub(super) const fn una(&self) -> Dsn {
        self.buffer.una()
    }

    /// One past the newest byte assigned to any subflow.
    pub(super) fn sent(&self) -> Dsn {
        self.mappings.end()
    }

    /// One past the last byte written.
    pub(super) const fn written_end(&self) -> Dsn {
        self.buffer.end()
    }

    /// First byte beyond the peer's receive window.
    pub(super) const fn window_end(&self) -> Dsn {
        self.window_end
    }

    /// New data within the peer's window and the limit on mappings without a DATA_ACK.
    pub(super) fn unsent(&self) -> DataRange {
        let sent = self.sent();
        let end = if self.is_mapping_limit_reached() {
            sent
        } else {
            self.written_end().min(self.window_end)
        };
        DataRange::new(sent, end.max(sent))
    }

    /// True if the limit on mappings without a DATA_ACK is reached. Subflows may have acknowledged all of these
    /// mappings, so without this limit only the send buffer would bound them, and each can be as short as a byte.
    pub(super) fn is_mapping_limit_reached(&self) -> bool {
        let most = (self.buffer.max_space() / BYTES_PER_MAPPING).max(MIN_MAPPING_LIMIT);
        self.mappings.count() as u64 >= most
    }

    /// Maximum number of bytes that the send buffer may hold.
    pub(super) const fn send_limit(&self) -> u64 {
        self.buffer.max_space()
    }

    /// True if some written data is not DATA_ACKed.
    pub(super) fn has_data(&self) -> bool {
        self.written_end() > self.una()
    }

    /// True if all written data was assigned to subflows.
    pub(super) fn sent_all(&self) -> bool {
        self.sent() == self.written_end()
    }

    /// True if some data assigned to subflows is not DATA_ACKed.
    pub(super) fn has_outstanding(&self) -> bool {
        self.mappings.oldest().is_some()
    }

    /// Mappings of data to subflows.
    pub(super) const fn mappings(&self) -> &MappingTx {
        &self.mappings
    }

    /// Data that must be sent again.
    pub(super) const fn reinjections(&self) -> &ReinjectionQueue {
        &self.reinjections
    }

    /// Context of a scheduler decision.
    pub(super) fn context<'a>(
        &'a self,
        constraints: Constraints,
        subflows: &'a [SubflowView],
    ) -> SchedulerContext<'a> {
        SchedulerContext {
            now: constraints.now,
            subflows,
            unsent: self.unsent(),
            written: self.written_end(),
            data_una: self.una(),
            window_end: self.window_end,
            send_limit: self.buffer.max_space(),
            repeated: self.repeated,
            repairs: constraints.repairs,
            mappings: &self.mappings,
        }
    }

    /// Accepts bytes to send. Returns the number of bytes that fit.
    pub(super) fn write(&mut self, now: Instant, bytes: WrittenBytes<'_>) -> usize {
        let unsent = self.written_end().since(self.sent());
        let room = self.nagle.writable_bytes(bytes.len(), unsent);
        let taken = self.buffer.write(now, bytes, room);
        if taken < bytes.len() {
            self.buffer.refuse();
        }
        taken
    }

    /// True if a write was refused since the last notification.
    pub(super) const fn is_blocked(&self) -> bool {
        self.buffer.is_blocked()
    }

    /// True if a write was refused for lack of memory and the application is waiting.
    pub(super) const fn is_held_back(&self) -> bool {
        self.buffer.is_held_back()
    }

    /// Like [`is_held_back`](Self::is_held_back), if the cause is that subflows retain too much DATA_ACKed data.
    pub(super) fn retains_too_much(&self) -> bool {
        self.buffer.retains_too_much()
    }

    /// Like [`is_held_back`](Self::is_held_back), for at least this time.
    pub(super) fn is_held_back_for(&self, time: Duration, now: Instant) -> bool {
        self.buffer.is_held_back_for(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), now)
    }

    /// True if the application is to be notified of room.
    pub(super) fn take_writable(&mut self, now: Instant) -> bool {
        let unsent = self.written_end().since(self.sent());
        self.nagle.is_unsent_low(unsent) && self.buffer.take_writable(now)
    }

    /// True if a writer that was blocked by unsent data is to be notified after data was sent.
    pub(super) fn take_writable_for_sent(&mut self, now: Instant) -> bool {
        self.nagle.limits_unsent() && self.buffer.is_blocked() && self.take_writable(now)
    }

    /// Changes the maximum size of the buffer.
    pub(super) fn resize(&mut self, max_space: u64) {
        self.buffer.resize(max_space);
    }

    /// Charges the buffer's memory to another account.
    pub(super) fn charge_to(&mut self, account: &MemoryAccount) {
        self.buffer.charge_to(account);
    }

    /// See [`SendBuffer::is_lasting_bulk`].
    pub(super) fn is_lasting_bulk(&self, now: Instant) -> bool {
        self.buffer.is_lasting_bulk(now)
    }

    /// Adjusts the buffer's space to the windows of all subflows.
    pub(super) fn tune(&mut self, window_sum: u64) {
        self.buffer.tune(window_sum);
    }

    pub(super) const fn set_nagle(&mut self, on: bool) {
        self.nagle.set_on(on);
    }

    pub(super) fn set_hold(&mut self, hold: Hold) {
        self.nagle.set_hold(hold);
    }

    pub(super) fn set_lowat(&mut self, bytes: Option<u64>) {
        self.nagle.set_lowat(bytes);
    }

    pub(super) fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.nagle.set_user_timeout(timeout);
    }

    /// Ends a record at the last byte written.
    pub(super) fn end_record(&mut self) {
        self.nagle.end_record(self.buffer.end());
    }

    pub(super) const fn nagle(&self) -> &Nagle {
        &self.nagle
    }

    /// True if the last bytes, fewer than a segment, should wait for more data.
    pub(super) fn holds_back(&mut self, now: Instant, rto: Duration) -> bool {
        self.nagle.holds_back(now, rto)
    }

    /// Called when only a small part of the peer's window is left. Returns true while the sender should wait for
    /// more.
    pub(super) fn waits_for_window(&mut self, now: Instant, rto: Duration) -> bool {
        self.nagle.waits_for_window(now, rto)
    }

    /// Handles the transmission of a segment.
    pub(super) fn on_segment(&mut self) {
        self.nagle.on_segment();
    }

    /// Handles the transmission of the last bytes. Returns true if the peer should deliver them immediately.
    pub(super) fn take_release(&mut self) -> bool {
        self.nagle.take_release()
    }

    /// Starts the user timeout for data or a DATA_FIN (`fin`) in flight.
    pub(super) fn watch_progress(&mut self, now: Instant, fin: bool) {
        if self.una() < self.sent() || fin {
            self.nagle.watch_progress(now);
        }
    }

    /// Handles expired timers of held segments and of the user timeout. Returns true if data was unacknowledged
    /// for too long.
    pub(super) fn on_nagle_timeout(&mut self, now: Instant) -> bool {
        self.nagle.on_timeout(now)
    }

    /// Copies and checksums bytes for a segment. `None` if they are gone, which is a bug.
    pub(super) fn copy(&self, start: Dsn, out: &mut [u8]) -> Option<Checksum> {
        let sum = self.buffer.copy(start, out);
        debug_assert!(sum.is_some(), "bytes at {start:?} were dropped");
        sum
    }

    /// Records data sent on a subflow at position `ssn`. `repeat` is true if the data was sent before.
    pub(super) fn record_sent(&mut self, id: SubflowId, ssn: Ssn, range: DataRange, repeat: bool) {
        self.buffer.pin(range);
        if repeat {
            self.repeated += range.len();
            self.mappings.add(range, id);
            self.reinjections.remove(range);
        } else {
            self.mappings.push(range, id);
        }
        self.update_run(id, ssn, range.start);
    }

    /// Records data sent with a SYN. Until the SYN is answered, other subflows may also carry the data.
    pub(super) fn carry_with_syn(&mut self, now: Instant, id: SubflowId, range: DataRange) {
        self.buffer.pin(range);
        self.update_run(id, Ssn(1), range.start);
        if range.start == self.sent() {
            self.mappings.push(range, id);
        } else {
            self.mappings.add(range, id);
        }
        self.reinject(now, range, ReinjectionCause::SubflowClosed, Some(id));
    }

    /// Extends or restarts the contiguous range after data was sent on a subflow.
    fn update_run(&mut self, id: SubflowId, ssn: Ssn, dsn: Dsn) {
        let Some(subflow) = self.subflow_mut(id) else { return };
        let Point { ssn: from, dsn: first } = subflow.run;
        if dsn < first || dsn.since(first) != ssn.since(from) {
            subflow.run = Point { ssn, dsn };
        }
    }

    /// Start of the contiguous data that ends at the last byte sent on a subflow.
    pub(super) fn run(&self, id: SubflowId) -> Point {
        self.subflow(id).map_or(Point::FIRST, |subflow| subflow.run)
    }

    /// True if all data on the subflow has been contiguous since the first byte.
    pub(super) fn is_contiguous(&self, id: SubflowId) -> bool {
        self.run(id) == Point::FIRST
    }

    /// Records that data up to `end` was sent with the keys.
    pub(super) fn record_keyed(&mut self, id: SubflowId, end: Ssn) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.keyed = end;
        }
    }

    /// Handles a DATA_ACK on the subflow, on which `una` is the first position not acknowledged.
    pub(super) fn record_proof(&mut self, id: SubflowId, una: Ssn) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.proven |= una > subflow.keyed;
            subflow.bare = false;
        }
    }

    /// Handles an ACK without options on the subflow.
    pub(super) fn record_bare_ack(&mut self, id: SubflowId) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.bare = true;
        }
    }

    /// True if no DATA_ACK has arrived on the subflow since an ACK without options.
    pub(super) fn lacks_data_ack(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.bare)
    }

    /// True if data mapped on the subflow was acknowledged together with a DATA_ACK.
    pub(super) fn is_proven(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.proven)
    }

    /// True if data that had its own mapping on the first subflow was DATA_ACKed on any subflow.
    pub(super) fn was_mapped_acked(&self, first: SubflowId) -> bool {
        self.subflow(first).is_some_and(|subflow| self.una().0 + 1 > subflow.keyed.0)
    }

    /// Releases bytes that a subflow no longer needs.
    pub(super) fn unpin(&mut self, range: DataRange) {
        self.buffer.unpin(range);
    }

    /// Raises the end of the peer's window to this position, if it is higher.
    pub(super) fn raise_window(&mut self, end: Dsn) {
        self.window_end = self.window_end.max(end);
    }

    /// Sets the end of the peer's window. Plain TCP lets it shrink.
    pub(super) const fn set_window(&mut self, end: Dsn) {
        self.window_end = end;
    }

    /// Handles a DATA_ACK: the peer has all data before `to`.
    pub(super) fn ack(&mut self, to: Dsn) {
        self.buffer.ack(to);
        self.mappings.ack(to);
        self.reinjections.ack(to);
        self.rto.count = 0;
        if let Some(persist) = self.persist.if_used() {
            (persist.count, persist.pending_probes) = (0, PendingProbes::default());
        }
        self.nagle.on_ack(self.buffer.una(), self.mappings.end() < self.buffer.end());
    }

    /// Records data delivered by a subflow, in order or behind a gap in the stream.
    pub(super) fn record_delivered(&mut self, range: DataRange) {
        if range.end > self.buffer.una() {
            self.mappings.deliver(range);
        }
    }

    /// Queues data to be sent again because of a failure of the subflow `from`.
    pub(super) fn reinject(
        &mut self,
        now: Instant,
        range: DataRange,
        cause: ReinjectionCause,
        from: Option<SubflowId>,
    ) {
        self.reinjections.push(QueuedRange { range, cause, since: now, from, on: None });
    }

    /// Queues sent data to be sent again on a subflow that a policy chose.
    pub(super) fn reinject_on(
        &mut self,
        now: Instant,
        range: DataRange,
        cause: ReinjectionCause,
        on: SubflowId,
    ) {
        let range = range.intersection(&DataRange::new(self.una(), self.sent()));
        if !range.is_empty() {
            let on = Some(on);
            self.reinjections.push(QueuedRange { range, cause, since: now, from: on, on });
        }
    }

    /// Queues the parts of `range` that a subflow holds and no other healthy one carries.
    pub(super) fn reinject_sole_copies(
        &mut self,
        now: Instant,
        range: DataRange,
        from: SubflowId,
        cause: ReinjectionCause,
        healthy: SubflowSet,
    ) {
        let lonely = |mapping: &Mapping| {
            let mut others = mapping.carried_by;
            others.remove(from);
            others.iter().all(|id| !healthy.contains(id))
        };
        for part in self.mappings.parts(range).filter(lonely) {
            let (range, from) = (part.range, Some(from));
            self.reinjections.push(QueuedRange { range, cause, since: now, from, on: None });
        }
    }

    /// Queues data that only this subflow carries, starting at `first`.
    pub(super) fn reinject_carried_alone(&mut self, now: Instant, first: Dsn, id: SubflowId) {
        let (alone, cause) = (SubflowSet::single(id), ReinjectionCause::SubflowClosed);
        for part in self.mappings.parts(DataRange::new(first, self.mappings.end())) {
            if part.carried_by == alone {
                let (range, from) = (part.range, Some(id));
                self.reinjections.push(QueuedRange { range, cause, since: now, from, on: None });
            }
        }
    }

    /// Withdraws reinjections based on suspicion of a subflow.
    pub(super) fn clear_suspicion(&mut self, id: SubflowId) {
        self.reinjections.clear_suspicion(id);
    }

    /// Removes a range from the reinjection queue.
    pub(super) fn withdraw_reinjection(&mut self, range: DataRange) {
        self.reinjections.remove(range);
    }

    /// Clears the queue after the end of the connection.
    pub(super) fn clear_reinjections(&mut self) {
        self.reinjections.clear();
    }

    /// Drops state that plain TCP does not use: reinjections, repairs and data-level timers.
    pub(super) fn leave_multipath(&mut self) {
        self.reinjections.clear();
        self.repairs = None;
        self.rto.at = None;
    }

    /// Returns overdue data: queued reinjections, data that only failed subflows carry, and new data if no healthy
    /// subflow can take it.
    pub(super) fn urgent_range(&self, healthy: SubflowSet) -> Option<DataRange> {
        let stranded = || {
            let sent = DataRange::new(self.una(), self.sent());
            let lonely = |m: &Mapping| !m.carried_by.iter().any(|id| healthy.contains(id));
            self.mappings.parts(sent).find(lonely).map(|m| m.range)
        };
        let queued = self.reinjections.iter().map(|queued| queued.range).next();
        let unsent =
            || Some(self.unsent()).filter(|unsent| healthy.is_empty() && !unsent.is_empty());
        queued.or_else(stranded).or_else(unsent)
    }

    /// Restarts the data-level timer for outstanding data: two RTOs, with backoff.
    pub(super) fn rearm_rto(&mut self, now: Instant, rto: Duration) {
        if self.mappings.oldest().is_none() {
            self.rto.at = None;
            return;
        }
        let rto = rto * 2 * (1 << self.rto.count.min(6));
        self.rto.at = Some(now + rto.min(MAX_DATA_RTO));
    }

    /// Moves the data-level timer to this time if that is earlier, unless it has fired since the last progress.
    pub(super) fn advance_rto_timer(&mut self, at: Instant) {
        if self.rto.count == 0 {
            self.rto.at = self.rto.at.map(|due| due.min(at));
        }
    }

    /// Oldest data that is not DATA_ACKed.
    pub(super) fn oldest_outstanding(&self) -> Option<Mapping> {
        self.mappings.oldest()
    }

    /// Stops the data-level timer on plain TCP.
    pub(super) const fn disarm_rto(&mut self) {
        self.rto.at = None;
    }

    pub(super) const fn is_rto_armed(&self) -> bool {
        self.rto.at.is_some()
    }

    /// Stops window probes because data was sent.
    pub(super) fn stop_persist(&mut self) {
        if let Some(persist) = self.persist.if_used() {
            persist.at = None;
        }
    }

    /// Times of the data-level timers: retransmission, window probe.
    pub(super) fn timeouts(&self) -> [Option<Instant>; 2] {
        [self.rto.at, self.persist.at]
    }

    /// Counts an expiry of the data-level timer, which is to be restarted.
    pub(super) const fn count_rto(&mut self) {
        self.rto.count += 1;
    }

    /// State at an expiry of the timer; `None` if no data is outstanding.
    pub(super) fn data_timeout(&mut self, now: Instant) -> Option<DataTimeout> {
        let oldest = self.mappings.oldest()?;
        let fired_at = self.holes.fired_at.replace(now).unwrap_or(now);
        Some(DataTimeout { oldest, fired_at, count: self.rto.count })
    }

    /// Queues all data that no existing subflow carries, because it is certainly missing.
    pub(super) fn requeue_orphaned_data(&mut self, now: Instant) {
        let sent = DataRange::new(self.una(), self.sent());
        let cause = ReinjectionCause::SubflowClosed;
        for part in self.mappings.parts(sent).filter(|part| part.carried_by.is_empty()) {
            let range = part.range;
            self.reinjections.push(QueuedRange { range, cause, since: now, from: None, on: None });
        }
    }

    /// Repeats the oldest data, regardless of subflow acknowledgments. The size of the gap is unknown: if the data
    /// after it is also missing, the amount doubles. `held` is true for data that a healthy subflow still retransmits
    /// on its own.
    pub(super) fn repeat_gap(
        &mut self,
        now: Instant,
        fired_at: Instant,
        rto: Duration,
        size: SegmentSize,
        held: impl Fn(&Mapping) -> bool,
    ) {
        let una = self.una();
        let prompt = now.since(fired_at) <= rto * SAME_GAP_RTOS;
        let again = prompt && self.holes.gap_end.is_some_and(|end| una >= end);
        self.holes.gap_segments = if again { self.holes.gap_segments.saturating_mul(2) } else { 1 };
        let sent = DataRange::new(una, self.sent());
        let parts = self.mappings.segments(sent, self.holes.gap_segments, size);
        let missing: Vec<DataRange> = parts.filter(|p| !held(p)).map(|part| part.range).collect();
        self.holes.gap_end = missing.first().map(|first| first.end);
        for range in missing {
            self.reinjections.remove(range);
            self.reinject(now, range, ReinjectionCause::DataRto, None);
        }
    }

    /// Arms the persist timer: the peer's window is closed, and no data in flight would bring an update.
    pub(super) fn rearm_persist(&mut self, now: Instant, usable: bool, rto: Duration) {
        let waiting = self.written_end() > self.sent();
        let idle = self.mappings.oldest().is_none();
        if !waiting || !idle || !usable || self.window_end > self.sent() {
            self.stop_persist();
            return;
        }
        if self.persist.at.is_none() {
            self.persist.at = Some(now + self.persist_pause(rto));
        }
    }

    /// Time to the next window probe.
    pub(super) fn persist_pause(&self, rto: Duration) -> Duration {
        (rto * (1 << self.persist.count.min(8))).min(MAX_PERSIST)
    }

    /// Time of the last window probe.
    pub(super) fn probed_at(&self) -> Option<Instant> {
        self.persist.pending_probes.last_sent_at()
    }

    /// Postpones the next window probe.
    pub(super) fn postpone_persist(&mut self, until: Option<Instant>) {
        self.persist.at = until;
    }

    /// Records a window probe. The peer's last segment arrived at `last_rx_at`. Returns the number of consecutive
    /// unanswered probes.
    pub(super) fn on_probe(&mut self, now: Instant, last_rx_at: Option<Instant>) -> u32 {
        let silent = self.persist.pending_probes.record_probe_at(now, last_rx_at);
        if silent == 1 {
            // The probe was lost or the peer is gone. Unanswered probes are repeated like data.
            self.persist.count = self.persist.count.min(1);
        }
        self.persist.count += 1;
        silent
    }

    /// Starts repairs after both sides agreed on them.
    pub(super) fn start_coding(&mut self) {
        self.repairs.get_or_insert_default();
    }

    pub(super) fn stop_coding(&mut self) {
        self.repairs = None;
    }

    /// True if repairs are agreed on and no middlebox interferes with them.
    pub(super) fn may_repair(&self) -> bool {
        self.repairs.as_ref().is_some_and(|repairs| !repairs.are_refused())
    }

    /// Handles a reset by the peer: a repair in flight may be the reason.
    pub(super) fn on_peer_reset(&mut self, id: SubflowId) {
        let repairing = self.subflow(id).is_some_and(|subflow| !subflow.repairs.is_empty());
        if let Some(repairs) = self.repairs.as_mut().filter(|_| repairing) {
            repairs.refuse();
        }
    }

    /// Next repair of `range` for a subflow with this much room in a segment.
    pub(super) fn next_repair(
        &self,
        id: SubflowId,
        range: DataRange,
        room: usize,
    ) -> Option<Repair> {
        let longest = self.mappings.parts(range).map(|part| part.range.len()).max()?;
        let kept: usize = self.subflow(id)?.repairs.iter().map(SentRepair::len).sum();
        self.repairs.as_ref()?.next(range, longest, kept, room)
    }

    /// Computes the sum of a repair's data.
    pub(super) fn compute_sum(&mut self, repair: &Repair) -> Option<Vec<u8>> {
        self.repairs.as_mut()?.compute_sum(repair, &self.buffer)
    }

    /// Records a repair sent on a subflow, which keeps it until it is acknowledged.
    pub(super) fn keep_repair(&mut self, id: SubflowId, sent: SentRepair) {
        if let Some(repairs) = self.repairs.as_mut() {
            repairs.record_repair_sent(sent.repair());
        }
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.repairs.push_back(sent);
        }
    }

    /// Repair that starts at this position on a subflow.
    pub(super) fn sent_repair(&self, id: SubflowId, start: Ssn) -> Option<&SentRepair> {
        let sent = self.subflow(id)?.repairs.iter().find(|repair| repair.start() == start);
        debug_assert!(sent.is_some(), "the repair at {start:?} was dropped");
        sent
    }

    /// Drops acknowledged repairs.
    pub(super) fn release_repairs(&mut self, id: SubflowId, una: Ssn) {
        let Some(subflow) = self.subflow_mut(id) else { return };
        while subflow.repairs.front().is_some_and(|repair| repair.end() <= una) {
            subflow.repairs.pop_front();
        }
    }

    /// Releases unused memory.
    pub(super) fn shrink(&mut self) {
        for subflow in self.subflows.iter_mut().flatten().filter(|s| s.repairs.is_empty()) {
            subflow.repairs.retire();
        }
        self.nagle.shrink();
        let Persist { at, count, pending_probes } = *self.persist;
        if at.is_none() && count == 0 && pending_probes.last_sent_at().is_none() {
            self.persist.retire();
        }
        self.mappings.shrink();
        self.reinjections.shrink();
        self.buffer.shrink();
    }

    /// Memory that the stream uses, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.buffer.memory()
    }

    /// Memory that lists use, in bytes.
    pub(super) fn bookkeeping(&self) -> u64 {
        self.mappings.memory() + self.reinjections.memory() + self.buffer.bookkeeping()
    }
}
