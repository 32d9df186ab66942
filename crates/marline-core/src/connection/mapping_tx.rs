//! Sent mappings: every byte that was assigned to a subflow and is not DATA_ACKed, with the set of subflows that sent
//! it. Schedulers read them as a [`MappingIndex`], the basis of redundancy and reinjection.

use std::collections::VecDeque;

use marline_policy::{DataRange, Dsn, Mapping, MappingIndex, SubflowId, SubflowSet};

use crate::subflow::SegmentSize;

/// Limit on mappings examined for one decision.
const MAX_EXAMINED_MAPPINGS: usize = 8;

#[derive(Copy, Clone, Debug)]
struct Entry {
    end: Dsn,
    carried_by: SubflowSet,
    delivered: bool,
}

impl Entry {
    const fn mapping(&self, range: DataRange) -> Mapping {
        Mapping { range, carried_by: self.carried_by, delivered: self.delivered }
    }
}

/// Contiguous entries from the oldest byte that is not DATA_ACKed to the newest one sent.
#[derive(Debug, Default)]
pub(crate) struct MappingTx {
    start: Dsn,
    entries: VecDeque<Entry>,
}

impl MappingTx {
    /// One past the newest byte assigned to any subflow.
    pub(crate) fn end(&self) -> Dsn {
        self.entries.back().map_or(self.start, |e| e.end)
    }

    /// Adds new data on a subflow; it must follow the newest data.
    pub(crate) fn push(&mut self, range: DataRange, on: SubflowId) {
        debug_assert_eq!(range.start, self.end());
        if self.entries.capacity() == 0 {
            self.make_room_for_one();
        }
        let carried_by = SubflowSet::single(on);
        self.entries.push_back(Entry { end: range.end, carried_by, delivered: false });
    }

    #[cold]
    fn make_room_for_one(&mut self) {
        self.entries.reserve_exact(1);
    }

    /// Adds a subflow on which data is repeated.
    pub(crate) fn add(&mut self, range: DataRange, on: SubflowId) {
        let range = range.intersection(&DataRange::new(self.start, self.end()));
        if range.is_empty() {
            return;
        }
        let first = self.split_at(range.start);
        let last = self.split_at(range.end);
        for entry in self.entries.range_mut(first..last) {
            entry.carried_by.insert(on);
        }
    }

    /// Marks data as delivered by a subflow that carried it.
    pub(crate) fn deliver(&mut self, range: DataRange) {
        let range = range.intersection(&DataRange::new(self.start, self.end()));
        if range.is_empty() {
            return;
        }
        let first = self.split_at(range.start);
        let last = self.index_of(range.end);
        for entry in self.entries.range_mut(first..last) {
            entry.delivered = true;
        }
        self.deliver_head(last, range.end);
    }

    /// Marks the part of the entry at `index` before `end` as delivered. An ACK covers a segment or two, while a
    /// mapping covers a dozen. So a delivered entry before this one is extended instead of inserting an entry for
    /// each ACK.
    fn deliver_head(&mut self, index: usize, end: Dsn) {
        let start = self.start_of(index);
        let Some(entry) = self.entries.get(index).copied() else { return };
        if entry.delivered || start >= end {
            return;
        }
        let before = index.checked_sub(1).and_then(|before| self.entries.get_mut(before));
        match before {
            Some(before) if before.delivered && before.carried_by == entry.carried_by => {
                before.end = end;
            }
            _ => self.entries.insert(index, Entry { end, delivered: true, ..entry }),
        }
    }

    /// Removes all data before `to`, which the peer has received.
    pub(crate) fn ack(&mut self, to: Dsn) {
        while self.entries.front().is_some_and(|e| e.end <= to) {
            self.entries.pop_front();
        }
        self.start = self.start.max(to);
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Number of mappings kept.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Memory held, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        (self.entries.capacity() * size_of::<Entry>()) as u64
    }

    /// Removes a subflow that is gone, or whose copies no longer count.
    pub(crate) fn forget_subflow(&mut self, subflow: SubflowId) {
        for entry in &mut self.entries {
            entry.delivered &= !entry.carried_by.contains(subflow);
            entry.carried_by.remove(subflow);
        }
    }

    /// Parts of `range` with the subflows that carried each.
    pub(crate) fn parts(&self, range: DataRange) -> impl Iterator<Item = Mapping> {
        let range = range.intersection(&DataRange::new(self.start, self.end()));
        let first = self.index_of(range.start);
        let mut start = range.start;
        self.entries.range(first..).map_while(move |entry| {
            let part = DataRange::new(start, entry.end.min(range.end));
            start = entry.end;
            (!part.is_empty()).then_some(entry.mapping(part))
        })
    }

    /// Parts of the first `count` segments of `range`, whether they have separate mappings or share one.
    pub(crate) fn segments(
        &self,
        range: DataRange,
        count: u32,
        size: SegmentSize,
    ) -> impl Iterator<Item = Mapping> {
        let mut left = u64::from(count);
        self.parts(range).map_while(move |part| {
            let segments = part.range.len().div_ceil(size.largest);
            let range = match left {
                0 => return None,
                left if segments <= left => part.range,
                left => part.range.prefix(left * size.usual),
            };
            left = left.saturating_sub(segments);
            Some(Mapping { range, ..part })
        })
    }

    /// First part of `range` that one set of subflows carried. It may cross mapping boundaries and is long enough for a
    /// segment.
    pub(crate) fn run(&self, range: DataRange) -> Option<Mapping> {
        let mut parts = self.parts(range).take(MAX_EXAMINED_MAPPINGS);
        let mut run = parts.next()?;
        let alike =
            |part: &Mapping| (part.carried_by, part.delivered) == (run.carried_by, run.delivered);
        run.range.end = parts.take_while(alike).last().map_or(run.range.end, |last| last.range.end);
        Some(run)
    }

    /// Index of the entry that contains `at`, or the number of entries if there is none.
    fn index_of(&self, at: Dsn) -> usize {
        self.entries.partition_point(|e| e.end <= at)
    }

    fn start_of(&self, index: usize) -> Dsn {
        index.checked_sub(1).map_or(self.start, |before| self.entries[before].end)
    }

    /// Makes an entry start at `at`; returns its index.
    fn split_at(&mut self, at: Dsn) -> usize {
        let index = self.index_of(at);
        let start = self.start_of(index);
        let Some(entry) = self.entries.get(index).copied().filter(|_| start < at) else {
            return index;
        };
        self.entries.insert(index, Entry { end: at, ..entry });
        index + 1
    }

    fn mapping(&self, index: usize) -> Option<Mapping> {
        let entry = self.entries.get(index)?;
        Some(entry.mapping(DataRange::new(self.start_of(index), entry.end)))
    }
}

impl MappingIndex for MappingTx {
    fn oldest(&self) -> Option<Mapping> {
        self.mapping(0)
    }

    fn mapping_at(&self, at: Dsn) -> Option<Mapping> {
        let at = at.max(self.start);
        let mapping = self.mapping(self.index_of(at))?;
        Some(Mapping { range: DataRange::new(at, mapping.range.end), ..mapping })
    }

    fn next_not_on(&self, subflow: SubflowId, from: Dsn) -> Option<Mapping> {
        let from = from.max(self.start);
        let first = self.index_of(from);
        let offset = self.entries.range(first..).position(|e| !e.carried_by.contains(subflow))?;
        let start = self.mapping(first + offset)?.range.start.max(from);
        // Segment boundaries differ between subflows, so ending a segment where an entry ends would leave a small
        // remainder.
        self.run(DataRange::new(start, self.end()))
    }

    fn last_not_on(&self, subflow: SubflowId, before: Dsn) -> Option<Mapping> {
        // The entry that contains the byte before `before`, if there is one.
        let end = self.entries.partition_point(|e| e.end < before).saturating_add(1);
        let end = end.min(self.entries.len());
        let index = self.entries.range(..end).rposition(|e| !e.carried_by.contains(subflow))?;
        let mapping = self.mapping(index)?;
        let range = DataRange::new(mapping.range.start, mapping.range.end.min(before));
        (!range.is_empty()).then_some(Mapping { range, ..mapping })
    }

    fn newest(&self) -> Option<Mapping> {
        self.mapping(self.entries.len().checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SubflowId = SubflowId(0);
    const B: SubflowId = SubflowId(1);

    fn range(start: u64, end: u64) -> DataRange {
        DataRange::new(Dsn(start), Dsn(end))
    }

    fn index() -> MappingTx {
        let mut index = MappingTx::default();
        index.push(range(0, 100), A);
        index.push(range(100, 200), A);
        index.push(range(200, 300), B);
        index
    }

    #[test]
    fn a_copy_in_the_middle_splits_entries() {
        let mut index = index();
        index.add(range(50, 150), B);
        let parts: Vec<_> = index
            .parts(range(0, 300))
            .map(|m| (m.range.start.0, m.range.end.0, m.carried_by.len()))
            .collect();
        assert_eq!(parts, [(0, 50, 1), (50, 100, 2), (100, 150, 2), (150, 200, 1), (200, 300, 1)]);
        assert_eq!(index.run(range(20, 140)).unwrap().range, range(20, 50));
        assert_eq!(index.run(range(60, 180)).unwrap().range, range(60, 150));
        assert_eq!(index.next_not_on(B, Dsn(60)).unwrap().range, range(150, 200));
        assert_eq!(index.next_not_on(A, Dsn(0)).unwrap().range, range(200, 300));
    }

    #[test]
    fn piecewise_delivery_keeps_the_index_small() {
        let mut index = MappingTx::default();
        index.push(range(0, 1_000), A);
        index.push(range(1_000, 1_100), B);
        // SACKed in the middle, piece by piece, then also after the end of the mapping.
        for start in (200..1_000).step_by(20) {
            index.deliver(range(start, start + 20));
        }
        index.deliver(range(1_000, 1_050));
        let parts: Vec<_> = index
            .parts(range(0, 1_100))
            .map(|m| (m.range.start.0, m.range.end.0, m.delivered))
            .collect();
        // The last piece of a mapping is its remainder.
        let expected = [
            (0, 200, false),
            (200, 980, true),
            (980, 1_000, true),
            (1_000, 1_050, true),
            (1_050, 1_100, false),
        ];
        assert_eq!(parts, expected);
        // A repeated part counts as not delivered, and a run ends where the state changes.
        index.add(range(100, 300), B);
        assert!(
            index.mapping_at(Dsn(250)).unwrap().delivered
                && !index.mapping_at(Dsn(150)).unwrap().delivered
        );
        assert_eq!(index.next_not_on(B, Dsn(0)).unwrap().range, range(0, 100));
        assert_eq!(index.run(range(300, 1_100)).unwrap().range, range(300, 1_000));
        // Delivery twice, or after acknowledgment, has no effect.
        index.ack(Dsn(500));
        index.deliver(range(0, 700));
        assert_eq!(index.oldest().unwrap().range, range(500, 980));
        // The deliveries of a subflow that is gone are unknown.
        index.forget_subflow(B);
        assert!(
            index.mapping_at(Dsn(600)).unwrap().delivered
                && !index.mapping_at(Dsn(1_010)).unwrap().delivered
        );
    }

    #[test]
    fn acknowledged_data_is_forgotten_and_the_rest_starts_there() {
        let mut index = index();
        index.ack(Dsn(130));
        assert_eq!(index.oldest().unwrap().range, range(130, 200));
        assert_eq!(index.newest().unwrap().range, range(200, 300));
        assert_eq!(index.mapping_at(Dsn(0)).unwrap().range, range(130, 200));
        index.ack(Dsn(300));
        assert!(index.oldest().is_none());
        assert_eq!(index.end(), Dsn(300));
        index.push(range(300, 310), A);
        index.forget_subflow(A);
        assert!(index.newest().unwrap().carried_by.is_empty());
    }
}
