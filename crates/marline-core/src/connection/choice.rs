//! Scheduler decisions after validation, and the constraints under which they are made.

use marline_policy::{DataRange, Dsn, SubflowId};
use marline_time::Instant;

/// A validated decision: the next data and its subflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) subflow: SubflowId,
    pub(super) range: DataRange,
    pub(super) kind: Kind,
    /// The decision applies to all segments of the range instead of only the first.
    pub(super) run: bool,
}

impl Choice {
    /// Creates a decision for one segment.
    pub(super) const fn single(subflow: SubflowId, range: DataRange, kind: Kind) -> Self {
        Choice { subflow, range, kind, run: false }
    }

    /// Remaining part of a run after all data before `end` was sent.
    pub(super) fn remaining(&self, end: Dsn) -> Option<Choice> {
        let range = DataRange::new(end.max(self.range.start), self.range.end.max(end));
        (self.run && !range.is_empty()).then_some(Choice { range, ..*self })
    }
}

/// Kind of data that a decision sends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Data for the first time.
    New,
    /// Data that was sent before.
    Repeat,
    /// A repair of data that was sent before.
    Repair,
}

/// Constraints of the connection during a scheduling decision.
#[derive(Copy, Clone, Debug)]
pub(super) struct Constraints {
    pub(super) now: Instant,
    /// Repairs may be sent and are useful.
    pub(super) repairs: bool,
    /// Data may be sent twice: not on plain TCP.
    pub(super) repeats: bool,
}
