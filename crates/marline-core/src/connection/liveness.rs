//! Liveness detection for silent paths: the receive timer, the keepalives of a lone idle subflow,
//! and the probes of a client that waits for data.
//!
//! The first two run only on the client, and only while an unused local address is up: a verdict requests a subflow
//! from that address. The path manager decides which path is opened, if any
//! ([`PathEvent::Silent`](marline_policy::PathEvent::Silent)). The core acts only where no decision is needed: the
//! subflow counts as silent until a segment is received on it, so that requests are also sent on the new one.

use marline_policy::{Dsn, SubflowId};
use marline_time::{Duration, Instant};

use super::receive_clock::{ClockAction, Conditions, ReceiveTimerState};
use super::receive_probes::ProbeTimer;
use crate::on_demand::UnusedState;
use crate::{LoneKeepalive, Probing, ReceiveProbes, ReceiveTimer};

/// Keepalives on the lone subflow since a segment last arrived on it.
#[derive(Copy, Clone, Debug)]
struct Keepalive {
    /// Time of the last keepalive, or of the last verdict.
    at: Instant,
    /// Time of the next keepalive or verdict.
    due_at: Instant,
    unanswered: u32,
}

/// A keepalive that is due, or the verdict after the last one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct KeepaliveDue {
    pub(super) at: Instant,
    unanswered: u32,
}

/// Contribution of a received segment to the stream.
#[derive(Copy, Clone, Debug)]
pub(super) struct Content {
    /// First missing byte of the stream after this segment.
    pub(super) next: Dsn,
    /// The first missing byte advanced.
    pub(super) moved: bool,
    /// End of data that the peer marked as the last.
    pub(super) marked: Option<Dsn>,
}

/// Liveness state of a connection.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    clock: ReceiveTimerState,
    /// End of the newest data that the peer mapped, received or not.
    announced: Dsn,
    /// Position after which the peer marks its last data. Data sent before the agreement has no mark.
    marked_from: Option<Dsn>,
    /// Subflow on which data last arrived.
    last_data_subflow: Option<SubflowId>,
    keepalive: Option<Keepalive>,
    probes: ProbeTimer,
}

impl UnusedState for Liveness {
    const UNUSED: &'static Self = &Liveness {
        clock: ReceiveTimerState::STOPPED,
        announced: Dsn(0),
        marked_from: None,
        last_data_subflow: None,
        keepalive: None,
        probes: ProbeTimer::STOPPED,
    };
}

impl Liveness {
    /// Removes a subflow.
    pub(super) fn forget_subflow(&mut self, id: SubflowId) {
        self.last_data_subflow = self.last_data_subflow.filter(|by| *by != id);
    }

    /// Subflow on which data last arrived.
    pub(super) const fn last_data_subflow(&self) -> Option<SubflowId> {
        self.last_data_subflow
    }

    pub(super) const fn has_agreed_on_marks(&self) -> bool {
        self.marked_from.is_some()
    }

    /// Records the peer's agreement to mark its last data. `missing` bytes after `next` were sent before the
    /// agreement and have no mark.
    pub(super) fn record_agreement(&mut self, next: Dsn, missing: u64) {
        let known = self.announced.max(next);
        self.marked_from = Some(known.max(next.plus(missing)));
    }

    /// True if silence alone is meaningful, because the peer sent the newest data after it agreed to mark its last
    /// data.
    fn is_silence_meaningful(&self) -> bool {
        self.marked_from.is_some_and(|from| self.announced > from)
    }

    /// Records data mapped by the peer up to `mapped`; all data before `next` has arrived.
    pub(super) fn record_announced(&mut self, next: Dsn, mapped: Option<Dsn>) {
        self.announced = self.announced.max(next).max(mapped.unwrap_or(next));
    }

    /// Inputs of the receive timer: `peer_rto` is the peer's timeout, `last_rx_at` the last segment on a usable
    /// subflow,
    /// `round_trip` the likely maximum round trip, `marks` is true if the peer marks its last data.
    pub(super) fn conditions(
        &self,
        config: &ReceiveTimer,
        peer_rto: Option<Duration>,
        last_rx_at: Instant,
        round_trip: Duration,
        marks: bool,
    ) -> Conditions {
        let peer_rto = peer_rto.unwrap_or(config.unknown_rto);
        let wait = peer_rto.max(config.floor).min(config.ceiling.max(config.floor));
        let stall = (marks && self.is_silence_meaningful()).then_some(wait);
        let probing = config.probing.map(|probing| {
            let shortest = if stall.is_some() { probing.after } else { wait };
            Probing {
                after: shortest.max(round_trip),
                wait: probing.wait.max(round_trip),
                count: probing.count,
            }
        });
        Conditions { stall, probing, last_rx_at }
    }

    /// Handles data on a subflow. Returns true if the timer runs. Without conditions the timer is not needed.
    pub(super) fn on_content(
        &mut self,
        now: Instant,
        id: SubflowId,
        content: Content,
        conditions: Option<Conditions>,
    ) -> bool {
        let Content { next, moved, marked } = content;
        if let Some(end) = marked {
            self.clock.on_idle(end);
        }
        let Some(conditions) = conditions else {
            self.clock.stop();
            return false;
        };
        self.last_data_subflow = Some(id);
        if moved {
            self.clock.on_data(now, next, self.announced, &conditions);
        } else {
            self.clock.on_out_of_order(now, next, self.announced, &conditions);
        }
        self.clock.is_running()
    }

    pub(super) const fn is_clock_running(&self) -> bool {
        self.clock.is_running()
    }

    /// Handles an advancing DATA_ACK while the timer runs.
    pub(super) fn on_data_ack(&mut self, now: Instant, conditions: &Conditions) {
        self.clock.on_data_ack(now, conditions);
    }

    /// Time at which the receive timer fires.
    pub(super) fn receive_timer_deadline(&self) -> Option<Instant> {
        self.clock.next_timeout()
    }

    /// Time at which the receive timer started to wait.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        self.clock.started_at()
    }

    /// Handles the receive timer. `shut` is true if our own window is closed, which explains the silence.
    pub(super) fn on_receive_timer(
        &mut self,
        now: Instant,
        conditions: Option<Conditions>,
        shut: bool,
    ) -> ClockAction {
        match conditions {
            None => self.clock.stop(),
            Some(conditions) if shut => self.clock.restart_wait(now, &conditions),
            Some(conditions) => return self.clock.on_timeout(now, &conditions),
        }
        ClockAction::Nothing
    }

    /// Time of the next keepalive on a lone subflow, or of the verdict. The arguments are the times at which the
    /// subflow last received and sent.
    pub(super) fn keepalive_due(
        &self,
        config: &LoneKeepalive,
        last_rx_at: Instant,
        sent_at: Instant,
    ) -> KeepaliveDue {
        match self.keepalive.filter(|last| last.at >= last_rx_at) {
            Some(last) => KeepaliveDue { at: last.due_at, unanswered: last.unanswered },
            None => KeepaliveDue { at: last_rx_at.max(sent_at) + config.idle, unanswered: 0 },
        }
    }

    /// Handles a due keepalive. Returns true to send another keepalive, and false if the subflow now counts as
    /// silent. If no other subflow is then opened, keepalives restart after another wait.
    pub(super) fn on_keepalive(
        &mut self,
        now: Instant,
        config: &LoneKeepalive,
        due: KeepaliveDue,
    ) -> bool {
        let asks = due.unanswered < config.count.max(1);
        let (due_at, unanswered) = match asks {
            true => (now + config.interval, due.unanswered + 1),
            false => (now + config.idle.max(config.interval), 0),
        };
        self.keepalive = Some(Keepalive { at: now, due_at, unanswered });
        asks
    }

    /// Starts receive probes, because data may arrive.
    pub(super) fn begin_probes(&mut self, now: Instant, probes: ReceiveProbes) {
        self.probes.start(now, probes);
    }

    /// Handles data or an acknowledgment.
    pub(super) fn on_data(&mut self, now: Instant, probes: ReceiveProbes) {
        self.probes.on_data(now, probes);
    }

    pub(super) const fn probes(&self) -> &ProbeTimer {
        &self.probes
    }

    pub(super) const fn probes_mut(&mut self) -> &mut ProbeTimer {
        &mut self.probes
    }
}
