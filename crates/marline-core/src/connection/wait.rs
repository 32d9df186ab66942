//! Wait for a path: the time for which a connection without a working subflow is kept, and the events that end the wait
//! early.
//!
//! A RST on a subflow ends the subflow but not the connection (RFC 8684 section 3.6), and any middlebox can send one.
//! So the connection continues without subflows, the path manager tries all known addresses, and the wait ends when:
//! - a segment is received, because the outage was temporary;
//! - [`Linger::timeout`](crate::Linger) passes without any progress, or a server's shorter timeout for an
//!   unauthenticated peer that sent a RST;
//! - only resets are received for [`MAX_RESET_ONLY_TIME`]: the host is up, but does not know the connection. An
//!   unanswered join restarts that time, since a reset on one path says nothing about another that is silent. If the
//!   peer itself reports an unknown token (MP_TCPRST with an MPTCP error, not transient), the wait ends at once.
//!
//! A wait begins when the last subflow is gone, when all remaining ones are silent and two retransmissions of one of
//! them stay unanswered, or when two consecutive window probes or DATA_FINs, which TCP does not retransmit, stay
//! unanswered on all subflows. Silence of all subflows is not sufficient: a subflow may become silent without a
//! probe, and then no answer is due.
//!
//! A path that works briefly and fails again does not end the wait.
//!
//! An application that knows more, for instance that the network reaches another server, can set a deadline
//! ([`SocketOption::AnswerWithin`](crate::SocketOption)).
//!
//! *Probes.* With a deadline, or if several subflows are silent, each of them is probed immediately, after 2, 4 and 8
//! s, and then every 15 s. Otherwise a subflow without data in flight would not notice the peer's return, and one
//! with data, because of its backoff, would notice it only after a time as long as the outage. (With only one
//! subflow, the path manager's attempts from other ports detect it.) The first segment received ends probes and
//! deadline.

use marline_time::{Duration, Instant};

use crate::CloseReason;
use crate::on_demand::UnusedState;

/// Maximum time during which all paths receive only resets.
const MAX_RESET_ONLY_TIME: Duration = Duration::from_secs(30);
/// Reception shorter than this without progress of the stream does not end a wait.
const MIN_RECEPTION: Duration = Duration::from_secs(10);
/// Time between the first two probes: enough for a round trip over a satellite, or for a radio to wake up.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Maximum time between probes, as between a path manager's attempts.
const MAX_PROBE_PAUSE: Duration = Duration::from_secs(15);

/// Probes on all subflows, until a segment is received.
#[derive(Copy, Clone, Debug)]
struct ProbeSchedule {
    next_at: Instant,
    pause: Duration,
}

/// A wait for a path, and the results of attempts to find one.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Wait {
    /// Start of the wait, when all subflows are silent or none is left.
    since: Option<Instant>,
    /// No subflow was left, so a new one must make progress in the stream.
    has_no_subflow: bool,
    /// A RST ended the last subflow.
    ended_by_reset: bool,
    /// Time at which the wait ended. It may resume.
    ended_at: Option<Instant>,
    /// Time at which subflows started to end only by resets.
    first_reset_at: Option<Instant>,
    probe_schedule: Option<ProbeSchedule>,
    /// Deadline for a segment from the peer.
    answer_deadline: Option<Instant>,
}

impl UnusedState for Wait {
    const UNUSED: &'static Self = &Wait::NONE;
}

impl Wait {
    /// No wait.
    const NONE: Wait = Wait {
        since: None,
        has_no_subflow: false,
        ended_by_reset: false,
        ended_at: None,
        first_reset_at: None,
        probe_schedule: None,
        answer_deadline: None,
    };

    /// Start of the current wait; `None` if there is none.
    pub(super) fn started_at(&self) -> Option<Instant> {
        self.since.filter(|_| self.ended_at.is_none())
    }

    /// True if a RST ended the last subflow.
    pub(super) const fn is_by_reset(&self) -> bool {
        self.ended_by_reset
    }

    /// Deadline for a segment from the peer.
    pub(super) const fn answer_deadline(&self) -> Option<Instant> {
        self.answer_deadline
    }

    /// Sets the time within which a segment from the peer must arrive, unless a deadline is already set.
    pub(super) fn expect_answer(&mut self, now: Instant, within: Duration) {
        self.answer_deadline.get_or_insert(now + within);
    }

    /// Starts probes. Returns true if the first is due now, and false if probes were already running.
    pub(super) fn start_probes(&mut self, now: Instant) -> bool {
        let begin = self.probe_schedule.is_none();
        self.probe_schedule
            .get_or_insert(ProbeSchedule { next_at: now + FIRST_PAUSE, pause: FIRST_PAUSE });
        begin
    }

    /// Stops probes because there is no subflow.
    pub(super) const fn stop_probes(&mut self) {
        self.probe_schedule = None;
    }

    /// Time of the next probe.
    pub(super) fn next_probe_at(&self) -> Option<Instant> {
        self.probe_schedule.map(|probe_schedule| probe_schedule.next_at)
    }

    /// Returns true if a probe is due, and then schedules the next one.
    pub(super) fn is_probe_due(&mut self, now: Instant) -> bool {
        let Some(due) =
            self.probe_schedule.as_mut().filter(|probe_schedule| probe_schedule.next_at <= now)
        else {
            return false;
        };
        due.pause = (due.pause * 2).min(MAX_PROBE_PAUSE);
        due.next_at = now + due.pause;
        true
    }

    /// Starts a wait for a silent peer.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.ended_at.take().is_some_and(|over| now.since(over) >= MIN_RECEPTION) {
            let Wait { probe_schedule, answer_deadline, .. } = *self;
            *self = Wait { probe_schedule, answer_deadline, ..Wait::default() };
        }
        self.since.get_or_insert(now);
    }

    /// Starts a wait without subflows.
    pub(super) fn start_wait_without_subflows(&mut self, now: Instant, why: CloseReason) {
        self.begin(now);
        self.has_no_subflow = true;
        self.ended_by_reset = why == CloseReason::PeerReset;
    }

    /// Handles a segment from the peer.
    pub(super) fn on_valid_segment(&mut self, now: Instant) {
        (self.probe_schedule, self.answer_deadline) = (None, None);
        if !self.has_no_subflow {
            self.since = None;
        } else if self.since.is_some() {
            self.ended_at.get_or_insert(now);
        }
    }

    /// Handles the end of a subflow or an attempt. `last` is true if no other subflow is left. Returns true if only
    /// resets were received for too long.
    pub(super) fn on_lost(&mut self, now: Instant, why: CloseReason, last: bool) -> bool {
        match why {
            CloseReason::Refused | CloseReason::PeerReset if last => {
                let since = *self.first_reset_at.get_or_insert(now);
                now.since(since) >= MAX_RESET_ONLY_TIME
            }
            CloseReason::TimedOut => {
                self.first_reset_at = None;
                false
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Instant = Instant::from_secs;

    #[test]
    fn a_brief_sign_of_life_does_not_restart_the_wait() {
        let mut wait = Wait::default();
        wait.start_wait_without_subflows(S(10), CloseReason::PeerReset);
        wait.on_valid_segment(S(15));
        assert_eq!(wait.started_at(), None);
        wait.start_wait_without_subflows(S(16), CloseReason::PeerReset);
        assert_eq!(wait.started_at(), Some(S(10)), "the new subflow failed as well");
        wait.on_valid_segment(S(20));
        wait.start_wait_without_subflows(S(40), CloseReason::PeerReset);
        assert_eq!(wait.started_at(), Some(S(40)), "the idle connection worked for 20 s");
        wait = Wait::default();
        wait.start_wait_without_subflows(S(41), CloseReason::PeerReset);
        assert_eq!(wait.started_at(), Some(S(41)));
    }

    #[test]
    fn an_answer_on_a_subflow_that_was_silent_ends_the_wait() {
        let mut wait = Wait::default();
        for second in 10..100 {
            wait.begin(S(second));
            assert_eq!(wait.started_at(), Some(S(second)));
            wait.on_valid_segment(S(second));
        }
    }

    #[test]
    fn the_deadline_and_probes_last_until_a_segment_arrives() {
        let mut wait = Wait::default();
        wait.expect_answer(S(10), Duration::from_secs(100));
        wait.expect_answer(S(50), Duration::from_secs(100));
        assert_eq!(wait.answer_deadline(), Some(S(110)), "the first deadline applies");
        assert!(wait.start_probes(S(10)) && !wait.start_probes(S(11)));
        let asked: Vec<u64> = (10..80).filter(|second| wait.is_probe_due(S(*second))).collect();
        assert_eq!(asked, [12, 16, 24, 39, 54, 69]);
        wait.start_wait_without_subflows(S(80), CloseReason::TimedOut);
        assert_eq!(
            wait.answer_deadline(),
            Some(S(110)),
            "the end of all subflows is not an answer"
        );
        wait.on_valid_segment(S(90));
        assert_eq!((wait.answer_deadline(), wait.next_probe_at()), (None, None));
        // A new wait does not set another deadline.
        wait.expect_answer(S(91), Duration::from_secs(100));
        wait.start_wait_without_subflows(S(105), CloseReason::TimedOut);
        assert_eq!((wait.started_at(), wait.answer_deadline()), (Some(S(105)), Some(S(191))));
    }

    #[test]
    fn resets_count_until_a_join_ends_in_another_way() {
        let mut wait = Wait::default();
        assert!(!wait.on_lost(S(0), CloseReason::PeerReset, true));
        assert!(!wait.on_lost(S(29), CloseReason::Refused, true));
        assert!(!wait.on_lost(S(31), CloseReason::Refused, false), "another subflow exists");
        assert!(!wait.on_lost(S(29), CloseReason::TimedOut, false));
        assert!(!wait.on_lost(S(31), CloseReason::Refused, true));
        assert!(wait.on_lost(S(61), CloseReason::Refused, true));
    }
}
