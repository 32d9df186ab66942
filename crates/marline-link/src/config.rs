//! What can be set on one direction of a link.

use std::sync::Arc;

use marline_time::{Duration, Rate};

use crate::radio::RadioParameters;
use crate::trace::{Opportunities, PingTrace};
use crate::{Direction, Steps};

/// One direction of a link. The default is a wire: no limit, no loss, no delay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// How fast the queue empties.
    pub rate: RateConfig,
    /// What boxes do to TCP segments before they wait.
    pub middlebox: MiddleboxConfig,
    /// How much may wait.
    pub queue: QueueLimit,
    /// What never arrives.
    pub loss: LossConfig,
    /// How long the rest takes.
    pub delay: DelayConfig,
    /// What else happens to single packets.
    pub faults: Faults,
    /// When the link is down.
    pub outage: OutageConfig,
    /// The radio it goes over.
    pub radio: Option<RadioConfig>,
}

/// The radio of one direction of a link. The other direction has the same, and both share it once
/// they are told of each other (`Link::share_radio`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RadioConfig {
    /// Its numbers.
    pub parameters: RadioParameters,
    /// Which direction this is: bytes to and from the phone cost differently.
    pub direction: Direction,
    /// A packet that finds the radio idle waits for its promotion; else energy is counted and nothing
    /// waits.
    pub waits: bool,
}

/// Where in a trace a link starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Offset<T> {
    /// The trace.
    pub trace: Arc<T>,
    /// The trace's time at the link's start.
    pub start: Duration,
}

/// How fast packets leave the queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RateConfig {
    /// At once.
    #[default]
    Unlimited,
    /// At this rate.
    Constant(Rate),
    /// At rates that change with time; zero stops the link and keeps the queue.
    Steps(Arc<Steps<Rate>>),
    /// At the delivery opportunities of a mahimahi trace.
    Trace(Offset<Opportunities>),
}

/// How much may wait in the queue, the packet being sent included. A packet that finds the queue
/// empty is always taken.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    /// Bytes.
    Bytes(u64),
    /// What the link sends in this time: at its present rate (steps), its mean rate (traces), or
    /// `Link::UNLIMITED_QUEUE_BYTES` where the rate has no limit. Never less than two full packets.
    Time(Duration),
}

impl Default for QueueLimit {
    fn default() -> Self {
        QueueLimit::Time(Duration::from_millis(100))
    }
}

/// What boxes on the way do to TCP segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MiddleboxConfig {
    /// These options are overwritten with no-operations.
    pub strip: Vec<OptionRule>,
    /// Segments with these options are dropped.
    pub block: Vec<OptionRule>,
    /// All bits of these options after kind, length and subtype are turned over.
    pub mangle: Vec<OptionRule>,
    /// Sequence numbers are others on both sides of the box. The other direction must do the same.
    pub renumber: Option<Renumber>,
    /// An address translator forgets what it translated.
    pub rebind: Option<Rebind>,
    /// Long segments are cut.
    pub split: Option<Split>,
    /// A segment waits so long for one that follows it, and both become one, with the options of the
    /// first, as long as they fit into 1,500 bytes.
    pub coalesce: Option<Duration>,
    /// Of so many pure acknowledgments of a flow one after the other only the last passes, at most 10 ms
    /// late.
    pub thin: Option<u32>,
    /// Probability that a segment with data is acknowledged by the box and dropped.
    pub swallow: f64,
}

impl MiddleboxConfig {
    /// Whether there is any box beyond those that look for options.
    pub(crate) fn has_middleboxes(&self) -> bool {
        let reshapes = self.split.is_some() || self.coalesce.is_some() || self.thin.is_some();
        reshapes || self.renumber.is_some() || self.rebind.is_some() || self.swallow > 0.0
    }
}

/// What a box that chooses sequence numbers of its own translates.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Renumber {
    /// Sequence numbers, acknowledgments and selective acknowledgments.
    All,
    /// All but selective acknowledgments, which then name nothing that was sent.
    NotSack,
}

/// A translator that forgets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rebind {
    /// When, since the link's start.
    pub at: Duration,
    /// The direction is that from the client, whose ports (from 32,768 on) are translated.
    pub from_client: bool,
}

/// How segments are cut.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Most bytes of payload of a piece.
    pub bytes: u16,
    /// Where the options of Multipath TCP go.
    pub options: SplitOptions,
}

/// Where the options of Multipath TCP go if a segment is cut. The others are on every piece.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum SplitOptions {
    /// On every piece, as network cards do it.
    #[default]
    All,
    /// On the first piece only.
    First,
}

/// An option in some segments.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct OptionRule {
    /// Which option.
    pub option: TcpOption,
    /// In which segments.
    pub segments: Segments,
    /// From when on, since the link's start.
    pub from: Duration,
}

/// A TCP option.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// By its kind; 30 is Multipath TCP.
    Kind(u8),
    /// Of Multipath TCP, by its subtype (RFC 8684 section 7.2).
    Mptcp(u8),
}

/// TCP segments by their flags.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Segments {
    /// All.
    All,
    /// SYN without ACK.
    Syn,
    /// SYN with ACK.
    SynAck,
    /// Without SYN.
    Rest,
}

/// What is lost. All causes apply together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossConfig {
    /// Each packet alone, with this probability.
    pub random: f64,
    /// In bursts.
    pub gilbert_elliott: Option<GilbertElliott>,
    /// These packets, counted from 1 as they leave the queue, ascending.
    pub pattern: Vec<u64>,
    /// With probabilities that change with time.
    pub steps: Option<Arc<Steps<f64>>>,
    /// What leaves the queue while a probe of this trace was lost.
    pub trace: Option<Offset<PingTrace>>,
}

/// The two-state loss model of Gilbert and Elliott, in continuous time: the states last
/// exponentially distributed times whatever the traffic.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct GilbertElliott {
    /// Mean time in the good state.
    pub good: Duration,
    /// Mean time in the bad state.
    pub bad: Duration,
    /// Loss probability in the bad state.
    pub loss_bad: f64,
    /// Loss probability in the good state.
    pub loss_good: f64,
}

/// Variation of the delay from packet to packet.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Jitter {
    /// None.
    #[default]
    None,
    /// Uniform between minus and plus this.
    Uniform(Duration),
    /// Normal with this standard deviation (sum of twelve uniforms: within six deviations).
    Normal(Duration),
}

/// Time from leaving the queue to arrival. Never below zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DelayConfig {
    /// Constant part.
    pub base: Duration,
    /// Random part.
    pub jitter: Jitter,
    /// Whether jitter and a shrinking trace delay may let packets overtake each other.
    pub overtaking: bool,
    /// Half of this trace's round-trip time at the moment, added.
    pub trace: Option<Offset<PingTrace>>,
}

/// Held-back packets: with `probability` a packet arrives `extra` later, past its followers.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Reorder {
    /// How often.
    pub probability: f64,
    /// How much later.
    pub extra: Duration,
}

/// What else happens to single packets.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Arrive late.
    pub reorder: Option<Reorder>,
    /// Probability to arrive twice.
    pub duplicate: f64,
    /// Probability to arrive with one to three bits of one 16-bit word flipped, which the Internet
    /// checksum always notices.
    pub corrupt: f64,
    /// Probability that a TCP segment arrives with a byte of its payload changed and a checksum that
    /// is right, as behind an application gateway. Only a checksum of the layer above notices.
    pub rewrite: f64,
}

/// What a link that goes down does with the packets it holds.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum OutageMode {
    /// All are lost, and all that are offered until it is up.
    #[default]
    Kill,
    /// All stand still and go on when it is up; the queue takes more until it is full.
    Suspend,
}

/// When the link is down by itself; `Link::set_up` comes on top.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutageConfig {
    /// Down from the first time to the second, since the link's start; ascending and disjoint.
    pub intervals: Vec<(Duration, Duration)>,
    /// Mean time up and mean time down, exponentially distributed; neither may be zero.
    pub flap: Option<(Duration, Duration)>,
    /// What happens to the packets.
    pub mode: OutageMode,
}
