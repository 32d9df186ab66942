//! Redundancy when it pays: copies at once while the path is risky, hedged ones else.
//!
//! *Problem.* Full redundancy has the best tail and costs twice the bytes all the time. What it is good
//! for happens now and then: a WiFi that loses frames, a handoff, a path that is about to die. The
//! authors of ReMP name "an automatic detection of situations which benefit" as future work.
//!
//! *How.* The fastest path takes the data. Its risk (`risk.rs`: the share of its recent segments that
//! were lost or late) says what becomes of the copy: above `tail` it goes on the next path at once;
//! below, it waits as long as the answer usually takes and is sent only if that does not come
//! (`hedged.rs`). So a copy's bytes are paid
//! - while losses are so frequent that they would show at the quantile that is to be kept,
//! - for the first segments on a path that nothing is known of, or nothing any more: after idle
//!   times, after a handover,
//! - for what is actually late, and for nothing else.
//!
//! A dying path: what was sent last on it is hedged; by then its probe timeout makes it suspect and
//! data goes on the others alone. When it comes back it has a record, and has to earn trust again.
//!
//! *Source.* Ours; the questions are those of Frömmgen et al. (CoNEXT workshop 2015, section 3) and of
//! RAVEN (Lee et al., MobiCom 2018), which duplicates while the confidence intervals of the
//! paths' delays overlap. There the RTT decides, here what was late: losses leave no RTT behind.
//!
//! *p99 of a small message:* docs/research/papers/remp2015.md has the measurements. Where losses are
//! independent and frequent there is no good time to save bytes in, and this is full redundancy.

use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
};

use super::copies::WithCopies;
use super::hedged::{Hedge, HedgedConfig};
use super::risk::{Risk, RiskConfig};

/// When copies are made at once, and how long the others wait.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct AutoRedundantConfig {
    /// Of the copies that wait.
    pub hedged: HedgedConfig,
    /// When they do not.
    pub risk: RiskConfig,
}

/// Min-RTT; copies at once on risky paths, hedged ones on others.
#[derive(Debug)]
pub struct AutoRedundant(WithCopies<Hedge>);

super::copies::delegate!(AutoRedundant, AutoRedundantConfig, |config: AutoRedundantConfig| {
    Hedge::new(config.hedged, Some(Risk::new(config.risk)))
});

#[cfg(test)]
mod tests;
