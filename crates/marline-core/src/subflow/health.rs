//! Health of a subflow, derived from facts: expired timers, missing answers, the path health monitor's verdict on
//! its address pair, and received segments.
//!
//! It is kept with the TCP state, which includes timeouts and received segments. The connection adds further facts:
//! its receive timer and keepalives, the carrier's errors, a verdict, and conclusions of its scheduler.
//!
//! Silence has two effects. Starting with the first fact, policies see [`Health::Unreachable`]: new data is sent on
//! other subflows. The *rescue* queues outstanding data of the subflow for others and notifies path manager and
//! monitor. For most facts, both happen together. A probe timeout may first be tolerated for a while
//! (`Scheduler::probe_patience`), an unanswered keepalive leaves the rescue to more serious facts, and a scheduler's
//! conclusion during an ACK event takes effect before the next segment is sent. If a rescued subflow has timed out with
//! data outstanding, only an acknowledgment of data ends the silence; otherwise the first valid segment does.

use marline_policy::{AddressPairFault, Health, UnreachableCause};
use marline_time::{Duration, Instant};

use crate::on_demand::{OnDemand, UnusedState};

/// Health of one subflow. A healthy one needs no memory.
#[derive(Debug, Default)]
pub(crate) struct SubflowHealth {
    facts: OnDemand<HealthFacts>,
}

/// Facts that make a subflow unreachable or degraded.
#[derive(Debug, Default)]
struct HealthFacts {
    silence: Option<Silence>,
    verdict: Option<Verdict>,
}

impl UnusedState for HealthFacts {
    const UNUSED: &'static Self = &HealthFacts { silence: None, verdict: None };
}

/// Period in which data or an answer is overdue and no segment has been received.
#[derive(Debug)]
struct Silence {
    since: Instant,
    /// Fact that started the silence.
    cause: UnreachableCause,
    /// Time until which an unanswered probe is tolerated.
    patience_until: Option<Instant>,
    /// The scheduler's conclusion has not yet led to a rescue.
    awaits_rescue: bool,
    /// The outstanding data was queued for others.
    rescued: bool,
}

/// The path health monitor's verdict that the address pair has a fault.
#[derive(Copy, Clone, Debug)]
struct Verdict {
    since: Instant,
    fault: AddressPairFault,
}

/// A changed verdict of the path health monitor.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerdictChange {
    /// Fault of the address pair now; `None` if it is usable again.
    pub(crate) fault: Option<AddressPairFault>,
    /// The verdict changed between usable and degraded.
    pub(crate) has_changed: bool,
}

impl VerdictChange {
    /// True if outstanding data is also reinjected. A long timeout of another subflow only keeps new data away.
    pub(crate) fn reinjects_outstanding(self) -> bool {
        self.fault.is_some_and(|fault| fault != AddressPairFault::Rto)
    }
}

/// Information about the silence that a received segment ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndOfSilence {
    /// The outstanding data had been queued for others.
    pub(crate) was_rescued: bool,
    /// Time since the previous segment.
    pub(crate) silence: Duration,
}

/// State as seen by policies, monitors and the connection.
impl SubflowHealth {
    /// Health seen by policies and monitors.
    pub(crate) fn get(&self) -> Health {
        let Some(facts) = self.facts.get_used() else { return Health::Usable };
        match (&facts.silence, facts.verdict) {
            (Some(silence), verdict) => {
                let cause =
                    verdict.map_or(silence.cause, |_| UnreachableCause::DegradedAddressPair);
                Health::Unreachable { since: silence.since, cause }
            }
            (None, Some(Verdict { since, fault })) => Health::Degraded { since, cause: fault },
            (None, None) => Health::Usable,
        }
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.get().is_usable()
    }

    pub(crate) fn is_unreachable(&self) -> bool {
        self.facts.silence.is_some()
    }

    /// True if the address pair is degraded, whether or not the subflow is reachable.
    pub(crate) fn has_degraded_address_pair(&self) -> bool {
        self.facts.verdict.is_some()
    }

    /// True if the outstanding data was queued for others and no segment has been received since then.
    pub(crate) fn is_rescued(&self) -> bool {
        self.facts.silence.as_ref().is_some_and(|silence| silence.rescued)
    }

    /// True if another subflow should take the subflow's data as soon as one is available, instead of waiting for
    /// timers. On a degraded address pair, this holds even if segments from the peer arrive.
    pub(crate) fn needs_rescue(&self) -> bool {
        self.is_rescued() || self.has_degraded_address_pair()
    }

    /// True if the scheduler concluded that the subflow is dead and the rescue has not started.
    pub(crate) fn awaits_rescue(&self) -> bool {
        self.facts.silence.as_ref().is_some_and(|silence| silence.awaits_rescue)
    }

    /// Time until which an unanswered probe is tolerated.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.facts.silence.as_ref()?.patience_until
    }
}

/// Updates from timers, the path health monitor and received segments.
impl SubflowHealth {
    /// Records overdue data or an overdue answer.
    pub(crate) fn on_overdue(&mut self, now: Instant, cause: UnreachableCause) {
        self.silence(now, cause);
    }

    /// Records an expired probe timer, which the scheduler tolerates for `patience`.
    pub(crate) fn on_probe_timeout(&mut self, now: Instant, patience: Duration) {
        let silence = self.silence(now, UnreachableCause::ProbeTimeout);
        if !patience.is_zero() {
            silence.patience_until.get_or_insert(now + patience);
        }
    }

    /// Records the scheduler's conclusion that the subflow is dead.
    pub(crate) fn on_suspected_dead(&mut self, now: Instant) {
        self.silence(now, UnreachableCause::Scheduler).awaits_rescue = true;
    }

    /// Updates the path health monitor's verdict. `None` if it did not change.
    pub(crate) fn on_verdict(
        &mut self,
        now: Instant,
        fault: Option<AddressPairFault>,
    ) -> Option<VerdictChange> {
        let before = self.facts.verdict;
        if before.map(|verdict| verdict.fault) == fault {
            return None;
        }
        let since = before.map_or(now, |verdict| verdict.since);
        let facts = &mut *self.facts;
        facts.verdict = fault.map(|fault| Verdict { since, fault });
        if let (Some(silence), None) = (&mut facts.silence, fault)
            && silence.cause == UnreachableCause::DegradedAddressPair
        {
            silence.cause = UnreachableCause::NoDataSinceRecovery;
        }
        self.clear_if_healthy();
        Some(VerdictChange { fault, has_changed: before.is_some() != fault.is_some() })
    }

    /// Handles a valid segment, the first after `since_last_rx` without one. `None` if the subflow was not unreachable.
    pub(crate) fn on_valid_segment(&mut self, since_last_rx: Duration) -> Option<EndOfSilence> {
        let silence = self.facts.if_used()?.silence.take()?;
        self.clear_if_healthy();
        Some(EndOfSilence { was_rescued: silence.rescued, silence: since_last_rx })
    }

    /// Returns true once when an unanswered probe is no longer tolerated.
    pub(crate) fn is_patience_over(&mut self, now: Instant) -> bool {
        let Some(silence) = self.facts.if_used().and_then(|facts| facts.silence.as_mut()) else {
            return false;
        };
        silence.patience_until.take_if(|until| *until <= now).is_some()
    }

    /// Records that outstanding data is queued for others. Returns true if it was not queued before.
    pub(crate) fn start_rescue(&mut self) -> bool {
        let Some(silence) = self.facts.if_used().and_then(|facts| facts.silence.as_mut()) else {
            return false;
        };
        silence.awaits_rescue = false;
        !core::mem::replace(&mut silence.rescued, true)
    }

    /// The current silence, or a new one with this cause.
    fn silence(&mut self, now: Instant, cause: UnreachableCause) -> &mut Silence {
        self.facts.silence.get_or_insert(Silence {
            since: now,
            cause,
            patience_until: None,
            awaits_rescue: false,
            rescued: false,
        })
    }

    fn clear_if_healthy(&mut self) {
        if self.facts.silence.is_none() && self.facts.verdict.is_none() {
            self.facts.retire();
        }
    }
}

#[cfg(test)]
mod tests;
