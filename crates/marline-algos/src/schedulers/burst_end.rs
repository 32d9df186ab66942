//! Burst-end redundancy: sends the last segments of a burst on all paths, and the rest once.
//!
//! *Problem.* The loss of a segment in the middle of a burst is detected within a round trip by the segments that
//! follow. The last segment has no successor: its loss shows only through silence, after a probe timeout at best. So
//! the end of a burst, which is short, determines its worst delay.
//!
//! *How.* `min-rtt` places new data. Once everything written has been sent, its last `segments` segments (default 1,
//! the one whose loss RACK cannot detect) are also sent on every other subflow with room, the fastest first. So a
//! message of one segment is sent as with `redundant`, and of a burst of 70 segments 1.4 % are sent twice. The end is
//! where the application stopped writing: a burst written in two parts has two ends if the sender is faster than the
//! writer.
//!
//! *Source.* The end-of-flow resends of the ProgMP collection (Frömmgen et al., Middleware 2017), and the "newest
//! segment only" rule of a later variant of the redundant Linux scheduler; both reimplemented.
//!
//! *p99 of a small message:* as with `redundant`. In a burst, a loss in the middle costs a round trip.

use marline_policy::{Decision, Dsn, SchedulerContext};

use super::classes::{self, Class};
use super::copies::{CopyRule, CopyingScheduler, oldest_copy, queue_is_empty};

/// Settings of the part of a burst that is copied.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BurstEndConfig {
    /// Number of full segments at the end of a burst, 1 to 1000.
    pub segments: u32,
}

impl Default for BurstEndConfig {
    fn default() -> Self {
        BurstEndConfig { segments: 1 }
    }
}

/// Copy rule for the end of a burst.
#[derive(Debug)]
pub struct Tail {
    config: BurstEndConfig,
}

impl CopyRule for Tail {
    type Config = BurstEndConfig;

    fn from_config(config: BurstEndConfig) -> Self {
        Tail { config }
    }

    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        if !queue_is_empty(cx) {
            return Decision::Wait;
        }
        let mss = classes::members(cx.subflows, class).map(|view| view.mss).max().unwrap_or(0);
        let tail = u64::from(mss) * u64::from(self.config.segments);
        oldest_copy(class, Dsn(cx.written.0.saturating_sub(tail)), cx).unwrap_or(Decision::Wait)
    }
}

/// Min-RTT scheduler that sends the end of each burst on all subflows.
pub type BurstEnd = CopyingScheduler<Tail>;

#[cfg(test)]
mod tests;
