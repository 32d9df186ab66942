//! Timers of the connection beside those of its subflows.

use marline_policy::{Mapping, SubflowId};
use marline_time::{Duration, Instant};

use super::join::reason;
use super::leg::Membership;
use super::sender::DataTimeout;
use super::{Connection, Leg};
use crate::CloseReason;
use crate::tables::Context;

/// Data-level timeouts after which a subflow that acknowledged the data is not believed any more.
const MAX_DATA_RTOS: u32 = 2;
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
        let [rto, persist] = self.sender.timeouts();
        let scheduler = self.scheduling.next_timeout();
        let own = [rto, persist, fin, scheduler, linger, silence, vigil, ebb];
        let manager = self.path_manager.next_timeout();
        let legs = self.legs.iter().flatten().flat_map(|leg| leg_timeouts(leg));
        let alive = self.closing.closed.is_none();
        let leaving = self.closing.leaving_since.filter(|_| self.legs_count() > 0);
        let leaving = leaving.map(|since| since + LEAVING);
        let own = own.into_iter().chain(self.sender.nagle().timeouts()).chain([
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
        self.scheduling.on_timeout(now);
        self.on_nagle_timeout(cx);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.sender.timeouts()[0]) {
            self.on_data_rto(cx);
        }
        if due(self.sender.timeouts()[1]) {
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

    /// Times of held segments have come, or data went unacknowledged for as long as the application allows.
    fn on_nagle_timeout(&mut self, cx: &mut Context<'_>) {
        if self.sender.on_nagle_timeout(cx.now) {
            self.finish(cx, CloseReason::TimedOut);
            for leg in self.legs.iter_mut().flatten() {
                leg.shut = true;
                leg.tcp.reset();
            }
        }
    }

    /// Something may be under way: from now on somebody should acknowledge it.
    pub(super) fn watch_progress(&mut self, now: Instant) {
        let fin = self.closing.fin_sent && !self.closing.fin_acked;
        self.sender.watch_progress(now, fin);
    }

    /// Data is outstanding at the data level: somebody must account for it.
    pub(super) fn rearm_data_rto(&mut self, now: Instant) {
        if self.session.is_plain() {
            self.sender.disarm_rto();
        } else {
            self.sender.rearm_rto(now, self.largest_rto());
        }
    }

    pub(super) fn rearm_after_sending(&mut self, now: Instant) {
        self.ebb.note_busy(now);
        self.sender.stop_persist();
        if !self.sender.is_rto_armed() {
            self.rearm_data_rto(now);
        }
    }

    /// No DATA_ACK for long although subflows are alive: the oldest data goes again, anywhere. The
    /// usual ways (subflow RTO, unanswered probe) have had their time by now; this is for a path that
    /// acknowledges what it does not deliver.
    fn on_data_rto(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        self.sender.count_rto();
        self.rearm_data_rto(now);
        let Some(timeout) = self.sender.data_timeout(now) else { return };
        let DataTimeout { oldest: Mapping { range, carried_by }, fired_at, count } = timeout;
        let in_flight = |id: SubflowId| {
            self.leg(id).is_some_and(|leg| leg.is_usable() && holds(leg, range.start))
        };
        // A subflow that still repeats it by itself needs no help unless it is suspected.
        let covered = carried_by
            .iter()
            .any(|id| in_flight(id) && self.leg(id).is_some_and(|leg| !leg.suspected));
        // What is acknowledged there and never arrives leaves a hole that no later data can pass, not
        // even the same data again; and yet the peer is heard.
        let lies = |leg: &Leg| {
            let patience = MAX_DATA_RTOS + u32::from(holds(leg, range.start));
            let heard = leg.tcp.last_heard_at() > fired_at || !holds(leg, range.start);
            leg.is_usable() && heard && count > patience
        };
        if let Some(id) = carried_by.iter().find(|id| self.leg(*id).is_some_and(lies)) {
            self.reset_leg(cx, id, reason::BAD_PERFORMANCE, CloseReason::TimedOut);
        }
        self.sender.repeat_orphans(now);
        if !covered && !self.may_still_fall_back() {
            let (rto, legs) = (self.largest_rto(), &self.legs);
            let alive = |id: SubflowId| {
                let leg = legs.get(usize::from(id.0))?.as_deref()?;
                Some(leg).filter(|leg| !leg.suspected)
            };
            self.sender.repeat_hole(now, fired_at, rto, |part| {
                part.carried_by.iter().filter_map(alive).any(|leg| holds(leg, part.range.start))
            });
        }
    }

    /// The peer's window is shut and nothing is in flight that would bring news of it.
    pub(super) fn rearm_persist(&mut self, now: Instant) {
        let usable = self.usable_legs() > 0;
        self.sender.rearm_persist(now, usable, self.largest_rto());
    }

    /// A probe is due, or the answer to the last one.
    ///
    /// It goes where it arrives soonest. If nothing comes back within an RTO, that path may be dead without
    /// anybody knowing (nothing is in flight that could be missed), and the update lost there: then all are
    /// asked. As long as answers come, one path is: others may be asleep.
    fn on_persist(&mut self, now: Instant) {
        self.sender.stop_persist();
        let rto = self.largest_rto();
        let best = self.best_leg();
        let heard_since = |at: Instant| {
            best.and_then(|id| self.leg(id)).is_some_and(|leg| leg.tcp.last_heard_at() > at)
        };
        let pause = self.sender.persist_pause(rto);
        let answered = self.sender.probed_at().map(|at| (at + pause, heard_since(at)));
        if let Some((next, true)) = answered
            && now < next
        {
            self.sender.put_persist_off(Some(next));
            return;
        }
        let all = answered.is_some_and(|(_, heard)| !heard);
        let silent = self.sender.on_probe(now, self.last_heard_at());
        self.note_silence(now, silent);
        for id in self.leg_ids().filter(|id| all || best == Some(*id)) {
            if let Some(leg) = self.leg_mut(id).filter(|leg| leg.is_usable()) {
                leg.tcp.request_probe();
            }
        }
        // Who has one path asks nobody else sooner (RFC 9293 section 3.8.6.1: the pauses grow).
        let alone = self.usable_legs() < 2;
        let pause = if all || alone { self.sender.persist_pause(rto) } else { rto };
        self.sender.put_persist_off(Some(now + pause));
        self.rearm_persist(now);
    }

    /// The peer took too long to close: nobody here waits for it any more.
    fn leave_now(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        if self.closing.closed.is_none() {
            let una = self.sender.una();
            if self.sender.written() > una && una > self.closing.leaving_una {
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
