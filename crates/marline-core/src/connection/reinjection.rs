//! Reinjection queue: data that must be sent again on another subflow, with the cause (RFC 8684
//! section 3.3.6).
//!
//! Ranges are kept in DSN order and never overlap: the data that blocks the peer's reader longest is sent first, and
//! nothing is queued twice. Reinjections based only on suspicion (an unanswered probe) are withdrawn when a segment
//! arrives on the suspected subflow. If that subflow fails, they become definite, and the queue no longer refers to
//! it, because its slot may be reused.

use std::collections::BTreeMap;

use marline_policy::{DataRange, Dsn, ReinjectionCause, SubflowId};
use marline_time::Instant;

use crate::on_demand::{OnDemand, UnusedState};

/// One range to be sent again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedRange {
    pub(crate) range: DataRange,
    pub(crate) cause: ReinjectionCause,
    pub(crate) since: Instant,
    /// Subflow whose suspected failure is the cause, while it exists.
    pub(crate) from: Option<SubflowId>,
    /// Subflow that a policy has already chosen.
    pub(crate) on: Option<SubflowId>,
}

/// Ranges by their first byte. This is a map because a failed subflow may leave tens of thousands, and each operation
/// must take logarithmic time.
#[derive(Debug, Default)]
struct QueuedRanges(BTreeMap<Dsn, QueuedRange>);

impl UnusedState for QueuedRanges {
    const UNUSED: &'static Self = &QueuedRanges(BTreeMap::new());
}

/// Queue of reinjections.
#[derive(Debug, Default)]
pub(crate) struct ReinjectionQueue {
    items: OnDemand<QueuedRanges>,
}

impl ReinjectionQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.get_used().is_none_or(|items| items.0.is_empty())
    }

    /// Every queued range, oldest data first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &QueuedRange> {
        self.items.0.values()
    }

    /// Cause of the queued range that contains this position, if there is one.
    pub(crate) fn cause_at(&self, at: Dsn) -> Option<ReinjectionCause> {
        let (_, item) = self.items.0.range(..=at).next_back()?;
        (at < item.range.end).then_some(item.cause)
    }

    /// First range that ends after `at`.
    fn first_ending_after(&self, at: Dsn) -> Option<QueuedRange> {
        let reaches = |(_, item): &(&Dsn, &QueuedRange)| item.range.end > at;
        let before = self.items.0.range(..=at).next_back().filter(reaches);
        before.or_else(|| self.items.0.range(at..).next()).map(|(_, item)| *item)
    }

    /// Adds the parts of `item.range` that are not queued yet.
    pub(crate) fn push(&mut self, item: QueuedRange) {
        let mut start = item.range.start;
        while start < item.range.end {
            let present = self.first_ending_after(start);
            let next = present.map_or(item.range.end, |present| present.range.start);
            let gap = DataRange::new(start, next.min(item.range.end));
            if !gap.is_empty() {
                self.insert_range(QueuedRange { range: gap, ..item });
            }
            let Some(present) = present else { break };
            start = present.range.end;
        }
    }

    /// Inserts a range that overlaps no queued one, and merges it with the previous range if they are contiguous: the
    /// subflow that repeats the data cuts it to its own segment size.
    fn insert_range(&mut self, item: QueuedRange) {
        let items = &mut self.items.0;
        if let Some((_, before)) = items.range_mut(..item.range.start).next_back()
            && before.range.end == item.range.start
            && (QueuedRange { range: item.range, ..*before }) == item
        {
            before.range.end = item.range.end;
        } else {
            items.insert(item.range.start, item);
        }
    }

    /// Removes a range that was sent or need not be sent.
    pub(crate) fn remove(&mut self, range: DataRange) {
        while let Some(item) = self.first_ending_after(range.start) {
            if item.range.start >= range.end {
                break;
            }
            let items = &mut self.items.0;
            items.remove(&item.range.start);
            let left = DataRange::new(item.range.start, range.start.min(item.range.end));
            let right = DataRange::new(range.end.max(item.range.start), item.range.end);
            for part in [left, right] {
                if !part.is_empty() {
                    items.insert(part.start, QueuedRange { range: part, ..item });
                }
            }
        }
    }

    /// Removes all data before `to`, which the peer has received.
    pub(crate) fn ack(&mut self, to: Dsn) {
        let oldest = self.items.get_used().and_then(|items| items.0.keys().next());
        if oldest.is_some_and(|start| *start < to) {
            self.remove(DataRange::new(Dsn(0), to));
        }
    }

    /// Withdraws reinjections based on suspicion of this subflow, on which a segment arrived.
    pub(crate) fn clear_suspicion(&mut self, subflow: SubflowId) {
        let suspected = |q: &QueuedRange| {
            q.from == Some(subflow) && q.cause == ReinjectionCause::UnansweredProbe
        };
        if let Some(items) = self.items.if_used() {
            items.0.retain(|_, q| !suspected(q));
        }
    }

    /// Handles the failure of a subflow: its suspected reinjections become definite, and those assigned to it may use
    /// any subflow.
    pub(crate) fn drop_subflow(&mut self, subflow: SubflowId) {
        for item in self.items.if_used().into_iter().flat_map(|items| items.0.values_mut()) {
            if item.from == Some(subflow) {
                item.from = None;
                item.cause = ReinjectionCause::SubflowClosed;
            }
            item.on = item.on.filter(|on| *on != subflow);
        }
    }

    /// True if a queued range refers to this subflow.
    pub(crate) fn names(&self, subflow: SubflowId) -> bool {
        self.iter().any(|q| q.from == Some(subflow) || q.on == Some(subflow))
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.items.retire();
        }
    }

    /// Memory held, in bytes, assuming that nodes of the map are half full.
    pub(crate) fn memory(&self) -> u64 {
        (2 * self.items.0.len() * size_of::<(Dsn, QueuedRange)>()) as u64
    }

    pub(crate) fn clear(&mut self) {
        self.items.retire();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(start: u64, end: u64) -> QueuedRange {
        QueuedRange {
            range: DataRange::new(Dsn(start), Dsn(end)),
            cause: ReinjectionCause::UnansweredProbe,
            since: Instant::ZERO,
            from: Some(SubflowId(0)),
            on: None,
        }
    }

    fn ranges(queue: &ReinjectionQueue) -> Vec<(u64, u64)> {
        queue.iter().map(|q| (q.range.start.0, q.range.end.0)).collect()
    }

    #[test]
    fn overlapping_ranges_are_queued_once_in_order() {
        let mut queue = ReinjectionQueue::default();
        queue.push(item(100, 200));
        queue.push(item(300, 400));
        queue.push(item(50, 350));
        assert_eq!(ranges(&queue), [(50, 100), (100, 300), (300, 400)]);
        queue.push(item(0, 500));
        assert_eq!(ranges(&queue), [(0, 50), (50, 100), (100, 300), (300, 500)]);
    }

    #[test]
    fn contiguous_ranges_with_equal_causes_are_merged() {
        let mut queue = ReinjectionQueue::default();
        queue.push(item(0, 100));
        queue.push(item(100, 200));
        queue.push(QueuedRange { cause: ReinjectionCause::SubflowRto, ..item(200, 300) });
        assert_eq!(ranges(&queue), [(0, 200), (200, 300)]);
    }

    #[test]
    fn removal_cuts_both_edges() {
        let mut queue = ReinjectionQueue::default();
        queue.push(item(0, 100));
        queue.push(item(150, 300));
        queue.remove(DataRange::new(Dsn(40), Dsn(200)));
        assert_eq!(ranges(&queue), [(0, 40), (200, 300)]);
        queue.ack(Dsn(250));
        assert_eq!(ranges(&queue), [(250, 300)]);
        queue.clear_suspicion(SubflowId(1));
        assert!(!queue.is_empty());
        queue.clear_suspicion(SubflowId(0));
        assert!(queue.is_empty());
    }

    #[test]
    fn dropping_a_subflow_confirms_its_suspected_ranges() {
        let mut queue = ReinjectionQueue::default();
        queue.push(item(0, 100));
        queue.push(QueuedRange {
            on: Some(SubflowId(0)),
            from: Some(SubflowId(1)),
            ..item(100, 200)
        });
        queue.drop_subflow(SubflowId(0));
        assert!(!queue.names(SubflowId(0)) && queue.names(SubflowId(1)));
        queue.clear_suspicion(SubflowId(0));
        assert_eq!(ranges(&queue), [(0, 100), (100, 200)]);
        let causes: Vec<_> = queue.iter().map(|q| (q.cause, q.on)).collect();
        assert_eq!(causes[0], (ReinjectionCause::SubflowClosed, None));
        assert_eq!(causes[1], (ReinjectionCause::UnansweredProbe, None));
    }

    #[test]
    fn half_a_million_ranges_pushed_in_reverse_are_handled_quickly() {
        // With a list that is moved for each item, this would take hours.
        const ITEMS: u64 = 500_000;
        let mut queue = ReinjectionQueue::default();
        for at in (0..ITEMS).rev() {
            queue.push(item(3 * at, 3 * at + 2));
        }
        assert_eq!(queue.iter().count() as u64, ITEMS);
        for at in 0..ITEMS {
            assert_eq!(queue.iter().next().map(|q| q.range.start), Some(Dsn(3 * at)));
            queue.remove(DataRange::new(Dsn(3 * at), Dsn(3 * at + 2)));
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn a_range_overlapping_other_causes_fills_only_the_gaps() {
        let mut queue = ReinjectionQueue::default();
        let other =
            |start, end| QueuedRange { cause: ReinjectionCause::SubflowRto, ..item(start, end) };
        queue.push(other(10, 20));
        queue.push(other(30, 40));
        queue.push(item(15, 50));
        assert_eq!(ranges(&queue), [(10, 20), (20, 30), (30, 40), (40, 50)]);
        assert_eq!(queue.cause_at(Dsn(25)), Some(ReinjectionCause::UnansweredProbe));
        assert_eq!(queue.cause_at(Dsn(39)), Some(ReinjectionCause::SubflowRto));
        assert_eq!((queue.cause_at(Dsn(9)), queue.cause_at(Dsn(50))), (None, None));
        queue.remove(DataRange::new(Dsn(12), Dsn(45)));
        assert_eq!(ranges(&queue), [(10, 12), (45, 50)]);
    }
}
