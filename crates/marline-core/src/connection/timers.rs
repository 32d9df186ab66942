//! Timers of the connection beside those of its subflows.

use marline_policy::{DataRange, Mapping, MappingIndex, ReinjectionCause, SubflowId};
use marline_time::{Duration, Instant};

use super::join::reason;
use super::leg::Membership;
use super::reinjection::Queued;
use super::{Connection, Leg};
use crate::CloseReason;
use crate::tables::Context;

/// Longest pause between zero-window probes.
const MAX_PERSIST: Duration = Duration::from_secs(60);
/// Longest data-level RTO: how long a hole that no subflow accounts for may stand.
const MAX_DATA_RTO: Duration = Duration::from_secs(60);
/// Data-level timeouts after which a subflow that acknowledged the data is not believed any more.
const MAX_DATA_RTOS: u32 = 2;
/// Data-level timeouts less than so many RTOs apart, with progress in between, are of one hole.
const HOLES_APART: u32 = 4;
/// How long subflows may take to close once nobody waits for them (Linux: 60 s).
const LEAVING: Duration = Duration::from_secs(60);
/// Without answer to its DATA_FIN for this many repeats a released connection is given up.
const MAX_FIN_REPEATS: u32 = 10;

impl Connection {
    /// When this connection must be woken.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let t = &self.timers;
        let linger = self.wait_ends_at();
        // While nobody can carry it, the DATA_FIN waits for a subflow, not for a time.
        let fin = t.fin_at.filter(|_| !self.closing.fin_acked && self.usable_legs() > 0);
        let (silence, vigil, ebb) =
            (self.silence_timeout(), self.vigil_timeout(), self.ebb.due_at());
        let own = [t.rto_at, t.persist_at, fin, t.scheduler_at, linger, silence, vigil, ebb];
        let manager = self.path_manager.next_timeout();
        let legs = self.legs.iter().flatten().flat_map(|leg| leg_timeouts(leg));
        let alive = self.closing.closed.is_none();
        let leaving = self.closing.leaving_since.filter(|_| self.legs_count() > 0);
        let leaving = leaving.map(|since| since + LEAVING);
        let own = own.into_iter().chain(self.pushing.timeouts()).chain([
            manager,
            self.addresses.next_timeout(),
            self.session.next_timeout(),
        ]);
        own.filter(|_| alive).chain([leaving]).flatten().chain(legs.flatten()).min()
    }

    /// Some of those times have come.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        for id in self.leg_ids() {
            self.leg_timeout(cx, id);
        }
        if self.closing.leaving_since.is_some_and(|since| since + LEAVING <= now) {
            self.leave_now(cx);
        }
        if self.closing.closed.is_some() {
            return;
        }
        self.timers.scheduler_at = self.timers.scheduler_at.filter(|at| *at > now);
        self.on_pushing_timeout(cx);
        if self.timers.rto_at.is_some_and(|at| at <= now) {
            self.on_data_rto(cx);
        }
        if self.timers.persist_at.is_some_and(|at| at <= now) {
            self.on_persist(now);
        }
        self.on_ebb_timeout(now);
        self.on_silence_timeout(cx);
        self.on_vigil_timeout(cx);
        if self.path_manager.next_timeout().is_some_and(|at| at <= now) {
            self.with_path_context(cx, |manager, cx| manager.on_timeout(cx));
            self.apply_path_actions(cx);
        }
        if self.addresses.next_timeout().is_some_and(|at| at <= now) {
            self.repeat_announcements(cx);
        }
        self.repeat_hello(cx);
        self.check_linger(cx);
        self.advance_closing(cx);
    }

    fn leg_timeout(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        if self.leg(id).is_some_and(|leg| leg.tcp.next_timeout().is_some_and(|at| at <= now)) {
            // A coupled controller reads its siblings at a loss as it does at an ACK.
            self.refresh_group(now, id);
            if let Some(leg) = self.leg_mut(id) {
                leg.tcp.on_timeout(now);
            }
            self.drain_subflow_events(cx, id);
        }
        self.on_patience_over(cx, id);
        self.on_half_closed_for_long(cx, id);
        self.repeat_third_ack(cx, id);
        self.repeat_mp_fail(cx, id);
    }

    /// Data is outstanding at the data level: somebody must account for it.
    pub(super) fn rearm_data_rto(&mut self, now: Instant) {
        if self.mappings.oldest().is_none() || self.session.is_plain() {
            self.timers.rto_at = None;
            return;
        }
        let rto = self.largest_rto() * 2 * (1 << self.timers.rto_count.min(6));
        self.timers.rto_at = Some(now + rto.min(MAX_DATA_RTO));
    }

    pub(super) fn rearm_after_sending(&mut self, now: Instant) {
        self.ebb.note_busy(now);
        self.timers.persist_at = None;
        if self.timers.rto_at.is_none() {
            self.rearm_data_rto(now);
        }
    }

    /// No DATA_ACK for long although subflows are alive: the oldest data goes again, anywhere. The
    /// usual ways (subflow RTO, unanswered probe) have had their time by now; this is for a path that
    /// acknowledges what it does not deliver.
    fn on_data_rto(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        self.timers.rto_count += 1;
        self.rearm_data_rto(now);
        let Some(Mapping { range, carried_by }) = self.mappings.oldest() else { return };
        let in_flight = |id: SubflowId| {
            self.leg(id).is_some_and(|leg| leg.is_usable() && holds(leg, range.start))
        };
        // A subflow that still repeats it by itself needs no help unless it is suspected.
        let covered = carried_by
            .iter()
            .any(|id| in_flight(id) && self.leg(id).is_some_and(|leg| !leg.suspected));
        let fired_at = self.timers.rto_fired_at.replace(now).unwrap_or(now);
        // What is acknowledged there and never arrives leaves a hole that no later data can pass, not
        // even the same data again; and yet the peer is heard.
        let lies = |leg: &Leg| {
            let patience = MAX_DATA_RTOS + u32::from(holds(leg, range.start));
            let heard = leg.tcp.last_heard_at() > fired_at || !holds(leg, range.start);
            leg.is_usable() && heard && self.timers.rto_count > patience
        };
        if let Some(id) = carried_by.iter().find(|id| self.leg(*id).is_some_and(lies)) {
            self.reset_leg(cx, id, reason::BAD_PERFORMANCE, CloseReason::TimedOut);
        }
        self.repeat_orphans(now);
        if !covered && !self.may_still_fall_back() {
            self.repeat_hole(now, fired_at);
        }
    }

    /// What no subflow that lives has carried is surely missing, all of it.
    fn repeat_orphans(&mut self, now: Instant) {
        let sent = DataRange::new(self.send.una(), self.mappings.end());
        let orphans = self.mappings.parts(sent).filter(|part| part.carried_by.is_empty());
        for part in orphans {
            let (range, cause) = (part.range, ReinjectionCause::SubflowClosed);
            self.reinjections.push(Queued { range, cause, since: now, from: None, on: None });
        }
    }

    /// The oldest data goes again, whoever acknowledged it. How much behind it is missing, too, nobody
    /// knows: if the next is due as soon as this has arrived, twice as much goes then.
    fn repeat_hole(&mut self, now: Instant, fired_at: Instant) {
        let una = self.send.una();
        let prompt = now.since(fired_at) <= self.largest_rto() * HOLES_APART;
        let again = prompt && self.timers.hole_end.is_some_and(|end| una >= end);
        self.timers.hole_mappings =
            if again { self.timers.hole_mappings.saturating_mul(2) } else { 1 };
        let sent = DataRange::new(una, self.mappings.end());
        let unheld = |part: &Mapping| {
            let alive = |id: SubflowId| self.leg(id).filter(|leg| !leg.suspected);
            !part.carried_by.iter().filter_map(alive).any(|leg| holds(leg, part.range.start))
        };
        let parts = self.mappings.parts(sent).take(self.timers.hole_mappings as usize);
        let missing: Vec<DataRange> = parts.filter(unheld).map(|part| part.range).collect();
        self.timers.hole_end = missing.first().map(|first| first.end);
        for range in missing {
            self.reinjections.remove(range);
            let cause = ReinjectionCause::DataRto;
            self.reinjections.push(Queued { range, cause, since: now, from: None, on: None });
        }
    }

    /// The peer's window is shut and nothing is in flight that would bring news of it.
    pub(super) fn rearm_persist(&mut self, now: Instant) {
        let waiting = self.send.end() > self.mappings.end();
        let idle = self.mappings.oldest().is_none();
        if !waiting || !idle || self.usable_legs() == 0 || self.window_end > self.mappings.end() {
            self.timers.persist_at = None;
            return;
        }
        if self.timers.persist_at.is_none() {
            self.timers.persist_at = Some(now + self.persist_pause());
        }
    }

    fn persist_pause(&self) -> Duration {
        (self.largest_rto() * (1 << self.timers.persist_count.min(8))).min(MAX_PERSIST)
    }

    /// A probe is due, or the answer to the last one.
    ///
    /// It goes where it arrives soonest. If nothing comes back within an RTO, that path may be dead without
    /// anybody knowing (nothing is in flight that could be missed), and the update lost there: then all are
    /// asked. As long as answers come, one path is: others may be asleep.
    fn on_persist(&mut self, now: Instant) {
        self.timers.persist_at = None;
        let best = self.best_leg();
        let heard_since = |at: Instant| {
            best.and_then(|id| self.leg(id)).is_some_and(|leg| leg.tcp.last_heard_at() > at)
        };
        let asked_at = self.timers.persist.at();
        let answered = asked_at.map(|at| (at + self.persist_pause(), heard_since(at)));
        if let Some((next, true)) = answered
            && now < next
        {
            self.timers.persist_at = Some(next);
            return;
        }
        let all = answered.is_some_and(|(_, heard)| !heard);
        let silent = self.timers.persist.again(now, self.last_heard_at());
        if silent == 1 {
            // Lost, or the end of the peer: probes that nobody answers are repeated as data is.
            self.timers.persist_count = self.timers.persist_count.min(1);
        }
        self.note_silence(now, silent);
        self.timers.persist_count += 1;
        for id in self.leg_ids().filter(|id| all || best == Some(*id)) {
            if let Some(leg) = self.leg_mut(id).filter(|leg| leg.is_usable()) {
                leg.tcp.request_probe();
            }
        }
        // Who has one path asks nobody else sooner (RFC 9293 section 3.8.6.1: the pauses grow).
        let alone = self.usable_legs() < 2;
        let pause = if all || alone { self.persist_pause() } else { self.largest_rto() };
        self.timers.persist_at = Some(now + pause);
        self.rearm_persist(now);
    }

    /// The peer took too long to close: nobody here waits for it any more.
    fn leave_now(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        if self.closing.closed.is_none() {
            let una = self.send.una();
            if self.send.end() > una && una > self.closing.leaving_una {
                // Still delivering what the application left us with. A peer that takes nothing,
                // though it answers (a window that stays shut), has had its time.
                self.closing.leaving_since = Some(now);
                self.closing.leaving_una = una;
                return;
            }
            self.abort(cx);
            return;
        }
        for id in self.leg_ids() {
            self.drop_leg(cx, id, CloseReason::TimedOut);
        }
    }

    fn check_linger(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let waited = self.wait_ends_at().is_some_and(|at| at <= now);
        let given_up = self.closing.released && self.timers.fin_count > MAX_FIN_REPEATS;
        if waited || given_up {
            // The peer may hear us and wait for us: the key lets it believe a reset behind a hole.
            self.abort_because(cx, CloseReason::TimedOut);
        }
    }
}

fn leg_timeouts(leg: &Leg) -> [Option<Instant>; 5] {
    let repeat = match leg.membership {
        Membership::Joining(joining) => joining.repeat_at,
        _ => None,
    };
    let half_closed = leg.half_closed_until();
    [leg.tcp.next_timeout(), leg.patience_until, repeat, leg.fail.repeat_at, half_closed]
}

/// Whether the subflow still has this byte on its own scoreboard.
fn holds(leg: &Leg, at: marline_policy::Dsn) -> bool {
    leg.tcp.unacked().any(|s| s.dsn <= at && at < s.dsn.plus(s.payload_len()))
}
