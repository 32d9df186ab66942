//! The default scheduler: each piece of data on the path where it arrives first by the forecast, and copies
//! where they save the most time, within a budget of extra bytes.
//!
//! *Problem.* Nobody's p99 is decided by the choice between two healthy paths, and nobody's median by copies.
//! The schedulers of the literature each do one of the two: they take the path with the smallest RTT
//! or the earliest arrival, or they copy everything, and either ignore what paths do in the next
//! second or pay for it with every byte.
//!
//! *Objective.* The least p99 of the completion of each message, as long as copies stay within
//! [`BudgetConfig`]. All decisions are comparisons of [forecasts](marline_policy::Forecast):
//! - *New data* goes where it arrives first: the forecast p90 of the path, behind what the sender has put
//!   into the path's queue itself, and with what trouble on the path would add, weighted with its
//!   risk. A run ends where another path with room would be as early. A path takes nothing that a
//!   path which is full now would bring sooner together with all the rest, nor what would have the
//!   faster ones stop behind a bounded window. As long as little of the budget is spent, and copies repair
//!   a wrong choice, a full path is waited for less readily.
//! - *Copies* are made where nothing new can be sent. A copy is worth the time that it is
//!   expected to save ([`worth`]), and is made if that is more than the price of its bytes, which
//!   rises with what the budget has spent: a full budget pays for everything that might help, an empty one
//!   for what is nearly lost. Two places are looked at. From the end of what was written backwards: the
//!   last segment of a path waits behind all others there, and no segment behind it tells of its
//!   loss. And from the front, what only paths hold that owe an answer for longer than usual: what stands
//!   still holds up all that follows. Both may spend the budget [twice](MOST_SPENT) in the worst case.
//! - A path that has not been used for [`EXPLORE_AFTER`] gets a copy of the newest segment: it is explored
//!   by copies only, so that no message depends on it.
//!
//! A path whose answer is late goes on being given data, since most such alarms are false on a
//! healthy path, and a stream that moved to a slower path would wait there. A path on which a probe stays
//! unanswered is silent, which is the core's to say, and takes nothing.
//!
//! *Why this is not worse than the best path, beyond the price of exploring.* Let B be the best path for a message. A
//! segment that is put on another path A was forecast to arrive there, in nine of ten cases, no later than
//! on B. Where it is late, the gain of a copy on B grows with every moment and passes any price that
//! the budget allows soon after the p99 of A: it is late by no more than that and one trip over B,
//! as long as the budget lasts; with a budget that covers the message the copy leaves at once. Copies are sent after
//! everything new that has room, so that they delay nothing of it. What the sketch leaves open: a forecast is
//! learnt, and is wrong for some round trips after each change of a path; and where the budget is spent, the tail is
//! that of one path with repairs.
//!
//! *Sources.* Earliest arrival: ECF and STTF. A budget of bytes: AUGUR, PAAF and Hairpin agree that
//! redundancy must have one. Ours: one forecast for all decisions, learnt by its own errors, and the price.
//!
//! *p99 of a small message:* that of full redundancy while the budget lasts.

use marline_policy::{
    DataRange, Decision, Dsn, Eligibility, Quantile, Reinjection, Scheduler, SchedulerAction,
    SchedulerContext, SchedulerEvent, SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

use super::blocking::rate;
use super::budget::{Budget, BudgetConfig};
use super::classes::{self, Class, members};
use super::completion::writer_has_more;
use super::copies::{copying_class, queue_is_empty};
use super::opportunistic::{Opportunistic, OpportunisticRules};

mod worth;

use worth::{Owed, price, way_back};

/// What [`Auto`] may do.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct AutoConfig {
    /// What copies may cost.
    pub budget: BudgetConfig,
}

/// Time that trouble on a path costs, in answers of it: one until it is seen, one to repair it.
const TROUBLE_ANSWERS: u32 = 2;
/// By how much the tail counts for more than the mean.
const TAIL_WEIGHT: f32 = 1.0;
/// A path that carried nothing for so long is sent a copy of the newest segment.
const EXPLORE_AFTER: Duration = Duration::from_millis(300);
/// Data looked at when something is to be copied.
const MOST_MAPPINGS: usize = 64;
/// So many times the budget are the most that is spent.
const MOST_SPENT: f32 = 2.0;

/// The default scheduler.
#[derive(Debug)]
pub struct Auto {
    config: AutoConfig,
    opportunistic: Opportunistic,
    budget: Budget,
    /// Share of it that is spent. With one path nobody asks.
    spent: f32,
    /// The stream and its repeats as of the last look.
    sent: Dsn,
    repeated: u64,
}

impl Auto {
    /// With these choices.
    #[must_use]
    pub fn new(config: AutoConfig) -> Self {
        Auto {
            config,
            opportunistic: Opportunistic::new(OpportunisticRules::WIDE),
            budget: Budget::default(),
            spent: 0.0,
            sent: Dsn(0),
            repeated: 0,
        }
    }

    /// Counts what was sent since this was last asked.
    fn count(&mut self, cx: &SchedulerContext<'_>) {
        if cx.unsent.start > self.sent {
            self.budget.on_new(cx.now, cx.unsent.start.since(self.sent));
            self.sent = cx.unsent.start;
        }
        if cx.repeated > self.repeated {
            self.budget.on_copy(cx.now, cx.repeated - self.repeated);
            self.repeated = cx.repeated;
        }
        if cx.subflows.len() > 1 {
            self.spent = self.budget.spent(cx.now, &self.config.budget);
        }
    }

    /// New data: the subflow that brings it first, and how much of it that holds for.
    fn place_new(&self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        let candidates = || members(cx.subflows, class);
        if !class.is_fine() {
            let picked = classes::pick(candidates(), class);
            return picked.map_or_else(
                || classes::wait(candidates()),
                |view| classes::run_while(view, cx, |_, _| true),
            );
        }
        let left = cx.written.since(cx.unsent.start);
        let cost = |view: &SubflowView| careful_arrival(view, u64::from(view.mss), left);
        let ready = || candidates().filter(|view| view.is_ready());
        let Some((first, arrives)) =
            ready().map(|view| (view, cost(view))).min_by_key(|(view, at)| (*at, view.id))
        else {
            return classes::wait(candidates());
        };
        if self.should_wait(first, arrives, class, cx) {
            return classes::wait(candidates());
        }
        let next = ready().filter(|view| view.id != first.id).map(cost).min();
        let range = next.map_or(cx.unsent, |next| {
            let bytes = first.forecast.bytes_in(next.saturating_sub(arrives));
            cx.unsent.prefix(bytes.max(first.mss.into()))
        });
        Decision::SendRun { subflow: first.id, range }
    }

    /// Whether data should rather wait than go on this path: for one that is full now and brings all of it sooner,
    /// or because the faster ones would have to stop behind it.
    fn should_wait(
        &self,
        view: &SubflowView,
        arrives: Duration,
        class: Class,
        cx: &SchedulerContext<'_>,
    ) -> bool {
        // Whoever waits must be woken: by the answers to what others carry, or by a pacer.
        let busy = |other: &&SubflowView| {
            let moves = other.bytes_in_flight > 0
                || matches!(other.eligibility, Eligibility::PacingLimited(_));
            other.id != view.id && moves && !is_overdue(other, cx.now)
        };
        let others = || members(cx.subflows, class).filter(busy);
        if others().next().is_none() {
            return false;
        }
        let faster = others().filter(|other| arrival(other, u64::from(other.mss)) < arrives);
        let until = arrives.saturating_add(others().map(way_back).min().unwrap_or_default());
        let brought: u64 = faster.map(|other| rate(other).bytes_in(until)).sum();
        let bound = cx.window_end.since(cx.data_una).min(cx.send_limit);
        if brought > 0 && brought + view.bytes_in_flight + u64::from(view.mss) > bound {
            return true;
        }
        if writer_has_more(cx) {
            return false;
        }
        let left = cx.written.since(cx.unsent.start);
        // While copies are cheap they repair a wrong choice.
        let impatience = 1.0 + (1.0 - self.spent).max(0.0);
        others()
            .filter(|other| !other.is_ready() && other.bytes_queued == 0)
            .filter_map(|other| brings_all(other, left, cx.now))
            .any(|all| all.mul_f32(impatience) < arrives)
    }

    /// The copy that saves the most time, if that is worth its bytes.
    fn best_copy(&self, class: Class, cx: &SchedulerContext<'_>) -> Option<Decision> {
        if self.spent >= MOST_SPENT {
            return None;
        }
        // Without a limit a copy is made even if nothing is expected of it.
        let price = if self.config.budget.is_unlimited() { -1.0 } else { price(self.spent) };
        let on = |view: &SubflowView| {
            held_up(view, price, cx)
                .or_else(|| queue_is_empty(cx).then(|| last_owed(view, price, cx)).flatten())
        };
        members(cx.subflows, class)
            .filter(|view| view.is_ready())
            .filter_map(on)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, copy)| copy)
    }

    /// A copy of the newest segment for a path that has not been used lately: what is known of it is old. It is made
    /// whatever was spent, though it counts.
    fn explore(&self, class: Class, cx: &SchedulerContext<'_>) -> Option<Decision> {
        let newest = cx.mappings.newest()?;
        let stale = |view: &&SubflowView| {
            view.is_ready()
                && cx.now.since(view.last_sent_at) > EXPLORE_AFTER
                && !newest.carried_by.contains(view.id)
        };
        members(cx.subflows, class).find(stale).map(|view| {
            let range = newest.range.suffix(view.mss.into());
            Decision::Send { subflow: view.id, range }
        })
    }

    fn next_copy(&self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        let copy = self.best_copy(class, cx).or_else(|| self.explore(class, cx));
        copy.unwrap_or_else(|| {
            let owed = cx.subflows.iter().filter_map(|view| Owed::oldest(view, cx.now));
            let again = owed.filter_map(|owed| owed.look_again_at(cx.now)).min();
            again.map_or(Decision::Wait, Decision::WaitUntil)
        })
    }
}

impl Default for Auto {
    fn default() -> Self {
        Auto::new(AutoConfig::default())
    }
}

/// What only paths hold that have owed an answer for so long that a copy on this one is worth its price, and what the
/// best of them gains.
fn held_up(view: &SubflowView, price: f32, cx: &SchedulerContext<'_>) -> Option<(f32, Decision)> {
    let (mut late, mut most) = (SubflowSet::EMPTY, 0.0_f32);
    for other in cx.subflows.iter().filter(|other| other.id != view.id) {
        let gain = Owed::oldest(other, cx.now).map_or(0.0, |owed| owed.gain(view));
        if gain > price {
            late.insert(other.id);
            most = most.max(gain);
        }
    }
    if late.is_empty() {
        return None;
    }
    let mut from = cx.data_una;
    for _ in 0..MOST_MAPPINGS {
        let mapping = cx.mappings.next_not_on(view.id, from)?;
        let range = DataRange::new(mapping.range.start.max(from), mapping.range.end);
        if mapping.carried_by.iter().all(|id| late.contains(id)) && !range.is_empty() {
            return Some((most, Decision::SendRun { subflow: view.id, range }));
        }
        from = mapping.range.end;
    }
    None
}

/// The last segment that this path did not carry, if a copy of it is worth its price: what was sent before it is worth
/// less.
fn last_owed(view: &SubflowView, price: f32, cx: &SchedulerContext<'_>) -> Option<(f32, Decision)> {
    let mapping = cx.mappings.last_not_on(view.id, cx.written)?;
    let range = mapping.range.suffix(view.mss.into());
    let behind = cx.written.since(range.end);
    let carriers = mapping.carried_by.iter().filter_map(|id| cx.subflow(id));
    let gain = carriers
        .map(|other| Owed::before_last(other, behind, cx.now).gain(view))
        .fold(worth::MOST_TIMES, f32::min);
    (gain > price).then_some((gain, Decision::Send { subflow: view.id, range }))
}

/// Whether the answer to its oldest segment is later than 99 of 100 are.
fn is_overdue(view: &SubflowView, now: Instant) -> bool {
    view.overdue_at.is_some_and(|at| at <= now)
}

/// Time until so many bytes more have arrived that leave now; as long as can be where nothing is known.
fn arrival(view: &SubflowView, bytes: u64) -> Duration {
    worth::arrival(view, bytes, Quantile::P90).unwrap_or(Duration::MAX)
}

/// The same for a segment of a message of which so many bytes are left, with what trouble on the path would add to
/// its tail.
fn careful_arrival(view: &SubflowView, bytes: u64, left: u64) -> Duration {
    let arrives = arrival(view, bytes);
    let Some(answer) = view.forecast.answer(Quantile::P90) else { return arrives };
    let under_way = arrives + view.forecast.passing(left);
    let weight = (view.forecast.risk(under_way) * TAIL_WEIGHT).min(1.0);
    arrives.saturating_add((answer * TROUBLE_ANSWERS).mul_f32(weight))
}

/// Time until a path that takes nothing now has brought so many bytes more, if nothing stops it; `None`: nobody
/// knows.
fn brings_all(view: &SubflowView, bytes: u64, now: Instant) -> Option<Duration> {
    let srtt = view.srtt.filter(|_| view.forecast.is_known())?;
    let opens = match view.eligibility {
        Eligibility::PacingLimited(at) => at.since(now),
        _ => Duration::ZERO,
    };
    // Window by window, if the window is what limits it.
    let rounds = u32::try_from(bytes / view.cwnd.max(1)).unwrap_or(u32::MAX).min(1_000);
    Some(opens + arrival(view, bytes).max(arrival(view, 0) + srtt * rounds))
}

impl Scheduler for Auto {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.count(cx);
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        let decision =
            if cx.unsent.is_empty() { Decision::Wait } else { self.place_new(class, cx) };
        if decision.data().is_some()
            || cx.subflows.len() < 2
            || copying_class(cx.subflows).is_none()
        {
            return decision;
        }
        let copy = self.next_copy(class, cx);
        if copy == Decision::Wait { decision } else { copy }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.opportunistic.on_event(event, cx, out);
    }

    fn probe_patience(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests;
