//! Probing wrapper: also sends the last segment of a burst on idle paths, to measure them.
//!
//! *Problem.* `min-rtt` does not use a slower path while the faster one has room. The slower path's RTT is then
//! outdated: the path may have become the better one, or may have failed, and the failure of the fast path is a bad
//! time to learn this. A probe without data costs a packet and measures the RTT of an empty one. A copy of data that is
//! sent anyway also measures the RTT, and may arrive first.
//!
//! *How.* `min-rtt` places new data. Once everything written has been sent, the last segment is also sent on each other
//! subflow with room that has sent nothing for `idle` of its own RTTs (default 5) or has no RTT yet. So a path in use
//! is never probed, and an idle connection sends no probes.
//!
//! *Source.* The active-probing redundant scheduler of the ProgMP collection (Frömmgen et al.,
//! Middleware 2017); reimplemented.
//!
//! *Extra bytes:* at most one segment per path in five of its round trips. *p99 of a small message:* as with `min-rtt`,
//! but the RTT of each path is as recent as the traffic.

use marline_policy::{Decision, SchedulerContext, SubflowView};
use marline_time::Instant;

use super::classes::{self, Class};
use super::copies::{CopyRule, CopyingScheduler, first_uncarried_range, queue_is_empty};

/// Definition of an idle path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ProbingConfig {
    /// Time without sending, in round trips of the path, 1 to 1000.
    pub idle_rtts: u32,
}

impl Default for ProbingConfig {
    fn default() -> Self {
        ProbingConfig { idle_rtts: 5 }
    }
}

impl ProbingConfig {
    fn is_idle(&self, view: &SubflowView, now: Instant) -> bool {
        view.srtt.is_none_or(|srtt| now.since(view.last_sent_at) > srtt * self.idle_rtts)
    }
}

/// Copy rule for paths that were idle.
#[derive(Debug)]
pub struct IdlePaths {
    config: ProbingConfig,
}

impl CopyRule for IdlePaths {
    type Config = ProbingConfig;

    fn from_config(config: ProbingConfig) -> Self {
        IdlePaths { config }
    }

    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        let Some(last) = cx.mappings.newest().filter(|_| queue_is_empty(cx)) else {
            return Decision::Wait;
        };
        classes::members(cx.subflows, class)
            .filter(|view| view.is_ready() && self.config.is_idle(view, cx.now))
            .filter_map(|view| Some((view, first_uncarried_range(view.id, last.range.start, cx)?)))
            .min_by_key(|(view, _)| classes::rank(view))
            .map_or(Decision::Wait, |(view, range)| Decision::Send { subflow: view.id, range })
    }
}

/// Min-RTT scheduler that also sends the end of a burst on idle subflows.
pub type Probing = CopyingScheduler<IdlePaths>;

#[cfg(test)]
mod tests;
