//! Datagram policy interface: which path a datagram goes on, and which path, if any, has a copy of it.
//!
//! Datagrams are no part of a stream: they are delivered when they arrive, in whatever order, and those that are lost
//! are lost. So there is nothing to map or to reinject, and the question is asked once for each of them, when the
//! application hands it over, and perhaps once more when its acknowledgement is overdue.

use core::fmt::{self, Debug};

use marline_time::{Duration, Instant, Rate};

use crate::{Forecast, Health};

/// A path of a session as datagrams use it; both ends call it by the same number.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}", self.0)
    }
}

/// Kind of a flow of datagrams, judged by what it sent within the last second.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowClass {
    /// Little: voice, the inputs of a game, name lookups, the first packets of anything.
    #[default]
    Sparse,
    /// More, but at a pace of its own: a video call.
    Steady,
    /// As much as it can get: QUIC that downloads. Its own congestion control hears of queues and losses.
    Bulk,
}

impl FlowClass {
    /// All there are.
    pub const ALL: [FlowClass; 3] = [FlowClass::Sparse, FlowClass::Steady, FlowClass::Bulk];
}

/// A read-only snapshot of a path, taken just before a policy is asked.
#[derive(Copy, Clone, Debug)]
pub struct DatagramPathView {
    /// Its number.
    pub id: PathId,
    /// Either side has marked it as a backup: it carries datagrams only if no regular path can.
    pub backup: bool,
    /// Bytes on it cost money: no copies, unless a regular path is in trouble.
    pub metered: bool,
    /// It has a radio that is to sleep while other paths do: treated as if it were metered.
    pub radio: bool,
    /// Whether what is sent on it is expected to arrive.
    pub health: Health,
    /// The machine says that it will soon be gone (the level of a radio falls).
    pub fading: bool,
    /// Bytes of the largest datagram that fits into one frame on it.
    pub largest: usize,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes sent and believed to be in the network.
    pub bytes_in_flight: u64,
    /// Bytes that wait for it in the lane.
    pub bytes_queued: u64,
    /// Smoothed RTT; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// RTT variation.
    pub rttvar: Duration,
    /// Smallest RTT of the last minutes.
    pub min_rtt: Option<Duration>,
    /// Rate at which it delivered what was sent on it while it was kept busy; `None`: it never was.
    pub delivery_rate: Option<Rate>,
    /// When what is sent now will be answered.
    pub forecast: Forecast,
    /// How long the answer to the oldest frame on its way has been overdue: by the forecast p99, as of when it was
    /// sent. Zero: it is not.
    pub overdue: Duration,
    /// The same of the oldest frame that was sent after every one that has been answered: what is overdue from before
    /// is lost, and the path goes on.
    pub stalled: Duration,
    /// When a frame was last lost, or an answer came later than the forecast p99.
    pub last_trouble_at: Option<Instant>,
    /// Share of the last few hundred frames that were lost while those sent just before and after them arrived, 0 to
    /// 1: what a radio loses and not a queue.
    pub lone_losses: f32,
    /// Share of the last few hundred frames that were lost for whatever cause, 0 to 1.
    pub losses: f32,
    /// Whether enough frames were sent that [`losses`](Self::losses) means something.
    pub losses_known: bool,
    /// When it last carried anything.
    pub last_sent_at: Option<Instant>,
}

impl DatagramPathView {
    /// Whether it answers, and nothing speaks against it.
    #[must_use]
    pub const fn is_fine(&self) -> bool {
        self.health.is_fine()
    }
}

/// A read-only snapshot of the flow of a datagram, and the datagram.
#[derive(Copy, Clone, Debug)]
pub struct FlowView {
    /// Its number in the lane.
    pub id: u64,
    /// Its kind.
    pub class: FlowClass,
    /// Bytes that it sent within the last second.
    pub rate: Rate,
    /// Smoothed bytes of its datagrams.
    pub mean_bytes: u32,
    /// Smoothed number of datagrams that it hands over at once, within a millisecond of each other.
    pub burst: f32,
    /// Bytes of this one.
    pub bytes: u32,
    /// Until when this one is worth sending.
    pub deadline: Instant,
    /// Path of the one before it, and since when the flow goes there.
    pub last: Option<(PathId, Instant)>,
}

/// The paths, the time, and what there is to know of the session.
#[derive(Copy, Clone, Debug)]
pub struct DatagramContext<'a> {
    /// The current time.
    pub now: Instant,
    /// Paths that may carry a datagram of this size, in the order of their numbers; never empty.
    pub paths: &'a [DatagramPathView],
    /// Whether the peer can make use of repairs.
    pub repairs: bool,
}

impl DatagramContext<'_> {
    /// The path of this number, if it may be used.
    #[must_use]
    pub fn path(&self, id: PathId) -> Option<&DatagramPathView> {
        self.paths.iter().find(|path| path.id == id)
    }
}

/// A decision.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path it goes on.
    pub path: PathId,
    /// The path that has a copy; not the same one.
    pub copy: Option<PathId>,
    /// Whether the repairs of its group sum it up, for which [`DatagramPolicy::repairs`] is asked; not if it has a
    /// copy.
    pub grouped: bool,
}

impl Route {
    /// One path, no copy, no repair.
    #[must_use]
    pub const fn only(path: PathId) -> Route {
        Route { path, copy: None, grouped: false }
    }
}

/// Frames that left one after the other on one path, and whose datagrams may be repaired together.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// How many, at least one.
    pub frames: u8,
    /// The path they are on.
    pub on: PathId,
}

/// Repairs of a group, each of which brings back one lost frame of it, whichever it is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Repairs {
    /// The path they go on.
    pub path: PathId,
    /// How many; at least one, at most as many as there are frames.
    pub count: u8,
}

/// Decides which way datagrams go. One per lane, asked for every datagram.
///
/// The lane checks what it says: a path that is not among those shown is replaced by the first of them, a copy on
/// such a path, or on the same one, is not sent.
pub trait DatagramPolicy: Debug + Send {
    /// The way of a datagram that the application has just handed over.
    fn route(&mut self, context: &DatagramContext<'_>, flow: &FlowView) -> Route;

    /// The acknowledgement of a datagram that went on `on` is overdue, and it may still be of use: the path for a
    /// copy of it. `None`: it is left alone.
    fn rescue(
        &mut self,
        context: &DatagramContext<'_>,
        flow: &FlowView,
        on: PathId,
    ) -> Option<PathId> {
        let _ = (context, flow, on);
        None
    }

    /// A group of frames has left that were to be repaired together; `flow` is of the largest datagram among them. Of
    /// a group of one frame the repair is its copy. `None`: there is none.
    fn repairs(
        &mut self,
        context: &DatagramContext<'_>,
        flow: &FlowView,
        group: Group,
    ) -> Option<Repairs> {
        let _ = (context, flow, group);
        None
    }

    /// So many bytes left, for the first time or as a copy or a repair.
    fn on_sent(&mut self, now: Instant, bytes: u64, copy: bool) {
        let _ = (now, bytes, copy);
    }

    /// How often a path that carries nothing is to be asked for its round trip while others are in use; `None`:
    /// never.
    fn explores_every(&self) -> Option<Duration> {
        None
    }

    /// How often a path that carries little is to be asked for its rate, by a train of padded frames, while a flow of
    /// bulk is on another; `None`: never.
    fn explores_rate_every(&self) -> Option<Duration> {
        None
    }
}

/// Makes one datagram policy per lane.
pub trait DatagramPolicyFactory: Debug + Send + Sync {
    /// The name it is chosen by.
    fn name(&self) -> &str;
    /// A new one.
    fn build(&self) -> Box<dyn DatagramPolicy>;
}
