//! Hedged redundancy: a copy is sent on another path only when the acknowledgment is overdue.
//!
//! *Problem.* Nearly all copies of full redundancy are wasted: the original arrives first. Each
//! costs bytes, often on a metered path. But a copy made only when the loss is certain comes after
//! a probe timeout: twice the RTT on a path of varying delay.
//!
//! *How.* `min-rtt` for new data. For each segment the scheduler notes when its answer is late by the
//! [forecast](marline_policy::Forecast) of its path, behind what the sender has put into the queue: `deviations`
//! times the distance from the p50 to the p90 after the p50 (default 1.5), and never after the p99. (The p99 alone
//! is of all that the path did, bad times included: in a bad time it is no news that answers are late.) If the
//! DATA_ACK has not arrived by then, the segment is also sent on the fastest other subflow with room. Usually the
//! DATA_ACK arrives and nothing is copied. The worst case of a single loss is then the fast path's RTT plus the slow
//! one's delay. The copy changes nothing else: the subflow is not suspected, and its own recovery continues. If
//! nothing at all was received on the path since the overdue segment was sent, the path is silent: its other
//! outstanding data is copied at once, and so is everything sent until something is received on it. Of a path that
//! has never answered nothing is overdue.
//!
//! Only the last `limit` bytes written (default 30 kB) are hedged, and only once everything has
//! been sent: within bulk data the following segments reveal losses.
//!
//! *Source.* "Hedged requests" (Dean and Barroso, The Tail at Scale, CACM 2013): send the second
//! request when the first has been outstanding for longer than most are. There the delay is the 95th
//! percentile of a service's latency; here it is that of the path's answers, learnt by its errors.
//!
//! *What the papers leave open:* ReMP and its successors send copies at once or not at all. The
//! delay and its limit are ours. Measured in docs/research/papers/remp2015.md.
//!
//! *Extra bytes:* as many segments as are lost or come late: a few percent. *p99 of a small
//! message:* where less than 1 % is late, the path's own; else about the sum of both paths' RTTs.

use core::fmt::Debug;
use std::collections::VecDeque;

use marline_policy::{
    DataRange, Decision, Dsn, Quantile, SchedulerContext, SchedulerEvent, SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};

use super::classes::{self, Class};
use super::copies::{CopyRule, WithCopies, not_on, queue_is_empty};

/// Segments that are watched at a time; older ones are left to loss recovery.
const MAX_WATCHED: usize = 128;

/// Delay of a copy, and the data that is hedged.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct HedgedConfig {
    /// So many times the distance from the forecast p50 to its p90, counted from the p50, are waited for the answer,
    /// 0 to 100; never longer than the p99.
    pub deviations: f64,
    /// Bytes at the end of what was written that are hedged.
    pub limit: u64,
}

impl Default for HedgedConfig {
    fn default() -> Self {
        HedgedConfig { deviations: 1.5, limit: 30_000 }
    }
}

/// A segment whose answer is awaited.
#[derive(Copy, Clone, Debug)]
struct Watched {
    start: Dsn,
    on: SubflowId,
    /// When it was sent.
    at: Instant,
    /// When its answer should have been there.
    due_at: Option<Instant>,
    /// When the copy is sent; `None`: it was, or there is nowhere to send it.
    copy_at: Option<Instant>,
}

/// How long the answer to a segment that leaves now is waited for; `None`: nobody knows.
pub(super) fn overdue_after(
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

/// Which copies do not wait.
pub trait Impatience: Debug + Send {
    /// What of it and of the copies that wait can be chosen.
    type Config: Copy + Debug + Default + Send + Sync;

    /// Settings of the copies that wait, and which do not.
    fn of(config: Self::Config) -> (HedgedConfig, Self)
    where
        Self: Sized;

    /// Whether a segment that goes on this path now is copied at once.
    fn copies_at_once(&mut self, on: &SubflowView, cx: &SchedulerContext<'_>) -> bool;

    /// Something happened.
    fn on_event(&mut self, _event: SchedulerEvent) {}
}

/// All of them wait.
impl Impatience for () {
    type Config = HedgedConfig;

    fn of(config: HedgedConfig) -> (HedgedConfig, Self) {
        (config, ())
    }

    fn copies_at_once(&mut self, _on: &SubflowView, _cx: &SchedulerContext<'_>) -> bool {
        false
    }
}

/// The rule, with the copies that do not wait.
#[derive(Debug)]
pub struct Hedge<I> {
    config: HedgedConfig,
    impatience: I,
    watched: VecDeque<Watched>,
}

impl<I> Hedge<I> {
    /// When the answer to a segment that leaves now should be there; `None`: nobody knows.
    fn due_at(&self, on: &SubflowView, cx: &SchedulerContext<'_>) -> Option<Instant> {
        Some(cx.now + overdue_after(on, self.config.deviations, cx)?)
    }

    /// What of the stream the watched segment number `index` is.
    fn range(&self, index: usize, cx: &SchedulerContext<'_>) -> DataRange {
        let end = self.watched.get(index + 1).map_or(cx.unsent.start, |next| next.start);
        DataRange::new(self.watched[index].start, end)
    }

    /// Forgets what was answered.
    fn settle(&mut self, cx: &SchedulerContext<'_>) {
        while !self.watched.is_empty() && self.range(0, cx).end <= cx.data_una {
            self.watched.pop_front();
        }
    }

    /// A path on which an answer is overdue and nothing was heard since that was sent is silent:
    /// whatever else it carries is not waited for.
    fn is_silent(&self, view: &SubflowView, now: Instant) -> bool {
        self.watched.iter().any(|watched| {
            watched.on == view.id
                && watched.due_at.is_some_and(|at| at <= now)
                && view.last_heard_at <= watched.at
        })
    }

    /// Copies of what silent paths carry are due now.
    fn give_up_silent(&mut self, cx: &SchedulerContext<'_>) {
        for view in cx.subflows {
            if !self.is_silent(view, cx.now) {
                continue;
            }
            for watched in self.watched.iter_mut().filter(|watched| watched.on == view.id) {
                watched.copy_at = watched.copy_at.map(|at| at.min(cx.now));
            }
        }
    }

    /// The copy that is due, if any.
    fn due(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Option<Decision> {
        let from = Dsn(cx.written.0.saturating_sub(self.config.limit));
        for index in 0..self.watched.len() {
            let range = self.range(index, cx);
            if self.watched[index].copy_at.is_none_or(|at| at > cx.now) || range.end <= from {
                continue;
            }
            let others = || classes::members(cx.subflows, class);
            let missing = |view: &SubflowView| {
                not_on(view.id, range.start, cx).map(|copy| copy.intersection(&range))
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

    /// When something happens next by the clock alone.
    fn next_time(&self, now: Instant) -> Option<Instant> {
        let times = self.watched.iter().flat_map(|w| [w.copy_at, w.due_at]);
        times.flatten().filter(|at| *at > now).min()
    }
}

impl<I: Impatience> CopyRule for Hedge<I> {
    type Config = I::Config;

    fn of(config: I::Config) -> Self {
        let (config, impatience) = I::of(config);
        Hedge { config, impatience, watched: VecDeque::new() }
    }

    fn watches_segments(&self) -> bool {
        true
    }

    fn on_new(&mut self, on: &SubflowView, start: Dsn, cx: &SchedulerContext<'_>) {
        self.settle(cx);
        let at_once = self.impatience.copies_at_once(on, cx) || self.is_silent(on, cx.now);
        let due_at = self.due_at(on, cx);
        let copy_at = if at_once { Some(cx.now) } else { due_at };
        // The core may have refused what it was given last.
        if self.watched.back().is_some_and(|last| last.start >= start) {
            self.watched.pop_back();
        }
        if self.watched.len() == MAX_WATCHED {
            self.watched.pop_front();
        }
        let (on, at) = (on.id, cx.now);
        self.watched.push_back(Watched { start, on, at, due_at, copy_at });
    }

    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        self.settle(cx);
        self.give_up_silent(cx);
        let copy = if queue_is_empty(cx) { self.due(class, cx) } else { None };
        copy.unwrap_or_else(|| self.next_time(cx.now).map_or(Decision::Wait, Decision::WaitUntil))
    }

    fn on_event(&mut self, event: SchedulerEvent, _cx: &SchedulerContext<'_>) {
        self.impatience.on_event(event);
    }
}

/// Min-RTT with a copy elsewhere of data that is not acknowledged in time.
pub type Hedged = WithCopies<Hedge<()>>;

#[cfg(test)]
mod tests;
