//! The wait for a path: how long a connection that no subflow carries is kept, and what cuts that short.
//!
//! A RST on a subflow ends the subflow, not the connection (RFC 8684 section 3.6), and any box on the way can
//! send one. So the connection goes on without subflows, the path manager tries all it knows, and the wait
//! has three ends:
//! - something comes, and it was only a hole;
//! - [`Linger::timeout`](crate::Linger) passes without any progress, or the shorter time that a server has for a
//!   stranger that sent a RST;
//! - all there is to hear for [`REFUSED_PATIENCE`] is resets: the host is there, and nobody on it knows of
//!   the connection. A join that nobody answers starts that anew: a reset on one path says nothing of
//!   another one that is silent for now. Where the peer itself says that it does not know the token
//!   (MP_TCPRST with an MPTCP error, not transient), no time is lost on asking again.
//!
//! A wait begins when the last subflow is gone, when its retransmissions stay unanswered, and when what TCP
//! does not repeat by itself does: window probes and DATA_FINs, twice in a row, on all subflows.
//!
//! A path that comes, is heard for a moment and dies again brings no progress: the wait goes on where it was.

use marline_policy::SubflowId;
use marline_time::{Duration, Instant};
use marline_wire::mptcp::MpTcpRst;

use super::join::reason;
use super::{Connection, Leg};
use crate::tables::Context;
use crate::{CloseReason, Linger, SubflowState};

/// How long every way may be answered by nothing but resets.
const REFUSED_PATIENCE: Duration = Duration::from_secs(30);
/// What is heard for less than this, without bringing the stream on, does not end a wait.
const BRIEFLY: Duration = Duration::from_secs(10);
/// Questions in a row without an answer on any subflow after which nobody is held to be there.
const SILENT_AFTER: u32 = 2;
/// How long the other half of a subflow stays open that we closed, with nothing coming on it (Linux:
/// `tcp_fin_timeout`, 60 s).
pub(super) const HALF_CLOSED: Duration = Duration::from_secs(60);

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
}

impl Wait {
    /// Since when nothing is heard; `None`: there is nothing to wait for.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since.filter(|_| self.over_at.is_none())
    }

    /// Nothing is heard any more.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.over_at.take().is_some_and(|over| now.since(over) >= BRIEFLY) {
            *self = Wait::default();
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
        if !self.pathless {
            self.since = None;
        } else if self.since.is_some() {
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
    /// When the peer was last heard on a subflow that is there.
    pub(super) fn last_heard_at(&self) -> Option<Instant> {
        let usable = self.legs.iter().flatten().filter(|leg| leg.is_usable());
        usable.map(|leg| leg.tcp.last_heard_at()).max()
    }

    /// So many questions in a row went unanswered on all subflows. One answer may get lost.
    pub(super) fn note_silence(&mut self, now: Instant, unanswered: u32) {
        if unanswered >= SILENT_AFTER {
            self.wait.begin(now);
        }
    }

    /// A subflow of which we closed our half, and the peer has acknowledged that.
    pub(super) fn note_half_closed(&mut self, now: Instant, id: SubflowId) {
        let plain = self.session.is_plain();
        if let Some(leg) = self.leg_mut(id)
            && !plain
            && leg.tcp.state() == SubflowState::FinWait2
        {
            leg.half_closed_at.get_or_insert(now);
        }
    }

    /// The peer does not close its half of a subflow, and sends nothing on it: its place is wanted.
    pub(super) fn on_half_closed_for_long(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        if self.leg(id).and_then(Leg::half_closed_until).is_some_and(|until| until <= now) {
            self.on_leg_dead(cx, id);
        }
    }

    /// When the wait for a path is over.
    pub(super) fn wait_ends_at(&self) -> Option<Instant> {
        let Linger { timeout, stranger } = self.config.linger;
        let stranger = stranger.filter(|_| self.wait.by_reset && self.session.is_server());
        self.wait.since().map(|since| since + stranger.map_or(timeout, |short| short.min(timeout)))
    }

    /// A server's connection that nobody vouches for and no subflow carries.
    pub(crate) fn is_stranger_without_path(&self) -> bool {
        self.wait.since().is_some()
            && self.session.is_server()
            && self.config.linger.stranger.is_some()
            && self.closing.closed.is_none()
            && self.legs_count() == 0
    }

    /// Others wait for their paths, too.
    pub(crate) fn give_place_up(&mut self, cx: &mut Context<'_>) {
        self.abort_because(cx, CloseReason::TimedOut);
    }

    /// A connection without subflows can be continued by a join.
    pub(super) fn may_come_back(&self) -> bool {
        self.session.is_confirmed() && self.closing.closed.is_none()
    }

    /// A subflow ended without a word from us being owed: reset, refused, timed out.
    pub(super) fn on_leg_lost(&mut self, cx: &mut Context<'_>, id: SubflowId, reason: CloseReason) {
        let now = cx.now;
        let Some(leg) = self.leg(id) else { return };
        let unknown_there = leg.reset_word.is_some_and(says_unknown) && !leg.was_joined();
        self.leg_stops_carrying(now, id);
        self.drop_leg(cx, id, reason);
        let last = self.legs_count() == 0;
        let tried_long = self.wait.on_lost(now, reason, last);
        if self.closing.closed.is_some() || !last {
            return;
        }
        // A finished stream needs no subflow; an unconfirmed one has no other way back.
        if self.closing.fin_acked && self.receiver.fin_reached() {
            self.finish(cx, CloseReason::Finished);
        } else if !self.may_come_back() || unknown_there || self.session.is_client() && tried_long {
            self.finish(cx, reason);
        } else {
            self.wait.begin_without_subflows(now, reason);
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
        wait.begin_without_subflows(S(10), CloseReason::PeerReset);
        wait.heard(S(15));
        assert_eq!(wait.since(), None);
        wait.begin_without_subflows(S(16), CloseReason::PeerReset);
        assert_eq!(wait.since(), Some(S(10)), "nothing came of it");
        wait.heard(S(20));
        wait.begin_without_subflows(S(40), CloseReason::PeerReset);
        assert_eq!(wait.since(), Some(S(40)), "an idle connection was well for 20 s");
        wait.on_progress();
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
