//! The vigil of a receiver: a client that waits for data asks whether anybody is left to send it.
//!
//! *Problem.* Who only receives sends nothing, so it hears nothing of a peer that is gone: a server that
//! was killed and came back knows no such connection, and would say so (RST; on the UDP carrier RESET) to
//! whatever came. TCP leaves that to keepalives after two hours.
//!
//! *What is done.* The client sends an empty segment that every TCP answers at once, [`first`] after data
//! moved last in either direction, then after twice as long, and so on, at most [`longest`] apart. One
//! subflow is asked; as soon as that brought nothing, all are, for a reset ends a subflow, not the
//! connection, and the connection ends when no subflow is left and the peer does not know the next one
//! either (`wait`). Questions that nobody answers count as silence, so that a peer that is gone without a
//! word is given up after [`Linger`](crate::Linger).
//!
//! An answer does not start the questions anew, only data does: the price of silence falls with its
//! length. While something of ours is unacknowledged, its own timers ask, and the vigil rests.
//!
//! [`first`]: crate::ReceiveProbes::first
//! [`longest`]: crate::ReceiveProbes::longest

use marline_policy::MappingIndex as _;
use marline_time::{Duration, Instant};

use super::asked::Asked;
use super::{Connection, Leg};
use crate::ReceiveProbes;
use crate::tables::Context;

/// Where only the reserve is left (a cellular radio), so many are asked, in the seconds in which the radio
/// is awake anyway; then it may sleep until data moves.
const ON_RESERVE: u32 = 3;

/// Questions since data moved last.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Vigil {
    /// When data moved last.
    since: Instant,
    /// When to look again. May be early: what is due is computed then.
    look_at: Option<Instant>,
    /// How many questions were asked since.
    count: u32,
    asked: Asked,
}

impl Vigil {
    /// The peer is there; something may come.
    pub(super) fn begin(&mut self, now: Instant, probes: Option<ReceiveProbes>) {
        if self.look_at.is_none() {
            self.on_data(now, probes);
        }
    }

    /// Data came, or was acknowledged.
    pub(super) fn on_data(&mut self, now: Instant, probes: Option<ReceiveProbes>) {
        let Some(probes) = probes else { return };
        *self = Vigil { since: now, look_at: self.look_at, ..Vigil::default() };
        // Moved to an earlier time only: looking once too often costs less than moving it each time.
        let at = now + probes.first;
        self.look_at = Some(self.look_at.map_or(at, |look_at| look_at.min(at)));
    }

    /// When the next question is due.
    fn due(&self, probes: ReceiveProbes) -> Instant {
        match self.asked.at() {
            None => self.since + probes.first,
            Some(at) => at + pause(probes, self.count),
        }
    }
}

/// The time to the question after `count` of them: the silence so far, as long as that is not too long.
fn pause(probes: ReceiveProbes, count: u32) -> Duration {
    let doubled = probes.first * (1 << count.saturating_sub(1).min(16));
    doubled.min(probes.longest.max(probes.first))
}

impl Connection {
    /// When the vigil has something to look at.
    pub(super) fn vigil_timeout(&self) -> Option<Instant> {
        self.vigil.look_at
    }

    pub(super) fn on_vigil_timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        if self.vigil.look_at.is_none_or(|at| at > now) {
            return;
        }
        let Some(probes) = self.config.receive_probes.filter(|_| self.waits_for_data()) else {
            // The next segment begins it anew.
            self.vigil.look_at = None;
            return;
        };
        let due_at = self.vigil.due(probes);
        if due_at > now {
            self.vigil.look_at = Some(due_at);
            return;
        }
        if self.owes_nothing() {
            self.ask_whether_alive(cx);
        }
        self.vigil.look_at = Some(now + pause(probes, self.vigil.count));
    }

    fn ask_whether_alive(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let heard_at = self.last_heard_at();
        let unanswered = self.vigil.asked.again(now, heard_at);
        self.vigil.count = self.vigil.count.saturating_add(1);
        self.note_silence(now, unanswered);
        cx.out.counters.receive_probes += 1;
        if unanswered == 0 {
            self.ask_for_life(self.best_leg());
            return;
        }
        for leg in self.legs.iter_mut().flatten().filter(|leg| leg.is_usable()) {
            leg.tcp.request_probe();
        }
    }

    /// A client that has a subflow, and to which the peer may still send.
    fn waits_for_data(&self) -> bool {
        self.session.is_client()
            && self.closing.closed.is_none()
            && !self.receiver.fin_reached()
            && self.usable_legs() > 0
            && (self.vigil.count < ON_RESERVE || !self.has_reserve_only())
    }

    fn has_reserve_only(&self) -> bool {
        let mut usable = self.legs.iter().flatten().filter(|leg| leg.is_usable());
        usable.all(|leg| self.is_reserve(leg))
    }

    /// Nothing is under way whose acknowledgement would be missed.
    fn owes_nothing(&self) -> bool {
        let in_flight = |leg: &Leg| leg.tcp.unacked().next().is_some();
        !self.sender.has_outstanding() && !self.legs.iter().flatten().any(|leg| in_flight(leg))
    }
}
