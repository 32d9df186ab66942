//! Scheduler decisions after validation, and the constraints under which they are made.

use marline_policy::{DataRange, Dsn, SubflowId};
use marline_time::Instant;

/// A checked decision: this data goes on this subflow next.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) subflow: SubflowId,
    pub(super) range: DataRange,
    pub(super) kind: Kind,
    /// It holds for as many segments as the range takes, not for the first alone.
    pub(super) run: bool,
}

impl Choice {
    /// A decision for one segment.
    pub(super) const fn once(subflow: SubflowId, range: DataRange, kind: Kind) -> Self {
        Choice { subflow, range, kind, run: false }
    }

    /// What is left of a run after all before `end` went out.
    pub(super) fn rest(&self, end: Dsn) -> Option<Choice> {
        let range = DataRange::new(end.max(self.range.start), self.range.end.max(end));
        (self.run && !range.is_empty()).then_some(Choice { range, ..*self })
    }
}

/// What a decision puts on the wire.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Data for the first time.
    New,
    /// Data that was sent before.
    Repeat,
    /// A repair of data that was sent before.
    Repair,
}

/// What holds for the connection while the scheduler judges.
#[derive(Copy, Clone, Debug)]
pub(super) struct Terms {
    pub(super) now: Instant,
    /// Repairs may be sent, and be of use.
    pub(super) repairs: bool,
    /// Data may go twice: not on plain TCP.
    pub(super) repeats: bool,
}
