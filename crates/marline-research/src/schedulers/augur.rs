//! AUGUR: whether the costly path is worth it, message by message (Tencent's cloud gaming; NSDI 2025).
//!
//! *Problem.* A game over WiFi stalls when the radio fades for a moment. A cellular path would carry those frames
//! in time, but its bytes cost money: of all frames, only those few should take it that would be late otherwise.
//!
//! *How.* The primary (`primary.rs`) carries all data. When everything written has been sent, that is the end of a
//! message, and it is decided whether what is outstanding of it goes on the second path as well. So it is, too,
//! when the primary has no room for the rest of a message; then that rest goes on the second path instead, or
//! waits. The gain is the delay that this is expected to save: a model of the primary's states
//! (`augur/model.rs`) says how probable it is that the message comes late and by how much; what the copy itself
//! takes longer is subtracted, and the second path's own lateness taken into account. If the answer is overdue,
//! lateness is certain, and it is decided again. The copy is made if
//!
//! - the byte budget allows it: each byte of new data adds `budget` bytes to a purse, which holds `purse` at
//!   most and begins half full; and
//! - the gain is at least `worth` per segment, twice that with a quarter of the purse left, half of it with a full one.
//!
//! *Source.* The abstract of "AUGUR: Practical mobile multipath transport service for low tail latency in real-time
//! streaming", all that could be read: models of state probabilities for each user, and from them integer linear
//! programs for each session that say when frames are sent again and on which path, so that tail latency and
//! cellular bytes are balanced. The venue is from memory. States, thresholds, budget and price are our assumptions.
//!
//! *What differs.* An integer program with one limit on bytes is a knapsack: relaxed, its best answer is to take
//! all whose gain per byte is above a price. Messages come one at a time, so here the price follows the purse,
//! and nothing has to be solved. A byte stream has no frames and no deadlines: what was written and sent without
//! more to follow is a message, and each millisecond counts alike. Outcomes are learned from the ACKs of each
//! subflow, so a copy that came first does not hide how late the original was. A backup is taken only with
//! `backup=on`; otherwise the second path is the next regular one. If the primary is silent or gone, the
//! others take over by class, whatever the budget.
//!
//! *Extra bytes:* at most `budget` of the data, the purse, and what recovery repeats. *p99 of a small message:* on a
//! path that tells of its bad times by RTT, loss or habit, the second path's, as long as the purse lasts; a loss that
//! nothing foretold costs the time until the answer is overdue, and the second path's delay.

mod model;

use std::collections::VecDeque;

use marline_algos::schedulers::classes;
use marline_algos::schedulers::copies::{not_on, queue_is_empty};
use marline_policy::{
    DataRange, Decision, Dsn, Reinjection, Scheduler, SchedulerAction, SchedulerContext,
    SchedulerEvent, SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};

use super::primary::{self, Primary};
use model::{Model, State, due_at};

/// Messages whose answer is awaited at a time; older ones teach nothing.
const MAX_WATCHED: usize = 32;

/// What the costly path may cost, and what it must bring.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AugurConfig {
    /// Bytes that each byte of new data allows to be sent again, 0 to 1.
    pub budget: f64,
    /// Bytes that can be saved up.
    pub purse: u64,
    /// Delay that a copied segment must save in the mean, with the purse half full.
    pub worth: Duration,
    /// A backup may carry the copies.
    pub with_backups: bool,
}

impl Default for AugurConfig {
    fn default() -> Self {
        AugurConfig {
            budget: 0.1,
            purse: 60_000,
            worth: Duration::from_millis(1),
            with_backups: false,
        }
    }
}

/// The end of a message on a path.
#[derive(Copy, Clone, Debug)]
struct Watched {
    end: Dsn,
    on: SubflowId,
    /// In which it was sent.
    state: State,
    due_at: Instant,
    /// It counts as late already.
    late: bool,
}

/// One path for everything; another one for messages that it would bring late.
#[derive(Debug)]
pub struct Augur {
    config: AugurConfig,
    primary: Primary,
    /// By slot.
    models: Vec<Model>,
    watched: VecDeque<Watched>,
    /// Bytes that may be sent again.
    saved: f64,
    /// Up to where new data was counted for that.
    counted: Option<Dsn>,
    /// The copy that was decided on: up to where, and its path.
    copying: Option<(Dsn, SubflowId)>,
}

impl Augur {
    /// Knows nothing of the paths yet.
    #[must_use]
    pub fn new(config: AugurConfig) -> Self {
        Augur {
            config,
            primary: Primary::default(),
            models: Vec::new(),
            watched: VecDeque::new(),
            saved: config.purse as f64 / 2.0,
            counted: None,
            copying: None,
        }
    }

    fn model(&mut self, id: SubflowId) -> &mut Model {
        let slot = usize::from(id.0);
        if self.models.len() <= slot {
            self.models.resize_with(slot + 1, Model::default);
        }
        &mut self.models[slot]
    }

    /// Looks at the paths, at what is late, and at what was sent since.
    fn observe(&mut self, cx: &SchedulerContext<'_>) {
        for view in cx.subflows.iter().filter(|view| view.is_usable()) {
            self.model(view.id).look(view, cx.now);
        }
        let sent = cx.unsent.start.since(self.counted.unwrap_or(cx.unsent.start));
        self.counted = Some(cx.unsent.start);
        self.saved = (self.saved + sent as f64 * self.config.budget).min(self.config.purse as f64);
        for index in 0..self.watched.len() {
            let Watched { on, state, due_at, late, .. } = self.watched[index];
            if !late && due_at < cx.now {
                self.watched[index].late = true;
                self.model(on).late(state);
            }
        }
    }

    /// Everything up to `end` was sent on this path: its answer is awaited.
    fn watch(&mut self, view: &SubflowView, end: Dsn, now: Instant) {
        let known = self.watched.iter().any(|watched| watched.on == view.id && watched.end >= end);
        let Some(due_at) = due_at(view, now).filter(|_| !known) else { return };
        if self.watched.len() == MAX_WATCHED {
            self.watched.pop_front();
        }
        let (on, state) = (view.id, self.model(view.id).state());
        self.watched.push_back(Watched { end, on, state, due_at, late: false });
    }

    /// Something that was awaited on this path has arrived.
    fn answered(&mut self, on: SubflowId, range: DataRange, now: Instant) {
        let mut watched = core::mem::take(&mut self.watched);
        watched.retain(|watched| {
            if watched.on != on || range.end < watched.end {
                return true;
            }
            let late = now > watched.due_at;
            let model = self.model(on);
            match (late, watched.late) {
                (false, _) => model.in_time(watched.state),
                (true, false) => model.late(watched.state),
                (true, true) => {}
            }
            if late {
                model.delayed(watched.state, now.since(watched.due_at));
            }
            false
        });
        self.watched = watched;
    }

    /// The next part of what goes on the second path, now that the primary takes nothing.
    fn next_copy(
        &mut self,
        primary: &SubflowView,
        second: &SubflowView,
        cx: &SchedulerContext<'_>,
    ) -> Option<Decision> {
        // What is outstanding first: new data is of no use without it.
        let waiting = (!cx.unsent.is_empty()).then_some(cx.unsent);
        let missing = not_on(second.id, cx.data_una, cx).or(waiting);
        let decided = self.copying.filter(|(_, on)| *on == second.id).map(|(end, _)| end);
        let Some(missing) = missing else {
            // All of it is there: what became of it teaches about the second path.
            if let Some(end) = decided.filter(|end| *end > cx.data_una) {
                self.watch(second, end, cx.now);
            }
            return None;
        };
        let open = DataRange::new(missing.start.max(decided.unwrap_or_default()), cx.written);
        if !open.is_empty() && self.is_worth(open.len(), primary, second, cx) {
            self.saved -= open.len() as f64;
            self.copying = Some((open.end, second.id));
        }
        let (end, _) = self.copying.filter(|(_, on)| *on == second.id)?;
        let range = DataRange::new(missing.start, missing.end.min(end));
        if range.is_empty() {
            return None;
        }
        let sent = Decision::Send { subflow: second.id, range };
        Some(if second.is_ready() { sent } else { classes::wait(core::iter::once(second)) })
    }

    /// Whether so many bytes on `second` as well are worth what they cost.
    fn is_worth(
        &mut self,
        bytes: u64,
        primary: &SubflowView,
        second: &SubflowView,
        cx: &SchedulerContext<'_>,
    ) -> bool {
        let (Some(srtt), Some(second_srtt)) = (primary.srtt, second.srtt) else { return false };
        if self.saved < bytes as f64 {
            return false;
        }
        let is_late = |watched: &Watched| {
            watched.on == primary.id && watched.end > cx.data_una && watched.due_at <= cx.now
        };
        let overdue = self.watched.iter().any(is_late);
        let longer_s = second_srtt.saturating_sub(srtt).as_secs_f64();
        let in_time = 1.0 - self.model(second.id).chance_late();
        let gain_s = in_time * self.model(primary.id).expected_delay_s(srtt, longer_s, overdue);
        let segments = bytes.div_ceil(u64::from(second.mss.max(1)));
        let price_s = self.config.worth.as_secs_f64() * segments as f64;
        // By how full the purse is.
        gain_s * 2.0 * self.saved >= price_s * self.config.purse as f64
    }

    /// When something that nobody reports is to be looked at: an answer that is overdue by then.
    fn next_time(&mut self, primary: &SubflowView, cx: &SchedulerContext<'_>) -> Option<Instant> {
        let awaited = self.watched.iter().filter(|watched| watched.end > cx.data_una);
        let due = awaited.map(|watched| watched.due_at).filter(|at| *at > cx.now).min();
        let silent = self.model(primary.id).overdue_at(primary).filter(|at| *at > cx.now);
        due.into_iter().chain(silent).min()
    }
}

impl Default for Augur {
    fn default() -> Self {
        Augur::new(AugurConfig::default())
    }
}

impl Scheduler for Augur {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.observe(cx);
        let Some(primary) = self.primary.choose(cx) else { return primary::among_suspects(cx) };
        let alone = primary::alone(primary, cx);
        // Where the peer's window ends before the data does, there is no end of a message in sight.
        if alone.data().is_some() || cx.unsent.end < cx.written {
            return alone;
        }
        let newest = cx.mappings.newest().filter(|_| queue_is_empty(cx));
        if newest.is_some_and(|newest| newest.carried_by.contains(primary.id)) {
            self.watch(primary, cx.written, cx.now);
        }
        let Some(second) = primary::helper(primary, self.config.with_backups, cx) else {
            return alone;
        };
        let copy = self.next_copy(primary, second, cx).unwrap_or(Decision::Wait);
        if copy.data().is_some() {
            return copy;
        }
        let opens = [alone, copy].into_iter().filter_map(|decision| match decision {
            Decision::WaitUntil(at) => Some(at),
            _ => None,
        });
        let first = opens.chain(self.next_time(primary, cx)).min();
        first.map_or(Decision::Wait, Decision::WaitUntil)
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        _out: &mut Vec<SchedulerAction>,
    ) {
        self.primary.on_event(event);
        match event {
            SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id) => {
                *self.model(id) = Model::default();
                self.watched.retain(|watched| watched.on != id);
                self.copying = self.copying.filter(|(_, on)| *on != id);
            }
            SchedulerEvent::Acked { on, range } => self.answered(on, range, cx.now),
            _ => {}
        }
    }

    fn watches_acks(&self) -> bool {
        !self.watched.is_empty()
    }
}

#[cfg(test)]
mod tests;
