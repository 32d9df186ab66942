//! Adaptive redundancy: sends immediate copies while the path is risky, and hedged copies otherwise.
//!
//! *Problem.* Full redundancy has the best tail latency but always costs twice the bytes. It helps only occasionally:
//! when WiFi loses frames, during a handoff, or before a path fails. The authors of ReMP name "an automatic detection
//! of situations which benefit" as future work.
//!
//! *How.* The fastest path takes the data. The [forecast](marline_policy::Forecast) gives the probability that trouble
//! (a loss, an unanswered probe, an answer that is half a round trip late) begins on it before the answer arrives, or
//! has begun since its last use. The longer there has been no trouble, relative to the previous intervals between
//! episodes, the lower this probability. If it exceeds `tail`, the copy is immediately sent on the next path. Otherwise
//! it is sent only if the answer is overdue (`hedged.rs`). A copy is also sent immediately if nothing is known: on a
//! path that came up less than `stale` ago, and while a path of the class has received nothing for that long, because
//! the choice of the fastest path is then outdated. So copies are sent
//! - while losses are frequent enough to affect the target quantile,
//! - for the first segments on a path without recent history, after idle times or a handover,
//! - for segments that are actually late, and for no others.
//!
//! While copies are made, the path still carries everything, so any improvement shows immediately. On a failing path,
//! the last segments are hedged. Then a probe timeout makes the path silent, and data is sent only on the others. When
//! the path returns, the earlier trouble counts against it until a few times the usual interval between episodes has
//! passed.
//!
//! *Limit:* the first losses of a bad phase are not predicted. Each costs a hedging delay.
//!
//! *Source.* Ours. The questions are those of Frömmgen et al. (CoNEXT workshop 2015, section 3) and of RAVEN (Lee et
//! al., MobiCom 2018), which duplicates while the confidence intervals of the paths' delays overlap. RAVEN's decision
//! is based on the RTT, this one on trouble, because lost segments yield no RTT sample.
//!
//! *p99 of a small message:* see the measurements in docs/research/papers/remp2015.md. Where losses are independent and
//! frequent, no phase allows bytes to be saved, and this equals full redundancy.

use marline_policy::{Quantile, SchedulerContext, SchedulerEvent, SubflowView};
use marline_time::{Duration, Instant};

use super::classes::Class;
use super::copies::CopyingScheduler;
use super::hedged::{HedgeRule, HedgedConfig, ImmediateCopyRule};
use super::per_subflow::PerSubflow;

/// Conditions for immediate copies, and settings of delayed ones.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AutoRedundantConfig {
    /// Settings of delayed copies.
    pub hedged: HedgedConfig,
    /// Probability of trouble above which a copy is not delayed, 0 to 1.
    pub tail: f64,
    /// Time without received data after which a path's state counts as unknown. A path younger than this is unknown
    /// too.
    pub stale: Duration,
}

impl Default for AutoRedundantConfig {
    fn default() -> Self {
        let hedged = HedgedConfig::default();
        AutoRedundantConfig { hedged, tail: 0.01, stale: Duration::from_secs(2) }
    }
}

/// Rule for immediate copies of data on a path that is unknown or likely to be in trouble.
#[derive(Debug)]
pub struct RiskyPaths {
    tail: f64,
    stale: Duration,
    /// Time at which each path came up or was first used.
    known_since: PerSubflow<Option<Instant>>,
}

impl ImmediateCopyRule for RiskyPaths {
    type Config = AutoRedundantConfig;

    fn from_config(config: AutoRedundantConfig) -> (HedgedConfig, Self) {
        let AutoRedundantConfig { hedged, tail, stale } = config;
        (hedged, RiskyPaths { tail, stale, known_since: PerSubflow::new() })
    }

    fn should_copy_now(&mut self, on: &SubflowView, cx: &SchedulerContext<'_>) -> bool {
        let since = *self.known_since.value_mut(on.id).get_or_insert(cx.now);
        let class = Class::from_view(on);
        let since_last_rx = |view: &SubflowView| {
            Class::from_view(view) == class && cx.now.since(view.last_rx_at) > self.stale
        };
        if cx.now.since(since) < self.stale || cx.subflows.iter().any(since_last_rx) {
            return true;
        }
        let Some(answer) = on.forecast.answer(Quantile::P90) else { return true };
        // This segment may also be affected by trouble that began while the path was idle.
        let exposed = answer.max(cx.now.since(on.last_sent_at));
        f64::from(on.forecast.ongoing_trouble_risk(exposed)) > self.tail
    }

    fn on_event(&mut self, event: SchedulerEvent) {
        if let SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id) = event {
            *self.known_since.value_mut(id) = None;
        }
    }
}

/// Min-RTT scheduler with immediate copies on risky paths and hedged copies on others.
pub type AutoRedundant = CopyingScheduler<HedgeRule<RiskyPaths>>;

#[cfg(test)]
mod tests;
