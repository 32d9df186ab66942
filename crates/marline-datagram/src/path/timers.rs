//! Timers of a path: overdue acknowledgments, probes of an unreachable path, and their consequences.

use marline_policy::{CongestionSignal, Quantile, UnreachableCause};
use marline_time::{Duration, Instant};

use super::{
    ACK_DELAY, INITIAL_ANSWER_TIMEOUT, ISOLATED_LOSS_SHARE, MAX_PROBE_INTERVAL, Outcome, Path,
    SHARED_PROBE_INTERVAL,
};
use crate::queue::Room;

impl Path {
    /// Time to wait for an acknowledgment before the path counts as unreachable. Cached, because it is read for every
    /// frame sent or received on any path.
    fn patience(&self) -> Duration {
        let patience = self.patience.get().unwrap_or_else(|| self.compute_answer_timeout());
        self.patience.set(Some(patience));
        patience
    }

    fn compute_answer_timeout(&self) -> Duration {
        let Some(srtt) = self.rtt.srtt() else { return INITIAL_ANSWER_TIMEOUT };
        let p99 = self.forecaster.forecast(self.last_sent_at.unwrap_or(Instant::ZERO));
        let p99 = p99.answer(Quantile::P99).unwrap_or_default();
        self.usual_ack_time(srtt).max(p99) + ACK_DELAY
    }

    fn deadline(&self) -> Option<Instant> {
        let oldest = self.outstanding.oldest()?;
        let patience = self.patience() * (1 << self.unanswered_timeouts.min(6));
        Some(oldest.at.max(self.pinged_at.unwrap_or(oldest.at)) + patience)
    }

    /// Time of the next probe on an unreachable path without frames in transit.
    fn next_request_at(&self) -> Option<Instant> {
        if !self.health.is_unreachable() || !self.outstanding.is_empty() || self.wants_ping {
            return None;
        }
        let last = self.last_sent_at.max(self.pinged_at)?;
        if self.traits.is_probed {
            // Answers to the other probes are reported to this path.
            return Some(last + SHARED_PROBE_INTERVAL);
        }
        Some(
            last + (self.patience() * (1 << self.unanswered_timeouts.min(6)))
                .min(MAX_PROBE_INTERVAL),
        )
    }

    /// Returns the time at which [`on_timeout`](Self::on_timeout) must be called. `active` means that datagrams are
    /// being sent.
    pub(crate) fn next_timeout(&self, active: bool) -> Option<Instant> {
        let asks = self.next_request_at().filter(|_| active);
        let known = [
            self.received.due_at(),
            self.loss_at,
            self.outstanding.next_overdue(),
            self.deadline(),
            asks,
        ];
        known.into_iter().flatten().min()
    }

    /// Time at which waiting datagrams may be sent, if they wait for the pacer.
    pub(crate) fn next_send_at(&self) -> Option<Instant> {
        let waits = self.queues.has(Room::Any)
            && !self.health.is_unreachable()
            && self.outstanding.bytes_in_flight() < self.congestion.window();
        waits.then(|| self.pacer.next_send_at())
    }

    /// Handles due timers.
    pub(crate) fn on_timeout(&mut self, active: bool, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        let overdue =
            self.outstanding.take_overdue(now, self.lone_losses.share() < ISOLATED_LOSS_SHARE);
        if !overdue.is_empty() {
            self.last_trouble_at = Some(now);
            outcome.missed.extend(overdue);
        }
        if self.loss_at.is_some_and(|at| at <= now) {
            let in_flight = self.outstanding.bytes_in_flight();
            self.detect_losses(now, in_flight, &mut outcome);
        }
        if self.deadline().is_some_and(|at| at <= now) {
            self.on_missed(active, now, &mut outcome);
        }
        if active && self.next_request_at().is_some_and(|at| at <= now) {
            self.unanswered_timeouts = (self.unanswered_timeouts + 1).min(10);
            self.wants_ping = true;
        }
        outcome
    }

    /// Handles the timeout of the oldest frame.
    fn on_missed(&mut self, active: bool, now: Instant, outcome: &mut Outcome) {
        self.unanswered_timeouts += 1;
        outcome.unreachable = self.mark_unreachable(UnreachableCause::ProbeTimeout, now);
        if self.unanswered_timeouts == 1 {
            if self.rtt.srtt().is_none() {
                // Without a forecast, none of these frames could have been overdue earlier.
                outcome.missed.extend(self.outstanding.numbers());
            }
            self.wants_ping = true;
            // The next timeout starts now.
            self.pinged_at = Some(now);
            return;
        }
        let in_flight = self.outstanding.bytes_in_flight();
        let lost = self.outstanding.take_all();
        self.on_lost(&lost, in_flight, now, outcome);
        self.loss_at = None;
        self.signal(
            CongestionSignal::Rto {
                bytes_in_flight: in_flight,
                first: self.unanswered_timeouts == 2,
            },
            now,
        );
        // If other components probe the path, the lane probes it at the interval of `next_request_at`.
        self.wants_ping = active && !self.traits.is_probed;
        self.pace();
    }
}
