//! FUSO: repairs a loss on one path over a better path (Chen et al., USENIX ATC 2016).
//!
//! *Problem.* A subflow repairs its losses on the path that lost them. In a data center, one congested path or one
//! failing switch then delays the whole flow by its timeouts, although the other paths have room and nothing left to
//! send. On the way to a phone, the repair takes a round trip on the slow path, while the fast path would need only
//! half of its round trip.
//!
//! *How.* A wrapper around any scheduler, for two cases:
//! - `found`: data that loss recovery finds lost is also sent immediately on the best path with room, if that is better
//!   than the path that lost it. Once no new data is left, the data behind the gap is sent there as well. The subflow
//!   still retransmits its losses, as it must (RFC 8684 section 3.3.6).
//! - `spare`: when no new data is left and the best path has room, it also sends the oldest data that the worst path
//!   carries, that is not known to have arrived, and that it has not carried itself. Of all outstanding data, this is
//!   most likely to be lost. Each byte is sent once, and never before new data.
//!
//! The rank of a path is its expected delay, including losses (`losses.rs`).
//!
//! *Source.* "Fast and Cautious: Leveraging Multi-path Diversity for Transport Loss Recovery in Data Centers". Its
//! abstract says that losses are recovered immediately on another path, in spare window and while no new data waits.
//! Published summaries say that the packets most likely to be lost are sent from the worst path to the best, judged by
//! loss rates and RTTs. Reimplemented.
//!
//! *What differs.* The paper weighs loss rate and RTT by factors; here both are converted to time. The best path may be
//! the one that lost data, if the others are worse; then nothing is repeated elsewhere. `found` also applies while new
//! data waits, because the reader is already waiting for the lost data. Sending the data behind the gap is our
//! addition. A peer delivers a subflow's data to the connection in order, so a copy of the missing data alone fills
//! only the gap, and the rest still waits for the repair on the slow path. (In measurements, this made no burst over
//! unequal paths faster.) Backups and silent paths repair nothing while a regular one is healthy.
//!
//! *Extra bytes:* `found`: lost data, and at the end of the written data also the data in flight behind it; `spare`:
//! the data at the end of each burst that a worse path carries. *p99 of a message* that was spread over paths: equal to
//! the better path.

use marline_algos::schedulers::classes::{self, Class};
use marline_algos::schedulers::copies::{copying_class, queue_is_empty};
use marline_policy::{
    DataRange, Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowId, SubflowView,
};
use marline_time::Duration;

use super::losses::{BURST, Losses, expected_delay};

/// Maximum number of mappings examined for one copy or repair.
const MAX_EXAMINED: usize = 64;

/// Settings: which data is repeated on another path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FusoConfig {
    /// True to repeat data that loss recovery marked lost.
    pub found: bool,
    /// True to repeat data that may be lost, if the window has room.
    pub spare: bool,
}

impl Default for FusoConfig {
    fn default() -> Self {
        FusoConfig { found: true, spare: true }
    }
}

/// Scheduler with repairs across paths.
#[derive(Debug)]
pub struct Fuso {
    base: Box<dyn Scheduler>,
    config: FusoConfig,
    losses: Losses,
}

impl Fuso {
    /// Adds repairs to this scheduler for new data.
    #[must_use]
    pub fn wrap(base: Box<dyn Scheduler>, config: FusoConfig) -> Self {
        Fuso { base, config, losses: Losses::default() }
    }

    /// Returns the expected delay of a path: lower is better; unknown paths come last.
    fn rank(&self, view: &SubflowView) -> Duration {
        let loss = self.losses.chance(view, BURST);
        expected_delay(view, loss).unwrap_or(Duration::MAX)
    }

    /// Returns the best path with room in a class.
    fn best_path<'a>(
        &self,
        class: Class,
        cx: &SchedulerContext<'a>,
        fits: impl Fn(&SubflowView) -> bool,
    ) -> Option<&'a SubflowView> {
        let ready = classes::members(cx.subflows, class).filter(|view| view.is_ready());
        ready.filter(|view| fits(view)).min_by_key(|view| self.rank(view))
    }

    /// Returns a copy of the worst path's data for the best path.
    fn copy_with_spare_capacity(&self, cx: &SchedulerContext<'_>) -> Option<Decision> {
        let class = copying_class(cx.subflows)?;
        let best = self.best_path(class, cx, |_| true)?;
        let carries = |view: &&SubflowView| view.bytes_in_flight > 0 || view.bytes_queued > 0;
        let worst = classes::members(cx.subflows, class)
            .filter(carries)
            .max_by_key(|view| self.rank(view))
            .filter(|worst| self.rank(worst) > self.rank(best))?;
        let range = oldest_of(worst.id, best.id, cx)?;
        Some(Decision::Send { subflow: best.id, range })
    }

    /// Requests that data lost on a path be repeated on a better path.
    fn repair(
        &self,
        on: SubflowId,
        lost: DataRange,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let (Some(class), Some(loser)) = (copying_class(cx.subflows), cx.subflow(on)) else {
            return;
        };
        let worth = self.rank(loser);
        let better = self.best_path(class, cx, |view| view.id != on && self.rank(view) < worth);
        let Some(better) = better else { return };
        // Data behind the gap waits in the peer's queue of that path until the gap is filled there.
        let end = if queue_is_empty(cx) { cx.unsent.start } else { lost.end };
        let mut from = lost.start.max(cx.data_una);
        for _ in 0..MAX_EXAMINED {
            let Some(open) = cx.mappings.next_not_on(better.id, from) else { return };
            let range = open.range.intersection(&DataRange::new(from, end));
            if range.is_empty() {
                return;
            }
            if open.carried_by.contains(on) {
                out.push(SchedulerAction::Reinject { range, on: better.id });
            }
            from = range.end;
        }
    }
}

/// Returns the oldest data that one subflow carried but the other did not, and that is not known to have arrived.
fn oldest_of(worst: SubflowId, best: SubflowId, cx: &SchedulerContext<'_>) -> Option<DataRange> {
    let mut from = cx.data_una;
    for _ in 0..MAX_EXAMINED {
        let open = cx.mappings.next_not_on(best, from)?;
        let range = DataRange::new(open.range.start.max(from), open.range.end);
        if !open.delivered && open.carried_by.contains(worst) && !range.is_empty() {
            return Some(range);
        }
        from = open.range.end;
    }
    None
}

impl Scheduler for Fuso {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.losses.update(cx.subflows);
        let decision = self.base.next_send(cx);
        if let Some((id, _)) = decision.data() {
            self.losses.record_sent_segment(id);
            return if cx.subflows.len() > 1 { decision.limited_to_segment() } else { decision };
        }
        let idle = matches!(decision, Decision::Wait | Decision::WaitUntil(_));
        if !idle || !self.config.spare || !queue_is_empty(cx) {
            return decision;
        }
        self.copy_with_spare_capacity(cx).unwrap_or(decision)
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        self.base.next_reinjection(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.base.on_event(event, cx, out);
        match event {
            SchedulerEvent::Lost { on, range } if self.config.found => {
                self.losses.update(cx.subflows);
                self.repair(on, range, cx, out);
            }
            SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id) => {
                self.losses.remove_path(id);
            }
            _ => {}
        }
    }

    fn probe_patience(&self) -> Option<Duration> {
        self.base.probe_patience()
    }

    fn watches_acks(&self) -> bool {
        self.base.watches_acks()
    }

    fn watches_delivery(&self) -> bool {
        self.config.spare || self.base.watches_delivery()
    }

    fn watches_losses(&self) -> bool {
        self.config.found || self.base.watches_losses()
    }
}

#[cfg(test)]
mod tests;
