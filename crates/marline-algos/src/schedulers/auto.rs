//! The default scheduler: sends each piece of data on the path where it arrives first according to the forecast, and
//! sends copies where they save the most time, within a budget of extra bytes.
//!
//! *Problem.* Choosing between two healthy paths does not improve the p99, and copies do not improve the median. Each
//! scheduler in the literature does only one of the two: it chooses the path with the smallest RTT or the earliest
//! arrival, or it copies everything. It either ignores what paths do in the next second or pays for it with every byte.
//!
//! *Objective.* The smallest p99 of the completion time of each message, with copies limited by [`BudgetConfig`]. All
//! decisions compare [forecasts](marline_policy::Forecast):
//! - *New data* is sent where it arrives first. The arrival time is the forecast p50 of the path, plus the time for the
//!   sender's own queue on the path, plus the expected cost of trouble on the path, weighted by its risk. A run ends
//!   where another path with room would be equally early. Data is not sent on a path if a currently full path would, by
//!   its p90, deliver it and all other data sooner, or if it would block faster paths at a bounded window. Paths are
//!   compared by p50 because copies make up for chance delays; by p90, a path with a wide spread stayed idle while
//!   bursts waited for the other.
//! - *Copies* are made when no new data can be sent. The benefit of a copy is the time that it is expected to save
//!   ([`worth`]). It is made if that exceeds the gain required for its bytes, which rises with the spent share of
//!   the budget. With a full budget, every copy that might help is made; with an empty one, only copies of data
//!   that is almost certainly lost. Two candidates are considered. One is the end of the written data, going
//!   backward: the last segment on a path waits behind all others, and no later segment reveals its loss. The
//!   other is the front, if only paths with overdue answers carry it, because it blocks everything behind it. The
//!   little data that a very slow path holds is even copied before new data ([`URGENT_SAVING`]), because a large
//!   send buffer would let the stream stall behind it for seconds. In the worst case, both candidates may spend
//!   the budget [twice](MAX_SPENDING). Where bytes cost nothing, a share of the new data is the wrong limit: a
//!   burst of 100 kB every second spends all of it and leaves most of the path unused. So copies may instead use a
//!   share of the idle capacity ([`AutoConfig::idle_share`]). Mobile data often has an allowance, so such paths
//!   are [limited](marline_policy::PathCost::limited) unless the user says otherwise.
//! - *Early repeats*: on a free path that loses single packets, the end of a short message is sent again a few
//!   milliseconds later ([`MIN_REPEAT_DELAY`]), so no slower path is needed for that.
//! - *Repairs*, if the peer supports them, cover a share of each burst of several segments and are sent before its
//!   copies (`auto/repairs.rs`).
//! - *Costs* of a path other than time are converted to time (`auto/costs.rs`). New data avoids metered paths and
//!   sleeping radios if other paths deliver it soon enough, and copies there have their own budget per path
//!   (`auto/path_budgets.rs`).
//! - A path that has not been used for [`EXPLORE_AFTER`] gets a copy of the newest segment. Only copies explore paths,
//!   so that no message depends on it.
//!
//! A path with a late answer still gets data, because most such alarms are false on a healthy path, and a stream moved
//! to a slower path would have to wait. A path with an unanswered probe is silent, as determined by the core, and gets
//! nothing.
//!
//! *Why this is not worse than the best path, apart from the cost of exploring.* Let B be the best path for a message.
//! A segment is sent on another path A only if, by the forecast median, it arrives sooner on A than all remaining data
//! would on B. If it is late, the gain of a copy on B grows steadily, and exceeds any required gain soon after A's p99.
//! So while the budget lasts, the segment is late by at most that time and one trip over B. If the budget covers the
//! whole message, the copy is sent immediately. Copies are sent after all new data that has room, so they do not delay
//! it. This sketch leaves two gaps: a forecast is learned, and is wrong for some round trips after each change of a
//! path; and once the budget is spent, the tail is that of one path with retransmissions.
//!
//! All of this is a function of the context, the spent budget and the repairs that are due (`auto/judge.rs`). When
//! reasons are recorded, these inputs are logged with each decision, so that it can be recomputed
//! ([`Auto::recompute`]).
//!
//! *Sources.* Earliest arrival: ECF and STTF. Byte budget: AUGUR, PAAF and Hairpin agree that redundancy needs one. Our
//! contribution: one forecast for all decisions, learned from its own errors, and a required gain that follows the
//! budget.
//!
//! *p99 of a small message:* equal to full redundancy while the budget lasts.

use marline_policy::{
    BudgetState, Decision, Dsn, Health, Quantile, Question, Reason, Reinjection, Scheduler,
    SchedulerAction, SchedulerContext, SchedulerEvent, SubflowView, Terms,
};
use marline_time::{Duration, Rate};

use super::classes;
use super::delivery::expects_more_data;
use super::opportunistic::{Opportunistic, OpportunisticRules};
use crate::budget::{Budget, BudgetConfig, IdleCapacity};

mod arrivals;
mod copy_gain;
mod costs;
mod judge;
mod path_budgets;
mod reasons;
mod repairs;

use costs::Costs;
use judge::Decider;
use path_budgets::PathBudgets;
use repairs::Repairs;

/// Settings of [`Auto`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AutoConfig {
    /// Budget for copies on all paths together.
    pub budget: BudgetConfig,
    /// Share of the idle capacity of free paths that copies may use, if that is more than `budget` allows: 0 to 1.
    /// Ignored if the share of `budget` is 0.
    pub idle_share: f64,
    /// Additional budget for copies on each path that is metered or a backup.
    pub path_budget: BudgetConfig,
    /// Time that must be saved to justify costs other than time.
    pub terms: Terms,
}

impl Default for AutoConfig {
    /// Copies may use 5 % of the idle capacity. The per-path budget is 5 % or 2 kB/s. New data uses a metered path if
    /// the others would be later by 100 ms plus the time that its bytes take at 1 Mbit/s. A radio wake-up must save
    /// half a second.
    fn default() -> Self {
        AutoConfig {
            budget: BudgetConfig::default(),
            idle_share: 0.05,
            path_budget: BudgetConfig { share: 0.05, rate: Rate::from_bytes_per_s(2_000) },
            terms: Terms {
                patience: Duration::from_millis(100),
                metered_rate: Rate::from_mbit(1),
                wake: Duration::from_millis(500),
            },
        }
    }
}

/// Cost of trouble on a path, in multiples of its answer time: one to detect the trouble and one to retransmit.
const TROUBLE_COST: u32 = 2;
/// Weight of the tail relative to the mean.
const TAIL_WEIGHT: f32 = 1.0;
/// Idle time after which a path gets a copy of the newest segment.
const EXPLORE_AFTER: Duration = Duration::from_millis(300);
/// Maximum number of segments of a message whose end is repeated early.
const SHORT_SEGMENTS: u64 = 2;
/// Budget for copies of short messages to a slow path, while the fast one is not in doubt. Frequent ones, such as the
/// echoes of a game, would otherwise all be copied, although a path that loses single packets repeats them early.
const SHORT_BUDGET: BudgetConfig = BudgetConfig { share: 0.0, rate: Rate::from_bytes_per_s(2_000) };
/// Largest share of that budget that counts: it requires a gain of 3 %, so that a path in doubt is not affected.
const MAX_SHORT_SHARE: f32 = 0.68;
/// Time that a copy of late data must be expected to save to be sent before new data.
const URGENT_SAVING: Duration = Duration::from_millis(500);
/// The late path's answer must take this many times as long as all of its data takes on the path of the copy.
const URGENT_RATIO: u32 = 10;
/// Maximum number of mappings examined for copies.
const MAX_EXAMINED_MAPPINGS: usize = 64;
/// Maximum spending, in multiples of the budget.
const MAX_SPENDING: f32 = 2.0;

/// Bounds of the time between data and its early repeat, which is a quarter of SRTT: if it were shorter, one burst of
/// losses would affect both.
const MIN_REPEAT_DELAY: Duration = Duration::from_millis(2);
const MAX_REPEAT_DELAY: Duration = Duration::from_millis(10);

/// Rules for a slow path that blocks the other paths.
const OPPORTUNISTIC: OpportunisticRules = OpportunisticRules::WIDE;

/// The default scheduler.
#[derive(Debug)]
pub struct Auto {
    /// Common budget and per-path budget.
    limits: (BudgetConfig, BudgetConfig),
    idle_share: f64,
    opportunistic: Opportunistic,
    budget: Budget,
    path_budgets: PathBudgets,
    repairs: Repairs,
    /// Spent shares of the budgets. Not updated if there is only one path, which needs none.
    spending: BudgetState,
    /// Position in the stream, and number of repeated bytes, when last counted.
    sent: Dsn,
    repeated: u64,
}

impl Auto {
    /// Creates a scheduler with these settings.
    #[must_use]
    pub fn new(config: AutoConfig) -> Self {
        Auto {
            limits: (config.budget, config.path_budget),
            // Without a share of the new data, nothing beyond the rate may be spent.
            idle_share: if config.budget.share == 0.0 { 0.0 } else { config.idle_share },
            opportunistic: Opportunistic::new(OPPORTUNISTIC),
            budget: Budget::default(),
            path_budgets: PathBudgets::default(),
            repairs: Repairs::default(),
            spending: BudgetState {
                unlimited: config.budget.is_unlimited(),
                terms: config.terms,
                ..BudgetState::default()
            },
            sent: Dsn(0),
            repeated: 0,
        }
    }

    /// Counts what has been sent since the last call.
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
        self.path_budgets.count(new, cx);
        if cx.subflows.len() > 1 {
            let (budget, path_budget) = &self.limits;
            let idle = || IdleCapacity { rate: free_capacity(cx), share: self.idle_share };
            self.spending.spent = self.budget.spent_share_with(cx.now, budget, idle);
            if !self.spending.unlimited && judge::is_message_short(cx) && repairs_itself(cx) {
                let spent = self.budget.spent_share(cx.now, &SHORT_BUDGET);
                self.spending.spent = self.spending.spent.max(spent.min(MAX_SHORT_SHARE));
            }
            let spent = &mut self.spending.path_budgets;
            self.path_budgets.spent_shares(cx.now, budget, path_budget, spent);
        }
        self.repairs.plan_repairs(cx, &mut self.spending.repairs_due);
    }

    /// Counts a repair or an early repeat, which the counter of repeated bytes does not include.
    fn count_extra(&mut self, decision: Decision, cx: &SchedulerContext<'_>) {
        let mss_of = |id| cx.subflow(id).map_or(0, |view| u64::from(view.mss));
        match decision {
            Decision::Repair { subflow, .. } => {
                self.budget.on_copy(cx.now, mss_of(subflow));
                self.path_budgets.on_repair(cx.now, subflow, mss_of(subflow));
                if let Some(due) = &mut self.spending.repairs_due {
                    due.count = due.count.saturating_sub(1);
                }
            }
            Decision::RepeatNewest { subflow } => {
                let in_flight = cx.subflow(subflow).map_or(0, |view| view.bytes_in_flight);
                self.budget.on_copy(cx.now, in_flight.min(mss_of(subflow)));
            }
            _ => {}
        }
    }
}

/// Returns true if the fastest path repeats lost ends of messages early, and a copy on another path takes at least
/// twice as long as nearly all of its answers.
fn repairs_itself(cx: &SchedulerContext<'_>) -> bool {
    let usable = || cx.subflows.iter().filter(|view| view.is_active() && !view.backup);
    let answer = |view: &SubflowView, quantile| view.forecast.answer(quantile);
    let known = usable().filter_map(|view| Some((answer(view, Quantile::P50)?, view)));
    let Some((_, fastest)) = known.min_by_key(|(time, view)| (*time, view.id)) else {
        return false;
    };
    let Some(p90) = answer(fastest, Quantile::P90) else { return false };
    let mut others = usable().filter(|view| view.id != fastest.id);
    let is_slow =
        |view: &SubflowView| answer(view, Quantile::P50).is_some_and(|time| time >= p90 * 2);
    let repeats = !fastest.limited && !costs::is_costly(fastest);
    repeats && fastest.forecast.had_recent_trouble() && others.all(is_slow)
}

/// Returns the sum of the known rates of the paths whose use costs only time. None of this capacity is idle while the
/// writer waits for room in the send buffer.
fn free_capacity(cx: &SchedulerContext<'_>) -> Rate {
    if expects_more_data(cx) {
        return Rate::ZERO;
    }
    let is_free = |view: &&SubflowView| {
        let costs_time_only = !view.backup && !view.limited && !costs::is_costly(view);
        view.is_active() && view.health == Health::Usable && costs_time_only
    };
    let rates = cx.subflows.iter().filter(is_free).filter_map(|view| view.forecast.rate());
    Rate::from_bytes_per_s(rates.map(Rate::bytes_per_s).sum())
}

impl Default for Auto {
    fn default() -> Self {
        Auto::new(AutoConfig::default())
    }
}

impl Scheduler for Auto {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.count(cx);
        let decision = Decider(&self.spending).decide(cx).decision;
        self.count_extra(decision, cx);
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
        Costs(&self.spending).drop_costly_repeats(out, before, cx);
    }

    fn explain_send(&mut self, cx: &SchedulerContext<'_>, reasons: &mut Vec<Reason>) -> Decision {
        self.count(cx);
        let reason = reasons::answer_question(Question::Next, &self.spending, cx);
        let decision = reason.decision;
        reasons.push(reason);
        self.count_extra(decision, cx);
        decision
    }

    fn explain_reinjection(
        &mut self,
        item: &Reinjection,
        cx: &SchedulerContext<'_>,
        reasons: &mut Vec<Reason>,
    ) -> Decision {
        let reason = reasons::answer_question(Question::Again(*item), &self.spending, cx);
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
        reasons.extend(reasons::reason_of_actions(event, &out[before..], &self.spending, cx));
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
