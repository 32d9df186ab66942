//! Reinjection queue: data that must be sent again on another subflow, with the cause (RFC 8684
//! section 3.3.6).
//!
//! Ranges are kept in DSN order and never overlap: data that blocks the peer's reader longest goes
//! first, and nothing is queued twice. Reinjections that were only a suspicion (an unanswered
//! probe) are withdrawn when the suspected subflow is heard again. When it dies they become
//! definite, and the queue no longer refers to it, since its slot may be reused by another subflow.

use marline_policy::{DataRange, Dsn, ReinjectionCause, SubflowId};
use marline_time::Instant;

use crate::on_demand::OnDemand;

/// One range to be sent again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub(crate) range: DataRange,
    pub(crate) cause: ReinjectionCause,
    pub(crate) since: Instant,
    /// The subflow whose trouble brought it here, while it lives.
    pub(crate) from: Option<SubflowId>,
    /// A policy chose the subflow already.
    pub(crate) on: Option<SubflowId>,
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct ReinjectionQueue {
    items: OnDemand<Vec<Queued>>,
}

impl ReinjectionQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.used().is_none_or(Vec::is_empty)
    }

    /// Every queued range, oldest data first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.items.iter()
    }

    /// Why what begins here waits to go out again, if it does.
    pub(crate) fn cause_at(&self, at: Dsn) -> Option<ReinjectionCause> {
        let index = self.items.partition_point(|q| q.range.end <= at);
        self.items.get(index).filter(|q| q.range.start <= at).map(|q| q.cause)
    }

    /// Adds the parts of `item.range` that are not queued yet.
    pub(crate) fn push(&mut self, item: Queued) {
        let mut start = item.range.start;
        let mut index = self.items.partition_point(|q| q.range.end <= start);
        while start < item.range.end {
            let next = self.items.get(index).map_or(item.range.end, |q| q.range.start);
            let gap = DataRange::new(start, next.min(item.range.end));
            if !gap.is_empty() {
                index = self.put(index, Queued { range: gap, ..item });
            }
            let Some(present) = self.items.get(index) else { break };
            start = present.range.end.max(gap.end);
            index += 1;
        }
    }

    /// Puts in a range before the one at `index`, as a part of the one before if it continues that: what
    /// goes out is cut anew, by the size of the segments there. Returns where the next one is.
    fn put(&mut self, index: usize, item: Queued) -> usize {
        let before = index.checked_sub(1).and_then(|before| self.items.get_mut(before));
        let continues = |q: &&mut Queued| {
            let alike = Queued { range: item.range, ..**q } == item;
            alike && q.range.end == item.range.start
        };
        if let Some(before) = before.filter(continues) {
            before.range.end = item.range.end;
            return index;
        }
        self.items.insert(index, item);
        index + 1
    }

    /// This range was sent, or need not be.
    pub(crate) fn remove(&mut self, range: DataRange) {
        let first = self.items.partition_point(|q| q.range.end <= range.start);
        let mut index = first;
        while let Some(item) = self.items.get(index).copied() {
            if item.range.start >= range.end {
                break;
            }
            self.items.remove(index);
            let left = DataRange::new(item.range.start, range.start.min(item.range.end));
            let right = DataRange::new(range.end.max(item.range.start), item.range.end);
            for part in [left, right] {
                if !part.is_empty() {
                    self.items.insert(index, Queued { range: part, ..item });
                    index += 1;
                }
            }
        }
    }

    /// The peer has everything before `to`.
    pub(crate) fn ack(&mut self, to: Dsn) {
        if self.items.used().and_then(|items| items.first()).is_some_and(|q| q.range.start < to) {
            self.remove(DataRange::new(Dsn(0), to));
        }
    }

    /// The subflow was heard again: take back what was only suspected of it.
    pub(crate) fn absolve(&mut self, subflow: SubflowId) {
        let suspected =
            |q: &Queued| q.from == Some(subflow) && q.cause == ReinjectionCause::UnansweredProbe;
        if let Some(items) = self.items.if_used() {
            items.retain(|q| !suspected(q));
        }
    }

    /// The subflow is dead: what was suspected of it is certain, and what was meant for it is anybody's.
    pub(crate) fn bury(&mut self, subflow: SubflowId) {
        for item in self.items.if_used().into_iter().flatten() {
            if item.from == Some(subflow) {
                item.from = None;
                item.cause = ReinjectionCause::SubflowClosed;
            }
            item.on = item.on.filter(|on| *on != subflow);
        }
    }

    /// Whether anything here speaks of this subflow.
    pub(crate) fn names(&self, subflow: SubflowId) -> bool {
        self.items.iter().any(|q| q.from == Some(subflow) || q.on == Some(subflow))
    }

    /// Gives back the memory that it does not need now.
    pub(crate) fn shrink(&mut self) {
        if self.items.is_empty() {
            self.items.retire();
        } else {
            self.items.shrink_to_fit();
        }
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> u64 {
        (self.items.capacity() * size_of::<Queued>()) as u64
    }

    pub(crate) fn clear(&mut self) {
        self.items.retire();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(start: u64, end: u64) -> Queued {
        Queued {
            range: DataRange::new(Dsn(start), Dsn(end)),
            cause: ReinjectionCause::UnansweredProbe,
            since: Instant::ZERO,
            from: Some(SubflowId(0)),
            on: None,
        }
    }

    fn ranges(queue: &ReinjectionQueue) -> Vec<(u64, u64)> {
        queue.items.iter().map(|q| (q.range.start.0, q.range.end.0)).collect()
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
    fn ranges_that_continue_each_other_are_one_if_they_are_here_for_the_same_reason() {
        let mut queue = ReinjectionQueue::default();
        queue.push(item(0, 100));
        queue.push(item(100, 200));
        queue.push(Queued { cause: ReinjectionCause::SubflowRto, ..item(200, 300) });
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
        queue.absolve(SubflowId(1));
        assert!(!queue.is_empty());
        queue.absolve(SubflowId(0));
        assert!(queue.is_empty());
    }

    #[test]
    fn what_is_suspected_of_a_dead_subflow_is_certain_and_names_it_no_more() {
        let mut queue = ReinjectionQueue::default();
        queue.push(item(0, 100));
        queue.push(Queued { on: Some(SubflowId(0)), from: Some(SubflowId(1)), ..item(100, 200) });
        queue.bury(SubflowId(0));
        assert!(!queue.names(SubflowId(0)) && queue.names(SubflowId(1)));
        queue.absolve(SubflowId(0));
        assert_eq!(ranges(&queue), [(0, 100), (100, 200)]);
        let causes: Vec<_> = queue.iter().map(|q| (q.cause, q.on)).collect();
        assert_eq!(causes[0], (ReinjectionCause::SubflowClosed, None));
        assert_eq!(causes[1], (ReinjectionCause::UnansweredProbe, None));
    }
}
