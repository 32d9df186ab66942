//! Configuration of one direction of a link.

use std::sync::Arc;

use marline_time::{Duration, Rate};

use crate::radio::RadioParameters;
use crate::trace::{Opportunities, PingTrace};
use crate::{Direction, Steps};

/// Configuration of one direction of a link. The default is an ideal link: no limit, no loss, no
/// delay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// Rate at which the queue is emptied.
    pub rate: RateConfig,
    /// Middleboxes in front of the queue.
    pub middlebox: MiddleboxConfig,
    /// Size limit for packets; `None` if there is none.
    pub mtu: Option<Mtu>,
    /// Limit on the queue.
    pub queue: QueueLimit,
    /// Losses.
    pub loss: LossConfig,
    /// Delay.
    pub delay: DelayConfig,
    /// Other faults of single packets.
    pub faults: Faults,
    /// Outages.
    pub outage: OutageConfig,
    /// The radio of the link.
    pub radio: Option<RadioConfig>,
}

/// The radio of one direction of a link. The other direction has the same radio, and both share its state after
/// `Link::share_radio`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RadioConfig {
    /// Parameters of the radio.
    pub parameters: RadioParameters,
    /// Direction: bytes to and from the phone cost different energy.
    pub direction: Direction,
    /// True if packets wait for the promotion of an idle radio. Otherwise only energy is counted.
    pub waits: bool,
}

/// A trace and the position in it at which a link starts.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceStart<T> {
    /// The trace.
    pub trace: Arc<T>,
    /// The trace's time at the link's start.
    pub start: Duration,
}

/// Rate at which packets leave the queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RateConfig {
    /// No limit: packets leave immediately.
    #[default]
    Unlimited,
    /// A constant rate.
    Constant(Rate),
    /// Rates that change with time. Zero stops the link and keeps the queue.
    Steps(Arc<Steps<Rate>>),
    /// The delivery opportunities of a mahimahi trace.
    Trace(TraceStart<Opportunities>),
}

/// Maximum packet size of a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Mtu {
    /// Maximum IP packet size in bytes, within [`Mtu::RANGE`]. Larger packets are dropped.
    pub bytes: u32,
    /// True if drops are silent (a black hole). Otherwise the sender is notified as a router would do (ICMP
    /// "fragmentation needed", ICMPv6 "packet too big"), if [`crate::Packet::too_big`] is implemented.
    pub silent: bool,
}

impl Mtu {
    /// Valid sizes in bytes: from what every host accepts (RFC 791) to the largest IPv4 packet.
    pub const RANGE: core::ops::RangeInclusive<u32> = 576..=65_535;

    /// Returns the smaller of two limits. If they are equal, one that notifies the sender is preferred.
    #[must_use]
    pub fn lower_of(self, other: Mtu) -> Mtu {
        core::cmp::min_by_key(self, other, |mtu| (mtu.bytes, mtu.silent))
    }
}

/// Limit on the queue, including the packet being sent. A packet is always accepted if the queue is
/// empty.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    /// Bytes.
    Bytes(u64),
    /// The amount that the link sends in this time, at its current rate (steps) or mean rate (traces), or
    /// `Link::UNLIMITED_QUEUE_BYTES` if the rate is unlimited. At least two full packets.
    Time(Duration),
}

impl Default for QueueLimit {
    fn default() -> Self {
        QueueLimit::Time(Duration::from_millis(100))
    }
}

/// Effects of middleboxes on TCP segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MiddleboxConfig {
    /// These options are overwritten with no-operations.
    pub strip: Vec<OptionRule>,
    /// Segments with these options are dropped.
    pub block: Vec<OptionRule>,
    /// All bits of these options after kind, length and subtype are inverted.
    pub mangle: Vec<OptionRule>,
    /// Sequence numbers differ on both sides of the middlebox. The other direction must do the
    /// same.
    pub renumber: Option<Renumber>,
    /// A NAT loses its translations.
    pub rebind: Option<Rebind>,
    /// Long segments are split.
    pub split: Option<Split>,
    /// Time for which a segment waits for the next one. Both are merged, with the options of the first, if they fit
    /// into 1,500 bytes.
    pub coalesce: Option<Duration>,
    /// Number of consecutive pure acknowledgments of a flow of which only the last passes, at most 10 ms late.
    pub thin: Option<u32>,
    /// Probability that a segment with data is acknowledged by the middlebox and dropped.
    pub swallow: f64,
}

impl MiddleboxConfig {
    /// Returns true if there are middleboxes other than those that act on options.
    pub(crate) fn has_middleboxes(&self) -> bool {
        let reshapes = self.split.is_some() || self.coalesce.is_some() || self.thin.is_some();
        reshapes || self.renumber.is_some() || self.rebind.is_some() || self.swallow > 0.0
    }
}

/// Numbers translated by a middlebox that chooses different sequence numbers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Renumber {
    /// Sequence numbers, acknowledgments and selective acknowledgments.
    All,
    /// All except those in selective acknowledgments, which then refer to data that was never sent.
    NotSack,
}

/// A NAT that loses its translations.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rebind {
    /// Time since the link's start.
    pub at: Duration,
    /// True for the direction from the client, whose ports (at least 32,768) are translated.
    pub from_client: bool,
}

/// Splitting of segments.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Maximum payload of a piece in bytes.
    pub bytes: u16,
    /// Placement of the Multipath TCP options.
    pub options: SplitOptions,
}

/// Placement of the Multipath TCP options when a segment is split. Other options are on every
/// piece.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum SplitOptions {
    /// On every piece, as network cards do.
    #[default]
    All,
    /// On the first piece only.
    First,
}

/// An option in some segments.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct OptionRule {
    /// The option.
    pub option: TcpOption,
    /// Affected segments.
    pub segments: Segments,
    /// Time after the link's start at which the rule begins to apply.
    pub from: Duration,
}

/// A TCP option.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// An option identified by its kind. 30 is Multipath TCP.
    Kind(u8),
    /// A Multipath TCP option, by its subtype (RFC 8684 section 7.2).
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
    /// Segments without SYN.
    Rest,
}

/// Losses. All causes apply together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossConfig {
    /// Probability of independent losses.
    pub random: f64,
    /// Losses in bursts.
    pub gilbert_elliott: Option<GilbertElliott>,
    /// Numbers of lost packets in ascending order, counted from 1 as they leave the queue.
    pub pattern: Vec<u64>,
    /// Loss probabilities that change with time.
    pub steps: Option<Arc<Steps<f64>>>,
    /// Trace whose lost probes cause losses: of packets that leave the queue during such a probe.
    pub trace: Option<TraceStart<PingTrace>>,
}

/// The two-state loss model of Gilbert and Elliott, in continuous time: the states last for exponentially distributed
/// times, regardless of the traffic.
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
    /// Uniform between minus and plus this value.
    Uniform(Duration),
    /// Normal with this standard deviation (sum of twelve uniform values, so within six standard deviations).
    Normal(Duration),
}

/// Time from leaving the queue to arrival. Never below zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DelayConfig {
    /// Constant part.
    pub base: Duration,
    /// Random part.
    pub jitter: Jitter,
    /// True if jitter and a shrinking trace delay may reorder packets.
    pub overtaking: bool,
    /// Adds half of this trace's current round-trip time.
    pub trace: Option<TraceStart<PingTrace>>,
}

/// Reordering: with `probability`, a packet arrives `extra` later, after later packets.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Reorder {
    /// Probability.
    pub probability: f64,
    /// Extra delay.
    pub extra: Duration,
}

/// Other faults of single packets.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Reordering.
    pub reorder: Option<Reorder>,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that one to three bits of one 16-bit word are flipped, which the Internet checksum always detects.
    pub corrupt: f64,
    /// Probability that a TCP segment arrives with a changed payload byte and a correct checksum,
    /// as behind an application gateway. Only a checksum of a higher layer detects this.
    pub rewrite: f64,
}

/// Treatment of the packets on a link that goes down.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum OutageMode {
    /// All are lost, including packets offered until the link is up.
    #[default]
    Kill,
    /// All are held until the link is up. The queue accepts more until it is full.
    Suspend,
}

/// Outages of the link, in addition to `Link::set_up`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutageConfig {
    /// Start and end of each outage after the link's start, ascending and disjoint.
    pub intervals: Vec<(Duration, Duration)>,
    /// Mean time up and mean time down, exponentially distributed. Neither may be zero.
    pub flap: Option<(Duration, Duration)>,
    /// Treatment of the packets.
    pub mode: OutageMode,
}
