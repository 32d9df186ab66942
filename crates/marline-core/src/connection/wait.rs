//! The wait for a path: how long a connection that no subflow carries is kept, and what cuts that short.
//!
//! A RST on a subflow ends the subflow, not the connection (RFC 8684 section 3.6), and any box on the way can
//! send one. So the connection goes on without subflows, the path manager tries all it knows, and the wait
//! has three ends:
//! - something comes, and it was only a hole;
//! - [`Linger::timeout`](crate::Linger) passes without any progress;
//! - all there is to hear for [`REFUSED_PATIENCE`] is resets: the host is there, and nobody on it knows of
//!   the connection. A join that nobody answers starts that anew: a reset on one path says nothing of
//!   another one that is silent for now. Where the peer itself says that it does not know the token
//!   (MP_TCPRST with an MPTCP error, not transient), no time is lost on asking again.
//!
//! A path that is heard for a moment and dead again brings no progress: the wait goes on where it was.

use marline_policy::{Role, SubflowId};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::MpTcpRst;

use super::Connection;
use super::join::reason;
use crate::CloseReason;
use crate::shared::Shared;

/// How long every way may be answered by nothing but resets.
const REFUSED_PATIENCE: Duration = Duration::from_secs(30);
/// What is heard for less than this, without bringing the stream on, does not end a wait.
const BRIEFLY: Duration = Duration::from_secs(10);

/// A wait for a path, and what came of the attempts to find one.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Wait {
    /// Nothing is heard on any subflow, or none is left, since.
    since: Option<Instant>,
    /// It is over, perhaps only for a moment, since.
    over_at: Option<Instant>,
    /// All that became of subflows since was a reset.
    resets_since: Option<Instant>,
}

impl Wait {
    /// Since when nothing is heard; `None`: there is nothing to wait for.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since.filter(|_| self.over_at.is_none())
    }

    /// Nothing is heard any more, or no subflow is left.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.over_at.take().is_some_and(|over| now.since(over) >= BRIEFLY) {
            *self = Wait::default();
        }
        self.since.get_or_insert(now);
    }

    /// The peer is heard.
    pub(super) fn heard(&mut self, now: Instant) {
        if self.since.is_some() {
            self.over_at.get_or_insert(now);
        }
    }

    /// The stream moved on in either direction.
    pub(super) fn on_progress(&mut self) {
        *self = Wait::default();
    }

    /// A subflow or an attempt at one ended, the `last` there was, perhaps; whether resets have been all
    /// there is for too long.
    fn on_lost(&mut self, now: Instant, why: CloseReason, last: bool) -> bool {
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

impl Connection {
    /// When the wait for a path is over.
    pub(super) fn wait_ends_at(&self) -> Option<Instant> {
        self.wait.since().map(|since| since + self.config.linger.timeout)
    }

    /// A connection without subflows can be continued by a join.
    pub(super) fn may_come_back(&self) -> bool {
        self.is_confirmed() && self.closing.closed.is_none()
    }

    /// A subflow ended without a word from us being owed: reset, refused, timed out.
    pub(super) fn on_leg_lost(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        reason: CloseReason,
    ) {
        let Some(leg) = self.leg(id) else { return };
        let unknown_there = leg.reset_word.is_some_and(says_unknown) && !leg.was_joined();
        self.leg_stops_carrying(now, id);
        self.drop_leg(now, sh, id, reason);
        let last = self.legs_count() == 0;
        let tried_long = self.wait.on_lost(now, reason, last);
        if self.closing.closed.is_some() || !last {
            return;
        }
        // A finished stream needs no subflow; an unconfirmed one has no other way back.
        if self.closing.fin_acked && self.receive.fin_reached() {
            self.finish(now, sh, CloseReason::Finished);
        } else if !self.may_come_back() || unknown_there || self.role == Role::Client && tried_long
        {
            self.finish(now, sh, reason);
        } else {
            self.wait.begin(now);
        }
    }
}

/// The peer's own word that no connection has the token: no box that only resets says it.
const fn says_unknown(word: MpTcpRst) -> bool {
    word.reason == reason::MPTCP_ERROR && !word.transient
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Instant = Instant::from_secs;

    #[test]
    fn what_is_heard_for_a_moment_does_not_start_the_wait_anew() {
        let mut wait = Wait::default();
        wait.begin(S(10));
        wait.heard(S(15));
        assert_eq!(wait.since(), None);
        wait.begin(S(16));
        assert_eq!(wait.since(), Some(S(10)), "nothing came of it");
        wait.heard(S(20));
        wait.begin(S(40));
        assert_eq!(wait.since(), Some(S(40)), "an idle connection was well for 20 s");
        wait.on_progress();
        wait.begin(S(41));
        assert_eq!(wait.since(), Some(S(41)));
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
