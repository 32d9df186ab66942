//! Record of a scheduler's decision: what was decided, why, and everything it followed from.
//!
//! *Problem.* Why a path was taken or a copy made cannot be told afterwards from what went out: by then
//! the forecasts are others. And a log that is written beside the decisions says in time something else than they do.
//!
//! *How.* [`Inputs`] is the scheduler's context as a value. [`Inputs::of`] lets the scheduler decide, with an index
//! of mappings that notes what it is asked and what it answers; [`Inputs::replay`] lets the same code decide again,
//! from the record alone. So a decision has one function, whether it is made or recomputed. [`Grounds`] are the rule
//! that decided and the times that it compared, for people: they are recomputed with the decision.
//!
//! A [`Reason`] is logged as a line of text ([`Reason::record`]) that is read back without loss ([`Reason::parse`]),
//! and said in a sentence ([`Reason::words`]). Neither holds keys, tokens or anything of what is sent: positions
//! count from the beginning of the stream.

use core::cell::RefCell;

use marline_time::{Duration, Instant, Rate};

use crate::{
    AddressId, AddressPairFault, DataRange, Decision, Dsn, Eligibility, Forecast, Health, Mapping,
    MappingIndex, Phase, Reinjection, SchedulerContext, SilenceCause, SubflowId, SubflowView,
};

mod record;
mod words;

pub use record::BadRecord;

/// A decision, its grounds and its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// What the scheduler was asked.
    pub question: Question,
    /// What it decided.
    pub decision: Decision,
    /// Further data that it decided about in the same way at once; all of it goes where the first goes.
    pub also: Vec<DataRange>,
    /// Why.
    pub grounds: Grounds,
    /// What it followed from.
    pub inputs: Inputs,
}

// Its numbers are never NaN: none is computed here, and none is read from a record.
impl Eq for Reason {}

/// What a scheduler is asked when it decides where data goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// What to send next, and where.
    Next,
    /// Where to send this again.
    Again(Reinjection),
    /// What to do about data that cannot go on although this subflow has room: the peer's window ends.
    WindowBlocked(SubflowId),
    /// What to do about a send buffer that is full of what subflows have not brought home.
    BufferBlocked,
}

/// The rule by which a decision was made.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// New data goes where it arrives first.
    First,
    /// New data goes, or waits, where it arrives soon enough: a path that would bring it sooner is metered, or its
    /// radio sleeps.
    Spared,
    /// Every path is in trouble: new data goes on the one that was heard of last.
    HeardLast,
    /// Data waits: no path has room.
    NoRoom,
    /// Data waits: a path that is full now brings all of it sooner.
    FullIsSooner,
    /// Data waits: on the path that has room, it would have the faster ones stop behind the window or the buffer.
    WouldBlock,
    /// A copy of what holds up everything behind it, as the answer has been owed for long.
    Late,
    /// A copy of the end of what was written, of whose loss nothing behind it would tell.
    End,
    /// A repair of a burst: a sum that stands for whichever segment is missing.
    Repair,
    /// A copy that explores a path which has not been used lately.
    Explore,
    /// No copy is worth its price now; one may be later.
    LookAgain,
    /// There is nothing to send, and no copy is worth its price.
    Nothing,
    /// No path can carry anything.
    NoPath,
    /// What is to be repeated goes on the best path that did not carry it.
    Rescue,
    /// What is to be repeated waits: its copy is under way, or every path that may have it is full.
    RescueWaits,
    /// What a slow path holds up goes on a fast one with room as well, since the window or the buffer is full.
    Unblock,
}

/// Rule of a decision and the times that it compared: µs, rounded down, from the moment of the decision.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Grounds {
    /// The rule.
    pub rule: Rule,
    /// The path that data goes on, or should not go on; `None`: none in particular.
    pub path: Option<SubflowId>,
    /// The path that it was compared with: the next best one, the one waited for, or the one that holds the original.
    pub other: Option<SubflowId>,
    /// Time until the data is there on `path`.
    pub arrives_us: Option<u64>,
    /// The same on `other`, or time until its answer to the original is due; 0: it is due.
    pub other_us: Option<u64>,
    /// Time by which nine of ten such answers are there; 0: it is over.
    pub other_late_us: Option<u64>,
    /// Time that a copy is expected to save.
    pub gain_us: Option<u64>,
    /// Least gain that is paid for, by what the budget has spent.
    pub price_us: Option<u64>,
}

impl Grounds {
    /// A rule without times.
    #[must_use]
    pub const fn of(rule: Rule) -> Self {
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

/// The budget of a scheduler's copies, and what paths cost it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spending {
    /// Share of it that is spent: 1 is all, and it may be more; infinite if there is none.
    pub spent: f32,
    /// Copies cost nothing.
    pub unlimited: bool,
    /// The same share for each path that has a purse of its own for copies.
    pub purses: Vec<(SubflowId, f32)>,
    /// What has to be saved for costs of a path.
    pub terms: Terms,
    /// Repairs of the burst that is under way.
    pub repairs_due: Option<RepairsDue>,
}

/// Repairs that are still to be sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RepairsDue {
    /// What each of them is a sum of.
    pub range: DataRange,
    /// How many.
    pub count: u32,
}

impl Spending {
    /// Share of a path's own purse that is spent; `None`: it has none.
    #[must_use]
    pub fn purse(&self, id: SubflowId) -> Option<f32> {
        self.purses.iter().find(|(of, _)| *of == id).map(|(_, spent)| *spent)
    }
}

/// Time that has to be saved for what a path costs ([`PathCost`](crate::PathCost)).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// By new data on a metered path, whatever it is.
    pub patience: Duration,
    /// And beside that the time that its bytes take at this rate; zero: there is no such time, and
    /// new data goes there only where nothing cheaper answers.
    pub metered_rate: Rate,
    /// By whatever wakes a radio.
    pub wake: Duration,
}

/// What a scheduler knew when it decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// The time.
    pub now: Instant,
    /// Data not yet given to any subflow, as far as the peer's window allows.
    pub unsent: DataRange,
    /// End of everything written.
    pub written: Dsn,
    /// First byte that is not DATA_ACKed.
    pub data_una: Dsn,
    /// First byte beyond the peer's window.
    pub window_end: Dsn,
    /// Largest size of the send buffer, bytes.
    pub send_limit: u64,
    /// The peer understands repairs.
    pub repairs: bool,
    /// Its budget.
    pub spending: Spending,
    /// The subflows, in slot order.
    pub paths: Vec<PathInputs>,
    /// What it asked about outstanding data, and the answers, in order.
    pub asked: Vec<(MappingQuery, Option<Mapping>)>,
}

/// A question to a [`MappingIndex`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MappingQuery {
    /// [`MappingIndex::oldest`].
    Oldest,
    /// [`MappingIndex::newest`].
    Newest,
    /// [`MappingIndex::at`].
    At(Dsn),
    /// [`MappingIndex::next_not_on`].
    NextNotOn(SubflowId, Dsn),
    /// [`MappingIndex::last_not_on`].
    LastNotOn(SubflowId, Dsn),
}

/// Health of a subflow without causes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// [`Health::Fine`].
    Fine,
    /// [`Health::Doubtful`].
    Doubtful,
    /// [`Health::Silent`].
    Silent,
}

/// What a scheduler knew of one subflow; as in [`SubflowView`], whose other fields are not recorded.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PathInputs {
    /// Its slot.
    pub id: SubflowId,
    /// A backup.
    pub backup: bool,
    /// Metered.
    pub metered: bool,
    /// Share of a wake-up that a packet on it costs.
    pub wake_share: f32,
    /// Its health.
    pub standing: Standing,
    /// Congestion phase.
    pub phase: Phase,
    /// Whether it takes data.
    pub eligibility: Eligibility,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Slow-start threshold in bytes, `u64::MAX` while unknown.
    pub ssthresh: u64,
    /// Bytes in the network.
    pub bytes_in_flight: u64,
    /// Bytes lost and not yet retransmitted.
    pub bytes_queued: u64,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
    /// Smallest RTT.
    pub min_rtt: Option<Duration>,
    /// Delivery rate.
    pub delivery_rate: Option<Rate>,
    /// When answers are to be expected: quantiles, own delay and chance of trouble.
    pub forecast: Forecast,
    /// When the answer to the oldest segment is overdue.
    pub overdue_at: Option<Instant>,
    /// When it last sent anything.
    pub last_sent_at: Instant,
    /// When it was last heard.
    pub last_heard_at: Instant,
}

impl From<&SubflowView> for PathInputs {
    fn from(view: &SubflowView) -> Self {
        PathInputs {
            id: view.id,
            backup: view.backup,
            metered: view.metered,
            wake_share: view.wake_share,
            standing: match view.health {
                Health::Fine => Standing::Fine,
                Health::Doubtful { .. } => Standing::Doubtful,
                Health::Silent { .. } => Standing::Silent,
            },
            phase: view.phase,
            eligibility: view.eligibility,
            mss: view.mss,
            cwnd: view.cwnd,
            ssthresh: view.ssthresh,
            bytes_in_flight: view.bytes_in_flight,
            bytes_queued: view.bytes_queued,
            srtt: view.srtt,
            min_rtt: view.min_rtt,
            delivery_rate: view.delivery_rate,
            forecast: view.forecast,
            overdue_at: view.overdue_at,
            last_sent_at: view.last_sent_at,
            last_heard_at: view.last_heard_at,
        }
    }
}

impl PathInputs {
    /// The view that this was taken of; what is not recorded is what a new subflow has.
    #[must_use]
    pub const fn view(&self) -> SubflowView {
        let since = Instant::ZERO;
        SubflowView {
            id: self.id,
            local_id: AddressId(0),
            remote_id: AddressId(0),
            backup: self.backup,
            metered: self.metered,
            wake_share: self.wake_share,
            health: match self.standing {
                Standing::Fine => Health::Fine,
                Standing::Doubtful => {
                    Health::Doubtful { since, cause: AddressPairFault::Unanswered }
                }
                Standing::Silent => Health::Silent { since, cause: SilenceCause::ProbeTimeout },
            },
            phase: self.phase,
            eligibility: self.eligibility,
            mss: self.mss,
            cwnd: self.cwnd,
            ssthresh: self.ssthresh,
            bytes_in_flight: self.bytes_in_flight,
            bytes_queued: self.bytes_queued,
            bytes_copied: 0,
            bytes_sent: 0,
            bytes_received: 0,
            srtt: self.srtt,
            rttvar: Duration::ZERO,
            min_rtt: self.min_rtt,
            delivery_rate: self.delivery_rate,
            forecast: self.forecast,
            overdue_at: self.overdue_at,
            bytes_since_loss: 0,
            bytes_between_losses: 0,
            last_sent_at: self.last_sent_at,
            last_heard_at: self.last_heard_at,
            last_new_at: since,
        }
    }
}

impl Inputs {
    /// Lets `decide` decide, and returns what it knew then: all of the context, and what it asked about outstanding
    /// data.
    pub fn of<T>(
        cx: &SchedulerContext<'_>,
        spending: &Spending,
        decide: impl FnOnce(&SchedulerContext<'_>) -> T,
    ) -> (T, Inputs) {
        let listening = Listening { index: cx.mappings, asked: RefCell::default() };
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
            paths: cx.subflows.iter().map(PathInputs::from).collect(),
            asked: listening.asked.into_inner(),
        };
        (decided, inputs)
    }

    /// Lets `decide` decide again, by what is recorded alone. A question about outstanding data that was not asked
    /// before is answered as if there was none. How much was repeated so far is not recorded: it is in the
    /// [spending](Self::spending).
    pub fn replay<T>(&self, decide: impl FnOnce(&SchedulerContext<'_>) -> T) -> T {
        let subflows: Vec<SubflowView> = self.paths.iter().map(PathInputs::view).collect();
        decide(&SchedulerContext {
            now: self.now,
            subflows: &subflows,
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

    /// What was known of a path.
    #[must_use]
    pub fn path(&self, id: SubflowId) -> Option<&PathInputs> {
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

    fn at(&self, at: Dsn) -> Option<Mapping> {
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

/// An index that notes what it is asked. Nothing changes while a scheduler decides: a question is noted once.
struct Listening<'a> {
    index: &'a dyn MappingIndex,
    asked: RefCell<Vec<(MappingQuery, Option<Mapping>)>>,
}

impl Listening<'_> {
    fn note(&self, query: MappingQuery, answer: Option<Mapping>) -> Option<Mapping> {
        let mut asked = self.asked.borrow_mut();
        if !asked.iter().any(|(before, _)| *before == query) {
            asked.push((query, answer));
        }
        answer
    }
}

impl MappingIndex for Listening<'_> {
    fn oldest(&self) -> Option<Mapping> {
        self.note(MappingQuery::Oldest, self.index.oldest())
    }

    fn at(&self, at: Dsn) -> Option<Mapping> {
        self.note(MappingQuery::At(at), self.index.at(at))
    }

    fn next_not_on(&self, subflow: SubflowId, from: Dsn) -> Option<Mapping> {
        let answer = self.index.next_not_on(subflow, from);
        self.note(MappingQuery::NextNotOn(subflow, from), answer)
    }

    fn last_not_on(&self, subflow: SubflowId, before: Dsn) -> Option<Mapping> {
        let answer = self.index.last_not_on(subflow, before);
        self.note(MappingQuery::LastNotOn(subflow, before), answer)
    }

    fn newest(&self) -> Option<Mapping> {
        self.note(MappingQuery::Newest, self.index.newest())
    }
}
