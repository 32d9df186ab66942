//! Redundant-when-idle scheduler: copies of unacknowledged data, but only while there is nothing
//! new to send.
//!
//! *Problem.* Redundancy halves what two paths can carry together. While there is new data, all
//! room is better used for it; only when all of it has been sent is room left over.
//!
//! *How.* `min-rtt` for new data, so a bulk transfer uses all paths as usual. Once everything
//! written has been sent, the oldest data that is not DATA_ACKed goes also on the fastest subflow
//! with room that did not carry it, segment by segment, until all subflows carried all of it or are
//! full. A message that fits the windows is on all paths at once, as with `redundant`; the end of a
//! long transfer is, too.
//!
//! *Source.* "Redundant if no new data" of the ProgMP scheduler collection (Frömmgen et al.,
//! Middleware 2017); reimplemented from a description of its behaviour.
//!
//! *Extra bytes:* for small messages as many as `redundant`; for bulk, the last window.
//! *p99 of a small message:* as `redundant`, unless it queues behind bulk data.

use marline_policy::{Decision, Dsn, SchedulerContext};

use super::classes::Class;
use super::copies::{CopyRule, WithCopies, oldest_copy, queue_is_empty};

/// Copies when there is nothing new.
#[derive(Clone, Debug, Default)]
pub struct WhenIdle;

impl CopyRule for WhenIdle {
    type Config = ();

    fn of((): ()) -> Self {
        WhenIdle
    }

    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        if !queue_is_empty(cx) {
            return Decision::Wait;
        }
        oldest_copy(class, Dsn(0), cx).unwrap_or(Decision::Wait)
    }
}

/// Min-RTT; copies of all that is not acknowledged when there is nothing new.
pub type RedundantIdle = WithCopies<WhenIdle>;

#[cfg(test)]
mod tests;
