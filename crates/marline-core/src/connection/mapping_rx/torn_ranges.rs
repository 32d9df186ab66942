//! Ranges of a subflow whose mappings were removed by a middlebox.
//!
//! A middlebox that merges segments has room for the options of only one, so the bytes of the others arrive without a
//! stream position. They are distinguished from bytes on a path that removes all options:
//!
//! ```text
//!   [ mapped | torn ]            a part of the segment is mapped, so the middlebox has merged two
//!   [ torn ][ torn ]             the rest of the second continues without options
//!   [ mapped ][ bare ]           whole segments arrived without: options do not pass
//! ```
//!
//! Torn ranges are discarded when they are next in order. They are not DATA_ACKed, so that they are sent again
//! with a mapping of their own (RFC 8684 section 3.3.1); a mapping that arrives before that is still valid.

use std::collections::VecDeque;

use marline_policy::Ssn;

use crate::on_demand::OnDemand;

/// Maximum length of a mapping. A longer range has lost more than one mapping.
const MAX_MAPPING_LEN: u64 = u16::MAX as u64;

/// Torn parts of the data received on one subflow.
#[derive(Debug, Default)]
pub(super) struct TornRanges {
    /// Sorted, disjoint. The first stays until data after it is delivered.
    parts: OnDemand<VecDeque<(Ssn, Ssn)>>,
}

impl TornRanges {
    /// True if `at` is in a torn part, or at the end of one that may still grow.
    pub(super) fn covers(&self, at: Ssn) -> bool {
        let Some(parts) = self.parts.get_used() else { return false };
        let index = parts.partition_point(|(_, end)| *end < at);
        parts.get(index).is_some_and(|(start, end)| {
            *start <= at && (at < *end || end.since(*start) < MAX_MAPPING_LEN)
        })
    }

    /// Adds a part, if there are fewer than `limit`.
    pub(super) fn insert(&mut self, start: Ssn, end: Ssn, limit: usize) {
        let first = self.parts.partition_point(|(_, known)| *known < start);
        let last = self.parts.partition_point(|(known, _)| *known <= end);
        let touched = self.parts.range(first..last);
        let (start, end) = touched.fold((start, end), |(from, to), (known_from, known_to)| {
            (from.min(*known_from), to.max(*known_to))
        });
        if first < last {
            self.parts.drain(first + 1..last);
            self.parts[first] = (start, end);
        } else if self.parts.len() < limit {
            self.parts.insert(first, (start, end));
        }
    }

    /// Number of torn bytes that start at `at`.
    pub(super) fn len_at(&self, at: Ssn) -> u64 {
        let index = self.parts.partition_point(|(_, end)| *end <= at);
        let part = self.parts.get(index).filter(|(start, _)| *start <= at);
        part.map_or(0, |(_, end)| end.since(at))
    }

    /// Drops parts before `delivered`.
    pub(super) fn advance(&mut self, delivered: Ssn) {
        let Some(parts) = self.parts.if_used() else { return };
        while parts.front().is_some_and(|(_, end)| *end < delivered) {
            parts.pop_front();
        }
    }

    /// Releases unused memory.
    pub(super) fn shrink(&mut self) {
        if self.parts.is_empty() {
            self.parts.retire();
        } else {
            self.parts.shrink_to_fit();
        }
    }

    /// Memory held, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.parts.capacity() * size_of::<(Ssn, Ssn)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torn(parts: &[(u64, u64)]) -> TornRanges {
        let mut torn = TornRanges::default();
        parts.iter().for_each(|(start, end)| torn.insert(Ssn(*start), Ssn(*end), 3));
        torn
    }

    #[test]
    fn adjacent_parts_are_merged_and_their_number_is_bounded() {
        let mut known = torn(&[(10, 20), (40, 50), (30, 35), (90, 95)]);
        assert_eq!(*known.parts, [(Ssn(10), Ssn(20)), (Ssn(30), Ssn(35)), (Ssn(40), Ssn(50))]);
        known.insert(Ssn(20), Ssn(42), 3);
        assert_eq!(*known.parts, [(Ssn(10), Ssn(50))]);
        assert_eq!([9, 10, 49, 50].map(|at| known.len_at(Ssn(at))), [0, 40, 1, 0]);
    }

    #[test]
    fn a_part_is_kept_until_data_after_it_is_delivered() {
        let mut known = torn(&[(10, 20), (30, 40)]);
        known.advance(Ssn(20));
        assert!(known.covers(Ssn(20)) && !known.covers(Ssn(21)) && known.covers(Ssn(35)));
        known.advance(Ssn(21));
        assert_eq!(*known.parts, [(Ssn(30), Ssn(40))]);
    }

    #[test]
    fn a_part_grows_no_longer_than_a_mapping() {
        let known = torn(&[(1, 1 + MAX_MAPPING_LEN)]);
        assert!(known.covers(Ssn(MAX_MAPPING_LEN)) && !known.covers(Ssn(1 + MAX_MAPPING_LEN)));
    }
}
