//! Adaptive redundancy: immediate copies while the path is risky, hedged ones otherwise.
//!
//! *Problem.* Full redundancy has the best tail latency but always costs twice the bytes. It helps
//! only occasionally: when WiFi loses frames, during a handoff, before a path dies. The authors of
//! ReMP name "an automatic detection of situations which benefit" as future work.
//!
//! *How.* The fastest path takes the data. The [forecast](marline_policy::Forecast) says how likely it is that
//! trouble (a loss, an unanswered probe, an answer half of a round trip late) begins on it before the answer is
//! there, or has begun since it was last used; the less likely the longer there was none, in times that episodes
//! were apart before. If that is more than `tail`, the copy goes on the next path at once; else it is sent only if
//! the answer is overdue (`hedged.rs`). A copy goes at once also where nothing is known: on a path that came up less
//! than `stale` ago, and while nothing was received on some path of the class for so long, since the choice of the
//! fastest one is then outdated. So copies are sent
//! - while losses are frequent enough to affect the target quantile,
//! - for the first segments on a path without recent history: after idle times, after a handover,
//! - for segments that are actually late, and for no others.
//!
//! While copies are made, the path still carries everything, so that any improvement shows at once. On a dying
//! path, the last segments are hedged; then its probe timeout makes it silent and data goes only on the others. When it
//! comes back the trouble that it had counts against it until it has been away for a few times as long as its episodes
//! were apart.
//!
//! *Limit:* the first losses of a bad phase are not foreseen. They cost a hedging delay each.
//!
//! *Source.* Ours; the questions are those of Frömmgen et al. (CoNEXT workshop 2015, section 3) and
//! of RAVEN (Lee et al., MobiCom 2018), which duplicates while the confidence intervals of the
//! paths' delays overlap. That decision is based on the RTT, this one on trouble, since lost
//! segments give no RTT sample.
//!
//! *p99 of a small message:* docs/research/papers/remp2015.md has the measurements. Where losses are
//! independent and frequent there is no phase in which bytes could be saved, and this equals full
//! redundancy.

use marline_policy::{Quantile, SchedulerContext, SchedulerEvent, SubflowView};
use marline_time::{Duration, Instant};

use super::classes::Class;
use super::copies::WithCopies;
use super::hedged::{Hedge, HedgedConfig, Impatience};
use super::per_subflow::PerSubflow;

/// Conditions for immediate copies, and the delay of the others.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AutoRedundantConfig {
    /// Of the copies that wait.
    pub hedged: HedgedConfig,
    /// Chance of trouble above which they do not, 0 to 1.
    pub tail: f64,
    /// Silence after which nothing is known of a path, and age of a path below which nothing is known yet.
    pub stale: Duration,
}

impl Default for AutoRedundantConfig {
    fn default() -> Self {
        let hedged = HedgedConfig::default();
        AutoRedundantConfig { hedged, tail: 0.01, stale: Duration::from_secs(2) }
    }
}

/// Copies that are made at once: of what goes on a path that is likely to be in trouble, or unknown.
#[derive(Debug)]
pub struct Doubts {
    tail: f64,
    stale: Duration,
    /// When each path came up, or was first used.
    known_since: PerSubflow<Option<Instant>>,
}

impl Impatience for Doubts {
    type Config = AutoRedundantConfig;

    fn of(config: AutoRedundantConfig) -> (HedgedConfig, Self) {
        let AutoRedundantConfig { hedged, tail, stale } = config;
        (hedged, Doubts { tail, stale, known_since: PerSubflow::new() })
    }

    fn copies_at_once(&mut self, on: &SubflowView, cx: &SchedulerContext<'_>) -> bool {
        let since = *self.known_since.of(on.id).get_or_insert(cx.now);
        let class = Class::of(on);
        let unheard = |view: &SubflowView| {
            Class::of(view) == class && cx.now.since(view.last_heard_at) > self.stale
        };
        if cx.now.since(since) < self.stale || cx.subflows.iter().any(unheard) {
            return true;
        }
        let Some(answer) = on.forecast.answer(Quantile::P90) else { return true };
        // What began while nobody looked is seen by this segment.
        let exposed = answer.max(cx.now.since(on.last_sent_at));
        f64::from(on.forecast.risk_while_it_lasts(exposed)) > self.tail
    }

    fn on_event(&mut self, event: SchedulerEvent) {
        if let SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id) = event {
            *self.known_since.of(id) = None;
        }
    }
}

/// Min-RTT; copies at once on risky paths, hedged ones on others.
pub type AutoRedundant = WithCopies<Hedge<Doubts>>;

#[cfg(test)]
mod tests;
