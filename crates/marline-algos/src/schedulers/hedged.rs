//! Hedged redundancy: sends a copy on another path only when the acknowledgment is overdue.
//!
//! *Problem.* Nearly all copies of full redundancy are wasted, because the original arrives first. Each costs bytes,
//! often on a metered path. But a copy made only when the loss is certain is sent after a probe timeout, which is twice
//! the RTT on a path with varying delay.
//!
//! *How.* `min-rtt` places new data. For each segment, the scheduler computes when its answer is late from the
//! [forecast](marline_policy::Forecast) of its path, behind the sender's own queue: `deviations` times the distance
//! from p50 to p90 after the p50 (default 1.5), but never after the p99. (The p99 alone includes the path's bad
//! periods, in which late answers are normal.) If the DATA_ACK has not arrived by then, the segment is also sent on the
//! fastest other subflow with room. Usually the DATA_ACK arrives and nothing is copied. The worst case of a single loss
//! is then the fast path's RTT plus the slow one's delay. The copy changes nothing else: the subflow is not suspected,
//! and its own recovery continues. If nothing at all was received on the path after the overdue segment was sent, the
//! path is silent. Then its other outstanding data is copied immediately, and so is all data sent until a segment is
//! received on it. On a path that has never answered, nothing is overdue.
//!
//! Only the last `limit` bytes written (default 30 kB) are hedged, and only once everything has been sent. Within bulk
//! data, later segments reveal losses.
//!
//! *Source.* "Hedged requests" (Dean and Barroso, The Tail at Scale, CACM 2013): send the second request when the first
//! has been outstanding for longer than most requests. In that work, the delay is the 95th percentile of a service's
//! latency. Here it is a quantile of the path's answer times, learned from errors.
//!
//! *What the papers leave open:* ReMP and its successors send copies immediately or not at all. The delay and its limit
//! are our contribution. Measured in docs/research/papers/remp2015.md.
//!
//! *Extra bytes:* as many segments as are lost or late, a few percent. *p99 of a small message:* if less than 1 % is
//! late, the p99 of the path; otherwise about the sum of both paths' RTTs.

use core::fmt::Debug;
use std::collections::VecDeque;

use marline_policy::{
    DataRange, Decision, Dsn, Quantile, SchedulerContext, SchedulerEvent, SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};

use super::classes::{self, Class};
use super::copies::{CopyRule, CopyingScheduler, first_uncarried_range, queue_is_empty};

/// Maximum number of segments watched. Older ones are left to loss recovery.
const MAX_WATCHED: usize = 128;

/// Settings for the delay of copies and for the data that is hedged.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct HedgedConfig {
    /// Time to wait for the answer after the forecast p50, in multiples of the distance from p50 to p90, 0 to 100. The
    /// wait never exceeds the p99.
    pub deviations: f64,
    /// Number of bytes at the end of the written data that are hedged.
    pub limit: u64,
}

impl Default for HedgedConfig {
    fn default() -> Self {
        HedgedConfig { deviations: 1.5, limit: 30_000 }
    }
}

/// Segment with an outstanding answer.
#[derive(Copy, Clone, Debug)]
struct WatchedSegment {
    start: Dsn,
    on: SubflowId,
    /// Time at which it was sent.
    at: Instant,
    /// Time at which the answer is due.
    due_at: Option<Instant>,
    /// Time at which to send the copy; `None` if it was sent or no path can take it.
    copy_at: Option<Instant>,
}

/// Returns the time to wait for the answer to a segment sent now; `None` if nothing is known.
pub(super) fn time_until_overdue(
    on: &SubflowView,
    deviations: f64,
    cx: &SchedulerContext<'_>,
) -> Option<Duration> {
    let bytes = cx.unsent.len().min(on.mss.into());
    let answer = |quantile| on.forecast.answer_after(bytes, quantile);
    let (p50, p90) = (answer(Quantile::P50)?, answer(Quantile::P90)?);
    let late = p50 + p90.saturating_sub(p50).mul_f64(deviations);
    Some(late.min(answer(Quantile::P99)?))
}

/// Selects copies that are sent without delay.
pub trait ImmediateCopyRule: Debug + Send {
    /// Settings, including those of delayed copies.
    type Config: Copy + Debug + Default + Send + Sync;

    /// Creates the settings of delayed copies, and the rule.
    fn from_config(config: Self::Config) -> (HedgedConfig, Self)
    where
        Self: Sized;

    /// Returns true if a segment sent on this path now must be copied immediately.
    fn should_copy_now(&mut self, on: &SubflowView, cx: &SchedulerContext<'_>) -> bool;

    /// Handles an event.
    fn on_event(&mut self, _event: SchedulerEvent) {}
}

/// Rule that delays all copies.
impl ImmediateCopyRule for () {
    type Config = HedgedConfig;

    fn from_config(config: HedgedConfig) -> (HedgedConfig, Self) {
        (config, ())
    }

    fn should_copy_now(&mut self, _on: &SubflowView, _cx: &SchedulerContext<'_>) -> bool {
        false
    }
}

/// Copy rule of hedging, including copies without delay.
#[derive(Debug)]
pub struct HedgeRule<I> {
    config: HedgedConfig,
    wait_deviations: I,
    watched: VecDeque<WatchedSegment>,
}

impl<I> HedgeRule<I> {
    /// Returns the time at which the answer to a segment sent now is due; `None` if nothing is known.
    fn due_at(&self, on: &SubflowView, cx: &SchedulerContext<'_>) -> Option<Instant> {
        Some(cx.now + time_until_overdue(on, self.config.deviations, cx)?)
    }

    /// Returns the data of the watched segment with this index.
    fn range(&self, index: usize, cx: &SchedulerContext<'_>) -> DataRange {
        let end = self.watched.get(index + 1).map_or(cx.unsent.start, |next| next.start);
        DataRange::new(self.watched[index].start, end)
    }

    /// Drops answered segments.
    fn drop_answered(&mut self, cx: &SchedulerContext<'_>) {
        while !self.watched.is_empty() && self.range(0, cx).end <= cx.data_una {
            self.watched.pop_front();
        }
    }

    /// Returns true if an answer is overdue on a path and nothing was received after that segment was sent. The path's
    /// other data is then copied without waiting.
    fn is_silent(&self, view: &SubflowView, now: Instant) -> bool {
        self.watched.iter().any(|watched| {
            watched.on == view.id
                && watched.due_at.is_some_and(|at| at <= now)
                && view.last_rx_at <= watched.at
        })
    }

    /// Makes copies due for all data that silent paths carry.
    fn copy_silent_paths(&mut self, cx: &SchedulerContext<'_>) {
        for view in cx.subflows {
            if !self.is_silent(view, cx.now) {
                continue;
            }
            for watched in self.watched.iter_mut().filter(|watched| watched.on == view.id) {
                watched.copy_at = watched.copy_at.map(|at| at.min(cx.now));
            }
        }
    }

    /// Returns the copy that is due, if any.
    fn due_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Option<Decision> {
        let from = Dsn(cx.written.0.saturating_sub(self.config.limit));
        for index in 0..self.watched.len() {
            let range = self.range(index, cx);
            if self.watched[index].copy_at.is_none_or(|at| at > cx.now) || range.end <= from {
                continue;
            }
            let others = || classes::members(cx.subflows, class);
            let missing = |view: &SubflowView| {
                first_uncarried_range(view.id, range.start, cx)
                    .map(|copy| copy.intersection(&range))
            };
            let copy = others()
                .filter(|view| view.is_ready())
                .filter_map(|view| Some((view, missing(view)?)))
                .filter(|(_, copy)| !copy.is_empty())
                .min_by_key(|(view, _)| classes::rank(view));
            if let Some((view, copy)) = copy {
                if copy.end >= range.end && copy.len() <= u64::from(view.mss) {
                    self.watched[index].copy_at = None;
                }
                return Some(Decision::Send { subflow: view.id, range: copy });
            }
            if !others().any(|view| missing(view).is_some_and(|copy| !copy.is_empty())) {
                self.watched[index].copy_at = None;
            }
        }
        None
    }

    /// The next time at which a copy or an answer is due.
    fn next_time(&self, now: Instant) -> Option<Instant> {
        let times = self.watched.iter().flat_map(|w| [w.copy_at, w.due_at]);
        times.flatten().filter(|at| *at > now).min()
    }
}

impl<I: ImmediateCopyRule> CopyRule for HedgeRule<I> {
    type Config = I::Config;

    fn from_config(config: I::Config) -> Self {
        let (config, wait_deviations) = I::from_config(config);
        HedgeRule { config, wait_deviations, watched: VecDeque::new() }
    }

    fn watches_segments(&self) -> bool {
        true
    }

    fn on_new(&mut self, on: &SubflowView, start: Dsn, cx: &SchedulerContext<'_>) {
        self.drop_answered(cx);
        let at_once = self.wait_deviations.should_copy_now(on, cx) || self.is_silent(on, cx.now);
        let due_at = self.due_at(on, cx);
        let copy_at = if at_once { Some(cx.now) } else { due_at };
        // The core may have rejected the last segment.
        if self.watched.back().is_some_and(|last| last.start >= start) {
            self.watched.pop_back();
        }
        if self.watched.len() == MAX_WATCHED {
            self.watched.pop_front();
        }
        let (on, at) = (on.id, cx.now);
        self.watched.push_back(WatchedSegment { start, on, at, due_at, copy_at });
    }

    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        self.drop_answered(cx);
        self.copy_silent_paths(cx);
        let copy = if queue_is_empty(cx) { self.due_copy(class, cx) } else { None };
        copy.unwrap_or_else(|| self.next_time(cx.now).map_or(Decision::Wait, Decision::WaitUntil))
    }

    fn on_event(&mut self, event: SchedulerEvent, _cx: &SchedulerContext<'_>) {
        self.wait_deviations.on_event(event);
    }
}

/// Min-RTT scheduler with copies, on another path, of data that is not acknowledged in time.
pub type Hedged = CopyingScheduler<HedgeRule<()>>;

#[cfg(test)]
mod tests;
