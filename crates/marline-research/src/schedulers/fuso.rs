//! FUSO: a loss on one path is repaired on a better one (Chen et al., USENIX ATC 2016).
//!
//! *Problem.* A subflow repairs its losses by itself, on the path that lost. In a data centre one path in congestion,
//! or one failing switch, then delays the whole flow by its timeouts, though the others have room and nothing left to
//! send. On the way to a phone the repair takes a round trip of the slow path, when the fast one would have brought
//! it in half of its own.
//!
//! *How.* Around any scheduler, in two cases:
//! - `found`: what loss recovery finds lost goes at once also on the best path with room, if that is better than the
//!   one that lost it; and once nothing new is left to send, what that one carries behind the hole as well. The
//!   subflow repeats its losses besides, as it must (RFC 8684 section 3.3.6).
//! - `spare`: when nothing new is left to send and the best path has room, the oldest data that the worst path
//!   carries, that is not known to have arrived and that the best one did not carry goes there as well: of what is
//!   outstanding it is the likeliest to be lost. Each byte once, and never in the way of new data.
//!
//! How good a path is says the delay that is to be expected with what it loses (`losses.rs`).
//!
//! *Source.* "Fast and Cautious: Leveraging Multi-path Diversity for Transport Loss Recovery in Data Centers": from its
//! abstract, that losses are recovered on another path at once, in spare window and without new data waiting, and from
//! published summaries, that the packets most likely lost go from the worst path to the best, by their loss rates and
//! RTTs. Written anew.
//!
//! *What differs.* The paper weighs loss rate and RTT by factors; here both are a time. Its path with the best chance
//! may be the one that lost, where others are worse; then nothing is repeated elsewhere. `found` applies also while
//! new data waits: of what is found lost, the reader waits already. That what is behind the hole goes along is ours:
//! a peer gives to the connection what its subflow has in order, so a copy of the hole alone brings only the hole,
//! and the rest still waits for the repair on the slow path. (Measured: of bursts over unequal paths none was sooner
//! by it.) Backups and silent paths repair nothing while a regular one is healthy.
//!
//! *Extra bytes:* `found`: those of what is lost and what is under way behind it, at the end of what was written;
//! `spare`: what a worse path carries of the end of each burst. *p99 of a message* that was spread over paths: that
//! of the better one.

use marline_algos::schedulers::classes::{self, Class};
use marline_algos::schedulers::copies::{copying_class, queue_is_empty};
use marline_policy::{
    DataRange, Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowId, SubflowView,
};
use marline_time::Duration;

use super::losses::{BURST, Losses, expected_delay};

/// Mappings that are looked at for one copy, or one repair.
const MOST_LOOKS: usize = 64;

/// What is repeated on another path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FusoConfig {
    /// What loss recovery finds lost.
    pub found: bool,
    /// What may be lost, in room that is to spare.
    pub spare: bool,
}

impl Default for FusoConfig {
    fn default() -> Self {
        FusoConfig { found: true, spare: true }
    }
}

/// A scheduler, and repairs across paths.
#[derive(Debug)]
pub struct Fuso {
    base: Box<dyn Scheduler>,
    config: FusoConfig,
    losses: Losses,
}

impl Fuso {
    /// With this scheduler for new data.
    #[must_use]
    pub fn around(base: Box<dyn Scheduler>, config: FusoConfig) -> Self {
        Fuso { base, config, losses: Losses::default() }
    }

    /// Lower is better; what is unknown is worst.
    fn rank(&self, view: &SubflowView) -> Duration {
        let loss = self.losses.chance(view, BURST);
        expected_delay(view, loss).unwrap_or(Duration::MAX)
    }

    /// The best of a class that has room.
    fn best<'a>(
        &self,
        class: Class,
        cx: &SchedulerContext<'a>,
        fits: impl Fn(&SubflowView) -> bool,
    ) -> Option<&'a SubflowView> {
        let ready = classes::members(cx.subflows, class).filter(|view| view.is_ready());
        ready.filter(|view| fits(view)).min_by_key(|view| self.rank(view))
    }

    /// Data of the worst path on the best one.
    fn spare_copy(&self, cx: &SchedulerContext<'_>) -> Option<Decision> {
        let class = copying_class(cx.subflows)?;
        let best = self.best(class, cx, |_| true)?;
        let carries = |view: &&SubflowView| view.bytes_in_flight > 0 || view.bytes_queued > 0;
        let worst = classes::members(cx.subflows, class)
            .filter(carries)
            .max_by_key(|view| self.rank(view))
            .filter(|worst| self.rank(worst) > self.rank(best))?;
        let range = oldest_of(worst.id, best.id, cx)?;
        Some(Decision::Send { subflow: best.id, range })
    }

    /// Asks for what was lost on a path to be repeated on a better one.
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
        let better = self.best(class, cx, |view| view.id != on && self.rank(view) < worth);
        let Some(better) = better else { return };
        // What came behind the hole waits for its repair there, in the peer's queue of that path.
        let end = if queue_is_empty(cx) { cx.unsent.start } else { lost.end };
        let mut from = lost.start.max(cx.data_una);
        for _ in 0..MOST_LOOKS {
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

/// The oldest data that one carried and the other did not, and that is not known to have arrived.
fn oldest_of(worst: SubflowId, best: SubflowId, cx: &SchedulerContext<'_>) -> Option<DataRange> {
    let mut from = cx.data_una;
    for _ in 0..MOST_LOOKS {
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
        self.losses.look(cx.subflows);
        let decision = self.base.next_send(cx);
        if let Some((id, _)) = decision.data() {
            self.losses.note_sent(id);
            return if cx.subflows.len() > 1 { decision.by_segment() } else { decision };
        }
        let idle = matches!(decision, Decision::Wait | Decision::WaitUntil(_));
        if !idle || !self.config.spare || !queue_is_empty(cx) {
            return decision;
        }
        self.spare_copy(cx).unwrap_or(decision)
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
                self.losses.look(cx.subflows);
                self.repair(on, range, cx, out);
            }
            SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id) => {
                self.losses.forget(id);
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
