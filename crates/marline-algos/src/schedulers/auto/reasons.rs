//! Reasons of [`Auto`]: records decisions with their inputs, and recomputes decisions from the records.
//!
//! Recording and recomputing both use [`answer`], which decides from a context: the connection's or a recorded one.
//! Only the spent budget is passed separately, because it accumulates over many decisions.

use marline_policy::{
    BudgetState, DataRange, Decision, Grounds, Inputs, Quantile, Question, Reason, Reinjection,
    Rule, SchedulerAction, SchedulerContext, SchedulerEvent, SubflowId,
};
use marline_time::Duration;

use super::copy_gain::OutstandingAnswer;
use super::costs::Costs;
use super::judge::{Decider, Verdict};
use super::{Auto, OPPORTUNISTIC};
use crate::schedulers::classes::{self, Class, members};
use crate::schedulers::delivery::arrival_by;
use crate::schedulers::opportunistic::Opportunistic;

/// Decision and its grounds.
struct Answer {
    decision: Decision,
    /// Additional data that the decision covers.
    more_ranges: Vec<DataRange>,
    grounds: Grounds,
}

impl Answer {
    const fn new(decision: Decision, grounds: Grounds) -> Answer {
        Answer { decision, more_ranges: Vec::new(), grounds }
    }
}

impl Auto {
    /// Recomputes `auto`'s decision for a question and its recorded inputs. The result equals the recorded reason.
    /// `None` if nothing would have been sent again.
    #[must_use]
    pub fn recompute(question: &Question, inputs: &Inputs) -> Option<Reason> {
        let answer = inputs.replay(|cx| answer(question, &inputs.spending, cx))?;
        Some(reason(*question, answer, inputs.clone()))
    }
}

/// Answers a question and returns the reason.
pub(super) fn answer_question(
    question: Question,
    spending: &BudgetState,
    cx: &SchedulerContext<'_>,
) -> Reason {
    let (given, inputs) = Inputs::record(cx, spending, |cx| answer(&question, spending, cx));
    let nothing = || Answer::new(Decision::Wait, Grounds::without_times(Rule::Nothing));
    reason(question, given.unwrap_or_else(nothing), inputs)
}

/// Returns the reason for actions that an event caused, if one of them sends data again.
pub(super) fn reason_of_actions(
    event: SchedulerEvent,
    actions: &[SchedulerAction],
    spending: &BudgetState,
    cx: &SchedulerContext<'_>,
) -> Option<Reason> {
    let (on, first, also) = repeats(actions)?;
    let question = match event {
        SchedulerEvent::PeerWindowBlocked { picked } => Question::WindowBlocked(picked),
        SchedulerEvent::SendBufferBlocked => Question::BufferBlocked,
        _ => return None,
    };
    // Records the actual actions, not the recomputed ones. They are equal, as recomputing confirms.
    let (_, inputs) = Inputs::record(cx, spending, |cx| answer(&question, spending, cx));
    let decision = Decision::Send { subflow: on, range: first };
    Some(reason(
        question,
        Answer { decision, more_ranges: also, grounds: unblocked(on, cx) },
        inputs,
    ))
}

fn reason(question: Question, answer: Answer, inputs: Inputs) -> Reason {
    let Answer { decision, more_ranges: also, grounds } = answer;
    Reason { question, decision, more_ranges: also, grounds, inputs }
}

/// Decides in this context. Answers about blocked data do not depend on earlier events, except for whether a path is
/// slowed down, which does not affect where data is sent.
fn answer(
    question: &Question,
    spending: &BudgetState,
    cx: &SchedulerContext<'_>,
) -> Option<Answer> {
    let event = match question {
        Question::Next => {
            let verdict = Decider(spending).decide(cx);
            return Some(Answer::new(verdict.decision, grounds(&verdict, spending, cx)));
        }
        Question::Again(item) => {
            let decision = classes::reinject(item, cx);
            return Some(Answer::new(decision, grounds_of_rescue(decision, item, cx)));
        }
        Question::WindowBlocked(picked) => SchedulerEvent::PeerWindowBlocked { picked: *picked },
        Question::BufferBlocked => SchedulerEvent::SendBufferBlocked,
    };
    let mut actions = Vec::new();
    Opportunistic::new(OPPORTUNISTIC).on_event(event, cx, &mut actions);
    Costs(spending).drop_costly_repeats(&mut actions, 0, cx);
    let (on, first, also) = repeats(&actions)?;
    let decision = Decision::Send { subflow: on, range: first };
    Some(Answer { decision, more_ranges: also, grounds: unblocked(on, cx) })
}

/// Returns the data that actions send again, all on one path.
fn repeats(actions: &[SchedulerAction]) -> Option<(SubflowId, DataRange, Vec<DataRange>)> {
    let mut repeats = actions.iter().filter_map(|action| match action {
        SchedulerAction::Reinject { range, on } => Some((*on, *range)),
        _ => None,
    });
    let (on, first) = repeats.next()?;
    Some((on, first, repeats.map(|(_, range)| range).collect()))
}

/// Returns the times that a verdict compared.
fn grounds(verdict: &Verdict, spending: &BudgetState, cx: &SchedulerContext<'_>) -> Grounds {
    let compared = Grounds {
        path: verdict.path,
        other: verdict.other,
        arrives_us: verdict.arrives.map(micros),
        other_us: verdict.other_arrives.map(micros),
        ..Grounds::without_times(verdict.rule)
    };
    let (Some(view), Some((_, range))) =
        (verdict.path.and_then(|id| cx.subflow(id)), verdict.decision.data())
    else {
        return compared;
    };
    let other = verdict.other.and_then(|id| cx.subflow(id));
    let owed = match verdict.rule {
        Rule::Late => other.and_then(|other| OutstandingAnswer::oldest(other, cx.now)),
        Rule::End => {
            let behind = cx.written.since(range.end);
            other.map(|other| OutstandingAnswer::for_data_before(other, behind, cx.now))
        }
        _ => return compared,
    };
    let due = |quantile| owed.and_then(|owed| owed.time_until_due(quantile)).map(micros);
    let takes = arrival_by(view, view.mss.into(), Quantile::P50);
    let class = classes::best_class(cx.subflows);
    let price = class.and_then(|class| Costs(spending).required_gain_on(view, class));
    let price = price.and_then(|price| Some(price.total(takes?)));
    let times = |times: f32| takes.map(|takes| micros(takes.mul_f32(times.max(0.0))));
    Grounds {
        arrives_us: takes.map(micros),
        other_us: due(Quantile::P50),
        other_late_us: due(Quantile::P90),
        gain_us: times(verdict.gain),
        price_us: price.filter(|total| *total >= 0.0).and_then(times),
        ..compared
    }
}

/// Returns the path on which data is sent again or, if it waits, the path that already carries it.
fn grounds_of_rescue(decision: Decision, item: &Reinjection, cx: &SchedulerContext<'_>) -> Grounds {
    if let Some((path, _)) = decision.data() {
        return Grounds { path: Some(path), ..Grounds::without_times(Rule::Rescue) };
    }
    let fine = [Class::Regular, Class::Backup];
    let best = fine.into_iter().find(|class| members(cx.subflows, *class).next().is_some());
    let carries = |class| {
        let mut all = members(cx.subflows, class);
        all.all(|view| item.carried_by.contains(view.id))
            .then(|| members(cx.subflows, class).next())
    };
    let path = best.and_then(carries).flatten().map(|view| view.id);
    Grounds { path, ..Grounds::without_times(Rule::RescueWaits) }
}

/// Returns the grounds for repeating data on one path because another path blocks it.
fn unblocked(on: SubflowId, cx: &SchedulerContext<'_>) -> Grounds {
    let holders = cx.mappings.oldest().map(|oldest| oldest.carried_by);
    let other = holders.and_then(|holders| holders.iter().find(|id| *id != on));
    Grounds { path: Some(on), other, ..Grounds::without_times(Rule::Unblock) }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
