//! Wait for a path: how long a connection without a working subflow is kept, and the events that
//! end the wait early.
//!
//! A RST on a subflow ends the subflow, not the connection (RFC 8684 section 3.6), and any
//! middlebox can send one. So the connection continues without subflows, the path manager tries all
//! known addresses, and the wait ends in one of three ways:
//! - something is received, and the outage was temporary;
//! - [`Linger::timeout`](crate::Linger) passes without any progress, or the shorter time of a
//!   server for an unauthenticated peer that sent a RST;
//! - only resets are received for [`REFUSED_PATIENCE`]: the host is up, but does not know the
//!   connection. An unanswered join restarts that time, since a reset on one path says nothing
//!   about another one that is silent for now. Where the peer itself says that it does not know the
//!   token (MP_TCPRST with an MPTCP error, not transient), no time is lost on asking again.
//!
//! A wait begins when the last subflow is gone, when all that are left are silent and the
//! retransmissions of one of them stay unanswered twice, or when window probes or DATA_FINs, which
//! TCP does not retransmit by itself, stay unanswered twice in a row on all subflows. That all are
//! silent is not enough: a subflow may fall silent without being asked anything, and nobody answers
//! who is not asked.
//!
//! A path that works for a moment and dies again brings no progress: the wait continues.
//!
//! An application that knows more than the core, for instance that the network reaches another server,
//! sets a deadline besides ([`SocketOption::AnswerWithin`](crate::SocketOption)).
//!
//! *Questions.* With a deadline, and where several subflows are silent, each of them is asked for a sign
//! of life at once, 2 s later, and then after 4, 8 and each further 15 s: a subflow that has nothing under
//! way would not notice that the peer is back, and one that has, by its backoff, only after a time as long
//! again as the outage. (Where there is only one subflow, the path manager's attempts from other ports
//! find that out.) The first segment that is heard ends questions and deadline.

use marline_time::{Duration, Instant};

use crate::CloseReason;
use crate::on_demand::Unused;

/// How long every way may be answered by nothing but resets.
const REFUSED_PATIENCE: Duration = Duration::from_secs(30);
/// What is heard for less than this, without bringing the stream on, does not end a wait.
const BRIEFLY: Duration = Duration::from_secs(10);
/// Time between the first two questions: a round trip over a satellite, or a radio that wakes up.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Time between questions at last, as between a path manager's attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Questions on all subflows, until something is heard.
#[derive(Copy, Clone, Debug)]
struct Questions {
    next_at: Instant,
    pause: Duration,
}

/// A wait for a path, and what came of the attempts to find one.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Wait {
    /// Nothing is heard on any subflow, or none is left, since.
    since: Option<Instant>,
    /// No subflow was left: a new one has to show that it brings the stream on.
    pathless: bool,
    /// It was a RST that took the last one.
    by_reset: bool,
    /// It is over, perhaps only for a moment, since.
    over_at: Option<Instant>,
    /// All that became of subflows since was a reset.
    resets_since: Option<Instant>,
    questions: Option<Questions>,
    /// The peer is to be heard until then.
    answer_by: Option<Instant>,
}

impl Unused for Wait {
    const UNUSED: &'static Self = &Wait::NONE;
}

impl Wait {
    /// Nothing is waited for.
    const NONE: Wait = Wait {
        since: None,
        pathless: false,
        by_reset: false,
        over_at: None,
        resets_since: None,
        questions: None,
        answer_by: None,
    };

    /// Since when nothing is heard; `None`: there is nothing to wait for.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since.filter(|_| self.over_at.is_none())
    }

    /// It was a RST that took the last subflow.
    pub(super) const fn is_by_reset(&self) -> bool {
        self.by_reset
    }

    /// Until when the peer has to be heard.
    pub(super) const fn answer_by(&self) -> Option<Instant> {
        self.answer_by
    }

    /// The peer has to be heard within this time; where there is such a deadline, it stays.
    pub(super) fn expect_answer(&mut self, now: Instant, within: Duration) {
        self.answer_by.get_or_insert(now + within);
    }

    /// Questions begin. Whether the first goes out now; otherwise they go on.
    pub(super) fn begin_questions(&mut self, now: Instant) -> bool {
        let begin = self.questions.is_none();
        self.questions.get_or_insert(Questions { next_at: now + FIRST_PAUSE, pause: FIRST_PAUSE });
        begin
    }

    /// There is nobody to be asked.
    pub(super) const fn stop_questions(&mut self) {
        self.questions = None;
    }

    /// When the next question goes out.
    pub(super) fn next_question_at(&self) -> Option<Instant> {
        self.questions.map(|questions| questions.next_at)
    }

    /// Whether one is due; then the next is scheduled.
    pub(super) fn is_question_due(&mut self, now: Instant) -> bool {
        let Some(due) = self.questions.as_mut().filter(|questions| questions.next_at <= now) else {
            return false;
        };
        due.pause = (due.pause * 2).min(LONGEST_PAUSE);
        due.next_at = now + due.pause;
        true
    }

    /// Nothing is heard any more.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.over_at.take().is_some_and(|over| now.since(over) >= BRIEFLY) {
            let Wait { questions, answer_by, .. } = *self;
            *self = Wait { questions, answer_by, ..Wait::default() };
        }
        self.since.get_or_insert(now);
    }

    /// No subflow is left.
    pub(super) fn begin_without_subflows(&mut self, now: Instant, why: CloseReason) {
        self.begin(now);
        self.pathless = true;
        self.by_reset = why == CloseReason::PeerReset;
    }

    /// The peer is heard.
    pub(super) fn heard(&mut self, now: Instant) {
        (self.questions, self.answer_by) = (None, None);
        if !self.pathless {
            self.since = None;
        } else if self.since.is_some() {
            self.over_at.get_or_insert(now);
        }
    }

    /// A subflow or an attempt at one ended, the `last` there was, perhaps; whether resets have been all
    /// there is for too long.
    pub(super) fn on_lost(&mut self, now: Instant, why: CloseReason, last: bool) -> bool {
        match why {
            CloseReason::Refused | CloseReason::PeerReset if last => {
                let since = *self.resets_since.get_or_insert(now);
                now.since(since) >= REFUSED_PATIENCE
            }
            CloseReason::TimedOut => {
                self.resets_since = None;
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
    fn what_is_heard_for_a_moment_does_not_start_the_wait_anew() {
        let mut wait = Wait::default();
        wait.begin_without_subflows(S(10), CloseReason::PeerReset);
        wait.heard(S(15));
        assert_eq!(wait.since(), None);
        wait.begin_without_subflows(S(16), CloseReason::PeerReset);
        assert_eq!(wait.since(), Some(S(10)), "nothing came of it");
        wait.heard(S(20));
        wait.begin_without_subflows(S(40), CloseReason::PeerReset);
        assert_eq!(wait.since(), Some(S(40)), "an idle connection was well for 20 s");
        wait = Wait::default();
        wait.begin_without_subflows(S(41), CloseReason::PeerReset);
        assert_eq!(wait.since(), Some(S(41)));
    }

    #[test]
    fn an_answer_on_a_subflow_that_was_silent_ends_the_wait() {
        let mut wait = Wait::default();
        for second in 10..100 {
            wait.begin(S(second));
            assert_eq!(wait.since(), Some(S(second)));
            wait.heard(S(second));
        }
    }

    #[test]
    fn a_deadline_and_questions_last_until_the_peer_is_heard() {
        let mut wait = Wait::default();
        wait.expect_answer(S(10), Duration::from_secs(100));
        wait.expect_answer(S(50), Duration::from_secs(100));
        assert_eq!(wait.answer_by(), Some(S(110)), "the first one counts");
        assert!(wait.begin_questions(S(10)) && !wait.begin_questions(S(11)));
        let asked: Vec<u64> = (10..80).filter(|second| wait.is_question_due(S(*second))).collect();
        assert_eq!(asked, [12, 16, 24, 39, 54, 69]);
        wait.begin_without_subflows(S(80), CloseReason::TimedOut);
        assert_eq!(wait.answer_by(), Some(S(110)), "that subflows end is no answer");
        wait.heard(S(90));
        assert_eq!((wait.answer_by(), wait.next_question_at()), (None, None));
        // Nor is it one that a new wait begins.
        wait.expect_answer(S(91), Duration::from_secs(100));
        wait.begin_without_subflows(S(105), CloseReason::TimedOut);
        assert_eq!((wait.since(), wait.answer_by()), (Some(S(105)), Some(S(191))));
    }

    #[test]
    fn resets_count_until_something_else_becomes_of_a_join() {
        let mut wait = Wait::default();
        assert!(!wait.on_lost(S(0), CloseReason::PeerReset, true));
        assert!(!wait.on_lost(S(29), CloseReason::Refused, true));
        assert!(!wait.on_lost(S(31), CloseReason::Refused, false), "another one is there");
        assert!(!wait.on_lost(S(29), CloseReason::TimedOut, false));
        assert!(!wait.on_lost(S(31), CloseReason::Refused, true));
        assert!(wait.on_lost(S(61), CloseReason::Refused, true));
    }
}
