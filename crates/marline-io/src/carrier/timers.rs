//! Keepalives, and the end of what is too old (spec sections 5 and 8).

use marline_time::Instant;

use super::flow::Flow;
use super::frame::ControlFrame;
use super::{CONTROL_CAPACITY, Outer, SWEEP_INTERVAL, UNPROVEN_LIFETIME, UdpCarrier};

impl UdpCarrier {
    /// When [`UdpCarrier::on_timeout`] must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        match (self.next_keepalive, self.next_sweep) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Sends what keepalives are due and drops what is too old. Early or late calls are harmless.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.next_keepalive.is_some_and(|at| at <= now) {
            self.send_keepalives(now);
        }
        if self.next_sweep.is_some_and(|at| at <= now) {
            self.sweep(now);
        }
    }

    fn send_keepalives(&mut self, now: Instant) {
        let interval = self.config.keepalive;
        let mut due: Vec<(Outer, u64)> = Vec::new();
        let mut next: Option<Instant> = None;
        #[expect(clippy::iter_over_hash_type, reason = "the order of keepalives does not matter")]
        for flow in self.flows.values_mut() {
            if !flow.initiated {
                continue;
            }
            let mut wanted = flow.sent_at + interval <= now;
            while let Some(at) = flow.quiet_due()
                && at <= now
            {
                wanted |= flow.is_quiet();
                flow.quiet_steps += 1;
            }
            if wanted && flow.peer_flow != 0 && due.len() < CONTROL_CAPACITY {
                flow.sent_at = now;
                due.push((flow.outer, flow.peer_flow));
            }
            let at = (flow.sent_at + interval).max(now + interval / 16);
            let at = flow.quiet_due().map_or(at, |quiet| quiet.min(at));
            next = Some(next.map_or(at, |earliest| earliest.min(at)));
        }
        self.next_keepalive = next;
        for (outer, peer_flow) in due {
            self.counters.keepalives += 1;
            self.push_control(outer, ControlFrame::keepalive(peer_flow));
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.pending.expire(now);
        let old = |flow: &Flow| !flow.validated && flow.created_at + UNPROVEN_LIFETIME <= now;
        let ids: Vec<u64> =
            self.flows.iter().filter(|(_, flow)| old(flow)).map(|(&id, _)| id).collect();
        for id in ids {
            self.forget(id);
        }
        let more = self.unproven > 0 || self.pending.len() > 0;
        self.next_sweep = more.then_some(now + SWEEP_INTERVAL);
    }
}
