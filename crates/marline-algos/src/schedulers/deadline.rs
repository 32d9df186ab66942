//! Deadline: copies so that data arrives within the time that its application gives it.
//!
//! *Problem.* How much a copy is worth only the application knows. To a game a frame is worth nothing 80 ms after it
//! was written, to a chat two seconds are soon enough; hedging by what a path usually does (`hedged.rs`) serves
//! neither.
//!
//! *How.* `min-rtt` for new data. For each segment the scheduler knows when it must have arrived: `within` after it is
//! given to a path.
//! - A copy that waits until the answer is overdue, as in `hedged`, may be soon enough: if it would then be there in
//!   time on some other path, nine times out of ten, it waits.
//! - Else, if the [forecast](marline_policy::Forecast) says that the segment is likelier than `risk` to be late, or
//!   never to come, behind what the sender has put into the queue, its copy goes on the fastest other path at once.
//!
//! So a long deadline costs what hedging costs, a short one that the path always meets no more, and one that it rarely
//! meets has everything copied.
//!
//! *Source.* Ours, for what RFC 6897 (section 5.1) leaves to implementations: an application that says which latency it
//! needs.
//!
//! *Limits.* The time counts from when data is given to a path: what waits in the send buffer before has used up some
//! of it. The peer's application has the data when its predecessors are there, too. As with `hedged`, only the last
//! `limit` bytes written are copied, once everything was sent.

use marline_policy::{Quantile, SchedulerContext, SubflowView};
use marline_time::Duration;

use super::classes::Class;
use super::copies::WithCopies;
use super::delivery::{arrival_by, way_back};
use super::hedged::{Hedge, HedgedConfig, Impatience, overdue_after};

/// What an application asks for.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct DeadlineConfig {
    /// Of the copies that wait.
    pub hedged: HedgedConfig,
    /// Time from a path's taking data to its arrival.
    pub within: Duration,
    /// Chance of being later above which a copy does not wait, 0 to 1.
    pub risk: f64,
}

impl Default for DeadlineConfig {
    fn default() -> Self {
        let (hedged, within) = (HedgedConfig::default(), Duration::from_millis(100));
        DeadlineConfig { hedged, within, risk: 0.01 }
    }
}

/// Copies that are made at once: of what is in danger of being late, and could not be saved later.
#[derive(Debug)]
pub struct InDanger {
    deviations: f64,
    within: Duration,
    risk: f64,
}

impl InDanger {
    /// Whether a copy that waits for an overdue answer is in time on another path.
    fn may_wait(&self, on: &SubflowView, cx: &SchedulerContext<'_>) -> bool {
        let Some(overdue) = overdue_after(on, self.deviations, cx) else { return false };
        let class = Class::of(on);
        let others = cx.subflows.iter().filter(|view| view.id != on.id && Class::of(view) == class);
        let arrives = others.filter_map(|view| arrival_by(view, view.mss.into(), Quantile::P90));
        arrives.min().is_some_and(|arrives| overdue.saturating_add(arrives) <= self.within)
    }
}

impl Impatience for InDanger {
    type Config = DeadlineConfig;

    fn of(config: DeadlineConfig) -> (HedgedConfig, Self) {
        let DeadlineConfig { hedged, within, risk } = config;
        (hedged, InDanger { deviations: hedged.deviations, within, risk })
    }

    fn copies_at_once(&mut self, on: &SubflowView, cx: &SchedulerContext<'_>) -> bool {
        if self.may_wait(on, cx) {
            return false;
        }
        let bytes = cx.unsent.len().min(on.mss.into());
        let ahead = on.forecast.queued().saturating_add(on.forecast.passing(bytes));
        let answered = self.within.saturating_add(way_back(on));
        let late = on.forecast.chance_later(answered.saturating_sub(ahead));
        f64::from(late) > self.risk
    }
}

/// Min-RTT, with copies of what would be late.
pub type Deadline = WithCopies<Hedge<InDanger>>;

#[cfg(test)]
mod tests;
