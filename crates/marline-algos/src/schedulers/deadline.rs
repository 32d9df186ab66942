//! Deadline scheduler: sends copies so that data arrives within the time that the application allows.
//!
//! *Problem.* Only the application knows how useful a copy is. In a game, a frame is worthless 80 ms after it was
//! written; in a chat, two seconds are fast enough. Hedging based on a path's usual behavior (`hedged.rs`) serves
//! neither.
//!
//! *How.* `min-rtt` places new data. Each segment must arrive within the time `within` after it is given to a path.
//! - As in `hedged`, a copy waits until the answer is overdue, if in nine out of ten cases it would still arrive in
//!   time on another path.
//! - Otherwise, if the [forecast](marline_policy::Forecast) gives a probability above `risk` that the segment will be
//!   late or lost, including the sender's own queue, its copy is immediately sent on the fastest other path.
//!
//! So a long deadline costs as much as hedging, and a short one that the path always meets costs no more. With a
//! deadline that the path rarely meets, everything is copied.
//!
//! *Source.* Our own design for a feature that RFC 6897 (section 5.1) leaves to implementations: an application states
//! the latency it needs.
//!
//! *Limits.* The time starts when data is given to a path: data that waited in the send buffer has already used some of
//! it. The peer's application receives data only after all earlier data has arrived. As with `hedged`, only the last
//! `limit` bytes written are copied, once everything has been sent.

use marline_policy::{Quantile, SchedulerContext, SubflowView};
use marline_time::Duration;

use super::classes::Class;
use super::copies::CopyingScheduler;
use super::delivery::{arrival_by, return_delay};
use super::hedged::{HedgeRule, HedgedConfig, ImmediateCopyRule, time_until_overdue};

/// Settings of the deadline scheduler.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct DeadlineConfig {
    /// Settings of delayed copies.
    pub hedged: HedgedConfig,
    /// Maximum time between giving data to a path and its arrival.
    pub within: Duration,
    /// Probability of lateness, 0 to 1, above which a copy is not delayed.
    pub risk: f64,
}

impl Default for DeadlineConfig {
    fn default() -> Self {
        let (hedged, within) = (HedgedConfig::default(), Duration::from_millis(100));
        DeadlineConfig { hedged, within, risk: 0.01 }
    }
}

/// Rule for immediate copies of data that may be late and that a later copy could not save.
#[derive(Debug)]
pub struct MissedDeadlines {
    deviations: f64,
    within: Duration,
    risk: f64,
}

impl MissedDeadlines {
    /// Returns true if a copy that waits for an overdue answer would still arrive in time on another path.
    fn may_wait(&self, on: &SubflowView, cx: &SchedulerContext<'_>) -> bool {
        let Some(overdue) = time_until_overdue(on, self.deviations, cx) else { return false };
        let class = Class::from_view(on);
        let others =
            cx.subflows.iter().filter(|view| view.id != on.id && Class::from_view(view) == class);
        let arrives = others.filter_map(|view| arrival_by(view, view.mss.into(), Quantile::P90));
        arrives.min().is_some_and(|arrives| overdue.saturating_add(arrives) <= self.within)
    }
}

impl ImmediateCopyRule for MissedDeadlines {
    type Config = DeadlineConfig;

    fn from_config(config: DeadlineConfig) -> (HedgedConfig, Self) {
        let DeadlineConfig { hedged, within, risk } = config;
        (hedged, MissedDeadlines { deviations: hedged.deviations, within, risk })
    }

    fn should_copy_now(&mut self, on: &SubflowView, cx: &SchedulerContext<'_>) -> bool {
        if self.may_wait(on, cx) {
            return false;
        }
        let bytes = cx.unsent.len().min(on.mss.into());
        let ahead = on.forecast.queued().saturating_add(on.forecast.transit_time(bytes));
        let answered = self.within.saturating_add(return_delay(on));
        let late = on.forecast.late_probability(answered.saturating_sub(ahead));
        f64::from(late) > self.risk
    }
}

/// Min-RTT scheduler with copies of data that may be late.
pub type Deadline = CopyingScheduler<HedgeRule<MissedDeadlines>>;

#[cfg(test)]
mod tests;
