//! PAAF, primary-anchored adaptive failover with partial duplication (Alvarez-Merino et al., arXiv 2604.24352,
//! 2026).
//!
//! *Problem.* A control stream over two mobile networks must not stall when one of them fades. Always sending all data
//! on both gives the best tail but costs twice the bytes. Switching after a path has failed costs nothing but is too
//! late. But most fades show in advance.
//!
//! *How.* One path, the primary (`primary.rs`), carries everything; data for which it has no room waits. During an
//! early warning, a second path also carries the data: first the outstanding data, then all new data. Each path sends
//! as fast as it can. Any of these signs on the primary starts a warning, which lasts until all have been absent for
//! `hold`:
//!
//! | sign | begins | ends |
//! |---|---|---|
//! | the RTT rose | SRTT above `rise` times the smallest RTT, by at least 5 ms | half of that rise |
//! | loss | recovery, data waits for its retransmission, or a loss since the last check | none of these |
//! | the rate fell | below `drop` of its peak (which decays by an eighth each RTT) | halfway back to the peak |
//! | silence | no answer for SRTT + `silence` RTT variations while data is in flight | an answer |
//!
//! *Source.* The paper's abstract and its authors' summary (nanoping.com, 2026): a designated primary link; duplication
//! only while early-warning signs indicate that the uplink will soon degrade; nearly the tail of full duplication with
//! up to 75 % less redundancy. Its signs are those of the radio (signal level, transmit power), latency and cost. The
//! thresholds and the hysteresis were not available.
//!
//! *What differs.* A transport does not see the radio, so signs of the transport replace those of the radio. The four
//! signs above, their thresholds, `hold` and the two levels of each are ours. A primary that is silent or gone is
//! replaced by class (`classes.rs`), as with every scheduler here. A backup is used only with `backup=on`. There is no
//! byte budget: the cost depends only on the duration of warnings.
//!
//! *Extra bytes:* those sent during warnings. A bulk transfer that fills the primary's queue raises the RTT, which
//! causes a warning. *p99 of a small message:* that of the primary without its bad periods, if these show in advance. A
//! loss in a good period costs its recovery, or the silence plus the second path's delay.

use marline_algos::schedulers::{Redundant, classes};
use marline_policy::{
    Decision, Phase, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};

use super::primary::{Primary, Silence, helper};

/// RTT increases below this are not a sign.
const MIN_RTT_RISE: Duration = Duration::from_millis(5);
/// Share by which the peak rate moves toward the current rate in each RTT.
const PEAK_DECAY_PER_RTT: f64 = 1.0 / 8.0;

/// Thresholds of the warning signs.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PaafConfig {
    /// Ratio of SRTT to smallest RTT above which the RTT counts as risen; at least 1.
    pub rise: f64,
    /// Share of the peak rate below which the rate counts as fallen, 0 to 1.
    pub drop: f64,
    /// Number of RTT variations beyond the SRTT after which an answer is overdue.
    pub silence: f64,
    /// Time for which a warning lasts after its last sign.
    pub hold: Duration,
    /// True if a backup may carry the copies.
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

/// Observed state of the primary.
#[derive(Copy, Clone, Debug)]
struct PrimaryWatch {
    on: SubflowId,
    silence: Silence,
    bytes_since_loss: u64,
    /// Decaying peak rate in bytes per second.
    peak: f64,
    faded_at: Instant,
    /// Time of the last sign of the current warning.
    warned_at: Option<Instant>,
}

impl PrimaryWatch {
    fn new(view: &SubflowView, now: Instant) -> Self {
        PrimaryWatch {
            on: view.id,
            silence: Silence::default(),
            bytes_since_loss: view.bytes_since_loss,
            peak: 0.0,
            faded_at: now,
            warned_at: None,
        }
    }

    /// Checks for signs. Returns true if there is a warning.
    fn detect_warning(&mut self, view: &SubflowView, config: &PaafConfig, now: Instant) -> bool {
        self.silence.update(view, now);
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
        let rise = least.mul_f64(config.rise - 1.0).max(MIN_RTT_RISE);
        // An increase that has started a warning ends once the RTT has fallen by half of it.
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
        if now.since(self.faded_at) >= view.srtt.unwrap_or(MIN_RTT_RISE) {
            self.faded_at = now;
            self.peak -= (self.peak - rate).max(0.0) * PEAK_DECAY_PER_RTT;
        }
        self.peak = self.peak.max(rate);
    }
}

/// Scheduler that uses a primary for all data, and a second path during warnings.
#[derive(Debug)]
pub struct Paaf {
    config: PaafConfig,
    primary: Primary,
    watch: Option<PrimaryWatch>,
    /// Sends the stream on both paths during a warning.
    redundant: Redundant,
    /// Views for one decision of `redundant`.
    views: Vec<SubflowView>,
}

impl Paaf {
    /// Creates a scheduler with these thresholds.
    #[must_use]
    pub fn new(config: PaafConfig) -> Self {
        Paaf {
            config,
            primary: Primary::default(),
            watch: None,
            redundant: Redundant::default(),
            views: Vec::new(),
        }
    }

    /// Returns true if there is a warning on the primary.
    fn is_warned(&mut self, primary: &SubflowView, now: Instant) -> bool {
        let watch = self.watch.filter(|watch| watch.on == primary.id);
        let mut watch = watch.unwrap_or_else(|| PrimaryWatch::new(primary, now));
        let warned = watch.detect_warning(primary, &self.config, now);
        self.watch = Some(watch);
        warned
    }

    /// Sends the data on both paths, each as fast as its window allows.
    fn send_on_both(&mut self, pair: [&SubflowView; 2], cx: &SchedulerContext<'_>) -> Decision {
        let mut views = core::mem::take(&mut self.views);
        views.clear();
        // Both count as regular here, because using the second path has already been decided.
        views.extend(pair.map(|view| SubflowView { backup: false, ..*view }));
        // A run would continue after the end of the warning, so data is sent segment by segment.
        let decision = self.redundant.next_send(&SchedulerContext { subflows: &views, ..*cx });
        self.views = views;
        decision.limited_to_segment()
    }

    /// Waits, but no longer than until the primary's silence becomes a sign.
    fn wait_until_silence(
        &self,
        primary: &SubflowView,
        decision: Decision,
        now: Instant,
    ) -> Decision {
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
            return super::primary::use_last_receiver(cx);
        };
        let warned = self.is_warned(primary, cx.now);
        let second = helper(primary, self.config.with_backups, cx);
        let decision = match second {
            Some(second) if warned => self.send_on_both([primary, second], cx),
            _ => super::primary::decide_for_primary(primary, cx),
        };
        match second {
            Some(_) if !warned => self.wait_until_silence(primary, decision, cx.now),
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
        self.redundant.on_event(event, cx, out);
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
