//! Wrapper `+orp`: opportunistic retransmission and penalisation around any scheduler.
//!
//! *Problem.* Raiciu et al. (NSDI 2012) describe M1 and M2 beside the lowest-RTT scheduler, but neither
//! has to do with how subflows are chosen: a window that is blocked by a slow subflow is blocked under
//! BLEST, ECF and round-robin, too. In Linux every scheduler that wanted them called the same code.
//!
//! *How.* The inner scheduler places all data. When the core says that the peer's window (or the send
//! buffer) blocks, the rules of `opportunistic.rs` answer instead of the inner scheduler: it hears of
//! it (BLEST learns from that), but what it would do about it is dropped, so that `min-rtt+orp` is OR&P
//! by these rules and not by its own as well.
//!
//! The repeated data goes out before new data and moves no cursor: the peer drops what comes second.
//!
//! M3 (buffers that grow towards the sum of all rates times the longest RTT) is a setting of the
//! connection (`BufferTuning`), M4 (windows capped while a queue inflates the RTT) a wrapper around the
//! congestion control (`+cap`): the one concerns both ends' buffers, the other every sender.

use marline_algos::schedulers::{Opportunistic, OpportunisticRules};
use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
};
use marline_time::Duration;

/// Opportunistic retransmission and penalisation around a scheduler.
#[derive(Debug)]
pub struct Orp {
    inner: Box<dyn Scheduler>,
    opportunistic: Opportunistic,
    /// What the inner scheduler would do about blocking; kept for its memory only.
    dropped: Vec<SchedulerAction>,
}

impl Orp {
    /// Puts these rules around a scheduler.
    #[must_use]
    pub fn new(inner: Box<dyn Scheduler>, rules: OpportunisticRules) -> Self {
        Orp { inner, opportunistic: Opportunistic::new(rules), dropped: Vec::new() }
    }
}

impl Scheduler for Orp {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.inner.next_send(cx)
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        self.inner.next_reinjection(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        match event {
            SchedulerEvent::PeerWindowBlocked { .. } | SchedulerEvent::SendBufferBlocked => {
                self.inner.on_event(event, cx, &mut self.dropped);
                self.dropped.clear();
            }
            _ => self.inner.on_event(event, cx, out),
        }
        self.opportunistic.on_event(event, cx, out);
    }

    fn probe_patience(&self) -> Option<Duration> {
        self.inner.probe_patience()
    }

    fn watches_acks(&self) -> bool {
        self.inner.watches_acks()
    }

    fn watches_delivery(&self) -> bool {
        self.inner.watches_delivery()
    }

    fn watches_losses(&self) -> bool {
        self.inner.watches_losses()
    }
}

#[cfg(test)]
mod tests;
