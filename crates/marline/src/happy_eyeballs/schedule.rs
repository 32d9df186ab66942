//! Schedule of the attempts to connect.
//!
//! *Problem.* Happy eyeballs (RFC 8305) tries the next path shortly after the previous one, answered or not. That
//! wakes a cellular radio whenever a server is further away than the stagger. It also starts on a path that other
//! connections of the process know to be bad, and that path sometimes wins because it is the shorter one.
//!
//! *Solution.* Without a path health monitor, every attempt waits for the stagger. With a monitor:
//! - paths that it considers good come first, regular paths before backup paths, even if another path won last time:
//!   its verdicts are newer than that memory;
//! - a backup path starts after the first regular path was asked twice, [`RESERVE_WAIT`] apart, and the same time
//!   has passed again: a single lost SYN wakes no radio;
//! - a degraded address pair starts last, [`DEGRADED_PAIR_DELAY`] after everything else: by then, the others' first SYN
//!   counts as lost by RFC 6298.
//!
//! A late attempt starts at once when no other is left in the race.
//!
//! *Source.* MultiMob's path health monitor "prevents primary use when bad" (slides). The waiting times and the
//! second request on a path are ours.

use std::collections::VecDeque;

use marline_time::Duration;

use crate::path_table::Candidate;

/// Delay between the two requests on a regular path, and from the second one to the first on a backup path.
pub(crate) const RESERVE_WAIT: Duration = Duration::from_millis(250);
/// Delay from the last of the others to the first attempt on a degraded address pair.
pub(crate) const DEGRADED_PAIR_DELAY: Duration = Duration::from_millis(1_000);

/// Attempt in the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ScheduledAttempt {
    candidate: Candidate,
    /// Delay after the start of the previous attempt.
    wait: Duration,
    /// If true, it does not start earlier when another attempt fails, unless that was the last.
    held: bool,
}

/// Attempts that have not started.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttemptSchedule {
    waiting: VecDeque<ScheduledAttempt>,
    /// Start time of the first of them, since the beginning of the race.
    due: Duration,
}

impl AttemptSchedule {
    /// Starts all attempts in this order, a stagger apart.
    pub(crate) fn staggered(candidates: Vec<Candidate>, stagger: Duration) -> AttemptSchedule {
        let entrant = |candidate| ScheduledAttempt { candidate, wait: stagger, held: false };
        AttemptSchedule {
            waiting: candidates.into_iter().map(entrant).collect(),
            due: Duration::ZERO,
        }
    }

    /// Orders the attempts by the verdicts of a path health monitor.
    pub(crate) fn order_by_health(
        mut candidates: Vec<Candidate>,
        stagger: Duration,
        is_bad: impl Fn(&Candidate) -> bool,
    ) -> AttemptSchedule {
        // The sort is stable: equal candidates keep their order.
        candidates.sort_by_key(|candidate| candidate.backup);
        let (bad, good): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_bad);
        let (reserve, regular): (Vec<_>, Vec<_>) = good.into_iter().partition(|c| c.backup);
        let again = regular.first().filter(|_| !reserve.is_empty()).cloned();
        let mut schedule = AttemptSchedule::staggered(regular, stagger);
        for late in [again.into_iter().collect(), reserve] {
            schedule.append(late, RESERVE_WAIT, stagger);
        }
        schedule.append(bad, DEGRADED_PAIR_DELAY, stagger);
        schedule
    }

    /// Appends attempts: the first starts after `wait`, the rest a stagger apart.
    fn append(&mut self, candidates: Vec<Candidate>, wait: Duration, stagger: Duration) {
        for (number, candidate) in candidates.into_iter().enumerate() {
            let (wait, held) = if number == 0 { (wait, true) } else { (stagger, false) };
            self.waiting.push_back(ScheduledAttempt { candidate, wait, held });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Start time of the next attempt, since the beginning of the race.
    pub(crate) fn due(&self) -> Option<Duration> {
        (!self.is_empty()).then_some(self.due)
    }

    /// Takes the attempt that starts now, if any. `alone`: no attempt is in progress.
    pub(crate) fn take(&mut self, now: Duration, alone: bool) -> Option<Candidate> {
        if now < self.due && !alone {
            return None;
        }
        let entrant = self.waiting.pop_front()?;
        self.due = now + self.waiting.front().map_or(Duration::ZERO, |next| next.wait);
        Some(entrant.candidate)
    }

    /// Removes a failed attempt, which is not repeated, and advances the next one.
    pub(crate) fn failed(&mut self, now: Duration, candidate: &Candidate) {
        self.waiting.retain(|entrant| entrant.candidate != *candidate);
        if self.waiting.front().is_some_and(|next| !next.held) {
            self.due = self.due.min(now);
        }
    }
}

#[cfg(test)]
mod tests;
