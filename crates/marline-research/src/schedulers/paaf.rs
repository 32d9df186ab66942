//! PAAF, primary-anchored adaptive failover with partial duplication (Alvarez-Merino et al., arXiv 2604.24352,
//! 2026).
//!
//! *Problem.* A control stream over two mobile networks must not stall when one of them fades. All data on both
//! at all times gives the best tail and costs twice the bytes; switching when a path has failed costs nothing
//! and comes too late. But a fade announces itself, mostly.
//!
//! *How.* One path, the primary (`primary.rs`), carries everything: what it has no room for waits. While an early
//! warning lasts, a second path carries the same data, too: first what is outstanding, then all that is new, each
//! of the two at its own pace. Any of these signs on the primary is a warning, and it lasts until all have been
//! gone for `hold`:
//!
//! | sign | begins | is gone |
//! |---|---|---|
//! | the RTT rose | SRTT over `rise` times the smallest, by 5 ms at least | half of that rise |
//! | loss | recovery, something waits for its retransmission, or a loss since the last look | none of it |
//! | the rate fell | below `drop` of its peak (which fades by an eighth each RTT) | half way back to it |
//! | silence | no answer for SRTT + `silence` RTT variations while something is in flight | an answer |
//!
//! *Source.* The paper's abstract and its authors' summary (nanoping.com, 2026): a designated primary link,
//! duplication only while early-warning signs say that the uplink is about to become bad, near the tail of full
//! duplication for up to 75 % less redundancy. The signs there are of the radio (signal level, transmit power),
//! of latency and of cost; their thresholds and the hysteresis could not be read.
//!
//! *What differs.* A transport does not see the radio. So signs of the transport stand in for it: all four
//! above, their thresholds, `hold` and the two levels of each are ours. A primary that is silent or gone is
//! failed over by class (`classes.rs`), as with every scheduler here. A backup helps only with `backup=on`.
//! There is no byte budget: what is spent is as long as the warnings.
//!
//! *Extra bytes:* those sent during warnings; a bulk transfer that fills the primary's queue raises its RTT, and
//! counts as a warning. *p99 of a small message:* the primary's, without its bad times if they announce
//! themselves; a loss in a good time costs its recovery, or the silence and the second path's delay.

use marline_algos::schedulers::{Redundant, classes};
use marline_policy::{
    Decision, Phase, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};

use super::primary::{Primary, Silence, helper};

/// An RTT that rose by less is no sign.
const LEAST_RISE: Duration = Duration::from_millis(5);
/// The peak rate loses so much of its lead in each RTT.
const PEAK_FADES_BY: f64 = 1.0 / 8.0;

/// Thresholds of the signs.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PaafConfig {
    /// SRTT over the smallest RTT from which on the RTT counts as risen, 1 at least.
    pub rise: f64,
    /// Share of the peak rate below which the rate counts as fallen, 0 to 1.
    pub drop: f64,
    /// RTT variations beyond the SRTT after which an answer is overdue.
    pub silence: f64,
    /// So long a warning lasts after its last sign.
    pub hold: Duration,
    /// A backup may carry the copies.
    pub with_backups: bool,
}

impl Default for PaafConfig {
    fn default() -> Self {
        PaafConfig {
            rise: 2.0,
            drop: 0.5,
            silence: 4.0,
            hold: Duration::from_millis(500),
            with_backups: false,
        }
    }
}

/// What the primary showed so far.
#[derive(Copy, Clone, Debug)]
struct Watch {
    on: SubflowId,
    silence: Silence,
    bytes_since_loss: u64,
    /// Bytes per second, faded.
    peak: f64,
    faded_at: Instant,
    /// The last sign of the warning that lasts.
    warned_at: Option<Instant>,
}

impl Watch {
    fn new(view: &SubflowView, now: Instant) -> Self {
        Watch {
            on: view.id,
            silence: Silence::default(),
            bytes_since_loss: view.bytes_since_loss,
            peak: 0.0,
            faded_at: now,
            warned_at: None,
        }
    }

    /// Looks for signs; returns whether a warning lasts.
    fn look(&mut self, view: &SubflowView, config: &PaafConfig, now: Instant) -> bool {
        self.silence.look(view, now);
        let lost = view.bytes_since_loss < self.bytes_since_loss;
        self.bytes_since_loss = view.bytes_since_loss;
        self.follow_rate(view, now);
        let signs = lost
            || view.phase != Phase::Open
            || view.bytes_queued > 0
            || self.silence.overdue_at(view, config.silence).is_some_and(|at| at <= now)
            || self.has_risen(view, config)
            || self.has_fallen(view, config);
        let lasts = |at: Instant| now.since(at) < config.hold;
        self.warned_at = if signs { Some(now) } else { self.warned_at.filter(|at| lasts(*at)) };
        self.warned_at.is_some()
    }

    fn has_risen(&self, view: &SubflowView, config: &PaafConfig) -> bool {
        let Some((srtt, least)) = view.srtt.zip(view.min_rtt) else { return false };
        let rise = least.mul_f64(config.rise - 1.0).max(LEAST_RISE);
        // What has begun ends half way back.
        let rise = if self.warned_at.is_some() { rise / 2 } else { rise };
        srtt > least.saturating_add(rise)
    }

    fn has_fallen(&self, view: &SubflowView, config: &PaafConfig) -> bool {
        let Some(rate) = view.delivery_rate else { return false };
        let share =
            if self.warned_at.is_some() { f64::midpoint(config.drop, 1.0) } else { config.drop };
        (rate.bytes_per_s() as f64) < self.peak * share
    }

    fn follow_rate(&mut self, view: &SubflowView, now: Instant) {
        let Some(rate) = view.delivery_rate.map(|rate| rate.bytes_per_s() as f64) else { return };
        if now.since(self.faded_at) >= view.srtt.unwrap_or(LEAST_RISE) {
            self.faded_at = now;
            self.peak -= (self.peak - rate).max(0.0) * PEAK_FADES_BY;
        }
        self.peak = self.peak.max(rate);
    }
}

/// A primary that carries everything, and a second path while there is a warning.
#[derive(Debug)]
pub struct Paaf {
    config: PaafConfig,
    primary: Primary,
    watch: Option<Watch>,
    /// Walks the stream on both while a warning lasts.
    both: Redundant,
    /// The views of one question, for `both`.
    views: Vec<SubflowView>,
}

impl Paaf {
    /// With these thresholds.
    #[must_use]
    pub fn new(config: PaafConfig) -> Self {
        Paaf {
            config,
            primary: Primary::default(),
            watch: None,
            both: Redundant::default(),
            views: Vec::new(),
        }
    }

    /// Whether a warning lasts on the primary.
    fn is_warned(&mut self, primary: &SubflowView, now: Instant) -> bool {
        let watch = self.watch.filter(|watch| watch.on == primary.id);
        let mut watch = watch.unwrap_or_else(|| Watch::new(primary, now));
        let warned = watch.look(primary, &self.config, now);
        self.watch = Some(watch);
        warned
    }

    /// The same on both, each at its own pace.
    fn on_both(&mut self, pair: [&SubflowView; 2], cx: &SchedulerContext<'_>) -> Decision {
        let mut views = core::mem::take(&mut self.views);
        views.clear();
        // Both count as regular here: that the second may help was decided already.
        views.extend(pair.map(|view| SubflowView { backup: false, ..*view }));
        // What it would do does not hold until the warning is looked at again: by segments, then.
        let decision = self.both.next_send(&SchedulerContext { subflows: &views, ..*cx });
        self.views = views;
        decision.by_segment()
    }

    /// Waits, but no longer than until the primary's silence is a sign.
    fn until_silence(&self, primary: &SubflowView, decision: Decision, now: Instant) -> Decision {
        let overdue = self.watch.and_then(|w| w.silence.overdue_at(primary, self.config.silence));
        match (decision, overdue.filter(|at| *at > now)) {
            (Decision::Wait, Some(at)) => Decision::WaitUntil(at),
            (Decision::WaitUntil(opens), Some(at)) => Decision::WaitUntil(opens.min(at)),
            (decision, _) => decision,
        }
    }
}

impl Default for Paaf {
    fn default() -> Self {
        Paaf::new(PaafConfig::default())
    }
}

impl Scheduler for Paaf {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        let Some(primary) = self.primary.choose(cx) else {
            return super::primary::among_suspects(cx);
        };
        let warned = self.is_warned(primary, cx.now);
        let second = helper(primary, self.config.with_backups, cx);
        let decision = match second {
            Some(second) if warned => self.on_both([primary, second], cx),
            _ => super::primary::alone(primary, cx),
        };
        match second {
            Some(_) if !warned => self.until_silence(primary, decision, cx.now),
            _ => decision,
        }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.primary.on_event(event);
        self.both.on_event(event, cx, out);
        match (event, &mut self.watch) {
            (SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id), Some(watch))
                if watch.on == id =>
            {
                self.watch = None;
            }
            (SchedulerEvent::ProbeTimeout(id) | SchedulerEvent::SubflowRto(id), Some(watch))
                if watch.on == id =>
            {
                watch.warned_at = Some(cx.now);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
