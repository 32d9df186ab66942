//! Lowest-RTT-first scheduler, the default of Multipath TCP in Linux from 2011 until its removal.
//!
//! *Problem.* If several subflows have room, which one takes the next segment? The one on which the segment arrives
//! first, according to smoothed RTTs.
//!
//! *How.* Among the subflows of the best class (`classes.rs`) that have room, the one with the lowest SRTT is used.
//! Once it is full, the next one is used: under load every path is filled, and a burst smaller than the fast path's
//! window stays on the fast path. When the peer's window is exhausted although a subflow has room, the blocking segment
//! is sent again on that subflow, and the one that caused the blocking is slowed down (`opportunistic.rs`).
//!
//! *Source.* The behavior of the out-of-tree Linux implementation (v0.8x to 0.96), described in Raiciu et al., NSDI
//! 2012; reimplemented.
//!
//! *Differences.*
//! - If all subflows are silent, data is sent on the one that most recently received a segment, instead of waiting.
//! - A subflow without an RTT sample comes last, not first.
//! - A slower subflow takes only data that is acknowledged before the faster ones would have to wait for it under a
//!   bounded window or send buffer. It takes no data that a full faster subflow would deliver sooner, together with all
//!   remaining data. Both conditions compare forecasts (`delivery.rs`). Without them, all data that the slow subflow
//!   took from a small buffer was sent again on the fast one, and each burst larger than the fast one's restart window
//!   waited for the slow path's round trip.
//! - A fast subflow that waits for its pacer counts as full. Waiting for it would starve the slower paths under load,
//!   because a paced sender is nearly always waiting. Schedulers that consider this (ECF, BLEST) are separate.
//! - Data of a subflow with an unanswered probe is sent on another subflow immediately, not after its retransmission
//!   timeout.
//!
//! Each difference except the first two is a parameter. With all of them off, this is `lowest-rtt`: what studies of
//! Multipath TCP call the default scheduler, without opportunistic retransmission unless `+orp` is added.

use marline_policy::{
    Decision, Quantile, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowView,
};
use marline_time::Duration;

use super::classes::{self, Class};
use super::delivery::{Alternatives, OverdueWait, arrival_by, send_time_by_answers};
use super::opportunistic::{Opportunistic, OpportunisticRules};

/// Settings of a [`MinRtt`] beyond choosing the lowest RTT.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MinRttConfig {
    /// True to keep data off slow subflows if it would block the faster ones.
    pub avoids_blocking: bool,
    /// True to keep data off slow subflows if a full faster one would deliver all of it sooner.
    pub completes_early: bool,
    /// Reaction to a blocked window.
    pub opportunistic: OpportunisticRules,
    /// True to send data on another subflow after an unanswered probe, instead of after a retransmission timeout.
    pub reinjects_on_probe: bool,
}

impl Default for MinRttConfig {
    /// Settings of `min-rtt`: all rules on.
    fn default() -> Self {
        MinRttConfig {
            avoids_blocking: true,
            completes_early: true,
            opportunistic: OpportunisticRules::WIDE,
            reinjects_on_probe: true,
        }
    }
}

impl MinRttConfig {
    /// Settings of `lowest-rtt`: all rules off.
    pub const LOWEST_RTT: Self = MinRttConfig {
        avoids_blocking: false,
        completes_early: false,
        opportunistic: OpportunisticRules::OFF,
        reinjects_on_probe: false,
    };
}

/// Scheduler that prefers the subflow with the lowest smoothed RTT.
#[derive(Clone, Debug)]
pub struct MinRtt {
    config: MinRttConfig,
    opportunistic: Opportunistic,
}

impl MinRtt {
    /// Creates a scheduler with these settings.
    #[must_use]
    pub const fn new(config: MinRttConfig) -> Self {
        MinRtt { config, opportunistic: Opportunistic::new(config.opportunistic) }
    }

    /// Returns true if a segment on this subflow, sent after `ahead` other bytes, neither blocks faster subflows nor
    /// arrives after a full one would have delivered everything. An unknown subflow always takes data.
    fn accepts_segment(
        &self,
        view: &SubflowView,
        ahead: u64,
        class: Class,
        cx: &SchedulerContext<'_>,
    ) -> bool {
        let (blocking, completion) = (self.config.avoids_blocking, self.config.completes_early);
        if !blocking && !completion {
            return true;
        }
        let rivals = Alternatives::find(view, class, OverdueWait::Allowed, cx);
        let Some(rivals) = rivals else { return true };
        let bytes = ahead + u64::from(view.mss);
        let Some(arrives) = arrival_by(view, bytes, Quantile::P90) else { return true };
        let sooner = || rivals.earlier_full_path(arrives, send_time_by_answers).is_some();
        !(blocking && rivals.would_block(arrives) || completion && sooner())
    }
}

impl Default for MinRtt {
    fn default() -> Self {
        MinRtt::new(MinRttConfig::default())
    }
}

impl Scheduler for MinRtt {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        if !class.is_usable() {
            return classes::choose_last_receiver(class, cx);
        }
        let candidates = || classes::members(cx.subflows, class);
        let picked = classes::pick(candidates(), class)
            .filter(|view| self.accepts_segment(view, 0, class, cx));
        let Some(picked) = picked else { return classes::wait(candidates()) };
        classes::run_while(picked, cx, |last, cx| {
            self.accepts_segment(last, last.bytes_in_flight - picked.bytes_in_flight, class, cx)
        })
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
        self.opportunistic.on_event(event, cx, out);
    }

    fn probe_patience(&self) -> Option<Duration> {
        self.config.reinjects_on_probe.then_some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests;
