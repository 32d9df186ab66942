//! Decisions of [`Auto`](super::Auto) as a pure function of its inputs.
//!
//! *Problem.* A decision that depends on a scheduler's hidden state can be neither explained nor repeated later.
//!
//! *How.* The only state of `auto` is what its budgets have spent. A [`Decider`] consists of this state and decides
//! from it and the context. It makes decisions for the connection and recomputes earlier ones
//! ([`reasons`](super::reasons)).

use marline_policy::{
    BudgetState, DataRange, Decision, Mapping, Quantile, Rule, SchedulerContext, SubflowId,
    SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

use super::arrivals::cautious_arrival_time;
use super::copy_gain::{self, OutstandingAnswer, RequiredGain};
use super::costs::{Costs, is_costly};
use super::repairs;
use super::{
    MAX_EXAMINED_MAPPINGS, MAX_REPEAT_DELAY, MAX_SPENDING, MIN_REPEAT_DELAY, SHORT_SEGMENTS,
    URGENT_RATIO, URGENT_SAVING,
};
use crate::schedulers::classes::{self, Class, members};
use crate::schedulers::copies::{copying_class, queue_is_empty};
use crate::schedulers::delivery::{Alternatives, OverdueWait, arrival_by, send_time_by_windows};

/// Decision, the rule that made it, and the compared values.
#[derive(Copy, Clone, Debug)]
pub(super) struct Verdict {
    pub(super) decision: Decision,
    pub(super) rule: Rule,
    /// Path on which data is sent, or must not be sent.
    pub(super) path: Option<SubflowId>,
    /// Path with which it was compared.
    pub(super) other: Option<SubflowId>,
    /// Time until new data arrives on `path` and on `other`.
    pub(super) arrives: Option<Duration>,
    pub(super) other_arrives: Option<Duration>,
    /// Gain of a copy, in multiples of its own trip time.
    pub(super) gain: f32,
}

impl Verdict {
    /// Creates a verdict without a comparison.
    const fn without_comparison(rule: Rule, decision: Decision) -> Self {
        let (path, other, arrives, other_arrives) = (None, None, None, None);
        Verdict { decision, rule, path, other, arrives, other_arrives, gain: 0.0 }
    }
}

/// Makes decisions, given the spent budgets.
#[derive(Copy, Clone, Debug)]
pub(super) struct Decider<'a>(pub(super) &'a BudgetState);

impl<'a> Decider<'a> {
    const fn costs(self) -> Costs<'a> {
        Costs(self.0)
    }

    /// Chooses the next data and its path.
    pub(super) fn decide(self, cx: &SchedulerContext<'_>) -> Verdict {
        let Some(class) = classes::best_class(cx.subflows) else {
            return Verdict::without_comparison(Rule::NoPath, Decision::Wait);
        };
        if let Some(copy) = self.urgent_copy(class, cx) {
            return copy;
        }
        let placed = if cx.unsent.is_empty() {
            Verdict::without_comparison(Rule::Nothing, Decision::Wait)
        } else {
            self.place_new(class, cx)
        };
        if placed.decision.data().is_some() || cx.subflows.len() < 2 || !may_copy(class, cx) {
            return placed;
        }
        let copy = self.next_copy(class, cx);
        match copy.decision {
            Decision::Wait => placed,
            // Report that new data waits, not that copies will be reconsidered.
            Decision::WaitUntil(_) if placed.rule != Rule::Nothing => {
                Verdict { decision: copy.decision, ..placed }
            }
            _ => copy,
        }
    }

    /// Places new data: returns the subflow that delivers it first, and the amount for which this holds.
    fn place_new(self, class: Class, cx: &SchedulerContext<'_>) -> Verdict {
        let candidates = || members(cx.subflows, class);
        if !class.is_usable() {
            let decision = classes::choose_last_receiver(class, cx);
            let path = decision.data().map(|(id, _)| id);
            let rule = if path.is_some() { Rule::LastReceived } else { Rule::NoRoom };
            return Verdict { path, ..Verdict::without_comparison(rule, decision) };
        }
        let left = cx.written.since(cx.unsent.start);
        let cost = |view: &SubflowView| cautious_arrival_time(view, u64::from(view.mss), left);
        let spared = self.costs().paths_to_avoid(class, cx);
        let has_room = || candidates().filter(|view| view.is_ready());
        let ready = || has_room().filter(|view| !spared.contains(view.id));
        let soonest_spared = || {
            let spared = has_room().filter(|view| spared.contains(view.id));
            spared.map(|view| (cost(view), view)).min_by_key(|(at, view)| (*at, view.id))
        };
        let Some((first, arrives)) =
            ready().map(|view| (view, cost(view))).min_by_key(|(view, at)| (*at, view.id))
        else {
            let decision = classes::wait(candidates());
            let spared =
                soonest_spared().map(|(at, view)| self.wait_for_cheaper_path(view, at, class, cx));
            return Verdict {
                decision,
                ..spared.unwrap_or(Verdict::without_comparison(Rule::NoRoom, decision))
            };
        };
        let judged = Verdict {
            path: Some(first.id),
            arrives: Some(arrives),
            ..Verdict::without_comparison(Rule::First, Decision::Wait)
        };
        let waits = self.should_wait(first, arrives, class, spared, cx);
        if let Some((rule, other, other_arrives)) = waits {
            let decision = classes::wait(candidates());
            return Verdict { decision, rule, other, other_arrives, ..judged };
        }
        let others = ready().filter(|view| view.id != first.id);
        let next = others.map(|view| (cost(view), view.id)).min();
        let range = next.map_or(cx.unsent, |(next, _)| {
            let bytes = first.forecast.bytes_in(next.saturating_sub(arrives));
            cx.unsent.prefix(bytes.max(first.mss.into()))
        });
        let judged = Verdict { decision: Decision::SendRun { subflow: first.id, range }, ..judged };
        match soonest_spared().filter(|(at, _)| *at < arrives) {
            Some((at, view)) => {
                let (other, other_arrives) = (Some(view.id), Some(at));
                Verdict { rule: Rule::Spared, other, other_arrives, ..judged }
            }
            None => Verdict {
                other: next.map(|(_, id)| id),
                other_arrives: next.map(|(arrives, _)| arrives),
                ..judged
            },
        }
    }

    /// Makes data wait for a cheaper path that delivers it soon enough.
    fn wait_for_cheaper_path(
        self,
        view: &SubflowView,
        arrives: Duration,
        class: Class,
        cx: &SchedulerContext<'_>,
    ) -> Verdict {
        let stand_in = self.costs().replacement_path(view, class, cx);
        Verdict {
            path: stand_in.map(|(other, _)| other.id),
            arrives: stand_in.map(|(_, all)| all),
            other: Some(view.id),
            other_arrives: Some(arrives),
            ..Verdict::without_comparison(Rule::Spared, Decision::Wait)
        }
    }

    /// Decides whether data should wait instead of using this path, either for a full path that delivers all of it
    /// sooner, or because it would block faster paths. Returns the rule, the path to wait for, and the time until that
    /// path has delivered all data.
    fn should_wait(
        self,
        view: &SubflowView,
        arrives: Duration,
        class: Class,
        spared: SubflowSet,
        cx: &SchedulerContext<'_>,
    ) -> Option<(Rule, Option<SubflowId>, Option<Duration>)> {
        let rivals = Alternatives::find(view, class, OverdueWait::Forbidden, cx)?.excluding(spared);
        if rivals.would_block(arrives) {
            return Some((Rule::WouldBlock, None, None));
        }
        rivals
            .earlier_full_path(arrives, send_time_by_windows)
            .map(|(id, all)| (Rule::FullPathFaster, Some(id), Some(all)))
    }

    /// Returns the copy that saves the most time, if the time saved justifies the bytes.
    fn best_copy(self, class: Class, cx: &SchedulerContext<'_>) -> Option<Verdict> {
        if self.0.spent >= MAX_SPENDING {
            return None;
        }
        let on = |view: &SubflowView| {
            let price = self.costs().required_gain_of_late_data(view, class)?;
            let (copy, price) = match blocked_data_copy(view, price, cx) {
                Some(copy) => (copy, price),
                None => {
                    let price = self.costs().required_gain_on(view, class)?;
                    let may = self.costs().allows_speculative_copies(view, class, 1.0);
                    let copy = may && queue_is_empty(cx);
                    (copy.then(|| judge_last_segment(view, price, cx)).flatten()?, price)
                }
            };
            // If the gains are equal, prefer the cheaper path.
            let takes = || arrival_by(view, view.mss.into(), Quantile::P50);
            let price = if is_costly(view) { price.total(takes()?).max(0.0) } else { 0.0 };
            Some((copy.gain - price, copy))
        };
        members(cx.subflows, class)
            .filter(|view| view.is_ready())
            .filter_map(on)
            .max_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, copy)| copy)
    }

    /// Returns a copy that is made before new data is sent: of the little data that a very slow path holds, for which
    /// the rest of the stream would wait.
    fn urgent_copy(self, class: Class, cx: &SchedulerContext<'_>) -> Option<Verdict> {
        if cx.unsent.is_empty() {
            return None;
        }
        let answer = |view: &SubflowView| {
            // The forecast is more expensive.
            let may_be_slow = view.srtt.is_some_and(|srtt| srtt >= URGENT_SAVING / 2);
            let answer = || view.forecast.answer(Quantile::P50);
            (may_be_slow && view.bytes_in_flight > 0).then(answer).flatten()
        };
        let slowest = cx.subflows.iter().filter_map(|view| Some((answer(view)?, view.id))).max();
        let (answer, slow) = slowest.filter(|(answer, _)| *answer >= URGENT_SAVING)?;
        if self.0.spent >= 1.0 || !may_copy(class, cx) {
            return None;
        }
        let held = cx.subflow(slow)?.bytes_in_flight;
        let takes_little = |view: &SubflowView| {
            let rate = view.forecast.rate();
            rate.is_some_and(|rate| rate.time_for(held) <= answer / URGENT_RATIO)
        };
        let on = |view: &SubflowView| {
            let price = self.costs().required_gain_of_late_data(view, class)?;
            blocked_data_copy(
                view,
                RequiredGain { wake: price.wake.max(URGENT_SAVING), ..price },
                cx,
            )
        };
        members(cx.subflows, class)
            .filter(|view| view.id != slow && view.is_ready() && takes_little(view))
            .filter_map(on)
            .max_by(|a, b| a.gain.total_cmp(&b.gain))
    }

    /// Copies the newest segment to a path that has not been used recently, because information about that path is old.
    /// The copy is made regardless of the budget, but counts as spent.
    fn explore(self, class: Class, cx: &SchedulerContext<'_>) -> Option<Verdict> {
        let newest = cx.mappings.newest()?;
        let stale = |view: &&SubflowView| {
            view.is_ready()
                && self.costs().should_explore(view, class, cx.now.since(view.last_sent_at))
                && !newest.carried_by.contains(view.id)
        };
        members(cx.subflows, class).find(stale).map(|view| {
            let range = newest.range.suffix(view.mss.into());
            let copy = Decision::Send { subflow: view.id, range };
            Verdict { path: Some(view.id), ..Verdict::without_comparison(Rule::Explore, copy) }
        })
    }

    /// Returns the next path on which the end of a short message is repeated early, and the time: a free path that has
    /// recently lost a packet.
    fn next_early_repeat(
        self,
        class: Class,
        cx: &SchedulerContext<'_>,
    ) -> Option<(Instant, SubflowId)> {
        if self.0.spent >= 1.0 || !is_message_short(cx) {
            return None;
        }
        let due = |view: &SubflowView| {
            let is_free = !view.limited && !is_costly(view) && class != Class::Backup;
            let (sent_at, srtt) = (view.newest_sent_at?, view.srtt?);
            let lossy = view.forecast.had_recent_trouble();
            let delay = (srtt / 4).clamp(MIN_REPEAT_DELAY, MAX_REPEAT_DELAY);
            (is_free && lossy).then_some((sent_at + delay, view.id))
        };
        members(cx.subflows, class).filter_map(due).min()
    }

    /// Returns a repair of the current burst.
    fn repair(self, class: Class, cx: &SchedulerContext<'_>) -> Option<Verdict> {
        let (subflow, range, other, gain) = repairs::next(self.0, class, cx)?;
        let (path, other) = (Some(subflow), Some(other));
        let decision = Decision::Repair { subflow, range };
        Some(Verdict { path, other, gain, ..Verdict::without_comparison(Rule::Repair, decision) })
    }

    fn next_copy(self, class: Class, cx: &SchedulerContext<'_>) -> Verdict {
        if let Some(repair) = self.repair(class, cx) {
            return repair;
        }
        let copy = self.best_copy(class, cx).or_else(|| self.explore(class, cx));
        copy.unwrap_or_else(|| {
            let repeat = self.next_early_repeat(class, cx);
            if let Some((_, id)) = repeat.filter(|(at, _)| *at <= cx.now) {
                let decision = Decision::RepeatNewest { subflow: id };
                let verdict = Verdict::without_comparison(Rule::RepeatNewest, decision);
                return Verdict { path: Some(id), ..verdict };
            }
            let owed =
                cx.subflows.iter().filter_map(|view| OutstandingAnswer::oldest(view, cx.now));
            let again = owed.filter_map(|owed| owed.next_evaluation(cx.now));
            let again = again.chain(repeat.map(|(at, _)| at)).min();
            let again = again.map_or(Decision::Wait, Decision::WaitUntil);
            Verdict::without_comparison(Rule::Recheck, again)
        })
    }
}

/// Returns true if all unacknowledged data fits into a few segments.
pub(super) fn is_message_short(cx: &SchedulerContext<'_>) -> bool {
    let mss = cx.subflows.iter().map(|view| u64::from(view.mss)).min().unwrap_or_default();
    cx.written.since(cx.data_una) <= mss * SHORT_SEGMENTS
}

/// Returns a copy of data carried only by paths whose answers are so overdue that a copy on this path is justified. If
/// there are several, returns the one with the largest gain.
fn blocked_data_copy(
    view: &SubflowView,
    price: RequiredGain,
    cx: &SchedulerContext<'_>,
) -> Option<Verdict> {
    let (mut late, mut most, mut latest) = (SubflowSet::EMPTY, 0.0_f32, None);
    for other in cx.subflows.iter().filter(|other| other.id != view.id) {
        let owed = OutstandingAnswer::oldest(other, cx.now);
        // Without an outstanding answer, the gain is zero, which may be enough.
        let gain = owed
            .map_or((price.least < 0.0).then_some(0.0), |owed| owed.justified_gain(view, price));
        if let Some(gain) = gain {
            late.insert(other.id);
            if latest.is_none() || gain > most {
                latest = Some(other.id);
            }
            most = most.max(gain);
        }
    }
    if late.is_empty() {
        return None;
    }
    let mut from = cx.data_una;
    for _ in 0..MAX_EXAMINED_MAPPINGS {
        let mapping = cx.mappings.next_not_on(view.id, from)?;
        let range = DataRange::new(mapping.range.start.max(from), mapping.range.end);
        let owed = !mapping.delivered && mapping.carried_by.iter().all(|id| late.contains(id));
        if owed && !range.is_empty() {
            let copy = Decision::SendRun { subflow: view.id, range };
            return Some(Verdict {
                path: Some(view.id),
                other: latest,
                gain: most,
                ..Verdict::without_comparison(Rule::Late, copy)
            });
        }
        from = mapping.range.end;
    }
    None
}

/// Returns the last segment that this path did not carry, if a copy of it is justified. Copies of earlier segments
/// would gain less.
fn judge_last_segment(
    view: &SubflowView,
    price: RequiredGain,
    cx: &SchedulerContext<'_>,
) -> Option<Verdict> {
    let mapping = last_undelivered(view.id, cx)?;
    let range = mapping.range.suffix(view.mss.into());
    let behind = cx.written.since(range.end);
    let carriers = mapping.carried_by.iter().filter_map(|id| cx.subflow(id));
    let mut least: Option<(f32, SubflowId)> = None;
    for other in carriers {
        let gain = OutstandingAnswer::for_data_before(other, behind, cx.now)
            .justified_gain(view, price)?;
        if least.is_none_or(|(so_far, _)| gain < so_far) {
            least = Some((gain, other.id));
        }
    }
    // Data that no path carries anymore is lost.
    let gain = least.map_or(copy_gain::MAX_GAIN, |(gain, _)| gain);
    let (path, other) = (Some(view.id), least.map(|(_, id)| id));
    let copy = Decision::Send { subflow: view.id, range };
    Some(Verdict { path, other, gain, ..Verdict::without_comparison(Rule::End, copy) })
}

/// Returns the last data that the subflow did not carry and no other subflow has delivered.
fn last_undelivered(id: SubflowId, cx: &SchedulerContext<'_>) -> Option<Mapping> {
    let mut before = cx.written;
    for _ in 0..MAX_EXAMINED_MAPPINGS {
        let mapping = cx.mappings.last_not_on(id, before)?;
        if !mapping.delivered {
            return Some(mapping);
        }
        before = mapping.range.start;
    }
    None
}

/// Returns true if copies between paths of this class are allowed: onto a backup only if all paths are backups.
fn may_copy(class: Class, cx: &SchedulerContext<'_>) -> bool {
    match class {
        Class::Backup => members(cx.subflows, class).nth(1).is_some(),
        _ => copying_class(cx.subflows).is_some(),
    }
}
