//! Health of a subflow, derived from facts: timers that fired, answers that did not come, the path health
//! monitor's verdict on its address pair, and segments that did come in.
//!
//! It lies beside TCP, which knows what timed out and what was heard. The connection adds what it alone knows: its
//! receive timer and keepalives, the carrier's errors, a verdict, what its scheduler concludes.
//!
//! Silence is answered in two steps. From the first fact on, policies see [`Health::Silent`]: new data goes
//! elsewhere. The *rescue* queues what is outstanding on the subflow for others and tells path manager and monitor. For
//! most facts both happen at once. A probe timeout may be borne for a while first (`Scheduler::probe_patience`), an
//! unanswered keepalive leaves the rescue to graver facts, and what a scheduler concludes while it is told of an ACK is
//! acted upon before the next segment is sent. If a rescued subflow has timed out with data outstanding, an
//! acknowledgment of data ends all of it, else the first valid segment does.

use marline_policy::{AddressPairFault, Health, SilenceCause};
use marline_time::{Duration, Instant};

use crate::on_demand::{OnDemand, Unused};

/// Health of one subflow. A fine one keeps nothing.
#[derive(Debug, Default)]
pub(crate) struct SubflowHealth {
    facts: OnDemand<Facts>,
}

/// What speaks against a subflow.
#[derive(Debug, Default)]
struct Facts {
    silence: Option<Silence>,
    verdict: Option<Verdict>,
}

impl Unused for Facts {
    const UNUSED: &'static Self = &Facts { silence: None, verdict: None };
}

/// Something is overdue, and nothing was heard since.
#[derive(Debug)]
struct Silence {
    since: Instant,
    /// The fact that began it.
    cause: SilenceCause,
    /// An unanswered probe is borne until then.
    patience_until: Option<Instant>,
    /// The scheduler's conclusion waits for its rescue.
    awaits_rescue: bool,
    /// Its outstanding data was queued for others.
    rescued: bool,
}

/// The path health monitor holds its address pair to be bad.
#[derive(Copy, Clone, Debug)]
struct Verdict {
    since: Instant,
    fault: AddressPairFault,
}

/// The path health monitor's verdict is another one than before.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerdictChange {
    /// Why the address pair is bad now; `None`: it is good again.
    pub(crate) fault: Option<AddressPairFault>,
    /// It was good before, or is good now.
    pub(crate) turned: bool,
}

impl VerdictChange {
    /// Whether what is outstanding goes elsewhere, too. A long timeout of somebody only keeps new data away.
    pub(crate) fn moves_outstanding(self) -> bool {
        self.fault.is_some_and(|fault| fault != AddressPairFault::Rto)
    }
}

/// A silent subflow was heard.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndOfSilence {
    /// Its outstanding data had been queued for others.
    pub(crate) was_rescued: bool,
    /// Since the segment before.
    pub(crate) unheard: Duration,
}

/// What it is.
impl SubflowHealth {
    /// What policies and monitors see.
    pub(crate) fn get(&self) -> Health {
        let Some(facts) = self.facts.used() else { return Health::Fine };
        match (&facts.silence, facts.verdict) {
            (Some(silence), verdict) => {
                let cause = verdict.map_or(silence.cause, |_| SilenceCause::BadAddressPair);
                Health::Silent { since: silence.since, cause }
            }
            (None, Some(Verdict { since, fault })) => Health::Doubtful { since, cause: fault },
            (None, None) => Health::Fine,
        }
    }

    pub(crate) fn is_fine(&self) -> bool {
        self.get().is_fine()
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.facts.silence.is_some()
    }

    /// Its address pair is bad, be it silent or not.
    pub(crate) fn has_bad_address_pair(&self) -> bool {
        self.facts.verdict.is_some()
    }

    /// Its outstanding data was queued for others, and nothing was heard since.
    pub(crate) fn is_rescued(&self) -> bool {
        self.facts.silence.as_ref().is_some_and(|silence| silence.rescued)
    }

    /// What it holds is not left to its own timers: somebody else takes it as soon as there is anybody. On a bad
    /// address pair that is so even if it is heard.
    pub(crate) fn needs_rescue(&self) -> bool {
        self.is_rescued() || self.has_bad_address_pair()
    }

    /// The scheduler concluded that it is dead, and that was not acted upon yet.
    pub(crate) fn awaits_rescue(&self) -> bool {
        self.facts.silence.as_ref().is_some_and(|silence| silence.awaits_rescue)
    }

    /// When the patience with an unanswered probe ends.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.facts.silence.as_ref()?.patience_until
    }
}

/// What it is made of.
impl SubflowHealth {
    /// Something was due on it and did not come.
    pub(crate) fn on_overdue(&mut self, now: Instant, cause: SilenceCause) {
        self.silence(now, cause);
    }

    /// Its probe timer fired, and the scheduler bears that for so long.
    pub(crate) fn on_probe_timeout(&mut self, now: Instant, patience: Duration) {
        let silence = self.silence(now, SilenceCause::ProbeTimeout);
        if !patience.is_zero() {
            silence.patience_until.get_or_insert(now + patience);
        }
    }

    /// The scheduler concludes that it is dead; that is to be acted upon.
    pub(crate) fn on_accusation(&mut self, now: Instant) {
        self.silence(now, SilenceCause::Scheduler).awaits_rescue = true;
    }

    /// What the path health monitor says of its address pair now. `None`: that is no news.
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
            && silence.cause == SilenceCause::BadAddressPair
        {
            silence.cause = SilenceCause::LiftedVerdict;
        }
        self.forget_if_fine();
        Some(VerdictChange { fault, turned: before.is_some() != fault.is_some() })
    }

    /// A valid segment came in, the first for this long. `None`: it was not silent.
    pub(crate) fn on_heard(&mut self, unheard: Duration) -> Option<EndOfSilence> {
        let silence = self.facts.if_used()?.silence.take()?;
        self.forget_if_fine();
        Some(EndOfSilence { was_rescued: silence.rescued, unheard })
    }

    /// Whether the patience with an unanswered probe is over now.
    pub(crate) fn loses_patience(&mut self, now: Instant) -> bool {
        let Some(silence) = self.facts.if_used().and_then(|facts| facts.silence.as_mut()) else {
            return false;
        };
        silence.patience_until.take_if(|until| *until <= now).is_some()
    }

    /// What is outstanding on it is queued for others. Whether it was not before.
    pub(crate) fn start_rescue(&mut self) -> bool {
        let Some(silence) = self.facts.if_used().and_then(|facts| facts.silence.as_mut()) else {
            return false;
        };
        silence.awaits_rescue = false;
        !core::mem::replace(&mut silence.rescued, true)
    }

    /// The silence that there is, or one that begins with this.
    fn silence(&mut self, now: Instant, cause: SilenceCause) -> &mut Silence {
        self.facts.silence.get_or_insert(Silence {
            since: now,
            cause,
            patience_until: None,
            awaits_rescue: false,
            rescued: false,
        })
    }

    fn forget_if_fine(&mut self) {
        if self.facts.silence.is_none() && self.facts.verdict.is_none() {
            self.facts.retire();
        }
    }
}

#[cfg(test)]
mod tests;
