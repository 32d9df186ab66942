//! Adaptive redundancy: immediate copies while the path is risky, hedged ones otherwise.
//!
//! *Problem.* Full redundancy has the best tail latency but always costs twice the bytes. It helps
//! only occasionally: when WiFi loses frames, during a handoff, before a path dies. The authors of
//! ReMP name "an automatic detection of situations which benefit" as future work.
//!
//! *How.* The fastest path takes the data. Its risk (`risk.rs`: the share of its recent segments
//! that were lost or late) decides about the copy: above `tail` it goes on the next path at once;
//! below, it is sent only if the acknowledgment is overdue (`hedged.rs`). So copies are sent
//! - while losses are frequent enough to affect the target quantile,
//! - for the first segments on a path without recent history: after idle times, after a handover,
//! - for segments that are actually late, and for no others.
//!
//! On a dying path, the last segments are hedged; then its probe timeout makes it silent and data
//! goes only on the others. When it comes back its record counts against it until it has been
//! reliable for a while.
//!
//! *Source.* Ours; the questions are those of Frömmgen et al. (CoNEXT workshop 2015, section 3) and
//! of RAVEN (Lee et al., MobiCom 2018), which duplicates while the confidence intervals of the
//! paths' delays overlap. That decision is based on the RTT, this one on lateness, since lost
//! segments give no RTT sample.
//!
//! *p99 of a small message:* docs/research/papers/remp2015.md has the measurements. Where losses are
//! independent and frequent there is no phase in which bytes could be saved, and this equals full
//! redundancy.

use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
};

use super::copies::WithCopies;
use super::hedged::{Hedge, HedgedConfig};
use super::risk::{Risk, RiskConfig};

/// Conditions for immediate copies, and the delay of the others.
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
