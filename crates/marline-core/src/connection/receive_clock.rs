//! Receive timer, which lets a client detect a dead download path without help from the peer.
//!
//! *Problem.* A pure receiver has nothing in flight, hence no retransmission timer and no probe.
//! When the path dies, the sender detects it but has no other path, and the client, which could
//! open one, does not know. TCP offers no signal: a silent peer may simply have nothing to send.
//!
//! *Source.* MultiMob (De Coninck and Bonaventure): the sender marks the last segment of its queue (MP_IDLE), and
//! reports its retransmission timeout on request. On in-order data without the mark, the client starts or restarts a
//! timer with that timeout: at least 500 ms, and 1.5 s if it is unknown. An advancing DATA_ACK restarts a running
//! timer. The timer stops at a mark, or when all data before the newest mark has arrived. When it fires, the path is
//! considered dead: [`multimob`](crate::ReceiveTimer::multimob).
//!
//! *Choices* that the source leaves open:
//! - Data *behind a gap* starts a stopped timer, since it proves that data is due, but does not restart a running
//!   one, since the application waits for the missing data.
//! - A mark counts only if nothing beyond it is known: a late old segment does not stop the timer.
//! - A timer that fires while our own window is closed is due to a slow reader and is restarted.
//! - The value reported by the peer is bounded by a floor and a ceiling.
//!
//! *The faster variant* ([`probing`](crate::ReceiveTimer::probing)). Half a second is necessary if silence is the only
//! evidence: a shorter timer would wake the cellular radio at each pause in the sender's loss recovery. But silence can
//! be probed. After a pause that is long for this flow (twice the longest pause between arrivals in the last seconds,
//! and longer than a round trip can be) the client sends an empty segment that every TCP answers immediately. Any
//! segment received ends the suspicion; three unanswered probes prove the path dead, after 200 ms on a short path. The
//! plain timer, of at least a second, continues as a fallback for a path that answers probes but loses data: at 8 %
//! loss, half a second without in-order data is normal and temporary.
//!
//! *Without the peer's help* (no MP_IDLE) each pause looks like a dead path. Silence alone must not decide then, or
//! every idle connection would end up on the cellular path: the `multimob` settings do nothing, and the `probing`
//! settings probe after 1.5 s of silence, and an answer is valid until data arrives again. So a peer without MP_IDLE
//! costs one probe for each pause, and a dead path is detected after 1.65 s.
//!
//! *Suspended machines.* A timer that fires late shows that this process was not scheduled, and segments may be
//! waiting in a socket. The decision is then postponed briefly, at most a few times.
//!
//! The state machine below does not depend on a connection: times and conditions are arguments.

use marline_policy::Dsn;
use marline_time::{Duration, Instant};

use crate::Probing;

/// Minimum time for which a pause between arrivals is remembered. The maximum is twice as long.
const PAUSE_MEMORY: Duration = Duration::from_secs(1);

/// Timer delay that shows that the process was not scheduled. The verdict is then postponed by this time.
const LATE_TIMER: Duration = Duration::from_millis(20);
/// Maximum number of postponements of one verdict, because a machine may always be late.
const MAX_POSTPONEMENTS: u32 = 3;

/// Current inputs of the timer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Conditions {
    /// Time without in-order data that proves the path dead. `None` if the peer does not mark its last segment, so
    /// that silence alone proves nothing.
    pub(super) stall: Option<Duration>,
    /// Probe settings.
    pub(super) probing: Option<Probing>,
    /// Last segment received on any subflow that carries data.
    pub(super) last_rx_at: Instant,
}

/// Actions for the timer's owner.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum ClockAction {
    Nothing,
    /// Send an empty segment that the peer answers.
    Probe,
    /// No in-order data arrived in time.
    Stalled,
    /// No probe was answered.
    Unanswered,
}

#[derive(Copy, Clone, Debug)]
struct RunningClock {
    /// Time of the last progress.
    since: Instant,
    /// Time of the next check. It may be early; the due time is computed then.
    check_at: Instant,
    /// Time of the last probe, and number of probes since the last segment received.
    probed: Option<(Instant, u32)>,
    /// A probe was answered since the last progress.
    answered: bool,
    /// Earliest time of a verdict, and number of times it was postponed.
    grace: (Instant, u32),
}

impl RunningClock {
    /// Postpones a verdict that was due at `due_at` if the process was not scheduled then.
    fn postpone_verdict(self, now: Instant, due_at: Instant) -> Option<RunningClock> {
        let (not_before, graces) = self.grace;
        let late = now.since(due_at.max(not_before)) > LATE_TIMER && graces < MAX_POSTPONEMENTS;
        let at = if late { now + LATE_TIMER } else { not_before };
        let graces = graces + u32::from(late);
        (at > now).then_some(RunningClock { check_at: at, grace: (at, graces), ..self })
    }
}

/// Longest pauses between arrivals in the current second and the previous one.
#[derive(Copy, Clone, Debug, Default)]
struct Gaps {
    since: Instant,
    longest: Duration,
    before: Duration,
}

impl Gaps {
    fn record_arrival_pause(&mut self, now: Instant, gap: Duration) {
        if now.since(self.since) >= PAUSE_MEMORY {
            let stale = now.since(self.since) >= PAUSE_MEMORY * 2;
            self.before = if stale { Duration::ZERO } else { self.longest };
            self.longest = Duration::ZERO;
            self.since = now;
        }
        self.longest = self.longest.max(gap);
    }

    fn longest(&self) -> Duration {
        self.longest.max(self.before)
    }
}

/// Receive timer state.
#[derive(Debug, Default)]
pub(super) struct ReceiveTimerState {
    /// End of the newest data that ended the peer's queue when it was sent.
    idle_point: Dsn,
    running: Option<RunningClock>,
    gaps: Gaps,
}

impl ReceiveTimerState {
    /// A timer that was never started.
    pub(super) const STOPPED: ReceiveTimerState = ReceiveTimerState {
        idle_point: Dsn(0),
        running: None,
        gaps: Gaps { since: Instant::ZERO, longest: Duration::ZERO, before: Duration::ZERO },
    };

    /// Time at which [`on_timeout`](Self::on_timeout) is to be called.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.running.map(|running| running.check_at)
    }

    /// Time of the last start.
    pub(super) fn started_at(&self) -> Option<Instant> {
        self.running.map(|running| running.since)
    }

    pub(super) const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Stops the timer, because no data is due or detection is not needed.
    pub(super) fn stop(&mut self) {
        self.running = None;
    }

    /// Records that the peer had no data beyond `end` when it sent the data before it.
    pub(super) fn on_idle(&mut self, end: Dsn) {
        self.idle_point = self.idle_point.max(end);
    }

    /// True if all data that the peer is known to have has arrived.
    pub(super) fn is_idle(&self, next: Dsn, highest: Dsn) -> bool {
        next == self.idle_point && highest <= next
    }

    /// Handles in-order data. `next` is the first missing byte, `highest` the end of the announced data.
    pub(super) fn on_data(&mut self, now: Instant, next: Dsn, highest: Dsn, cond: &Conditions) {
        if let Some(running) = self.running {
            self.gaps.record_arrival_pause(now, now.since(running.since));
        }
        if self.is_idle(next, highest) {
            self.stop();
        } else {
            self.start(now, cond);
        }
    }

    /// Handles data behind a gap, or a repeated mark.
    pub(super) fn on_out_of_order(
        &mut self,
        now: Instant,
        next: Dsn,
        highest: Dsn,
        cond: &Conditions,
    ) {
        if self.is_idle(next, highest) {
            self.stop();
        } else if self.running.is_none() && highest > next {
            self.start(now, cond);
        }
    }

    /// Handles an advancing DATA_ACK: the peer is alive.
    pub(super) fn on_data_ack(&mut self, now: Instant, cond: &Conditions) {
        if self.running.is_some() {
            self.start(now, cond);
        }
    }

    /// Restarts the wait, because the silence had a local cause.
    pub(super) fn restart_wait(&mut self, now: Instant, cond: &Conditions) {
        self.running = None;
        self.start(now, cond);
    }

    /// Starts or restarts the timer. The next check is moved only to an earlier time: one wake-up per second costs less
    /// than moving it with each segment.
    fn start(&mut self, now: Instant, cond: &Conditions) {
        let mut running = RunningClock {
            since: now,
            check_at: now,
            probed: None,
            answered: false,
            grace: (now, 0),
        };
        let looks_at = self.running.take().map(|running| running.check_at);
        if let Some(at) = self.due_at(&running, cond) {
            running.check_at = looks_at.map_or(at, |looks_at| at.min(looks_at));
            self.running = Some(running);
        }
    }

    /// Time of the next event; `None` if there is none.
    fn due_at(&self, running: &RunningClock, cond: &Conditions) -> Option<Instant> {
        let stalled = cond.stall.map(|stall| running.since + stall);
        let probe = cond.probing.and_then(|probing| match running.probed {
            Some((at, _)) => Some(at + probing.wait),
            // A peer that marks its last segment still has data to send; one without marks may have finished.
            None if running.answered && cond.stall.is_none() => None,
            None => Some(running.since.max(cond.last_rx_at) + self.quiet_limit(probing, cond)),
        });
        stalled.into_iter().chain(probe).min()
    }

    /// Silence after which a probe is sent: shorter than the time to a verdict based on silence alone.
    fn quiet_limit(&self, probing: Probing, cond: &Conditions) -> Duration {
        match cond.stall {
            Some(stall) => probing.after.max(self.gaps.longest() * 2).min(stall),
            None => probing.after,
        }
    }

    /// Handles a due or overdue check.
    pub(super) fn on_timeout(&mut self, now: Instant, cond: &Conditions) -> ClockAction {
        let Some(mut running) = self.running.filter(|running| running.check_at <= now) else {
            return ClockAction::Nothing;
        };
        if running.probed.is_some_and(|(at, _)| cond.last_rx_at > at) {
            running.probed = None;
            running.answered = true;
        }
        let Some(due_at) = self.due_at(&running, cond) else {
            self.running = None;
            return ClockAction::Nothing;
        };
        if due_at > now {
            self.running = Some(RunningClock { check_at: due_at, ..running });
            return ClockAction::Nothing;
        }
        let stalled = cond.stall.is_some_and(|stall| running.since + stall <= now);
        let sent = running.probed.map_or(0, |(_, count)| count);
        if stalled || cond.probing.is_none_or(|probing| sent >= probing.count.max(1)) {
            if let Some(grace) = running.postpone_verdict(now, due_at) {
                self.running = Some(grace);
                return ClockAction::Nothing;
            }
            self.running = None;
            return if stalled { ClockAction::Stalled } else { ClockAction::Unanswered };
        }
        running.probed = Some((now, sent + 1));
        running.check_at = self.due_at(&running, cond).unwrap_or(now);
        self.running = Some(running);
        ClockAction::Probe
    }
}

#[cfg(test)]
mod tests;
