//! Timers of the UDP carrier: keepalives and expiry (spec sections 5 and 8).

use core::cmp::Reverse;

use marline_time::Instant;

use super::flow::Flow;
use super::frame::ControlFrame;
use super::{
    CONTROL_CAPACITY, FlowEnds, MAX_QUIET_PAIRS, SWEEP_INTERVAL, UNVALIDATED_LIFETIME, UdpCarrier,
};

impl UdpCarrier {
    /// Returns the time at which [`UdpCarrier::on_timeout`] must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let alarm = self.alarms.peek().map(|Reverse((at, _))| *at);
        [alarm, self.next_sweep].into_iter().flatten().min()
    }

    /// Sends due keepalives and drops entries that are too old. Early or late calls are harmless.
    pub fn on_timeout(&mut self, now: Instant) {
        self.send_keepalives(now);
        if self.next_sweep.is_some_and(|at| at <= now) {
            self.sweep(now);
        }
    }

    /// Handles only the flows that are due. If the queue is full, the rest remain due: the driver calls again after it
    /// has sent the queued frames.
    fn send_keepalives(&mut self, now: Instant) {
        while let Some(Reverse((at, id))) = self.alarms.peek().copied()
            && at <= now
            && self.control.len() < CONTROL_CAPACITY
        {
            self.alarms.pop();
            self.on_alarm(now, at, id);
        }
    }

    fn on_alarm(&mut self, now: Instant, at: Instant, id: u64) {
        let interval = self.config.keepalive;
        // The flow is gone, or has a newer alarm.
        let Some(flow) = self.flows.get_mut(&id).filter(|flow| flow.alarm_at == at) else { return };
        let mut wanted = flow.sent_at + interval <= now;
        let mut quiet = false;
        while let Some(at) = flow.idle_check_at()
            && at <= now
        {
            wanted |= flow.is_quiet();
            quiet |= flow.is_quiet() && flow.idle_checks == 0 && !flow.outer.is_link();
            flow.idle_checks += 1;
        }
        let frame = ControlFrame::keepalive(flow.peer_flow);
        let (outer, wanted) = (flow.outer, wanted && flow.peer_flow != 0);
        if wanted {
            flow.sent_at = now;
        }
        let next = (flow.sent_at + interval).max(now + interval / 16);
        flow.alarm_at = flow.idle_check_at().map_or(next, |quiet| quiet.min(next));
        self.alarms.push(Reverse((flow.alarm_at, id)));
        let ends = FlowEnds::new(outer.local, outer.remote);
        if quiet && self.quiet.len() < MAX_QUIET_PAIRS && !self.quiet.contains(&ends) {
            self.quiet.push_back(ends);
        }
        if wanted {
            self.counters.keepalives += 1;
            self.push_control(outer, frame);
        }
    }

    /// Schedules a check for old entries.
    pub(super) fn arm_sweep(&mut self, now: Instant) {
        self.next_sweep.get_or_insert(now + SWEEP_INTERVAL);
    }

    fn sweep(&mut self, now: Instant) {
        self.pending.expire(now);
        let old = |flow: &Flow| !flow.validated && flow.created_at + UNVALIDATED_LIFETIME <= now;
        let ids: Vec<u64> =
            self.flows.iter().filter(|(_, flow)| old(flow)).map(|(&id, _)| id).collect();
        for id in ids {
            self.forget(id);
        }
        let more = self.unproven > 0 || self.pending.len() > 0;
        self.next_sweep = more.then_some(now + SWEEP_INTERVAL);
    }
}
