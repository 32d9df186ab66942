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
//! - *New data* goes where it arrives first: the forecast p50 of the path, behind what the sender has put
//!   into the path's queue itself, and with what trouble on the path would add, weighted with its
//!   risk. A run ends where another path with room would be as early. A path takes nothing that a
//!   path which is full now would bring sooner together with all the rest, by its p90, nor what would have the
//!   faster ones stop behind a bounded window. What is late by chance is the copies' to repair: chosen by
//!   p90, a path with a wide spread stood idle while bursts waited for the other.
//! - *Copies* are made where nothing new can be sent. A copy is worth the time that it is
//!   expected to save ([`worth`]), and is made if that is more than the price of its bytes, which
//!   rises with what the budget has spent: a full budget pays for everything that might help, an empty one
//!   for what is nearly lost. Two places are looked at. From the end of what was written backwards: the
//!   last segment of a path waits behind all others there, and no segment behind it tells of its
//!   loss. And from the front, what only paths hold that owe an answer for longer than usual: what stands
//!   still holds up all that follows. Both may spend the budget [twice](MOST_SPENT) in the worst case.
//! - *Repairs*, where the peer computes with them: a share of each burst of several segments, before its copies
//!   (`auto/repairs.rs`).
//! - *Costs* of a path other than time are counted in time (`auto/costs.rs`): a metered path and a sleeping radio are
//!   spared by what other paths bring soon enough, and copies there have a purse of their own (`auto/purses.rs`).
//! - A path that has not been used for [`EXPLORE_AFTER`] gets a copy of the newest segment: it is explored
//!   by copies only, so that no message depends on it.
//!
//! A path whose answer is late goes on being given data, since most such alarms are false on a
//! healthy path, and a stream that moved to a slower path would wait there. A path on which a probe stays
//! unanswered is silent, which is the core's to say, and takes nothing.
//!
//! *Why this is not worse than the best path, beyond the price of exploring.* Let B be the best path for a message. A
//! segment that is put on another path A was forecast to arrive there sooner than all that is left would on B, as
//! often as not. Where it is late, the gain of a copy on B grows with every moment and passes any price that
//! the budget allows soon after the p99 of A: it is late by no more than that and one trip over B,
//! as long as the budget lasts; with a budget that covers the message the copy leaves at once. Copies are sent after
//! everything new that has room, so that they delay nothing of it. What the sketch leaves open: a forecast is
//! learnt, and is wrong for some round trips after each change of a path; and where the budget is spent, the tail is
//! that of one path with repairs.
//!
//! All of this is a function of the context, of what is spent and of which repairs are due (`auto/judge.rs`); who
//! listens is told the function's arguments with each decision, and can compute it again ([`Auto::recompute`]).
//!
//! *Sources.* Earliest arrival: ECF and STTF. A budget of bytes: AUGUR, PAAF and Hairpin agree that
//! redundancy must have one. Ours: one forecast for all decisions, learnt by its own errors, and the price.
//!
//! *p99 of a small message:* that of full redundancy while the budget lasts.

use marline_policy::{
    Decision, Dsn, Question, Reason, Reinjection, Scheduler, SchedulerAction, SchedulerContext,
    SchedulerEvent, Spending, Terms,
};
use marline_time::{Duration, Rate};

use super::classes;
use super::opportunistic::{Opportunistic, OpportunisticRules};
use crate::budget::{Budget, BudgetConfig};

mod arrivals;
mod costs;
mod judge;
mod purses;
mod reasons;
mod repairs;
mod worth;

use costs::Costs;
use judge::Judge;
use purses::Purses;
use repairs::Repairs;

/// What [`Auto`] may do.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AutoConfig {
    /// What copies may cost.
    pub budget: BudgetConfig,
    /// What copies may cost on each path that is metered, or is a backup, beside that.
    pub purse: BudgetConfig,
    /// What has to be saved for what a path costs.
    pub terms: Terms,
}

impl Default for AutoConfig {
    /// A purse of a twentieth, or 2 kB a second. New data goes on a metered path where it would be later by 100 ms,
    /// and by its bytes at 1 Mbit/s; half a second is worth a wake-up.
    fn default() -> Self {
        AutoConfig {
            budget: BudgetConfig::default(),
            purse: BudgetConfig { share: 0.05, rate: Rate::from_bytes_per_s(2_000) },
            terms: Terms {
                patience: Duration::from_millis(100),
                metered_rate: Rate::from_mbit(1),
                wake: Duration::from_millis(500),
            },
        }
    }
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

/// What is done where a slow path holds up the others.
const OPPORTUNISTIC: OpportunisticRules = OpportunisticRules::WIDE;

/// The default scheduler.
#[derive(Debug)]
pub struct Auto {
    /// What the budget is, and what a purse.
    limits: (BudgetConfig, BudgetConfig),
    opportunistic: Opportunistic,
    budget: Budget,
    purses: Purses,
    repairs: Repairs,
    /// What is spent of it, and of the purses. With one path nobody asks.
    spending: Spending,
    /// The stream and its repeats as of the last look.
    sent: Dsn,
    repeated: u64,
}

impl Auto {
    /// With these choices.
    #[must_use]
    pub fn new(config: AutoConfig) -> Self {
        Auto {
            limits: (config.budget, config.purse),
            opportunistic: Opportunistic::new(OPPORTUNISTIC),
            budget: Budget::default(),
            purses: Purses::default(),
            repairs: Repairs::default(),
            spending: Spending {
                unlimited: config.budget.is_unlimited(),
                terms: config.terms,
                ..Spending::default()
            },
            sent: Dsn(0),
            repeated: 0,
        }
    }

    /// Counts what was sent since this was last asked.
    fn count(&mut self, cx: &SchedulerContext<'_>) {
        let new = cx.unsent.start.since(self.sent.min(cx.unsent.start));
        if new > 0 {
            self.budget.on_new(cx.now, new);
            self.sent = cx.unsent.start;
        }
        if cx.repeated > self.repeated {
            self.budget.on_copy(cx.now, cx.repeated - self.repeated);
            self.repeated = cx.repeated;
        }
        self.purses.count(new, cx);
        if cx.subflows.len() > 1 {
            let (budget, purse) = &self.limits;
            self.spending.spent = self.budget.spent(cx.now, budget);
            self.purses.spent(cx.now, purse, &mut self.spending.purses);
        }
        self.repairs.plan(cx, &mut self.spending.repairs_due);
    }

    /// Counts what is decided and not repeated: a repair.
    fn count_repair(&mut self, decision: Decision, cx: &SchedulerContext<'_>) {
        let Decision::Repair { subflow, .. } = decision else { return };
        let bytes = cx.subflow(subflow).map_or(0, |view| view.mss.into());
        self.budget.on_copy(cx.now, bytes);
        self.purses.on_repair(cx.now, subflow, bytes);
        if let Some(due) = &mut self.spending.repairs_due {
            due.count = due.count.saturating_sub(1);
        }
    }
}

impl Default for Auto {
    fn default() -> Self {
        Auto::new(AutoConfig::default())
    }
}

impl Scheduler for Auto {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.count(cx);
        let decision = Judge(&self.spending).decide(cx).decision;
        self.count_repair(decision, cx);
        decision
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
        let before = out.len();
        self.opportunistic.on_event(event, cx, out);
        Costs(&self.spending).leave_out_dear_repeats(out, before, cx);
    }

    fn explain_send(&mut self, cx: &SchedulerContext<'_>, reasons: &mut Vec<Reason>) -> Decision {
        self.count(cx);
        let reason = reasons::of(Question::Next, &self.spending, cx);
        let decision = reason.decision;
        reasons.push(reason);
        self.count_repair(decision, cx);
        decision
    }

    fn explain_reinjection(
        &mut self,
        item: &Reinjection,
        cx: &SchedulerContext<'_>,
        reasons: &mut Vec<Reason>,
    ) -> Decision {
        let reason = reasons::of(Question::Again(*item), &self.spending, cx);
        let decision = reason.decision;
        reasons.push(reason);
        decision
    }

    fn explain_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
        reasons: &mut Vec<Reason>,
    ) {
        let before = out.len();
        self.on_event(event, cx, out);
        reasons.extend(reasons::of_actions(event, &out[before..], &self.spending, cx));
    }

    fn probe_patience(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn watches_delivery(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
