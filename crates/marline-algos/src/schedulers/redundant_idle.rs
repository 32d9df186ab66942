//! Redundant-when-idle scheduler: sends copies of unacknowledged data, but only while there is no new data.
//!
//! *Problem.* Redundancy halves what two paths can carry together. While there is new data, all room is better used for
//! it; room is left over only when all of it has been sent.
//!
//! *How.* `min-rtt` places new data, so a bulk transfer uses all paths as usual. Once everything written has been sent,
//! the oldest data that is not DATA_ACKed is also sent on the fastest subflow with room that did not carry it, segment
//! by segment, until all subflows have carried all of it or are full. So a message that fits the windows is sent on all
//! paths at once, as with `redundant`, and so is the end of a long transfer.
//!
//! *Source.* "Redundant if no new data" of the ProgMP scheduler collection (Frömmgen et al., Middleware 2017);
//! reimplemented from a description of its behavior.
//!
//! *Extra bytes:* for small messages as many as with `redundant`; for bulk data, the last window. *p99 of a small
//! message:* as with `redundant`, unless it queues behind bulk data.

use marline_policy::{Decision, Dsn, SchedulerContext};

use super::classes::Class;
use super::copies::{CopyRule, CopyingScheduler, oldest_copy, queue_is_empty};

/// Copy rule for times without new data.
#[derive(Clone, Debug, Default)]
pub struct IdleCopies;

impl CopyRule for IdleCopies {
    type Config = ();

    fn from_config((): ()) -> Self {
        IdleCopies
    }

    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        if !queue_is_empty(cx) {
            return Decision::Wait;
        }
        oldest_copy(class, Dsn(0), cx).unwrap_or(Decision::Wait)
    }
}

/// Min-RTT scheduler that copies all unacknowledged data when there is no new data.
pub type RedundantIdle = CopyingScheduler<IdleCopies>;

#[cfg(test)]
mod tests;
