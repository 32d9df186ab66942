//! Records a scheduler's decision: what was decided, why, and all inputs of the decision.
//!
//! *Problem.* The packets sent do not show why a path was chosen or a copy made, because the forecasts on which the
//! decision was based have changed. A log written separately from the decision code eventually disagrees with it.
//!
//! *How.* [`Inputs`] is the scheduler's context as a value. [`Inputs::record`] runs the scheduler with a mapping
//! index that records each query and its answer. [`Inputs::replay`] runs the same code again, from the record alone.
//! So the same function makes a decision and recomputes it. [`Grounds`] holds the rule that decided and the times it
//! compared, for people to read. Replaying the decision recomputes them.
//!
//! A [`Reason`] is logged as a line of text ([`Reason::record`]) that can be parsed without loss ([`Reason::parse`]),
//! and can be described in a sentence ([`Reason::text`]). Neither contains keys, tokens or payload. Positions count
//! from the start of the stream.

use core::cell::RefCell;

use marline_time::{Duration, Instant, Rate};

use crate::{
    AddressId, AddressPairFault, DataRange, Decision, Dsn, Health, Mapping, MappingIndex,
    Reinjection, SchedulerContext, SubflowId, SubflowView, UnreachableCause,
};

mod record;
mod words;

pub use record::BadRecord;

/// A scheduler's decision, its grounds and its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The decision that was requested.
    pub question: Question,
    /// The resulting decision.
    pub decision: Decision,
    /// More data covered by the same decision. It is sent on the subflow of the first range.
    pub more_ranges: Vec<DataRange>,
    /// The rule and the times compared.
    pub grounds: Grounds,
    /// All inputs to the decision.
    pub inputs: Inputs,
}

// The floats in a `Reason` are never NaN: none is computed here, and parsing rejects NaN.
impl Eq for Reason {}

/// Kind of decision requested from a scheduler.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The next data to send, and its subflow.
    Next,
    /// The subflow on which to send this data again.
    Again(Reinjection),
    /// Choice of data when new data does not fit the peer's window although this subflow has room.
    WindowBlocked(SubflowId),
    /// Choice of data when the send buffer is full of data that is not DATA_ACKed.
    BufferBlocked,
}

/// The rule by which a decision was made.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// New data is sent on the path where it arrives first.
    First,
    /// New data is sent on, or waits for, a path where it arrives soon enough. A faster path is metered, or its radio
    /// sleeps.
    Spared,
    /// Every path is in trouble. New data is sent on the path that received data most recently.
    LastReceived,
    /// Data waits: no path has room.
    NoRoom,
    /// Data waits: a path whose window is full now will still deliver all of it sooner.
    FullPathFaster,
    /// Data waits: the path with room is so slow that sending on it would block the faster ones at the window or buffer
    /// limit.
    WouldBlock,
    /// A copy of data that blocks everything behind it, because its acknowledgment is overdue.
    Late,
    /// A copy of the end of the written data, because no later data would reveal its loss.
    End,
    /// A repair of a burst: a sum that can replace any one missing segment.
    Repair,
    /// A copy that probes a path not used recently.
    Explore,
    /// The newest data is sent again on its own path, because that path loses single packets.
    RepeatNewest,
    /// No copy is justified now, but one may be justified later.
    Recheck,
    /// There is nothing to send, and no copy is justified.
    Nothing,
    /// No path can carry data.
    NoPath,
    /// Data to be sent again uses the best path that has not carried it.
    Rescue,
    /// Data to be sent again waits, because a copy is in flight or all eligible paths are full.
    RescueWaits,
    /// The window or buffer is full because of data on a slow path. That data is also sent on a faster path with
    /// room.
    Unblock,
}

/// Rule of a decision and the times it compared, in µs from the moment of the decision, rounded down.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Grounds {
    /// The rule.
    pub rule: Rule,
    /// The path on which data is sent, or must not be sent; `None` if the rule names no path.
    pub path: Option<SubflowId>,
    /// The path it was compared with: the next best path, the path waited for, or the path that carries the original.
    pub other: Option<SubflowId>,
    /// Time until the data arrives on `path`.
    pub arrives_us: Option<u64>,
    /// Time until the data arrives on `other`, or until the answer to the original is due there; 0 if it is already
    /// due.
    pub other_us: Option<u64>,
    /// Time until nine out of ten such answers have arrived; 0 if that time has passed.
    pub other_late_us: Option<u64>,
    /// Time that a copy is expected to save.
    pub gain_us: Option<u64>,
    /// Smallest gain that justifies a copy, given the spent share of the budget.
    pub price_us: Option<u64>,
}

impl Grounds {
    /// A rule without times.
    #[must_use]
    pub const fn without_times(rule: Rule) -> Self {
        Grounds {
            rule,
            path: None,
            other: None,
            arrives_us: None,
            other_us: None,
            other_late_us: None,
            gain_us: None,
            price_us: None,
        }
    }
}

/// A scheduler's budget for copies, and the costs of paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BudgetState {
    /// Share of the budget that is spent. May exceed 1; infinite if there is no budget.
    pub spent: f32,
    /// Copies cost nothing: the budget has no limit.
    pub unlimited: bool,
    /// Spent share of each path that has its own budget for copies.
    pub path_budgets: Vec<(SubflowId, f32)>,
    /// Time savings required to use paths that have a cost.
    pub terms: Terms,
    /// Repairs to be sent for the current burst.
    pub repairs_due: Option<RepairsDue>,
}

/// Repairs still to be sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RepairsDue {
    /// The data that each repair covers.
    pub range: DataRange,
    /// Number of repairs.
    pub count: u32,
}

impl BudgetState {
    /// Spent share of a path's own budget; `None` if it has none.
    #[must_use]
    pub fn path_budget(&self, id: SubflowId) -> Option<f32> {
        self.path_budgets.iter().find(|(of, _)| *of == id).map(|(_, spent)| *spent)
    }
}

/// Time that must be saved to justify the cost of a path ([`PathCost`](crate::PathCost)).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Time saving required for any new data on a metered path.
    pub patience: Duration,
    /// Additional saving required for new data on a metered path: the time its bytes take at this rate. If zero, no
    /// saving is enough, and new data uses such a path only if no cheaper path answers.
    pub metered_rate: Rate,
    /// Time saving required for a transmission that wakes a radio.
    pub wake: Duration,
}

/// All inputs to a scheduler's decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// Time of the decision.
    pub now: Instant,
    /// Data that no subflow has been given yet, up to the end of the peer's window.
    pub unsent: DataRange,
    /// End of all data that the application has written.
    pub written: Dsn,
    /// First byte that is not DATA_ACKed.
    pub data_una: Dsn,
    /// First byte beyond the peer's window.
    pub window_end: Dsn,
    /// Maximum size of the send buffer in bytes.
    pub send_limit: u64,
    /// The peer supports repairs.
    pub repairs: bool,
    /// The scheduler's budget.
    pub spending: BudgetState,
    /// The subflows, in slot order. Their health has no cause. Fields that are not recorded have the values of a new
    /// subflow.
    pub paths: Vec<SubflowView>,
    /// Queries about outstanding data and their answers, in order.
    pub asked: Vec<(MappingQuery, Option<Mapping>)>,
}

/// A query to a [`MappingIndex`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MappingQuery {
    /// [`MappingIndex::oldest`].
    Oldest,
    /// [`MappingIndex::newest`].
    Newest,
    /// [`MappingIndex::mapping_at`].
    At(Dsn),
    /// [`MappingIndex::next_not_on`].
    NextNotOn(SubflowId, Dsn),
    /// [`MappingIndex::last_not_on`].
    LastNotOn(SubflowId, Dsn),
}

/// Health of a degraded subflow in a record.
const DEGRADED: Health =
    Health::Degraded { since: Instant::ZERO, cause: AddressPairFault::Unanswered };
/// Health of an unreachable subflow in a record.
const UNREACHABLE: Health =
    Health::Unreachable { since: Instant::ZERO, cause: UnreachableCause::ProbeTimeout };

/// The part of a view that a record keeps. Omits the cause of its health, addresses, and counters that no rule reads.
fn recorded_view(view: &SubflowView) -> SubflowView {
    SubflowView {
        local_id: AddressId(0),
        remote_id: AddressId(0),
        health: match view.health {
            Health::Usable => Health::Usable,
            Health::Degraded { .. } => DEGRADED,
            Health::Unreachable { .. } => UNREACHABLE,
        },
        bytes_copied: 0,
        bytes_sent: 0,
        bytes_received: 0,
        rttvar: Duration::ZERO,
        bytes_since_loss: 0,
        bytes_between_losses: 0,
        last_new_at: Instant::ZERO,
        ..*view
    }
}

impl Inputs {
    /// Runs `decide` and also returns its inputs: the context, and the answers to its queries about outstanding data.
    pub fn record<T>(
        cx: &SchedulerContext<'_>,
        spending: &BudgetState,
        decide: impl FnOnce(&SchedulerContext<'_>) -> T,
    ) -> (T, Inputs) {
        let listening = RecordingIndex { index: cx.mappings, asked: RefCell::default() };
        let decided = decide(&SchedulerContext { mappings: &listening, ..*cx });
        let inputs = Inputs {
            now: cx.now,
            unsent: cx.unsent,
            written: cx.written,
            data_una: cx.data_una,
            window_end: cx.window_end,
            send_limit: cx.send_limit,
            repairs: cx.repairs,
            spending: spending.clone(),
            paths: cx.subflows.iter().map(recorded_view).collect(),
            asked: listening.asked.into_inner(),
        };
        (decided, inputs)
    }

    /// Runs `decide` again from the record alone. A query about outstanding data that was not recorded gets the answer
    /// `None`. The number of repeated bytes is not recorded, because it is part of the [spending](Self::spending).
    pub fn replay<T>(&self, decide: impl FnOnce(&SchedulerContext<'_>) -> T) -> T {
        decide(&SchedulerContext {
            now: self.now,
            subflows: &self.paths,
            unsent: self.unsent,
            written: self.written,
            data_una: self.data_una,
            window_end: self.window_end,
            send_limit: self.send_limit,
            repeated: 0,
            repairs: self.repairs,
            mappings: self,
        })
    }

    /// The recorded inputs of a path.
    #[must_use]
    pub fn path(&self, id: SubflowId) -> Option<&SubflowView> {
        self.paths.iter().find(|path| path.id == id)
    }

    fn answer(&self, query: MappingQuery) -> Option<Mapping> {
        self.asked.iter().find(|(asked, _)| *asked == query)?.1
    }
}

impl MappingIndex for Inputs {
    fn oldest(&self) -> Option<Mapping> {
        self.answer(MappingQuery::Oldest)
    }

    fn mapping_at(&self, at: Dsn) -> Option<Mapping> {
        self.answer(MappingQuery::At(at))
    }

    fn next_not_on(&self, subflow: SubflowId, from: Dsn) -> Option<Mapping> {
        self.answer(MappingQuery::NextNotOn(subflow, from))
    }

    fn last_not_on(&self, subflow: SubflowId, before: Dsn) -> Option<Mapping> {
        self.answer(MappingQuery::LastNotOn(subflow, before))
    }

    fn newest(&self) -> Option<Mapping> {
        self.answer(MappingQuery::Newest)
    }
}

/// A mapping index that records queries and answers. Each query is recorded once, because answers do not change during
/// a decision.
struct RecordingIndex<'a> {
    index: &'a dyn MappingIndex,
    asked: RefCell<Vec<(MappingQuery, Option<Mapping>)>>,
}

impl RecordingIndex<'_> {
    fn record_query(&self, query: MappingQuery, answer: Option<Mapping>) -> Option<Mapping> {
        let mut asked = self.asked.borrow_mut();
        if !asked.iter().any(|(before, _)| *before == query) {
            asked.push((query, answer));
        }
        answer
    }
}

impl MappingIndex for RecordingIndex<'_> {
    fn oldest(&self) -> Option<Mapping> {
        self.record_query(MappingQuery::Oldest, self.index.oldest())
    }

    fn mapping_at(&self, at: Dsn) -> Option<Mapping> {
        self.record_query(MappingQuery::At(at), self.index.mapping_at(at))
    }

    fn next_not_on(&self, subflow: SubflowId, from: Dsn) -> Option<Mapping> {
        let answer = self.index.next_not_on(subflow, from);
        self.record_query(MappingQuery::NextNotOn(subflow, from), answer)
    }

    fn last_not_on(&self, subflow: SubflowId, before: Dsn) -> Option<Mapping> {
        let answer = self.index.last_not_on(subflow, before);
        self.record_query(MappingQuery::LastNotOn(subflow, before), answer)
    }

    fn newest(&self) -> Option<Mapping> {
        self.record_query(MappingQuery::Newest, self.index.newest())
    }
}
