//! Datagram policy interface: the path of each datagram, and the path of its copy, if any.
//!
//! Datagrams do not belong to a byte stream. They are delivered on arrival, in any order, and lost ones are not
//! retransmitted. So nothing is mapped or reinjected. The policy is consulted once per datagram, when the
//! application hands it over, and possibly again when its acknowledgment is overdue.

use core::fmt::{self, Debug};

use marline_time::{Duration, Instant, Rate};

use crate::{Forecast, Health};

/// A path of a session as used by datagrams. Both ends use the same number for it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}", self.0)
    }
}

/// Kind of a datagram flow, classified by its traffic within the last second.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowClass {
    /// Low rate: voice, game input, DNS queries, the first packets of any flow.
    #[default]
    Sparse,
    /// Higher rate, limited by the application: a video call.
    Steady,
    /// As fast as the network allows: a QUIC download. Its own congestion control sees queues and losses.
    Bulk,
}

impl FlowClass {
    /// All classes.
    pub const ALL: [FlowClass; 3] = [FlowClass::Sparse, FlowClass::Steady, FlowClass::Bulk];
}

/// A read-only snapshot of a path, taken just before a policy is consulted.
#[derive(Copy, Clone, Debug)]
pub struct DatagramPathView {
    /// Path number.
    pub id: PathId,
    /// Either side marked the path as a backup: it carries datagrams only if no regular path can.
    pub backup: bool,
    /// Bytes on the path cost money, so it carries no copies unless a regular path is in trouble.
    pub metered: bool,
    /// The path has a radio that should sleep while other paths carry the traffic. Treated like a metered path.
    pub radio: bool,
    /// Health of the path, with the cause if it is not usable.
    pub health: Health,
    /// The system reports that the path is about to fail (its radio signal fades).
    pub fading: bool,
    /// Size in bytes of the largest datagram that fits into one frame on the path.
    pub largest: usize,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes sent and considered to be in the network.
    pub bytes_in_flight: u64,
    /// Bytes queued in the lane for the path.
    pub bytes_queued: u64,
    /// Smoothed RTT; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// RTT variation.
    pub rttvar: Duration,
    /// Smallest RTT within the last few minutes.
    pub min_rtt: Option<Duration>,
    /// Rate at which the path delivered data while it was kept busy. `None` if it was never kept busy.
    pub delivery_rate: Option<Rate>,
    /// Forecast of the answer time of a frame sent now.
    pub forecast: Forecast,
    /// Time since the answer to the oldest frame in flight became overdue, judged by the p99 forecast made when that
    /// frame was sent. Zero if it is not overdue.
    pub overdue: Duration,
    /// Like `overdue`, for the oldest frame sent after the newest answered frame. Earlier overdue frames count as lost,
    /// but the path works.
    pub stalled: Duration,
    /// Time at which a frame was last lost, or an answer was last later than its forecast p99.
    pub last_trouble_at: Option<Instant>,
    /// Share (0 to 1) of the last few hundred frames that were lost although the frames sent just before and after
    /// them arrived. Radios lose single frames in this way; full queues do not.
    pub lone_losses: f32,
    /// Share (0 to 1) of the last few hundred frames that were lost for any reason.
    pub losses: f32,
    /// True if enough frames were sent for [`losses`](Self::losses) to be meaningful.
    pub losses_known: bool,
    /// Time at which a frame was last sent on the path.
    pub last_sent_at: Option<Instant>,
}

impl DatagramPathView {
    /// Returns true if the path answers and no fault is known.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        self.health.is_usable()
    }
}

/// A read-only snapshot of a datagram and of its flow.
#[derive(Copy, Clone, Debug)]
pub struct FlowView {
    /// Flow number within the lane.
    pub id: u64,
    /// Traffic class of the flow.
    pub class: FlowClass,
    /// Rate over the last second.
    pub rate: Rate,
    /// Smoothed datagram size in bytes.
    pub mean_bytes: u32,
    /// Smoothed number of datagrams handed over in one burst, within a millisecond of each other.
    pub burst: f32,
    /// Size of this datagram in bytes.
    pub bytes: u32,
    /// Time after which this datagram is no longer useful.
    pub deadline: Instant,
    /// Path of the flow's previous datagram, and the time at which the flow moved to that path.
    pub last: Option<(PathId, Instant)>,
}

/// Input to a datagram decision: the paths, the time, and session properties.
#[derive(Copy, Clone, Debug)]
pub struct DatagramContext<'a> {
    /// The current time.
    pub now: Instant,
    /// Paths that may carry a datagram of this size, in order of path number; never empty.
    pub paths: &'a [DatagramPathView],
    /// True if the peer understands repairs.
    pub repairs: bool,
}

impl DatagramContext<'_> {
    /// The path with this number, if it may be used.
    #[must_use]
    pub fn path(&self, id: PathId) -> Option<&DatagramPathView> {
        self.paths.iter().find(|path| path.id == id)
    }
}

/// Paths of a datagram and of its copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path that carries the datagram.
    pub path: PathId,
    /// The path that carries a copy; must differ from `path`.
    pub copy: Option<PathId>,
    /// True if the datagram joins a group that repairs cover ([`DatagramPolicy::repairs`] decides about them).
    /// Ignored if the datagram has a copy.
    pub grouped: bool,
}

impl Route {
    /// A route without a copy or repairs.
    #[must_use]
    pub const fn only(path: PathId) -> Route {
        Route { path, copy: None, grouped: false }
    }
}

/// Frames sent in sequence on one path whose datagrams can share repairs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number of frames, at least one.
    pub frames: u8,
    /// The path that carried the frames.
    pub on: PathId,
}

/// Repairs of a group. Each repair recovers any one lost frame of the group.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Repairs {
    /// The path that carries the repairs.
    pub path: PathId,
    /// Number of repairs, from one to the number of frames.
    pub count: u8,
}

/// Chooses the paths of datagrams. There is one policy per lane, consulted for every datagram.
///
/// The lane validates decisions: a path that is not in the context is replaced by the first one, and a copy on
/// such a path, or on the datagram's own path, is not sent.
pub trait DatagramPolicy: Debug + Send {
    /// Chooses the path of a datagram that the application has just handed over.
    fn route(&mut self, context: &DatagramContext<'_>, flow: &FlowView) -> Route;

    /// Chooses the path for a copy of a datagram that was sent on `on`, whose acknowledgment is overdue, and that may
    /// still be useful. `None` for no copy.
    fn rescue(
        &mut self,
        context: &DatagramContext<'_>,
        flow: &FlowView,
        on: PathId,
    ) -> Option<PathId> {
        let _ = (context, flow, on);
        None
    }

    /// Chooses the repairs for a group of frames that was sent. `flow` describes the largest datagram of the group. The
    /// repair of a group of one frame is a copy of it. `None` for no repairs.
    fn repairs(
        &mut self,
        context: &DatagramContext<'_>,
        flow: &FlowView,
        group: Group,
    ) -> Option<Repairs> {
        let _ = (context, flow, group);
        None
    }

    /// Handles the sending of `bytes`, either for the first time or as a copy or repair.
    fn on_sent(&mut self, now: Instant, bytes: u64, copy: bool) {
        let _ = (now, bytes, copy);
    }

    /// Interval at which an unused path is probed for its round-trip time while others are in use. `None` disables
    /// probing.
    fn exploration_interval(&self) -> Option<Duration> {
        None
    }

    /// Interval at which the rate of a path with little traffic is probed, with a train of padded frames, while a bulk
    /// flow uses another path. `None` disables probing.
    fn rate_exploration_interval(&self) -> Option<Duration> {
        None
    }
}

/// Makes one datagram policy per lane.
pub trait DatagramPolicyFactory: Debug + Send + Sync {
    /// Name that selects this policy in the configuration.
    fn name(&self) -> &str;
    /// Creates a policy.
    fn build(&self) -> Box<dyn DatagramPolicy>;
}
