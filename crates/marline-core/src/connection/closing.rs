//! Closing state of a connection: shutdown, DATA_FIN, release, and the wait for a path.
//!
//! A DATA_FIN occupies one DSN behind the data. It goes out in a DSS of its own as soon as all data
//! was handed to subflows, on the best of them, and is repeated by timer on all, since TCP does not
//! retransmit a segment without payload. When both sides' DATA_FINs are acknowledged the subflows
//! close as TCP does; their FINs carry the last DATA_ACK.

use marline_policy::{Dsn, SubflowId, SubflowSet};
use marline_time::{Duration, Instant};

use super::asked::Asked;
use super::wait::Wait;
use crate::on_demand::{OnDemand, Unused};
use crate::{CloseReason, Linger};

/// Last subflows that we reset one after the other, without progress in between, before the connection
/// ends.
const MAX_FUTILE_RESETS: u32 = 5;
/// How long subflows may take to close once nobody waits for them (Linux: 60 s).
const LEAVING: Duration = Duration::from_secs(60);
/// Without answer to its DATA_FIN for this many repeats a released connection is given up.
const MAX_FIN_REPEATS: u32 = 10;
/// Questions in a row without an answer on any subflow after which nobody is held to be there.
const SILENT_AFTER: u32 = 2;
/// DATA_FINs after which ACKs without a DATA_ACK are no chance any more.
const BARE_FINS: u32 = 4;

/// When the DATA_FIN goes out again.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Due {
    #[default]
    Never,
    At(Instant),
    /// So long after it went out last as the timeouts that hold then say, the retransmission timeout multiplied by
    /// this. Not a time, as round trips are measured while it is under way.
    Timeouts(u32),
}

/// Timeouts by which a DATA_FIN is repeated.
#[derive(Copy, Clone, Debug)]
pub(super) struct FinTimeouts {
    /// The retransmission timeout.
    pub(super) rto: Duration,
    /// When the answer to a DATA_FIN that arrived is overdue, if round trips were measured.
    pub(super) probe: Option<Duration>,
}

/// Our DATA_FIN.
#[derive(Copy, Clone, Debug, Default)]
struct DataFin {
    sent: bool,
    acked: bool,
    due: Due,
    /// How often it was repeated in a row, with backoff.
    count: u32,
    /// A tail probe was sent for it.
    probed: bool,
    /// The subflows that it has yet to go on now.
    on: SubflowSet,
    /// Those it went on last.
    went_on: SubflowSet,
    /// Whether anything was heard between two of them.
    asked: Asked,
}

/// The way out, once it is taken.
#[derive(Copy, Clone, Debug, Default)]
struct Leaving {
    fin: DataFin,
    /// When it was over, or when the application let go of it.
    since: Option<Instant>,
    /// What the peer had then.
    una: Dsn,
}

impl Unused for Leaving {
    const UNUSED: &'static Self = &Leaving {
        fin: DataFin {
            sent: false,
            acked: false,
            due: Due::Never,
            count: 0,
            probed: false,
            on: SubflowSet::EMPTY,
            went_on: SubflowSet::EMPTY,
            asked: Asked::NEVER,
        },
        since: None,
        una: Dsn(0),
    };
}

/// How far the connection is on its way out.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// The application writes no more.
    shutdown: bool,
    leaving: OnDemand<Leaving>,
    /// The application let go.
    released: bool,
    /// Data came that nobody will read.
    came_late: bool,
    /// It is over, and why.
    closed: Option<CloseReason>,
    /// The application knows of the connection.
    announced: bool,
    /// Subflows that we had to reset since the stream last moved on in either direction.
    futile_resets: u32,
    wait: OnDemand<Wait>,
    /// The application knows who the peer is.
    peer_known: bool,
}

impl Closing {
    /// The application knows of the connection from now on.
    pub(super) const fn announce(&mut self) {
        self.announced = true;
    }

    pub(super) const fn is_announced(&self) -> bool {
        self.announced
    }

    /// It is over, and why.
    pub(super) const fn reason(&self) -> Option<CloseReason> {
        self.closed
    }

    /// It is over for the application; subflows may linger.
    pub(super) const fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// The connection is over. `false`: it was before.
    pub(super) fn close(&mut self, now: Instant, reason: CloseReason) -> bool {
        if self.closed.is_some() {
            return false;
        }
        self.closed = Some(reason);
        self.leaving.since = Some(now);
        true
    }

    /// The application writes no more.
    pub(super) const fn shut_down(&mut self) {
        self.shutdown = true;
    }

    pub(super) const fn is_shut_down(&self) -> bool {
        self.shutdown
    }

    /// The application lets go; the peer has what lies before `una`.
    pub(super) fn release(&mut self, now: Instant, una: Dsn) {
        self.released = true;
        self.leaving.since = Some(now);
        self.leaving.una = una;
    }

    pub(super) const fn is_released(&self) -> bool {
        self.released
    }

    /// Nobody has use for it any more.
    pub(super) const fn is_forgotten(&self) -> bool {
        self.closed.is_some() && (self.released || !self.announced)
    }

    /// Data came that nobody will read.
    pub(super) const fn note_late_data(&mut self) {
        self.came_late = true;
    }

    pub(super) const fn has_late_data(&self) -> bool {
        self.came_late
    }

    pub(super) fn fin_sent(&self) -> bool {
        self.leaving.fin.sent
    }

    pub(super) fn fin_acked(&self) -> bool {
        self.leaving.fin.acked
    }

    /// Our DATA_FIN is under way.
    pub(super) fn fin_outstanding(&self) -> bool {
        self.leaving.fin.sent && !self.leaving.fin.acked
    }

    /// All data was handed to subflows: the DATA_FIN goes out now.
    pub(super) fn send_fin(&mut self, now: Instant) {
        self.leaving.fin.sent = true;
        self.leaving.fin.due = Due::At(now);
    }

    /// A DATA_ACK; `beyond`: of more than the data.
    pub(super) fn on_data_ack(&mut self, beyond: bool) {
        if let Some(Leaving { fin, .. }) = self.leaving.if_used() {
            fin.acked |= fin.sent && beyond;
        }
    }

    /// The stream moved on in either direction.
    pub(super) fn on_progress(&mut self) {
        self.futile_resets = 0;
        self.wait.retire();
    }

    /// Who takes data has not been silent about its end.
    pub(super) fn on_data_taken(&mut self) {
        if let Some(Leaving { fin, .. }) = self.leaving.if_used() {
            fin.count = fin.count.min(1);
        }
    }

    /// A subflow came up. A DATA_FIN that was lost with another, and backs off, goes again at once, and there: the
    /// others may let no options pass, or nothing.
    pub(super) fn resume(&mut self, now: Instant, id: SubflowId) {
        if self.fin_outstanding() {
            (self.leaving.fin.count, self.leaving.fin.probed) = (0, false);
            self.leaving.fin.on = SubflowSet::of(id);
            self.leaving.fin.due = Due::At(now);
        }
    }

    /// The subflows that the DATA_FIN under way went on last, and when it was sent.
    pub(super) fn fin_under_way(&self) -> Option<(Instant, SubflowSet)> {
        let sent_at = self.leaving.fin.asked.at().filter(|_| self.fin_outstanding())?;
        Some((sent_at, self.leaving.fin.went_on))
    }

    /// The DATA_FIN goes out now.
    pub(super) fn hasten_fin(&mut self, now: Instant) {
        self.leaving.fin.due = Due::At(now);
    }

    /// No DATA_FIN goes out any more.
    pub(super) fn stop_fin(&mut self) {
        if let Some(Leaving { fin, .. }) = self.leaving.if_used() {
            fin.due = Due::Never;
        }
    }

    /// When the DATA_FIN goes out again.
    pub(super) fn fin_at(&self, timeouts: impl FnOnce() -> FinTimeouts) -> Option<Instant> {
        let fin = &self.leaving.fin;
        match fin.due {
            Due::Never => None,
            Due::At(at) => Some(at),
            Due::Timeouts(backoff) => {
                let FinTimeouts { rto, probe } = timeouts();
                let wait = rto * backoff;
                let wait = probe.filter(|_| !fin.probed).map_or(wait, |probe| probe.min(wait));
                Some(fin.asked.at()? + wait)
            }
        }
    }

    /// Where the DATA_FIN that is due goes next: first on the best subflow, its repeats on each. Which of them
    /// lost it nobody knows, and no subflow repeats what occupies no sequence space; Linux uses all from the first.
    pub(super) fn next_for_fin(
        &mut self,
        usable: SubflowSet,
        best: Option<SubflowId>,
    ) -> Option<SubflowId> {
        let left = self.leaving.fin.on.iter().find(|id| usable.contains(*id));
        if left.is_some() {
            return left;
        }
        let first = self.leaving.fin.count == 0;
        let on = if first { SubflowSet::of(best?) } else { usable };
        (self.leaving.fin.on, self.leaving.fin.went_on) = (on, SubflowSet::EMPTY);
        on.iter().next()
    }

    /// The DATA_FIN goes on this subflow. Whether it went out wherever it was to go.
    pub(super) fn fin_goes_on(&mut self, id: SubflowId, usable: SubflowSet) -> bool {
        self.leaving.fin.on.remove(id);
        self.leaving.fin.went_on.insert(id);
        !self.leaving.fin.on.iter().any(|id| usable.contains(id))
    }

    /// It went out and goes out again: once soon, as a tail probe does (RFC 8985 section 7), then after an RTO, doubled
    /// each time. The peer was last heard at `heard_at`. How many in a row went unanswered.
    pub(super) fn rearm_fin(&mut self, now: Instant, heard_at: Option<Instant>) -> u32 {
        let fin = &mut self.leaving.fin;
        let silent = fin.asked.again(now, heard_at);
        // After the first the probe is next, which is no backoff.
        if fin.count == 1 && !fin.probed {
            fin.probed = true;
        } else {
            fin.count += 1;
        }
        fin.due = Due::Timeouts(1 << (fin.count - 1).min(6));
        silent
    }

    /// A last subflow was reset by us. Whether that happened too often.
    pub(super) const fn note_futile_reset(&mut self) -> bool {
        self.futile_resets += 1;
        self.futile_resets > MAX_FUTILE_RESETS
    }

    /// The peer is heard.
    pub(super) fn heard(&mut self, now: Instant) {
        if let Some(wait) = self.wait.if_used() {
            wait.heard(now);
        }
    }

    /// Nothing is heard any more.
    pub(super) fn begin_wait(&mut self, now: Instant) {
        self.wait.begin(now);
    }

    /// No subflow is left.
    pub(super) fn begin_wait_without_subflows(&mut self, now: Instant, why: CloseReason) {
        self.wait.begin_without_subflows(now, why);
    }

    /// A subflow or an attempt at one ended, the `last` there was, perhaps; whether resets have been all
    /// there is for too long.
    pub(super) fn on_subflow_lost(&mut self, now: Instant, why: CloseReason, last: bool) -> bool {
        self.wait.on_lost(now, why, last)
    }

    /// So many questions in a row went unanswered on all subflows. One answer may get lost.
    pub(super) fn note_silence(&mut self, now: Instant, unanswered: u32) {
        if unanswered >= SILENT_AFTER {
            self.wait.begin(now);
        }
    }

    /// The application knows who the peer is: no stranger.
    pub(super) const fn vouch_for_peer(&mut self) {
        self.peer_known = true;
    }

    /// Nothing is heard of a peer that nobody vouches for.
    pub(super) fn is_stranger_waiting(&self, linger: Linger) -> bool {
        let strange = linger.stranger.is_some() && !self.peer_known;
        self.closed.is_none() && strange && self.wait.since().is_some()
    }

    /// When the wait for a path, or for a sign of life, is over.
    pub(super) fn wait_ends_at(&self, linger: Linger, server: bool) -> Option<Instant> {
        let Linger { timeout, stranger } = linger;
        let strange = server && !self.peer_known && self.wait.is_by_reset();
        let timeout = stranger.filter(|_| strange).map_or(timeout, |short| short.min(timeout));
        let lingers_until = self.wait.since().map(|since| since + timeout);
        lingers_until.into_iter().chain(self.wait.answer_by()).min()
    }

    /// The peer has to be heard within this time.
    pub(super) fn expect_answer(&mut self, now: Instant, within: Duration) {
        self.wait.expect_answer(now, within);
    }

    /// The peer is asked on all subflows until it is heard. Whether the first question goes out now.
    pub(super) fn begin_questions(&mut self, now: Instant) -> bool {
        self.wait.begin_questions(now)
    }

    /// There is no subflow to ask on.
    pub(super) fn stop_questions(&mut self) {
        if let Some(wait) = self.wait.if_used() {
            wait.stop_questions();
        }
    }

    /// When it is asked the next time.
    pub(super) fn next_question_at(&self) -> Option<Instant> {
        self.wait.next_question_at()
    }

    /// Whether that is due; then the next time is set.
    pub(super) fn is_question_due(&mut self, now: Instant) -> bool {
        self.wait.if_used().is_some_and(|wait| wait.is_question_due(now))
    }

    /// When subflows have had their time to close.
    pub(super) fn leaves_at(&self) -> Option<Instant> {
        self.leaving.since.map(|since| since + LEAVING)
    }

    /// The application let go of data that is still under way, up to `written`, and the peer has some more of it:
    /// it gets its time anew. A peer that takes nothing, though it answers (a window that stays shut), does not.
    pub(super) fn prolong_leaving(&mut self, now: Instant, una: Dsn, written: Dsn) -> bool {
        let delivers = written > una && una > self.leaving.una;
        if delivers {
            self.leaving.since = Some(now);
            self.leaving.una = una;
        }
        delivers
    }

    /// The DATA_FIN went out often enough to tell that something takes DATA_ACKs out, if it is answered without any.
    pub(super) fn repeats_fin_in_vain(&self) -> bool {
        self.leaving.fin.count >= BARE_FINS
    }

    /// Nobody waits for a peer that does not answer our DATA_FIN.
    pub(super) fn is_given_up(&self) -> bool {
        self.released && self.leaving.fin.count > MAX_FIN_REPEATS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    fn timeouts(rto_ms: u64, probe_ms: Option<u64>) -> impl FnOnce() -> FinTimeouts {
        let probe = probe_ms.map(Duration::from_millis);
        move || FinTimeouts { rto: Duration::from_millis(rto_ms), probe }
    }

    #[test]
    fn the_time_of_a_data_fin_follows_the_timeout_while_it_is_under_way() {
        let mut closing = Closing::default();
        assert_eq!(closing.fin_at(timeouts(1_000, None)), None);
        closing.send_fin(ms(10));
        assert_eq!(closing.fin_at(timeouts(1_000, None)), Some(ms(10)));
        closing.rearm_fin(ms(20), None);
        assert_eq!(closing.fin_at(timeouts(60_000, None)), Some(ms(60_020)));
        assert_eq!(closing.fin_at(timeouts(300, None)), Some(ms(320)), "a round trip was measured");
        assert_eq!(closing.fin_at(timeouts(300, Some(125))), Some(ms(145)));
        assert_eq!(
            closing.fin_at(timeouts(300, Some(900))),
            Some(ms(320)),
            "a probe is never late"
        );
        closing.rearm_fin(ms(145), None);
        assert_eq!(closing.fin_at(timeouts(300, Some(125))), Some(ms(445)), "one probe");
        closing.rearm_fin(ms(445), None);
        assert_eq!(closing.fin_at(timeouts(300, Some(125))), Some(ms(1_045)));
        closing.resume(ms(500), SubflowId(1));
        assert_eq!(closing.fin_at(timeouts(300, Some(125))), Some(ms(500)));
        closing.rearm_fin(ms(500), None);
        assert_eq!(closing.fin_at(timeouts(300, Some(125))), Some(ms(625)), "there, too");
    }
}
