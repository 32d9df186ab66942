//! Out-of-order queue of a subflow.
//!
//! ```text
//!         RCV.NXT
//!            v
//!  ==========.....[ buffer ][ buffer ].....[ buffer ].....
//!                 \----- range ------/     \-range--/        <- SACK blocks
//! ```
//!
//! Buffers hold the bytes and never overlap. Ranges are reported by SACK: adjacent buffers belong to one range.
//! Both are limited in number, and in bytes by the connection's room. At the limit a segment is dropped: the peer
//! gets no SACK for it and sends it again.

use std::collections::{BTreeMap, VecDeque};

use crate::on_demand::{OnDemand, UnusedState};

/// Maximum size in bytes to which a buffer grows when new segments continue it.
const BUFFER_BYTES: usize = 16 << 10;
/// Number of empty buffers kept for reuse: 256 KiB, which one gap on a fast path fills. Few subflows would reuse more
/// before they become idle.
const POOL: usize = 16;
/// Limit on unused bytes in buffers. Beyond it, new buffers are only as large as their content. Otherwise a peer
/// could make every single byte occupy a large buffer.
const MAX_SPARE: u64 = 512 << 10;
/// Maximum number of ranges that SACK reports.
const MAX_REPORTED_RANGES: usize = 4;

/// Queue of a subflow, allocated when a segment is first lost or reordered.
#[derive(Debug)]
pub(super) struct ReorderQueue {
    max_ranges: usize,
    held: OnDemand<HeldRanges>,
}

/// Held bytes and their ranges.
#[derive(Debug, Default)]
struct HeldRanges {
    buffers: BTreeMap<u64, Vec<u8>>,
    ranges: BTreeMap<u64, u64>,
    /// A position in each of the ranges that changed last, newest first.
    recent: VecDeque<u64>,
    /// Number of bytes in the buffers.
    bytes: u64,
    /// Number of unused bytes in the buffers.
    spare: u64,
    pool: Vec<Vec<u8>>,
}

impl UnusedState for HeldRanges {
    const UNUSED: &'static Self = &HeldRanges {
        buffers: BTreeMap::new(),
        ranges: BTreeMap::new(),
        recent: VecDeque::new(),
        bytes: 0,
        spare: 0,
        pool: Vec::new(),
    };
}

impl ReorderQueue {
    pub(super) const fn new(max_ranges: usize) -> Self {
        ReorderQueue { max_ranges, held: OnDemand::new() }
    }

    /// True if SACK has no ranges to report.
    pub(super) fn is_empty(&self) -> bool {
        self.held.get_used().is_none_or(|held| held.ranges.is_empty())
    }

    /// Memory held, in bytes, including empty buffers.
    pub(super) fn memory(&self) -> u64 {
        let buffers = self.held.buffers.values().chain(&self.held.pool);
        buffers.map(|buffer| buffer.capacity() as u64).sum()
    }

    /// Number of bytes held out of order.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held.get_used().map_or(0, |held| held.bytes)
    }

    /// Releases unused memory.
    pub(super) fn shrink(&mut self) {
        let Some(held) = self.held.if_used() else { return };
        if held.buffers.is_empty() && held.ranges.is_empty() {
            self.held.retire();
            return;
        }
        held.pool = Vec::new();
        held.spare = 0;
        for buffer in held.buffers.values_mut() {
            buffer.shrink_to_fit();
            held.spare += spare_bytes(buffer);
        }
        held.recent.shrink_to_fit();
    }

    /// One past the highest byte held.
    pub(super) fn end(&self) -> Option<u64> {
        self.held.ranges.last_key_value().map(|(_, end)| *end)
    }

    /// Stores the payload of a segment that starts at `start`, at most `room` more bytes. Returns the number of new
    /// bytes; `None` if it must be dropped because too much is held.
    pub(super) fn insert(&mut self, start: u64, payload: &[u8], room: u64) -> Option<u64> {
        self.held.insert(start, payload, room, self.max_ranges)
    }

    /// First contiguous part of the held bytes in `start..end`.
    pub(super) fn held_within(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.held.get_used()?.held_within(start, end)
    }

    /// Moves to `rcv_nxt` and returns the end of the held bytes that continue it.
    pub(super) fn advance(&mut self, rcv_nxt: u64) -> u64 {
        self.held.if_used().map_or(rcv_nxt, |held| held.advance(rcv_nxt))
    }

    /// Removes the first buffer before `rcv_nxt`, excluding bytes before `from`. The second value is the number of
    /// bytes dropped because they were delivered in another way.
    pub(super) fn pop(&mut self, from: u64, rcv_nxt: u64) -> (Option<(u64, Vec<u8>)>, u64) {
        self.held.if_used().map_or((None, 0), |held| held.pop(from, rcv_nxt))
    }

    /// Keeps an empty buffer for reuse.
    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        self.held.recycle(buffer);
    }

    /// Ranges that changed last, newest first.
    pub(super) fn recent(&self) -> impl Iterator<Item = (u64, u64)> {
        let held = self.held.get_used();
        held.into_iter()
            .flat_map(|held| held.recent.iter().filter_map(|&point| held.range_around(point)))
    }
}

/// Number of unused bytes in a buffer.
fn spare_bytes(buffer: &Vec<u8>) -> u64 {
    (buffer.capacity() - buffer.len()) as u64
}

impl HeldRanges {
    /// Like [`ReorderQueue::insert`], with the limit on ranges and on buffers.
    fn insert(&mut self, start: u64, payload: &[u8], room: u64, max_ranges: usize) -> Option<u64> {
        if payload.len() as u64 > room && self.missing_bytes(start, payload.len() as u64) > room {
            return None;
        }
        let end = start + payload.len() as u64;
        let merged = self.touching_range_start(start, end);
        if merged.is_none() && self.ranges.len() >= max_ranges {
            return None;
        }
        let new = self.store(start, payload, max_ranges)?;
        if new > 0 {
            self.add_range(start, end);
        }
        self.mark_newest(start);
        Some(new)
    }

    /// Number of bytes, starting at `start`, that no buffer holds.
    fn missing_bytes(&self, start: u64, len: u64) -> u64 {
        let (mut at, end, mut missing) = (start, start + len, 0);
        while at < end {
            match self.range_around(at) {
                Some((_, held_to)) => at = held_to,
                None => {
                    let next =
                        self.ranges.range(at..).next().map_or(end, |(&next, _)| next.min(end));
                    missing += next - at;
                    at = next;
                }
            }
        }
        missing
    }

    /// Start of an existing range that `start..end` touches.
    fn touching_range_start(&self, start: u64, end: u64) -> Option<u64> {
        let (&first, &last) = self.ranges.range(..=end).next_back()?;
        (last >= start).then_some(first)
    }

    /// Stores the bytes that no buffer holds yet.
    fn store(&mut self, start: u64, payload: &[u8], max_ranges: usize) -> Option<u64> {
        let end = start + payload.len() as u64;
        let mut at = start;
        let mut new = 0;
        while at < end {
            if let Some((&held, buffer)) = self.buffers.range_mut(..=at).next_back() {
                let held_end = held + buffer.len() as u64;
                if held_end > at {
                    at = held_end;
                    continue;
                }
            }
            let next = self.buffers.range(at..).next().map_or(end, |(&next, _)| next.min(end));
            let bytes = &payload[(at - start) as usize..(next - start) as usize];
            if !self.append(at, bytes, max_ranges) {
                // The part stored so far is in its own range, which is kept consistent.
                if new > 0 {
                    self.add_range(start, at);
                }
                return None;
            }
            new += next - at;
            at = next;
        }
        Some(new)
    }

    /// Appends to the buffer that ends at `at`, or creates a new one; `false` if there are too many.
    fn append(&mut self, at: u64, bytes: &[u8], max_ranges: usize) -> bool {
        if let Some((&held, buffer)) = self.buffers.range_mut(..at).next_back()
            && held + buffer.len() as u64 == at
            && buffer.len() + bytes.len() <= BUFFER_BYTES
        {
            self.spare -= spare_bytes(buffer);
            let needed = buffer.len() + bytes.len();
            if needed > buffer.capacity() {
                // Doubles the capacity, as a vector does, but never beyond the maximum content.
                let capacity = needed.max(2 * buffer.len()).min(BUFFER_BYTES);
                buffer.reserve_exact(capacity - buffer.len());
            }
            buffer.extend_from_slice(bytes);
            self.bytes += bytes.len() as u64;
            self.spare += spare_bytes(buffer);
            return true;
        }
        if self.buffers.len() >= max_ranges {
            return false;
        }
        let kept = if self.spare < MAX_SPARE { self.pool.pop() } else { None };
        let mut buffer = kept.unwrap_or_default();
        buffer.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        self.spare += spare_bytes(&buffer);
        self.buffers.insert(at, buffer);
        true
    }

    fn add_range(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        while let Some((&first, &last)) = self.ranges.range(..=end).next_back() {
            if last < start {
                break;
            }
            start = start.min(first);
            end = end.max(last);
            self.ranges.remove(&first);
        }
        self.ranges.insert(start, end);
    }

    /// Marks the range around `at` as changed last.
    fn mark_newest(&mut self, at: u64) {
        let Some((start, end)) = self.range_around(at) else { return };
        self.recent.retain(|&point| point < start || point >= end);
        self.recent.push_front(at);
        self.recent.truncate(MAX_REPORTED_RANGES);
    }

    /// See [`ReorderQueue::held_within`].
    fn held_within(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let next = || self.ranges.range(start..end).next().map(|(&first, &last)| (first, last));
        let (first, last) = self.range_around(start).or_else(next)?;
        Some((first.max(start), last.min(end)))
    }

    fn range_around(&self, at: u64) -> Option<(u64, u64)> {
        let (&start, &end) = self.ranges.range(..=at).next_back()?;
        (end > at).then_some((start, end))
    }

    /// See [`ReorderQueue::advance`].
    fn advance(&mut self, rcv_nxt: u64) -> u64 {
        let mut rcv_nxt = rcv_nxt;
        while let Some((&start, &end)) = self.ranges.first_key_value() {
            if start > rcv_nxt {
                break;
            }
            rcv_nxt = rcv_nxt.max(end);
            self.ranges.remove(&start);
        }
        self.recent.retain(|&point| point >= rcv_nxt);
        rcv_nxt
    }

    /// See [`ReorderQueue::pop`].
    fn pop(&mut self, from: u64, rcv_nxt: u64) -> (Option<(u64, Vec<u8>)>, u64) {
        let mut dropped = 0;
        while let Some(entry) = self.buffers.first_entry() {
            if *entry.key() >= rcv_nxt {
                break;
            }
            let (start, mut buffer) = entry.remove_entry();
            self.bytes -= buffer.len() as u64;
            self.spare -= spare_bytes(&buffer);
            let known = (from.saturating_sub(start) as usize).min(buffer.len());
            dropped += known as u64;
            if known == buffer.len() {
                self.recycle(buffer);
                continue;
            }
            buffer.drain(..known);
            return (Some((start + known as u64, buffer)), dropped);
        }
        (None, dropped)
    }

    /// See [`ReorderQueue::recycle`].
    fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.pool.len() < POOL {
            buffer.clear();
            self.pool.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(start: u64, end: u64) -> Vec<u8> {
        (start..end).map(|i| i as u8).collect()
    }

    fn insert(queue: &mut ReorderQueue, start: u64, end: u64) -> Option<u64> {
        queue.insert(start, &bytes(start, end), u64::MAX)
    }

    fn drain(queue: &mut ReorderQueue, from: u64, rcv_nxt: u64) -> (Vec<u8>, u64) {
        let (mut out, mut at, mut dropped) = (Vec::new(), from, 0);
        loop {
            let (popped, n) = queue.pop(at, rcv_nxt);
            dropped += n;
            let Some((start, buffer)) = popped else { return (out, dropped) };
            assert_eq!(start, at);
            at += buffer.len() as u64;
            out.extend_from_slice(&buffer);
            queue.recycle(buffer);
        }
    }

    #[test]
    fn overlaps_are_stored_once_and_come_out_in_order() {
        let mut queue = ReorderQueue::new(16);
        assert_eq!(insert(&mut queue, 200, 300), Some(100));
        assert_eq!(insert(&mut queue, 400, 500), Some(100));
        assert_eq!(insert(&mut queue, 150, 450), Some(150));
        assert_eq!(insert(&mut queue, 150, 500), Some(0));
        assert_eq!(queue.recent().collect::<Vec<_>>(), [(150, 500)]);
        assert_eq!(queue.advance(100), 100);
        assert_eq!(queue.advance(180), 500);
        let (out, dropped) = drain(&mut queue, 180, 500);
        assert_eq!((out, dropped), (bytes(180, 500), 30));
        assert!(queue.is_empty() && queue.held.buffers.is_empty());
    }

    #[test]
    fn a_segment_without_room_is_dropped_whole() {
        let mut queue = ReorderQueue::new(16);
        assert_eq!(queue.insert(200, &bytes(200, 300), 100), Some(100));
        assert_eq!(queue.insert(250, &bytes(250, 350), 49), None);
        assert_eq!(queue.insert(150, &bytes(150, 350), 100), Some(100), "100 of 200 are known");
        assert_eq!(queue.held_bytes(), 200);
        assert_eq!(queue.advance(150), 350);
        assert_eq!(drain(&mut queue, 150, 350).0, bytes(150, 350));
        assert_eq!(queue.held_bytes(), 0);
        assert!(queue.memory() > 0, "memory is kept for reuse");
        queue.shrink();
        assert!(queue.memory() == 0 && queue.held.get_used().is_none());
    }

    /// A peer could make many single bytes each occupy a large reused buffer.
    #[test]
    fn buffers_kept_for_use_are_not_all_used_for_single_bytes() {
        const LARGE: u64 = 10_000;
        let mut queue = ReorderQueue::new(4_096);
        let (mut next, mut far) = (0, 1 << 30);
        for _ in 0..50 {
            // Large buffers arrive in order and are kept for reuse; then single bytes wait far ahead.
            for number in 0..POOL as u64 {
                let start = next + 1 + number * 2 * LARGE;
                insert(&mut queue, start, start + LARGE);
            }
            next += 2 * LARGE * POOL as u64;
            queue.advance(next);
            while let (Some((_, buffer)), _) = queue.pop(0, next) {
                queue.recycle(buffer);
            }
            for _ in 0..POOL {
                insert(&mut queue, far, far + 1);
                far += 2;
            }
        }
        let (held, memory) = (queue.held_bytes(), queue.memory());
        assert_eq!(held, 50 * POOL as u64);
        assert!(memory < 1 << 20, "{memory} bytes for {held}");
    }

    #[test]
    fn the_newest_range_is_reported_first() {
        let mut queue = ReorderQueue::new(16);
        for start in [200, 400, 600, 800, 1_000] {
            insert(&mut queue, start, start + 100);
        }
        insert(&mut queue, 500, 600);
        let ranges: Vec<_> = queue.recent().collect();
        assert_eq!(ranges, [(400, 700), (1_000, 1_100), (800, 900)]);
    }

    #[test]
    fn bounds_hold_and_no_segment_is_partly_recorded() {
        let mut queue = ReorderQueue::new(3);
        for start in [100, 300, 500] {
            assert!(insert(&mut queue, start, start + 10).is_some());
        }
        assert_eq!(insert(&mut queue, 700, 710), None);
        // touches existing ranges, but needs a fourth and fifth buffer
        assert_eq!(insert(&mut queue, 290, 320), None);
        assert!(queue.held.buffers.len() <= 3 && queue.held.ranges.len() <= 3);
        for (&start, &end) in &queue.held.ranges {
            let held: u64 = queue.held.buffers.range(start..end).map(|(_, b)| b.len() as u64).sum();
            assert_eq!(held, end - start);
        }
    }
}
