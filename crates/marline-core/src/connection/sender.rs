//! Send side of a connection: the stream from the application's bytes to subflows, and the data
//! that must be sent again.
//!
//! It owns the bytes, who carries which of them (mappings), the queue of reinjections, the peer's window,
//! and the timers of the data level: retransmission (RFC 8684 section 3.3.6) and window probes.

use std::collections::VecDeque;

use marline_policy::{
    DataRange, Dsn, Mapping, MappingIndex as _, ReinjectionCause, SchedulerContext, Ssn, SubflowId,
    SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};
use marline_wire::Checksum;

use super::asked::Asked;
use super::choice::Terms;
use super::fec_tx::{RepairTx, SentRepair};
use super::mapping_tx::MappingTx;
use super::nagle::Nagle;
use super::reinjection::{Queued, ReinjectionQueue};
use super::send_buffer::{SendBuffer, Written};
use crate::fec::Repair;
use crate::on_demand::{OnDemand, Unused};
use crate::subflow::SegmentSize;
use crate::tables::chunks::ChunkSource;
use crate::{BufferTuning, ConnectionConfig, Hold, MemoryAccount};

/// Longest pause between zero-window probes.
const MAX_PERSIST: Duration = Duration::from_secs(60);
/// Longest data-level RTO: how long a hole that no subflow accounts for may stand.
const MAX_DATA_RTO: Duration = Duration::from_secs(60);
/// Data-level timeouts less than so many RTOs apart, with progress in between, are of one hole.
const HOLES_APART: u32 = 4;

/// New data waits once there are mappings of fewer bytes than this, on average, for all of the send buffer.
const BYTES_PER_MAPPING: u64 = 64;
/// As many mappings may wait for a DATA_ACK, however small the send buffer is.
const LEAST_MAPPINGS: u64 = 1_024;

/// What we send on one subflow.
#[derive(Debug)]
struct Outgoing {
    /// End of the data that went out with the keys: that it arrived says nothing of mappings.
    keyed: Ssn,
    /// Data mapped on it was acknowledged together with a DATA_ACK: ours pass, too.
    proven: bool,
    /// The last ACK had no option.
    bare: bool,
    /// Where the data sent last on it began to be contiguous.
    run: (Ssn, Dsn),
    /// Repairs sent on it and not acknowledged, oldest first.
    repairs: OnDemand<VecDeque<SentRepair>>,
}

/// The data-level retransmission timer.
#[derive(Copy, Clone, Debug, Default)]
struct DataRto {
    at: Option<Instant>,
    count: u32,
}

/// What the data-level timer found when it fired.
#[derive(Copy, Clone, Debug, Default)]
struct Holes {
    /// When it last was due.
    fired_at: Option<Instant>,
    /// Where the first part ended of what it repeated last, and how many segments it repeats at once.
    hole_end: Option<Dsn>,
    hole_segments: u32,
}

impl Unused for Holes {
    const UNUSED: &'static Self = &Holes { fired_at: None, hole_end: None, hole_segments: 0 };
}

/// The data-level timer as it fires.
#[derive(Copy, Clone, Debug)]
pub(super) struct DataTimeout {
    /// What is missing for the longest time.
    pub(super) oldest: Mapping,
    /// When the timer fired before, or now.
    pub(super) fired_at: Instant,
    /// How often it fired since the last progress.
    pub(super) count: u32,
}

/// Probes of a shut window.
#[derive(Copy, Clone, Debug, Default)]
struct Persist {
    at: Option<Instant>,
    count: u32,
    /// What they were answered with, since the window shut.
    asked: Asked,
}

impl Unused for Persist {
    const UNUSED: &'static Self = &Persist { at: None, count: 0, asked: Asked::NEVER };
}

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct Sender {
    buffer: SendBuffer,
    mappings: MappingTx,
    reinjections: ReinjectionQueue,
    /// First byte beyond the peer's receive window.
    window_end: Dsn,
    subflows: Box<[Option<Outgoing>]>,
    /// Our repairs, once they are agreed on.
    repairs: Option<Box<RepairTx>>,
    /// Bytes of the stream that were sent again on another subflow, all in all.
    repeated: u64,
    nagle: Nagle,
    rto: DataRto,
    holes: OnDemand<Holes>,
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

    /// A subflow takes this slot.
    pub(super) fn add_subflow(&mut self, id: SubflowId) {
        debug_assert!(!self.reinjections.names(id), "{id} still stands for another subflow");
        let slot = usize::from(id.0);
        if self.subflows.len() <= slot {
            let there = core::mem::take(&mut self.subflows).into_iter();
            self.subflows = there.chain([const { None }]).collect();
        }
        let (keyed, run, repairs) = (Ssn(1), (Ssn(1), Dsn(0)), OnDemand::new());
        self.subflows[slot] = Some(Outgoing { keyed, proven: false, bare: false, run, repairs });
    }

    /// No more data on this subflow: it counts no more among those that carry something.
    pub(super) fn stop_carrying(&mut self, id: SubflowId) {
        self.reinjections.bury(id);
        self.mappings.forget(id);
    }

    /// What it carried nobody carries: it never got through.
    pub(super) fn forget_mappings(&mut self, id: SubflowId) {
        self.mappings.forget(id);
    }

    /// The slot may go to another subflow: nothing that speaks of it means the one that was there.
    pub(super) fn remove_subflow(&mut self, id: SubflowId) {
        self.stop_carrying(id);
        if let Some(slot) = self.subflows.get_mut(usize::from(id.0)) {
            *slot = None;
        }
    }

    fn subflow(&self, id: SubflowId) -> Option<&Outgoing> {
        self.subflows.get(usize::from(id.0))?.as_ref()
    }

    fn subflow_mut(&mut self, id: SubflowId) -> Option<&mut Outgoing> {
        self.subflows.get_mut(usize::from(id.0))?.as_mut()
    }

    /// First byte that is not DATA_ACKed.
    pub(super) const fn una(&self) -> Dsn {
        self.buffer.una()
    }

    /// One past the newest byte handed to any subflow.
    pub(super) fn sent(&self) -> Dsn {
        self.mappings.end()
    }

    /// One past the last byte written.
    pub(super) const fn written(&self) -> Dsn {
        self.buffer.end()
    }

    /// First byte beyond the peer's receive window.
    pub(super) const fn window_end(&self) -> Dsn {
        self.window_end
    }

    /// New data as far as the peer's window allows, and the number of mappings that wait for a DATA_ACK.
    pub(super) fn unsent(&self) -> DataRange {
        let sent = self.sent();
        let end = if self.has_most_mappings() { sent } else { self.written().min(self.window_end) };
        DataRange::new(sent, end.max(sent))
    }

    /// So many mappings wait for a DATA_ACK that none may be added: subflows may have acknowledged them all, so that
    /// nothing but the send buffer bounds them otherwise, and each can be as short as a byte.
    pub(super) fn has_most_mappings(&self) -> bool {
        let most = (self.buffer.max_space() / BYTES_PER_MAPPING).max(LEAST_MAPPINGS);
        self.mappings.count() as u64 >= most
    }

    /// Most bytes that the send buffer may hold.
    pub(super) const fn send_limit(&self) -> u64 {
        self.buffer.max_space()
    }

    /// Something was written and is not DATA_ACKed.
    pub(super) fn has_data(&self) -> bool {
        self.written() > self.una()
    }

    /// All that was written was handed to subflows.
    pub(super) fn sent_all(&self) -> bool {
        self.sent() == self.written()
    }

    /// Something was handed to subflows and is not DATA_ACKed.
    pub(super) fn has_outstanding(&self) -> bool {
        self.mappings.oldest().is_some()
    }

    /// Who carries what.
    pub(super) const fn mappings(&self) -> &MappingTx {
        &self.mappings
    }

    /// What must go out again.
    pub(super) const fn reinjections(&self) -> &ReinjectionQueue {
        &self.reinjections
    }

    /// What a scheduler judges by.
    pub(super) fn context<'a>(
        &'a self,
        terms: Terms,
        subflows: &'a [SubflowView],
    ) -> SchedulerContext<'a> {
        SchedulerContext {
            now: terms.now,
            subflows,
            unsent: self.unsent(),
            written: self.written(),
            data_una: self.una(),
            window_end: self.window_end,
            send_limit: self.buffer.max_space(),
            repeated: self.repeated,
            repairs: terms.repairs,
            mappings: &self.mappings,
        }
    }

    /// Takes bytes to send: how many fit.
    pub(super) fn write(&mut self, now: Instant, bytes: Written<'_>) -> usize {
        let unsent = self.written().since(self.sent());
        let room = self.nagle.room(bytes.len(), unsent);
        let taken = self.buffer.write(now, bytes, room);
        if taken < bytes.len() {
            self.buffer.refuse();
        }
        taken
    }

    /// The application was refused since it last was told of room.
    pub(super) const fn is_blocked(&self) -> bool {
        self.buffer.is_blocked()
    }

    /// The application was refused for lack of memory, and waits.
    pub(super) const fn is_held_back(&self) -> bool {
        self.buffer.is_held_back()
    }

    /// As [`is_held_back`](Self::is_held_back), because of what subflows keep although it is DATA_ACKed.
    pub(super) fn keeps_too_much(&self) -> bool {
        self.buffer.keeps_too_much()
    }

    /// As [`is_held_back`](Self::is_held_back), for so long.
    pub(super) fn is_held_back_for(&self, time: Duration, now: Instant) -> bool {
        self.buffer.is_held_back_for(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), now)
    }

    /// Whether the application is to be told of room.
    pub(super) fn take_writable(&mut self, now: Instant) -> bool {
        let unsent = self.written().since(self.sent());
        self.nagle.is_little(unsent) && self.buffer.take_writable(now)
    }

    /// Data was sent: whether a writer who was refused for what lay unsent is to be told of room.
    pub(super) fn take_writable_for_sent(&mut self, now: Instant) -> bool {
        self.nagle.limits_unsent() && self.buffer.is_blocked() && self.take_writable(now)
    }

    /// Changes how large the buffer may become.
    pub(super) fn resize(&mut self, max_space: u64) {
        self.buffer.resize(max_space);
    }

    /// Another account is charged for the buffer from now on.
    pub(super) fn charge_to(&mut self, account: &MemoryAccount) {
        self.buffer.charge_to(account);
    }

    /// Lets the buffer's space follow the windows of all subflows.
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

    /// What was written so far is a record.
    pub(super) fn end_record(&mut self) {
        self.nagle.end_record(self.buffer.end());
    }

    pub(super) const fn nagle(&self) -> &Nagle {
        &self.nagle
    }

    /// The last bytes there are, fewer than a segment holds, wait for more.
    pub(super) fn holds_back(&mut self, now: Instant, rto: Duration) -> bool {
        self.nagle.holds(now, rto)
    }

    /// Nothing but a sliver of the peer's window is left: whether to wait for more.
    pub(super) fn waits_for_window(&mut self, now: Instant, rto: Duration) -> bool {
        self.nagle.waits_for_window(now, rto)
    }

    /// A segment leaves.
    pub(super) fn on_segment(&mut self) {
        self.nagle.on_segment();
    }

    /// The last bytes there are leave: whether the peer should deliver them at once.
    pub(super) fn take_release(&mut self) -> bool {
        self.nagle.take_release()
    }

    /// Data or a DATA_FIN (`fin`) may be under way: from now on somebody should acknowledge it.
    pub(super) fn watch_progress(&mut self, now: Instant, fin: bool) {
        if self.una() < self.sent() || fin {
            self.nagle.watch_progress(now);
        }
    }

    /// Times of held segments and of the user timeout that have come. Whether data went unacknowledged for too
    /// long.
    pub(super) fn on_nagle_timeout(&mut self, now: Instant) -> bool {
        self.nagle.on_timeout(now)
    }

    /// Copies bytes for a segment and sums them. `None` if they are gone, which is a bug.
    pub(super) fn copy(&self, start: Dsn, out: &mut [u8]) -> Option<Checksum> {
        let sum = self.buffer.copy(start, out);
        debug_assert!(sum.is_some(), "bytes at {start:?} are gone");
        sum
    }

    /// Data goes out on a subflow, at `ssn` there: for the first time or, as `repeat`, once more.
    pub(super) fn carry(&mut self, id: SubflowId, ssn: Ssn, range: DataRange, repeat: bool) {
        self.buffer.pin(range);
        if repeat {
            self.repeated += range.len();
            self.mappings.add(range, id);
            self.reinjections.remove(range);
        } else {
            self.mappings.push(range, id);
        }
        self.note_run(id, ssn, range.start);
    }

    /// Data goes with a SYN. Until that is answered others may carry it, too.
    pub(super) fn carry_with_syn(&mut self, now: Instant, id: SubflowId, range: DataRange) {
        self.buffer.pin(range);
        self.note_run(id, Ssn(1), range.start);
        if range.start == self.sent() {
            self.mappings.push(range, id);
        } else {
            self.mappings.add(range, id);
        }
        self.reinject(now, range, ReinjectionCause::SubflowClosed, Some(id));
    }

    /// Data went out on a subflow: does it continue what went before, one to one?
    fn note_run(&mut self, id: SubflowId, ssn: Ssn, dsn: Dsn) {
        let Some(subflow) = self.subflow_mut(id) else { return };
        let (from, first) = subflow.run;
        if dsn < first || dsn.since(first) != ssn.since(from) {
            subflow.run = (ssn, dsn);
        }
    }

    /// Where the data sent last on a subflow began to be contiguous.
    pub(super) fn run(&self, id: SubflowId) -> (Ssn, Dsn) {
        self.subflow(id).map_or((Ssn(1), Dsn(0)), |subflow| subflow.run)
    }

    /// All data on the subflow is contiguous from the first byte on.
    pub(super) fn is_contiguous(&self, id: SubflowId) -> bool {
        self.run(id) == (Ssn(1), Dsn(0))
    }

    /// Data up to `end` went out with the keys.
    pub(super) fn note_keyed(&mut self, id: SubflowId, end: Ssn) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.keyed = end;
        }
    }

    /// A DATA_ACK came on the subflow, on which `una` is the first position not acknowledged.
    pub(super) fn note_proof(&mut self, id: SubflowId, una: Ssn) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.proven |= una > subflow.keyed;
            subflow.bare = false;
        }
    }

    /// An ACK without options came on the subflow.
    pub(super) fn note_bare_ack(&mut self, id: SubflowId) {
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.bare = true;
        }
    }

    /// No DATA_ACK came on the subflow since an ACK without options did.
    pub(super) fn is_bare(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.bare)
    }

    /// Data mapped on it was acknowledged together with a DATA_ACK.
    pub(super) fn is_proven(&self, id: SubflowId) -> bool {
        self.subflow(id).is_some_and(|subflow| subflow.proven)
    }

    /// Data that had a mapping of its own on the first subflow is DATA_ACKed, wherever the DATA_ACK came.
    pub(super) fn was_mapped_acked(&self, first: SubflowId) -> bool {
        self.subflow(first).is_some_and(|subflow| self.una().0 + 1 > subflow.keyed.0)
    }

    /// A subflow is done with these bytes.
    pub(super) fn unpin(&mut self, range: DataRange) {
        self.buffer.unpin(range);
    }

    /// The peer's window ends there or further on.
    pub(super) fn raise_window(&mut self, end: Dsn) {
        self.window_end = self.window_end.max(end);
    }

    /// The peer's window ends there. Plain TCP lets it shrink.
    pub(super) const fn set_window(&mut self, end: Dsn) {
        self.window_end = end;
    }

    /// The peer has all data before `to`.
    pub(super) fn ack(&mut self, to: Dsn) {
        self.buffer.ack(to);
        self.mappings.ack(to);
        self.reinjections.ack(to);
        self.rto.count = 0;
        if let Some(persist) = self.persist.if_used() {
            (persist.count, persist.asked) = (0, Asked::default());
        }
        self.nagle.on_ack(self.buffer.una(), self.mappings.end() < self.buffer.end());
    }

    /// A subflow has brought this: it is there, or waits for what is before it.
    pub(super) fn note_delivered(&mut self, range: DataRange) {
        if range.end > self.buffer.una() {
            self.mappings.deliver(range);
        }
    }

    /// Queues data to go out again, in trouble of the subflow `from`.
    pub(super) fn reinject(
        &mut self,
        now: Instant,
        range: DataRange,
        cause: ReinjectionCause,
        from: Option<SubflowId>,
    ) {
        self.reinjections.push(Queued { range, cause, since: now, from, on: None });
    }

    /// Queues data that was sent to go out again on a subflow that a policy chose.
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
            self.reinjections.push(Queued { range, cause, since: now, from: on, on });
        }
    }

    /// Queues the parts of `range` that a subflow holds and no other healthy one carries.
    pub(super) fn reinject_lonely(
        &mut self,
        now: Instant,
        range: DataRange,
        (from, cause): (SubflowId, ReinjectionCause),
        healthy: SubflowSet,
    ) {
        let lonely = |mapping: &Mapping| {
            let mut others = mapping.carried_by;
            others.remove(from);
            others.iter().all(|id| !healthy.contains(id))
        };
        for part in self.mappings.parts(range).filter(lonely) {
            let (range, from) = (part.range, Some(from));
            self.reinjections.push(Queued { range, cause, since: now, from, on: None });
        }
    }

    /// Queues what this subflow alone carries from `first` on.
    pub(super) fn reinject_carried_alone(&mut self, now: Instant, first: Dsn, id: SubflowId) {
        let (alone, cause) = (SubflowSet::of(id), ReinjectionCause::SubflowClosed);
        for part in self.mappings.parts(DataRange::new(first, self.mappings.end())) {
            if part.carried_by == alone {
                let (range, from) = (part.range, Some(id));
                self.reinjections.push(Queued { range, cause, since: now, from, on: None });
            }
        }
    }

    /// What was queued on suspicion of a subflow is not in doubt any more.
    pub(super) fn absolve(&mut self, id: SubflowId) {
        self.reinjections.absolve(id);
    }

    /// A range need not go out again.
    pub(super) fn withdraw_reinjection(&mut self, range: DataRange) {
        self.reinjections.remove(range);
    }

    /// Nothing goes out again: the connection is over.
    pub(super) fn clear_reinjections(&mut self) {
        self.reinjections.clear();
    }

    /// Plain TCP has no use for reinjections, repairs and data-level timers.
    pub(super) fn leave_multipath(&mut self) {
        self.reinjections.clear();
        self.repairs = None;
        self.rto.at = None;
    }

    /// Data that should have been there already: what is to go again, what only failed subflows
    /// carry, and new data if no healthy subflow can take it.
    pub(super) fn hurried(&self, healthy: SubflowSet) -> Option<DataRange> {
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

    /// Data is outstanding at the data level: somebody must account for it, in two RTOs with backoff.
    pub(super) fn rearm_rto(&mut self, now: Instant, rto: Duration) {
        if self.mappings.oldest().is_none() {
            self.rto.at = None;
            return;
        }
        let rto = rto * 2 * (1 << self.rto.count.min(6));
        self.rto.at = Some(now + rto.min(MAX_DATA_RTO));
    }

    /// The data-level timer is due by then, unless it has fired since the last progress.
    pub(super) fn hasten_rto(&mut self, at: Instant) {
        if self.rto.count == 0 {
            self.rto.at = self.rto.at.map(|due| due.min(at));
        }
    }

    /// The oldest data that no DATA_ACK covers.
    pub(super) fn oldest_outstanding(&self) -> Option<Mapping> {
        self.mappings.oldest()
    }

    /// On plain TCP there is no data-level timer.
    pub(super) const fn disarm_rto(&mut self) {
        self.rto.at = None;
    }

    pub(super) const fn is_rto_armed(&self) -> bool {
        self.rto.at.is_some()
    }

    /// Data was sent: no window probe is needed.
    pub(super) fn stop_persist(&mut self) {
        if let Some(persist) = self.persist.if_used() {
            persist.at = None;
        }
    }

    /// When timers of the data level are due: retransmission, window probe.
    pub(super) fn timeouts(&self) -> [Option<Instant>; 2] {
        [self.rto.at, self.persist.at]
    }

    /// The data-level retransmission timer is due; it is to be armed again.
    pub(super) const fn count_rto(&mut self) {
        self.rto.count += 1;
    }

    /// What the timer found; `None`: nothing is outstanding.
    pub(super) fn data_timeout(&mut self, now: Instant) -> Option<DataTimeout> {
        let oldest = self.mappings.oldest()?;
        let fired_at = self.holes.fired_at.replace(now).unwrap_or(now);
        Some(DataTimeout { oldest, fired_at, count: self.rto.count })
    }

    /// What no subflow that lives has carried is surely missing, all of it.
    pub(super) fn repeat_orphans(&mut self, now: Instant) {
        let sent = DataRange::new(self.una(), self.sent());
        let cause = ReinjectionCause::SubflowClosed;
        for part in self.mappings.parts(sent).filter(|part| part.carried_by.is_empty()) {
            let range = part.range;
            self.reinjections.push(Queued { range, cause, since: now, from: None, on: None });
        }
    }

    /// The oldest data goes again, whoever acknowledged it. How much behind it is missing, too, nobody
    /// knows: if the next is due as soon as this has arrived, twice as much goes then. `held` tells what a
    /// subflow in no doubt still repeats by itself.
    pub(super) fn repeat_hole(
        &mut self,
        now: Instant,
        fired_at: Instant,
        rto: Duration,
        size: SegmentSize,
        held: impl Fn(&Mapping) -> bool,
    ) {
        let una = self.una();
        let prompt = now.since(fired_at) <= rto * HOLES_APART;
        let again = prompt && self.holes.hole_end.is_some_and(|end| una >= end);
        self.holes.hole_segments =
            if again { self.holes.hole_segments.saturating_mul(2) } else { 1 };
        let sent = DataRange::new(una, self.sent());
        let parts = self.mappings.segments(sent, self.holes.hole_segments, size);
        let missing: Vec<DataRange> = parts.filter(|p| !held(p)).map(|part| part.range).collect();
        self.holes.hole_end = missing.first().map(|first| first.end);
        for range in missing {
            self.reinjections.remove(range);
            self.reinject(now, range, ReinjectionCause::DataRto, None);
        }
    }

    /// The peer's window is shut and nothing is in flight that would bring news of it.
    pub(super) fn rearm_persist(&mut self, now: Instant, usable: bool, rto: Duration) {
        let waiting = self.written() > self.sent();
        let idle = self.mappings.oldest().is_none();
        if !waiting || !idle || !usable || self.window_end > self.sent() {
            self.stop_persist();
            return;
        }
        if self.persist.at.is_none() {
            self.persist.at = Some(now + self.persist_pause(rto));
        }
    }

    /// The time to the next window probe.
    pub(super) fn persist_pause(&self, rto: Duration) -> Duration {
        (rto * (1 << self.persist.count.min(8))).min(MAX_PERSIST)
    }

    /// When the window was probed last.
    pub(super) fn probed_at(&self) -> Option<Instant> {
        self.persist.asked.at()
    }

    /// The next probe waits until then.
    pub(super) fn put_persist_off(&mut self, until: Option<Instant>) {
        self.persist.at = until;
    }

    /// The window is probed, the peer having been heard at `heard_at`: how many probes in a row went unanswered.
    pub(super) fn on_probe(&mut self, now: Instant, heard_at: Option<Instant>) -> u32 {
        let silent = self.persist.asked.again(now, heard_at);
        if silent == 1 {
            // Lost, or the end of the peer: probes that nobody answers are repeated as data is.
            self.persist.count = self.persist.count.min(1);
        }
        self.persist.count += 1;
        silent
    }

    /// Both sides agreed on repairs.
    pub(super) fn start_coding(&mut self) {
        self.repairs.get_or_insert_default();
    }

    pub(super) fn stop_coding(&mut self) {
        self.repairs = None;
    }

    /// Repairs were agreed on, and nothing on the way dislikes them.
    pub(super) fn may_repair(&self) -> bool {
        self.repairs.as_ref().is_some_and(|repairs| !repairs.are_refused())
    }

    /// The peer reset a subflow: if that carried a repair, it may be why.
    pub(super) fn note_reset(&mut self, id: SubflowId) {
        let repairing = self.subflow(id).is_some_and(|subflow| !subflow.repairs.is_empty());
        if let Some(repairs) = self.repairs.as_mut().filter(|_| repairing) {
            repairs.refuse();
        }
    }

    /// The repair of `range` that fits a subflow with so much room in a segment.
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

    /// Adds up the data of a repair.
    pub(super) fn sum_of(&mut self, repair: &Repair) -> Option<Vec<u8>> {
        self.repairs.as_mut()?.sum_of(repair, &self.buffer)
    }

    /// A repair goes out on a subflow, which keeps it until it is acknowledged.
    pub(super) fn keep_repair(&mut self, id: SubflowId, sent: SentRepair) {
        if let Some(repairs) = self.repairs.as_mut() {
            repairs.note_sent(sent.repair());
        }
        if let Some(subflow) = self.subflow_mut(id) {
            subflow.repairs.push_back(sent);
        }
    }

    /// The repair that begins there on a subflow.
    pub(super) fn sent_repair(&self, id: SubflowId, start: Ssn) -> Option<&SentRepair> {
        let sent = self.subflow(id)?.repairs.iter().find(|repair| repair.start() == start);
        debug_assert!(sent.is_some(), "the repair at {start:?} is gone");
        sent
    }

    /// Lets go of repairs that the peer has.
    pub(super) fn release_repairs(&mut self, id: SubflowId, una: Ssn) {
        let Some(subflow) = self.subflow_mut(id) else { return };
        while subflow.repairs.front().is_some_and(|repair| repair.end() <= una) {
            subflow.repairs.pop_front();
        }
    }

    /// Gives back memory that lists kept for use.
    pub(super) fn shrink(&mut self) {
        for subflow in self.subflows.iter_mut().flatten().filter(|s| s.repairs.is_empty()) {
            subflow.repairs.retire();
        }
        self.nagle.shrink();
        let Persist { at, count, asked } = *self.persist;
        if at.is_none() && count == 0 && asked.at().is_none() {
            self.persist.retire();
        }
        self.mappings.shrink();
        self.reinjections.shrink();
        self.buffer.shrink();
    }

    /// Bytes of memory of the stream.
    pub(super) fn memory(&self) -> u64 {
        self.buffer.memory()
    }

    /// Bytes of memory that lists hold beside.
    pub(super) fn bookkeeping(&self) -> u64 {
        self.mappings.memory() + self.reinjections.memory() + self.buffer.bookkeeping()
    }
}
