//! Scoreboard of sent segments that are not cumulatively acknowledged (RFC 6675, per segment as RACK needs it).
//!
//! The board has one entry per segment, or per run of segments sent at the same time under one mapping, in sequence
//! order. When the segments of a run get different states, the run is split at a segment boundary. So an entry is
//! always a whole number of segments, unless the peer acknowledged part of one. Byte counts per state are updated
//! with the entries, so reading the bytes in flight takes no computation. Only the core changes the board.

use std::collections::VecDeque;

use marline_time::Instant;

use crate::{Dsn, Expected, Ssn};

/// Capacity above which an empty board releases memory.
const SHRINK_ABOVE: usize = 1_024;
/// Capacity that remains after that release.
const SHRINK_TO: usize = 64;

/// State of the delivery-rate sampler when a segment was sent.
#[derive(Copy, Clone, Debug, Default)]
pub struct RateStamp {
    /// Total bytes delivered when the segment was sent.
    pub delivered: u64,
    /// Time at which the last of those bytes was delivered.
    pub delivered_at: Instant,
    /// Time at which the first segment of its flight was sent.
    pub first_sent_at: Instant,
    /// The application, not the network, limited the sender when the segment was sent.
    pub app_limited: bool,
    /// Forecast of the answer, made when the segment was sent.
    pub expected: Expected,
}

/// Segment boundaries of a run, counted from the start of its mapping. The run consists of groups of `group` segments.
/// The first segment of each group repeats the mapping and holds `mapped` bytes. The others carry no mapping and hold
/// `plain` bytes, which is more.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RunLayout {
    /// Payload in bytes of a segment with the mapping; 0 if the mapping is one segment.
    pub mapped: u16,
    /// Payload in bytes of a segment without the mapping.
    pub plain: u16,
    /// Segments per group, including the one with the mapping.
    pub group: u16,
}

impl RunLayout {
    /// Layout of a single segment of any length.
    pub const SINGLE: RunLayout = RunLayout { mapped: 0, plain: 0, group: 0 };

    const fn group_len(self) -> u64 {
        self.mapped as u64 + self.plain as u64 * (self.group as u64).saturating_sub(1)
    }

    /// Total bytes of the first `segments` segments.
    #[must_use]
    pub const fn len_of(self, segments: u64) -> u64 {
        if self.group == 0 {
            return 0;
        }
        let (groups, rest) = (segments / self.group as u64, segments % self.group as u64);
        let begun = if rest == 0 { 0 } else { self.mapped as u64 + (rest - 1) * self.plain as u64 };
        groups * self.group_len() + begun
    }

    /// Number of whole segments in the first `bytes` bytes.
    #[must_use]
    pub const fn segments_within(self, bytes: u64) -> u64 {
        // The segment of the next byte is the first incomplete one.
        self.segment_at(bytes)
    }

    /// Number of the segment that holds the byte at `offset`.
    const fn segment_at(self, offset: u64) -> u64 {
        if self.mapped == 0 || self.plain == 0 {
            return 0;
        }
        let (groups, rest) = (offset / self.group_len(), offset % self.group_len());
        let mapped = self.mapped as u64;
        let within = if rest < mapped { 0 } else { 1 + (rest - mapped) / self.plain as u64 };
        groups * self.group as u64 + within
    }

    /// Returns true if the segment with this number repeats the mapping.
    #[must_use]
    pub const fn is_mapped(self, segment: u64) -> bool {
        self.group == 0 || segment.is_multiple_of(self.group as u64)
    }
}

/// One sent segment, or a run of them.
#[derive(Copy, Clone, Debug, Default)]
pub struct SentSegment {
    /// First sequence number.
    pub start: Ssn,
    /// One past the last sequence number; a FIN counts as one.
    pub end: Ssn,
    /// Segment boundaries of the mapping.
    pub layout: RunLayout,
    /// DSN of the first byte.
    pub dsn: Dsn,
    /// First sequence number of the mapping. A mapping never changes once sent.
    pub mapping_start: Ssn,
    /// Number of bytes that the mapping covers.
    pub mapping_len: u16,
    /// DSS checksum of the mapping, if checksums are on: retransmitting a part requires the checksum of the whole
    /// mapping.
    pub mapping_checksum: u16,
    /// Carries the subflow's FIN.
    pub fin: bool,
    /// Was sent with PSH, and is retransmitted with it.
    pub push: bool,
    /// Carries a repair: subflow bytes that do not belong to the stream, so `dsn` has no meaning.
    pub repair: bool,
    /// The process was suspended while the segment was in flight, so the time of its answer is unknown.
    pub untimed: bool,
    /// Time at which it was last sent.
    pub sent_at: Instant,
    /// Time at which it was first sent.
    pub first_sent_at: Instant,
    /// Number of transmissions.
    pub transmissions: u16,
    /// SACKed by the peer.
    pub sacked: bool,
    /// Considered lost and not yet retransmitted.
    pub lost: bool,
    /// State for the delivery-rate sampler.
    pub rate: RateStamp,
}

impl SentSegment {
    /// Number of octets of sequence space that the entry occupies.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Always false: an entry on the board occupies sequence space.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end.0 == self.start.0
    }

    /// Payload size in bytes.
    #[must_use]
    pub const fn payload_len(&self) -> u64 {
        self.len() - self.fin as u64
    }

    /// Number of segments in the entry, at least one.
    #[must_use]
    pub const fn segments(&self) -> usize {
        let (first, end) =
            (self.start.since(self.mapping_start), self.end.since(self.mapping_start));
        let last = end.saturating_sub(1 + self.fin as u64);
        let last = if last > first { last } else { first };
        (self.layout.segment_at(last) - self.layout.segment_at(first)) as usize + 1
    }

    /// End of the segment that contains `at`, which must lie within the entry.
    #[must_use]
    pub fn segment_end(&self, at: Ssn) -> Ssn {
        if self.layout.mapped == 0 {
            return self.end;
        }
        let segment = self.layout.segment_at(at.since(self.mapping_start));
        let end = self.mapping_start.plus(self.layout.len_of(segment + 1));
        let data_end = Ssn(self.end.0 - u64::from(self.fin));
        if end >= data_end { self.end } else { end }
    }

    /// Start of the segment that contains `at`, which must lie within the entry.
    #[must_use]
    pub fn segment_start(&self, at: Ssn) -> Ssn {
        if self.layout.mapped == 0 {
            return self.start;
        }
        let segment = self.layout.segment_at(at.since(self.mapping_start));
        self.start.max(self.mapping_start.plus(self.layout.len_of(segment)))
    }

    /// Start of the entry's last segment.
    #[must_use]
    pub fn last_segment_start(&self) -> Ssn {
        let last = Ssn(self.end.0.saturating_sub(1 + u64::from(self.fin)));
        self.segment_start(last.max(self.start))
    }

    /// The whole segments of the entry that lie in `from..to`; empty if there are none.
    #[must_use]
    pub fn segments_within(&self, from: Ssn, to: Ssn) -> (Ssn, Ssn) {
        let first = match from {
            from if from <= self.start => self.start,
            from if from >= self.end => self.end,
            from if self.segment_start(from) == from => from,
            from => self.segment_end(from),
        };
        let last = match to {
            to if to >= self.end => self.end,
            to if to <= self.start => self.start,
            to => self.segment_start(to),
        };
        (first, last.max(first))
    }

    /// Returns true if the entry was sent more than once.
    #[must_use]
    pub const fn retransmitted(&self) -> bool {
        self.transmissions > 1
    }

    /// Returns true if the entry is considered to be in the network.
    #[must_use]
    pub const fn in_flight(&self) -> bool {
        !self.sacked && !self.lost
    }
}

/// The sent segments of one subflow, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Scoreboard {
    entries: VecDeque<SentSegment>,
    segments: usize,
    in_flight: u64,
    sacked: u64,
    sacked_segments: usize,
    lost: u64,
}

impl Scoreboard {
    /// Bytes sent and neither delivered nor considered lost.
    #[must_use]
    pub const fn bytes_in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Bytes delivered out of order.
    #[must_use]
    pub const fn bytes_sacked(&self) -> u64 {
        self.sacked
    }

    /// Segments delivered out of order, regardless of size (RFC 8985's segs_sacked).
    #[must_use]
    pub const fn segments_sacked(&self) -> usize {
        self.sacked_segments
    }

    /// Bytes considered lost and not yet retransmitted.
    #[must_use]
    pub const fn bytes_lost(&self) -> u64 {
        self.lost
    }

    /// Number of entries: single segments or runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of segments.
    #[must_use]
    pub const fn segments(&self) -> usize {
        self.segments
    }

    /// Returns true if all sent data is acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SentSegment> + ExactSizeIterator {
        self.entries.iter()
    }

    /// The entry at an index, counted from the oldest.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&SentSegment> {
        self.entries.get(index)
    }

    /// The oldest entry.
    #[must_use]
    pub fn front(&self) -> Option<&SentSegment> {
        self.entries.front()
    }

    /// The newest entry.
    #[must_use]
    pub fn back(&self) -> Option<&SentSegment> {
        self.entries.back()
    }

    /// Index of the entry that contains `at`.
    #[must_use]
    pub fn index_of(&self, at: Ssn) -> Option<usize> {
        let index = self.entries.partition_point(|s| s.end <= at);
        self.entries.get(index).filter(|s| s.start <= at).map(|_| index)
    }

    /// Adds a new entry, which must directly follow the newest one.
    pub fn push(&mut self, segment: SentSegment) {
        debug_assert!(self.entries.back().is_none_or(|last| last.end == segment.start));
        self.in_flight += segment.len();
        self.segments += segment.segments();
        if self.entries.capacity() == 0 {
            self.make_room_for_one();
        }
        self.entries.push_back(segment);
    }

    /// Reserves space for one entry instead of a `VecDeque`'s initial four: many subflows never have two in flight.
    #[cold]
    fn make_room_for_one(&mut self) {
        self.entries.reserve_exact(1);
    }

    /// Removes and returns the oldest entry if `una` covers all of it. If `una` covers a part, that part is cut off
    /// and returned. `None` if `una` covers nothing more.
    pub fn pop_acked(&mut self, una: Ssn) -> Option<SentSegment> {
        let front = self.entries.front_mut()?;
        if front.end <= una {
            let segment = self.entries.pop_front()?;
            self.uncount(&segment);
            return Some(segment);
        }
        if front.start >= una {
            return None;
        }
        let mut part = *front;
        part.end = una;
        part.fin = false;
        let before = front.segments();
        front.dsn = front.dsn.plus(part.len());
        front.start = una;
        // A partly acknowledged segment still counts as one.
        let gone = before - front.segments();
        self.uncount_bytes(&part);
        self.segments -= gone;
        if part.sacked {
            self.sacked_segments -= gone;
        }
        Some(part)
    }

    /// Marks the entry at `index` as delivered out of order. Returns its bytes, or 0 if it was already marked.
    pub fn mark_sacked(&mut self, index: usize) -> u64 {
        let Some(segment) = self.entries.get_mut(index) else { return 0 };
        if segment.sacked {
            return 0;
        }
        let len = segment.len();
        let was_lost = core::mem::take(&mut segment.lost);
        segment.sacked = true;
        self.sacked += len;
        self.sacked_segments += segment.segments();
        if was_lost {
            self.lost -= len;
        } else {
            self.in_flight -= len;
        }
        len
    }

    /// Marks the entry at `index` as lost. Returns its bytes, or 0 if it was not in flight.
    pub fn mark_lost(&mut self, index: usize) -> u64 {
        let Some(segment) = self.entries.get_mut(index) else { return 0 };
        if !segment.in_flight() {
            return 0;
        }
        segment.lost = true;
        let len = segment.len();
        self.in_flight -= len;
        self.lost += len;
        len
    }

    /// Removes a loss mark: the entry counts as in flight again.
    pub fn unmark_lost(&mut self, index: usize) {
        let Some(segment) = self.entries.get_mut(index) else { return };
        if core::mem::take(&mut segment.lost) {
            let len = segment.len();
            self.lost -= len;
            self.in_flight += len;
        }
    }

    /// Removes the SACK mark of the entry at `index`, because the peer reneged. The entry then counts as lost.
    pub fn renege(&mut self, index: usize) {
        let Some(segment) = self.entries.get_mut(index) else { return };
        if core::mem::take(&mut segment.sacked) {
            segment.lost = true;
            let len = segment.len();
            self.sacked -= len;
            self.sacked_segments -= segment.segments();
            self.lost += len;
        }
    }

    /// Records that the entry at `index` is being retransmitted.
    pub fn mark_retransmitted(&mut self, index: usize, now: Instant, rate: RateStamp) {
        let Some(segment) = self.entries.get_mut(index) else { return };
        segment.sent_at = now;
        segment.transmissions = segment.transmissions.saturating_add(1);
        segment.rate = rate;
        if core::mem::take(&mut segment.lost) {
            let len = segment.len();
            self.lost -= len;
            self.in_flight += len;
        }
    }

    /// Splits the entry at `index` so that its first part ends at `at`. No effect unless `at` lies inside. Both parts
    /// keep their history.
    pub fn split(&mut self, index: usize, at: Ssn) {
        let Some(segment) = self.entries.get_mut(index) else { return };
        if at <= segment.start || at >= segment.end {
            return;
        }
        let before = segment.segments();
        let mut tail = *segment;
        tail.dsn = segment.dsn.plus(at.since(segment.start));
        tail.start = at;
        segment.end = at;
        (segment.fin, segment.push) = (false, false);
        // The segment count grows only if the cut is inside a segment.
        let more = segment.segments() + tail.segments() - before;
        self.segments += more;
        if tail.sacked {
            self.sacked_segments += more;
        }
        self.entries.insert(index + 1, tail);
    }

    /// Excludes all segments in flight from timing, because the process was suspended for a while.
    pub fn mark_untimed(&mut self) {
        for segment in &mut self.entries {
            segment.untimed = true;
        }
    }

    /// Releases memory after a long flight, once the board is empty.
    pub fn shrink_if_empty(&mut self) {
        if self.entries.is_empty() && self.entries.capacity() > SHRINK_ABOVE {
            self.entries.shrink_to(SHRINK_TO);
        }
    }

    /// Releases unused capacity.
    pub fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Memory held, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        (self.entries.capacity() * size_of::<SentSegment>()) as u64
    }

    fn uncount(&mut self, segment: &SentSegment) {
        let segments = segment.segments();
        self.segments -= segments;
        if segment.sacked {
            self.sacked_segments -= segments;
        }
        self.uncount_bytes(segment);
    }

    fn uncount_bytes(&mut self, segment: &SentSegment) {
        let count = match (segment.sacked, segment.lost) {
            (true, _) => &mut self.sacked,
            (false, true) => &mut self.lost,
            (false, false) => &mut self.in_flight,
        };
        *count -= segment.len();
    }
}

#[cfg(test)]
mod tests;
