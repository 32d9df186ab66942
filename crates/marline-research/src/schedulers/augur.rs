//! AUGUR: decides for each message whether to use the costly path (Tencent's cloud gaming; NSDI 2025).
//!
//! *Problem.* A game over WiFi stalls when the radio fades for a moment. A cellular path would deliver those frames in
//! time, but its bytes cost money. Only the few frames that would otherwise be late should use it.
//!
//! *How.* The primary (`primary.rs`) carries all data. When everything written has been sent, a message is complete,
//! and the scheduler decides whether its outstanding part is also sent on the second path. It also decides when the
//! primary has no room for the rest of a message: the rest is sent on the second path or waits. The gain is the delay
//! that the second path is expected to save. A model of the primary's states (`augur/model.rs`) gives the probability
//! that the message is late and by how much. The additional time of the copy is subtracted, and the second path's own
//! lateness is taken into account. If the answer is overdue, lateness is certain, and the scheduler decides again. The
//! copy is made if
//!
//! - the byte budget allows it: each byte of new data adds the share `budget` of a byte to the saved budget, which is
//!   at most `reserve` and starts half full; and
//! - the gain is at least `worth` per segment; twice that if the saved budget is a quarter full, and half of it if it
//!   is full.
//!
//! *Source.* Only the abstract of "AUGUR: Practical mobile multipath transport service for low tail latency in
//! real-time streaming" was available. It describes models of state probabilities for each user, and integer linear
//! programs for each session that decide when frames are sent again and on which path, so that tail latency and
//! cellular bytes are balanced. The venue is not verified. States, thresholds, budget and required gain are our
//! assumptions.
//!
//! *What differs.* An integer program with one limit on bytes is a knapsack. The best solution of the relaxed problem
//! is to take all items whose gain per byte exceeds a threshold. Messages arrive one at a time, so here the threshold
//! follows the budget, and no program is solved. A byte stream has no frames and no deadlines: written data that is
//! followed by a pause is a message, and every millisecond counts equally. Outcomes are learned from the ACKs of each
//! subflow, so a copy that arrives first does not hide how late the original is. A backup is used only with
//! `backup=on`; otherwise the second path is the next regular one. If the primary is silent or gone, the others replace
//! it by class, regardless of the budget.
//!
//! *Extra bytes:* at most `budget` of the data, plus the stored budget and retransmissions. *p99 of a small message:*
//! equal to the second path's if the RTT, losses or history of the primary reveal its bad periods, while the budget
//! lasts. An unpredicted loss costs the time until the answer is overdue plus the second path's delay.

mod model;

use std::collections::VecDeque;

use marline_algos::schedulers::classes;
use marline_algos::schedulers::copies::{first_uncarried_range, queue_is_empty};
use marline_policy::{
    DataRange, Decision, Dsn, Reinjection, Scheduler, SchedulerAction, SchedulerContext,
    SchedulerEvent, SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};

use super::primary::{self, Primary};
use model::{Model, State, due_at};

/// Maximum number of messages with outstanding answers. Older ones are not used for learning.
const MAX_WATCHED: usize = 32;

/// Limits for the costly path, and the gain it must bring.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AugurConfig {
    /// Number of bytes that may be sent again per byte of new data, 0 to 1.
    pub budget: f64,
    /// Maximum saved budget, in bytes.
    pub reserve: u64,
    /// Mean delay that a copied segment must save when the budget is half full.
    pub min_saving: Duration,
    /// True if a backup may carry the copies.
    pub with_backups: bool,
}

impl Default for AugurConfig {
    fn default() -> Self {
        AugurConfig {
            budget: 0.1,
            reserve: 60_000,
            min_saving: Duration::from_millis(1),
            with_backups: false,
        }
    }
}

/// End of a message that was sent on a path.
#[derive(Copy, Clone, Debug)]
struct WatchedEnd {
    end: Dsn,
    on: SubflowId,
    /// State in which the message was sent.
    state: State,
    due_at: Instant,
    /// True if the message already counts as late.
    late: bool,
}

/// Scheduler that uses one path for all data, and another path for messages that would be late.
#[derive(Debug)]
pub struct Augur {
    config: AugurConfig,
    primary: Primary,
    /// Models of the paths, by slot.
    models: Vec<Model>,
    watched: VecDeque<WatchedEnd>,
    /// Saved budget: bytes that may be sent again.
    saved: f64,
    /// Position up to which new data has been counted.
    counted: Option<Dsn>,
    /// End and path of the copy in progress.
    copying: Option<(Dsn, SubflowId)>,
}

impl Augur {
    /// Creates a scheduler without knowledge of the paths.
    #[must_use]
    pub fn new(config: AugurConfig) -> Self {
        Augur {
            config,
            primary: Primary::default(),
            models: Vec::new(),
            watched: VecDeque::new(),
            saved: config.reserve as f64 / 2.0,
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

    /// Updates the models with the state of the paths, late answers, and newly sent data.
    fn observe(&mut self, cx: &SchedulerContext<'_>) {
        for view in cx.subflows.iter().filter(|view| view.is_active()) {
            self.model(view.id).record_state(view, cx.now);
        }
        let sent = cx.unsent.start.since(self.counted.unwrap_or(cx.unsent.start));
        self.counted = Some(cx.unsent.start);
        self.saved =
            (self.saved + sent as f64 * self.config.budget).min(self.config.reserve as f64);
        for index in 0..self.watched.len() {
            let WatchedEnd { on, state, due_at, late, .. } = self.watched[index];
            if !late && due_at < cx.now {
                self.watched[index].late = true;
                self.model(on).record_late(state);
            }
        }
    }

    /// Watches for the answer to all data up to `end`, which was sent on this path.
    fn watch_answer(&mut self, view: &SubflowView, end: Dsn, now: Instant) {
        let known = self.watched.iter().any(|watched| watched.on == view.id && watched.end >= end);
        let Some(due_at) = due_at(view, now).filter(|_| !known) else { return };
        if self.watched.len() == MAX_WATCHED {
            self.watched.pop_front();
        }
        let (on, state) = (view.id, self.model(view.id).state());
        self.watched.push_back(WatchedEnd { end, on, state, due_at, late: false });
    }

    /// Processes the arrival of watched data on this path.
    fn on_answer(&mut self, on: SubflowId, range: DataRange, now: Instant) {
        let mut watched = core::mem::take(&mut self.watched);
        watched.retain(|watched| {
            if watched.on != on || range.end < watched.end {
                return true;
            }
            let late = now > watched.due_at;
            let model = self.model(on);
            match (late, watched.late) {
                (false, _) => model.record_in_time(watched.state),
                (true, false) => model.record_late(watched.state),
                (true, true) => {}
            }
            if late {
                model.record_delay(watched.state, now.since(watched.due_at));
            }
            false
        });
        self.watched = watched;
    }

    /// Returns the next part to send on the second path when the primary takes no data.
    fn next_copy(
        &mut self,
        primary: &SubflowView,
        second: &SubflowView,
        cx: &SchedulerContext<'_>,
    ) -> Option<Decision> {
        // Outstanding data comes first, because new data is useless without it.
        let waiting = (!cx.unsent.is_empty()).then_some(cx.unsent);
        let missing = first_uncarried_range(second.id, cx.data_una, cx).or(waiting);
        let decided = self.copying.filter(|(_, on)| *on == second.id).map(|(end, _)| end);
        let Some(missing) = missing else {
            // The copy is complete, so its outcome is evidence about the second path.
            if let Some(end) = decided.filter(|end| *end > cx.data_una) {
                self.watch_answer(second, end, cx.now);
            }
            return None;
        };
        let open = DataRange::new(missing.start.max(decided.unwrap_or_default()), cx.written);
        if !open.is_empty() && self.is_justified(open.len(), primary, second, cx) {
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

    /// Returns true if the expected gain justifies also sending this many bytes on `second`.
    fn is_justified(
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
        let is_late = |watched: &WatchedEnd| {
            watched.on == primary.id && watched.end > cx.data_una && watched.due_at <= cx.now
        };
        let overdue = self.watched.iter().any(is_late);
        let longer_s = second_srtt.saturating_sub(srtt).as_secs_f64();
        let in_time = 1.0 - self.model(second.id).lateness_probability();
        let gain_s = in_time * self.model(primary.id).expected_delay_s(srtt, longer_s, overdue);
        let segments = bytes.div_ceil(u64::from(second.mss.max(1)));
        let price_s = self.config.min_saving.as_secs_f64() * segments as f64;
        // The required gain depends on how full the budget is.
        gain_s * 2.0 * self.saved >= price_s * self.config.reserve as f64
    }

    /// Returns the time at which an overdue answer, which no event reports, must be checked.
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
        let Some(primary) = self.primary.choose(cx) else { return primary::use_last_receiver(cx) };
        let alone = primary::decide_for_primary(primary, cx);
        // If the peer's window ends before the data does, no message is complete.
        if alone.data().is_some() || cx.unsent.end < cx.written {
            return alone;
        }
        let newest = cx.mappings.newest().filter(|_| queue_is_empty(cx));
        if newest.is_some_and(|newest| newest.carried_by.contains(primary.id)) {
            self.watch_answer(primary, cx.written, cx.now);
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
            SchedulerEvent::Acked { on, range } => self.on_answer(on, range, cx.now),
            _ => {}
        }
    }

    fn watches_acks(&self) -> bool {
        !self.watched.is_empty()
    }
}

#[cfg(test)]
mod tests;
