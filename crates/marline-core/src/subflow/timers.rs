//! Timers of a subflow: the next deadline, and the actions when it is reached.

use std::sync::Arc;

use marline_time::{Duration, Instant};

use marline_policy::{Phase, SentKind, TimeoutAction, UnreachableCause};

use super::loss::RetransmissionMode;
use super::transmission::Probe;
use super::{Subflow, SubflowEvent};
use crate::SubflowState;

impl Subflow {
    /// Time at which [`on_timeout`](Self::on_timeout) must be called.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if self.is_dead {
            return None;
        }
        let mut next = self.tx.rto.deadline;
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        };
        // Before the third ACK only the SYN/ACK is retransmitted.
        if !self.tx.board.is_empty() && !self.state.is_handshake() {
            consider(self.recovery.next_timeout());
        }
        consider(self.ack.deadline());
        consider(self.pacer_wait.get());
        consider(self.keepalive_at());
        consider(self.time_wait_until);
        next
    }

    /// Handles expired timers.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.is_dead {
            return;
        }
        if self.pacer_wait.get().is_some_and(|at| at <= now) {
            self.pacer_wait.set(None);
        }
        self.ack.on_timeout(now);
        if self.time_wait_until.is_some_and(|at| at <= now) {
            self.time_wait_until = None;
            self.state.move_to_closed();
            return;
        }
        let rto_due = self.tx.rto.deadline.is_some_and(|at| at <= now);
        if self.state.is_handshake() {
            if rto_due {
                self.on_handshake_timeout(now);
            }
            return;
        }
        let recovery_due = self.recovery.next_timeout().is_some_and(|at| at <= now);
        // If a probe and a timeout are due together, the probe comes first, because it may avoid the reduction.
        if recovery_due && !self.tx.board.is_empty() {
            self.on_recovery_timeout(now);
        }
        if rto_due && self.tx.rto.deadline.is_some_and(|at| at <= now) {
            self.on_rto(now);
        }
        if self.keepalive_at().is_some_and(|at| at <= now) {
            self.on_keepalive(now);
        }
    }

    /// Handles the reordering or the probe timer of loss recovery.
    fn on_recovery_timeout(&mut self, now: Instant) {
        self.scratch.lost.clear();
        let context = self.tx.context(now);
        let action = self.recovery.on_timeout(&context, &mut self.scratch.lost);
        if !self.scratch.lost.is_empty() {
            let prior_in_flight = self.tx.board.bytes_in_flight();
            let lost = self.mark_lost(now);
            match self.tx.phase {
                Phase::Open if lost > 0 => self.enter_recovery(now, prior_in_flight),
                Phase::Recovery => {
                    let in_flight = self.tx.board.bytes_in_flight();
                    self.tx.prr.on_timer_loss(lost, in_flight, u64::from(self.tx.mss));
                }
                _ => {}
            }
        }
        if action == TimeoutAction::SendProbe && self.tx.rto.carrier.is_reliable() {
            // The carrier retransmits its losses, but the slow path is still reported.
            self.events.push_back(SubflowEvent::ProbeTimeout);
        } else if action == TimeoutAction::SendProbe {
            self.tx.forecaster.on_lost(now);
            self.events.push_back(SubflowEvent::ProbeTimeout);
            if self.tx.board.bytes_lost() > 0 {
                // A retransmission that is waiting for room is a better probe than new data.
                self.tx.force = Some(SentKind::ProbeRepeat);
            } else if self.state.may_send() && !self.fin_wanted {
                self.tx.probe = Probe::Wanted;
            } else {
                self.tx.probe = Probe::RepeatLast;
            }
            self.rearm_rto(now);
        }
    }

    /// Keepalive settings in use.
    fn keepalive_times(&self) -> Option<crate::Keepalive> {
        self.keepalive_times.as_deref().map_or(self.config.keepalive, |times| *times)
    }

    fn keepalive_at(&self) -> Option<Instant> {
        let times = self.keepalive_times()?;
        let quiet = self.tx.board.is_empty()
            && !self.state.is_handshake()
            && !self.state.matches_state(SubflowState::TimeWait)
            && !self.state.matches_state(SubflowState::Closed);
        if !quiet {
            return None;
        }
        Some(match self.keepalive.sent_at {
            Some(at) => at + times.interval,
            None => self.last_rx_at.max(self.tx.last_sent_at) + times.idle,
        })
    }

    fn on_keepalive(&mut self, now: Instant) {
        let patience = self.keepalive_times().map_or(self.config.retries, |times| times.probes);
        if self.keepalive.unanswered >= patience {
            self.end_after_retries();
            return;
        }
        if self.keepalive.unanswered > 0 {
            self.health.on_overdue(now, UnreachableCause::UnansweredKeepalives);
        }
        self.keepalive.unanswered += 1;
        self.keepalive.sent_at = Some(now);
        self.pending.probe = true;
    }

    /// Sets the application's keepalive settings.
    pub(crate) fn set_keepalive(&mut self, times: Arc<Option<crate::Keepalive>>) {
        self.keepalive_times = Some(times);
    }

    /// Starts or restarts TIME-WAIT.
    pub(super) fn start_time_wait(&mut self, now: Instant) {
        self.stop_timers();
        self.time_wait_until = Some(now + self.config.time_wait);
    }

    pub(super) fn stop_timers(&mut self) {
        self.tx.rto.deadline = None;
        self.time_wait_until = None;
        self.pacer_wait.set(None);
        self.tx.probe.clear();
        self.pending.probe = false;
        self.pending.plain = None;
    }

    /// Handles an acceptable segment, or a repetition.
    pub(super) fn on_valid_segment(&mut self, now: Instant) {
        let since_last_rx = now.since(self.last_rx_at);
        self.last_rx_at = now;
        self.keepalive = Keepalive::default();
        // Data sent since the silence began is not acknowledged: the peer's segments prove only one direction.
        if self.health.is_rescued() && self.tx.rto.count > 0 && !self.tx.board.is_empty() {
            self.events.push_back(SubflowEvent::SilentDespiteSegment(since_last_rx));
        } else {
            self.end_silence(since_last_rx);
        }
    }

    /// Ends a silence. `since_last_rx` is the time without a segment before it.
    pub(crate) fn end_silence(&mut self, since_last_rx: Duration) {
        self.repeats = RetransmissionMode::Always;
        if let Some(end) = self.health.on_valid_segment(since_last_rx) {
            self.events.push_back(SubflowEvent::SilenceEnded(end));
        }
    }
}

/// Keepalives since the last segment from the peer.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Keepalive {
    sent_at: Option<Instant>,
    unanswered: u32,
}
