//! Schedule of the attempts to connect.
//!
//! *Problem.* Happy eyeballs (RFC 8305) try the next path a little after the one before, answered or
//! not. That wakes a cellular radio whenever a server is further away than the stagger, and it starts on
//! a path of which the process' other connections know that it is bad, which then wins now and then,
//! because it is the nearer one.
//!
//! *How.* Without a path health monitor every attempt waits for the stagger, as ever. With one,
//! - what it holds to be good comes first, regular paths before backup ones, whichever won last time:
//!   its verdicts are newer than that memory;
//! - a backup path starts once the first regular one was asked twice, [`RESERVE_WAIT`] apart, and as long
//!   again has passed: one lost SYN wakes no radio;
//! - a bad address pair starts last, [`BAD_WAIT`] after everything else did: after that the others' first
//!   SYN is lost as well, by RFC 6298.
//!
//! Whoever starts late starts at once when nobody else is left in the race.
//!
//! *Source.* MultiMob's path health monitor "prevents primary use when bad" (slides). How long the others
//! are waited for, and that a path is asked twice, is ours.

use std::collections::VecDeque;

use marline_time::Duration;

use crate::path_table::Candidate;

/// Between the two questions to a regular path, and from the second one to a backup path's first.
pub(crate) const RESERVE_WAIT: Duration = Duration::from_millis(250);
/// From the last of the others to the first on a bad address pair.
pub(crate) const BAD_WAIT: Duration = Duration::from_millis(1_000);

/// An attempt and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entrant {
    candidate: Candidate,
    /// After the one before it started.
    wait: Duration,
    /// It does not start earlier because another one failed, unless that was the last.
    held: bool,
}

/// Those who have not started.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttemptSchedule {
    waiting: VecDeque<Entrant>,
    /// When the first of them starts, since the race began.
    due: Duration,
}

impl AttemptSchedule {
    /// One after the other in this order, a stagger apart.
    pub(crate) fn staggered(candidates: Vec<Candidate>, stagger: Duration) -> AttemptSchedule {
        let entrant = |candidate| Entrant { candidate, wait: stagger, held: false };
        AttemptSchedule {
            waiting: candidates.into_iter().map(entrant).collect(),
            due: Duration::ZERO,
        }
    }

    /// As a path health monitor advises that knows which address pairs are bad.
    pub(crate) fn by_health(
        mut candidates: Vec<Candidate>,
        stagger: Duration,
        is_bad: impl Fn(&Candidate) -> bool,
    ) -> AttemptSchedule {
        // Stable: among equals the order is that of before.
        candidates.sort_by_key(|candidate| candidate.backup);
        let (bad, good): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_bad);
        let (reserve, regular): (Vec<_>, Vec<_>) = good.into_iter().partition(|c| c.backup);
        let again = regular.first().filter(|_| !reserve.is_empty()).cloned();
        let mut schedule = AttemptSchedule::staggered(regular, stagger);
        for late in [again.into_iter().collect(), reserve] {
            schedule.append(late, RESERVE_WAIT, stagger);
        }
        schedule.append(bad, BAD_WAIT, stagger);
        schedule
    }

    /// Behind those who are there: the first after `wait`, the rest a stagger apart.
    fn append(&mut self, candidates: Vec<Candidate>, wait: Duration, stagger: Duration) {
        for (number, candidate) in candidates.into_iter().enumerate() {
            let (wait, held) = if number == 0 { (wait, true) } else { (stagger, false) };
            self.waiting.push_back(Entrant { candidate, wait, held });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the next one starts, since the race began; `None`: there is none.
    pub(crate) fn due(&self) -> Option<Duration> {
        (!self.is_empty()).then_some(self.due)
    }

    /// Who starts now, if somebody does. `alone`: nobody is running.
    pub(crate) fn take(&mut self, now: Duration, alone: bool) -> Option<Candidate> {
        if now < self.due && !alone {
            return None;
        }
        let entrant = self.waiting.pop_front()?;
        self.due = now + self.waiting.front().map_or(Duration::ZERO, |next| next.wait);
        Some(entrant.candidate)
    }

    /// This one failed, and need not be asked again; the next one's turn comes the earlier.
    pub(crate) fn failed(&mut self, now: Duration, candidate: &Candidate) {
        self.waiting.retain(|entrant| entrant.candidate != *candidate);
        if self.waiting.front().is_some_and(|next| !next.held) {
            self.due = self.due.min(now);
        }
    }
}

#[cfg(test)]
mod tests;
