//! Scoreboard of sent segments that are not cumulatively acknowledged (RFC 6675, kept per segment
//! as RACK needs it).
//!
//! One entry per transmitted segment, in sequence order. Byte counts of each state are kept as
//! entries change, so that asking for the bytes in flight costs nothing. The core alone changes it.

use std::collections::VecDeque;

use marline_time::Instant;

use crate::{Dsn, Ssn};

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
}

/// One sent segment.
#[derive(Copy, Clone, Debug, Default)]
pub struct SentSegment {
    /// First sequence number.
    pub start: Ssn,
    /// One past the last; a FIN counts one.
    pub end: Ssn,
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
    segments: VecDeque<SentSegment>,
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

    /// Segments on the board.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether everything sent is acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The segments, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SentSegment> + ExactSizeIterator {
        self.segments.iter()
    }

    /// The segment at a position in that order.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&SentSegment> {
        self.segments.get(index)
    }

    /// The oldest segment.
    #[must_use]
    pub fn front(&self) -> Option<&SentSegment> {
        self.segments.front()
    }

    /// The newest segment.
    #[must_use]
    pub fn back(&self) -> Option<&SentSegment> {
        self.segments.back()
    }

    /// Position of the segment that holds `at`.
    #[must_use]
    pub fn index_of(&self, at: Ssn) -> Option<usize> {
        let index = self.segments.partition_point(|s| s.end <= at);
        self.segments.get(index).filter(|s| s.start <= at).map(|_| index)
    }

    /// Adds a newly sent segment; it must follow the newest.
    pub fn push(&mut self, segment: SentSegment) {
        debug_assert!(self.segments.back().is_none_or(|last| last.end == segment.start));
        self.in_flight += segment.len();
        if self.segments.capacity() == 0 {
            self.make_room_for_one();
        }
        self.segments.push_back(segment);
    }

    /// Not for four at once, as a list grows by itself: many subflows never have two under way.
    #[cold]
    fn make_room_for_one(&mut self) {
        self.segments.reserve_exact(1);
    }

    /// Takes off the oldest segment if `una` covers it wholly. A segment covered in part is cut and
    /// its front part returned. `None` when nothing (more) is covered.
    pub fn pop_acked(&mut self, una: Ssn) -> Option<SentSegment> {
        let front = self.segments.front_mut()?;
        if front.end <= una {
            let segment = self.segments.pop_front()?;
            self.uncount(&segment);
            return Some(segment);
        }
        if front.start >= una {
            return None;
        }
        let mut part = *front;
        part.end = una;
        part.fin = false;
        front.dsn = front.dsn.plus(part.len());
        front.start = una;
        self.uncount(&part);
        // The rest of a SACKed segment stays a SACKed segment.
        self.sacked_segments += usize::from(part.sacked);
        Some(part)
    }

    /// Marks the segment at `index` as delivered out of order. Returns its bytes if it was not yet.
    pub fn mark_sacked(&mut self, index: usize) -> u64 {
        let Some(segment) = self.segments.get_mut(index) else { return 0 };
        if segment.sacked {
            return 0;
        }
        let len = segment.len();
        let was_lost = core::mem::take(&mut segment.lost);
        segment.sacked = true;
        self.sacked += len;
        self.sacked_segments += 1;
        if was_lost {
            self.lost -= len;
        } else {
            self.in_flight -= len;
        }
        len
    }

    /// Marks the segment at `index` as lost. Returns its bytes if it was in flight.
    pub fn mark_lost(&mut self, index: usize) -> u64 {
        let Some(segment) = self.segments.get_mut(index) else { return 0 };
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
        let Some(segment) = self.segments.get_mut(index) else { return };
        if core::mem::take(&mut segment.lost) {
            let len = segment.len();
            self.lost -= len;
            self.in_flight += len;
        }
    }

    /// Forgets that the segment at `index` was SACKed (the peer reneged): it counts as lost.
    pub fn renege(&mut self, index: usize) {
        let Some(segment) = self.segments.get_mut(index) else { return };
        if core::mem::take(&mut segment.sacked) {
            segment.lost = true;
            let len = segment.len();
            self.sacked -= len;
            self.sacked_segments -= 1;
            self.lost += len;
        }
    }

    /// The segment at `index` is sent again now.
    pub fn mark_retransmitted(&mut self, index: usize, now: Instant, rate: RateStamp) {
        let Some(segment) = self.segments.get_mut(index) else { return };
        segment.sent_at = now;
        segment.transmissions = segment.transmissions.saturating_add(1);
        segment.rate = rate;
        if core::mem::take(&mut segment.lost) {
            let len = segment.len();
            self.lost -= len;
            self.in_flight += len;
        }
    }

    /// Cuts the segment at `index` so that its first part ends at `at`; no effect unless `at` lies
    /// inside. Both parts keep their history.
    pub fn split(&mut self, index: usize, at: Ssn) {
        let Some(segment) = self.segments.get_mut(index) else { return };
        if at <= segment.start || at >= segment.end {
            return;
        }
        let mut tail = *segment;
        tail.dsn = segment.dsn.plus(at.since(segment.start));
        tail.start = at;
        segment.end = at;
        (segment.fin, segment.push) = (false, false);
        self.sacked_segments += usize::from(tail.sacked);
        self.segments.insert(index + 1, tail);
    }

    /// Takes the newest segment off again, if it has been sent once and nothing is known of it.
    pub fn take_back(&mut self) -> Option<SentSegment> {
        let fresh = |s: &&SentSegment| s.transmissions == 1 && s.in_flight();
        let segment = *self.segments.back().filter(fresh)?;
        self.uncount(&segment);
        self.segments.pop_back();
        Some(segment)
    }

    /// The newest segment is sent with PSH.
    pub fn mark_pushed(&mut self) {
        if let Some(last) = self.segments.back_mut() {
            last.push = true;
        }
    }

    /// Releases memory after a long flight, once the board is empty.
    pub fn shrink_if_empty(&mut self) {
        if self.segments.is_empty() && self.segments.capacity() > SHRINK_ABOVE {
            self.segments.shrink_to(SHRINK_TO);
        }
    }

    /// Releases unused capacity.
    pub fn shrink(&mut self) {
        self.segments.shrink_to_fit();
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory(&self) -> u64 {
        (self.segments.capacity() * size_of::<SentSegment>()) as u64
    }

    fn uncount(&mut self, segment: &SentSegment) {
        self.sacked_segments -= usize::from(segment.sacked);
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
