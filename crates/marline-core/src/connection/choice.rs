//! Decisions of a scheduler, checked, and the terms on which it makes them.

use marline_policy::{DataRange, SubflowId};
use marline_time::Instant;

/// A checked decision: this data goes on this subflow next. The range may be longer than a segment: it is a run
/// of segments then, and holds for as many of them as fit the batch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) subflow: SubflowId,
    pub(super) range: DataRange,
    pub(super) kind: Kind,
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
