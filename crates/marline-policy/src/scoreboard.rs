//! Scoreboard of sent segments that are not cumulatively acknowledged (RFC 6675, kept per segment
//! as RACK needs it).
//!
//! One entry per segment, or per run of segments that went out at the same time under one mapping, in
//! sequence order. A run is cut where its segments fare differently: only where a segment ends, so that an
//! entry is always a whole number of segments (but for what a peer acknowledges in part). Byte counts of
//! each state are kept as entries change, so that asking for the bytes in flight costs nothing. The core
//! alone changes it.

use std::collections::VecDeque;

use marline_time::Instant;

use crate::{Dsn, Expected, Ssn};

/// An empty board with more capacity than this releases memory.
const SHRINK_ABOVE: usize = 1_024;
/// Capacity that it keeps.
const SHRINK_TO: usize = 64;

/// State of the delivery-rate sampler when a segment was sent.
#[derive(Copy, Clone, Debug, Default)]
pub struct RateStamp {
    /// Bytes delivered by then.
    pub delivered: u64,
    /// When the latest of those was delivered.
    pub delivered_at: Instant,
    /// When the first segment of the flight it belongs to was sent.
    pub first_sent_at: Instant,
    /// The application, not the network, limited the sender then.
    pub app_limited: bool,
    /// What the forecast was.
    pub expected: Expected,
}

/// Where the segments of a run begin and end: counted from the start of their mapping, each group of
/// `group` segments begins with one that repeats the mapping and holds `mapped` bytes; the others have
/// no mapping, and so hold `plain` bytes, which is more.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RunLayout {
    /// Payload bytes of a segment with the mapping; 0: the mapping is one segment.
    pub mapped: u16,
    /// Payload bytes of a segment without.
    pub plain: u16,
    /// Segments of a group, the one with the mapping included.
    pub group: u16,
}

impl RunLayout {
    /// One segment, however long.
    pub const SINGLE: RunLayout = RunLayout { mapped: 0, plain: 0, group: 0 };

    const fn group_len(self) -> u64 {
        self.mapped as u64 + self.plain as u64 * (self.group as u64).saturating_sub(1)
    }

    /// Bytes of the first `segments` segments.
    #[must_use]
    pub const fn len_of(self, segments: u64) -> u64 {
        if self.group == 0 {
            return 0;
        }
        let (groups, rest) = (segments / self.group as u64, segments % self.group as u64);
        let begun = if rest == 0 { 0 } else { self.mapped as u64 + (rest - 1) * self.plain as u64 };
        groups * self.group_len() + begun
    }

    /// How many whole segments `bytes` hold.
    #[must_use]
    pub const fn segments_within(self, bytes: u64) -> u64 {
        // The segment that the next byte would belong to is the first that is not whole.
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

    /// Whether the segment with this number repeats the mapping.
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
    /// One past the last; a FIN counts one.
    pub end: Ssn,
    /// How the mapping it belongs to was cut into segments.
    pub layout: RunLayout,
    /// DSN of the first byte.
    pub dsn: Dsn,
    /// First sequence number of the mapping it belongs to: a mapping never changes once sent.
    pub mapping_start: Ssn,
    /// Bytes the mapping covers.
    pub mapping_len: u16,
    /// DSS checksum of that mapping, if checksums are on: a part that is repeated needs the sum of
    /// the whole.
    pub mapping_checksum: u16,
    /// Carries the subflow's FIN.
    pub fin: bool,
    /// Was sent with PSH, and has it when it is repeated.
    pub push: bool,
    /// Carries a repair: bytes of the subflow that are not bytes of the stream. `dsn` means nothing.
    pub repair: bool,
    /// The process did not run while it was on its way: when it was answered is not known.
    pub untimed: bool,
    /// When it was last sent.
    pub sent_at: Instant,
    /// When it was first sent.
    pub first_sent_at: Instant,
    /// How often it was sent.
    pub transmissions: u16,
    /// The peer has it (SACK).
    pub sacked: bool,
    /// Believed lost and not retransmitted since.
    pub lost: bool,
    /// For the delivery-rate sampler.
    pub rate: RateStamp,
}

impl SentSegment {
    /// Octets of sequence space.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Never: a segment on the board occupies sequence space.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end.0 == self.start.0
    }

    /// Payload bytes.
    #[must_use]
    pub const fn payload_len(&self) -> u64 {
        self.len() - self.fin as u64
    }

    /// How many segments it is: at least one.
    #[must_use]
    pub const fn segments(&self) -> usize {
        let (first, end) =
            (self.start.since(self.mapping_start), self.end.since(self.mapping_start));
        let last = end.saturating_sub(1 + self.fin as u64);
        let last = if last > first { last } else { first };
        (self.layout.segment_at(last) - self.layout.segment_at(first)) as usize + 1
    }

    /// End of the segment that holds `at`, which must lie within.
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

    /// Start of the segment that holds `at`, which must lie within.
    #[must_use]
    pub fn segment_start(&self, at: Ssn) -> Ssn {
        if self.layout.mapped == 0 {
            return self.start;
        }
        let segment = self.layout.segment_at(at.since(self.mapping_start));
        self.start.max(self.mapping_start.plus(self.layout.len_of(segment)))
    }

    /// Start of its last segment.
    #[must_use]
    pub fn last_segment_start(&self) -> Ssn {
        let last = Ssn(self.end.0.saturating_sub(1 + u64::from(self.fin)));
        self.segment_start(last.max(self.start))
    }

    /// The part of it that lies in `from..to`, in whole segments; empty where there is none.
    #[must_use]
    pub fn whole_segments_within(&self, from: Ssn, to: Ssn) -> (Ssn, Ssn) {
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

    /// Sent more than once.
    #[must_use]
    pub const fn retransmitted(&self) -> bool {
        self.transmissions > 1
    }

    /// Believed to be in the network.
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
    /// Bytes sent and neither delivered nor believed lost.
    #[must_use]
    pub const fn bytes_in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Bytes delivered out of order.
    #[must_use]
    pub const fn bytes_sacked(&self) -> u64 {
        self.sacked
    }

    /// Segments delivered out of order, however small (RFC 8985's segs_sacked).
    #[must_use]
    pub const fn segments_sacked(&self) -> usize {
        self.sacked_segments
    }

    /// Bytes believed lost and not retransmitted since.
    #[must_use]
    pub const fn bytes_lost(&self) -> u64 {
        self.lost
    }

    /// Entries on the board: segments, and runs of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Segments on the board.
    #[must_use]
    pub const fn segments(&self) -> usize {
        self.segments
    }

    /// Whether everything sent is acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SentSegment> + ExactSizeIterator {
        self.entries.iter()
    }

    /// The entry at a position in that order.
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

    /// Position of the entry that holds `at`.
    #[must_use]
    pub fn index_of(&self, at: Ssn) -> Option<usize> {
        let index = self.entries.partition_point(|s| s.end <= at);
        self.entries.get(index).filter(|s| s.start <= at).map(|_| index)
    }

    /// Adds what was newly sent; it must follow the newest.
    pub fn push(&mut self, segment: SentSegment) {
        debug_assert!(self.entries.back().is_none_or(|last| last.end == segment.start));
        self.in_flight += segment.len();
        self.segments += segment.segments();
        if self.entries.capacity() == 0 {
            self.make_room_for_one();
        }
        self.entries.push_back(segment);
    }

    /// Not for four at once, as a list grows by itself: many subflows never have two under way.
    #[cold]
    fn make_room_for_one(&mut self) {
        self.entries.reserve_exact(1);
    }

    /// Takes off the oldest entry if `una` covers it wholly. One covered in part is cut and its front part
    /// returned. `None` when nothing (more) is covered.
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
        // A segment of which a part is left is still one.
        let gone = before - front.segments();
        self.uncount_bytes(&part);
        self.segments -= gone;
        if part.sacked {
            self.sacked_segments -= gone;
        }
        Some(part)
    }

    /// Marks the segment at `index` as delivered out of order. Returns its bytes if it was not yet.
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

    /// Marks the segment at `index` as lost. Returns its bytes if it was in flight.
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

    /// Takes back a loss mark: the segment counts as in flight again.
    pub fn unmark_lost(&mut self, index: usize) {
        let Some(segment) = self.entries.get_mut(index) else { return };
        if core::mem::take(&mut segment.lost) {
            let len = segment.len();
            self.lost -= len;
            self.in_flight += len;
        }
    }

    /// Forgets that the segment at `index` was SACKed (the peer reneged): it counts as lost.
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

    /// The segment at `index` is sent again now.
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

    /// Cuts the entry at `index` so that its first part ends at `at`; no effect unless `at` lies
    /// inside. Both parts keep their history.
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
        // More only if it was cut within a segment.
        let more = segment.segments() + tail.segments() - before;
        self.segments += more;
        if tail.sacked {
            self.sacked_segments += more;
        }
        self.entries.insert(index + 1, tail);
    }

    /// The process did not run for a while: nothing that is on its way can be timed.
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

    /// Bytes of memory held.
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
