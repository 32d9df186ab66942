//! Burst-end redundancy: the last segments of a burst go on all paths, the rest once.
//!
//! *Problem.* A segment in the middle of a burst that gets lost is found by the ones behind it,
//! within a round trip. Behind the last one comes nothing: its loss shows only by silence, after a
//! probe timeout at best. So the end of a burst decides how late the whole can be, and it is short.
//!
//! *How.* `min-rtt` for new data. Once everything written is under way, the last `segments` segments
//! of it (1 unless said: one is what RACK cannot see) go also on every other subflow with room, the
//! fastest first. A message of one segment is therefore sent as `redundant` would; of a burst of 70
//! segments 1.4 % are sent twice. The end is where writing stopped, not where the application says it
//! is: a burst written in two goes has two ends if the sender is faster than the writer.
//!
//! *Source.* The end-of-flow resends of the ProgMP collection (Frömmgen et al., Middleware 2017), and
//! the "newest segment only" rule of a later variant of the redundant Linux scheduler; written anew.
//!
//! *p99 of a small message:* as `redundant`. Of a burst: a loss in the middle costs a round trip.

use marline_policy::{
    Decision, Dsn, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
};

use super::classes::{self, Class};
use super::copies::{CopyRule, WithCopies, oldest_copy, queue_is_empty};

/// What of a burst is copied.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BurstEndConfig {
    /// Full segments at the end of a burst, 1 to 1000.
    pub segments: u32,
}

impl Default for BurstEndConfig {
    fn default() -> Self {
        BurstEndConfig { segments: 1 }
    }
}

#[derive(Debug)]
struct Tail {
    config: BurstEndConfig,
}

impl CopyRule for Tail {
    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        if !queue_is_empty(cx) {
            return Decision::Wait;
        }
        let mss = classes::members(cx.subflows, class).map(|view| view.mss).max().unwrap_or(0);
        let tail = u64::from(mss) * u64::from(self.config.segments);
        oldest_copy(class, Dsn(cx.written.0.saturating_sub(tail)), cx).unwrap_or(Decision::Wait)
    }
}

/// Min-RTT; the end of each burst on all subflows.
#[derive(Debug)]
pub struct BurstEnd(WithCopies<Tail>);

super::copies::delegate!(BurstEnd, BurstEndConfig, |config| Tail { config });

#[cfg(test)]
mod tests;
