//! Wrapper `+orp`: opportunistic retransmission and penalization around any scheduler.
//!
//! *Problem.* Raiciu et al. (NSDI 2012) describe M1 and M2 together with the lowest-RTT scheduler, but neither depends
//! on how subflows are chosen. A slow subflow can also block the window with BLEST, ECF and round-robin. In Linux, all
//! schedulers that needed them called shared code.
//!
//! *How.* The inner scheduler places all data. When the core reports that the peer's window (or the send buffer)
//! blocks, the rules of `opportunistic.rs` respond instead of the inner scheduler. The inner scheduler still gets the
//! event (BLEST learns from it), but its actions are dropped, so that `min-rtt+orp` follows only these rules, not those
//! of `min-rtt`.
//!
//! The repeated data is sent before new data and moves no cursor. The peer drops duplicates.
//!
//! M3 (buffers that grow toward the sum of all rates times the longest RTT) is a setting of the connection
//! (`BufferTuning`), because it concerns the buffers at both ends. M4 (windows capped while a queue inflates the RTT)
//! is a wrapper around the congestion control (`+cap`), because it concerns every sender.

use marline_algos::schedulers::{Opportunistic, OpportunisticRules};
use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
};
use marline_time::Duration;

/// Scheduler wrapper with opportunistic retransmission and penalization.
#[derive(Debug)]
pub struct Orp {
    inner: Box<dyn Scheduler>,
    opportunistic: Opportunistic,
    /// Actions of the inner scheduler in response to blocking. They are dropped; the list is kept to reuse memory.
    dropped: Vec<SchedulerAction>,
}

impl Orp {
    /// Adds these rules to a scheduler.
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
