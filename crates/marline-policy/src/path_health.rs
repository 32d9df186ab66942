//! Parameters of the path health monitor, and the address pairs it evaluates.

mod spec;

use core::fmt::{self, Display, Formatter};
use core::net::IpAddr;

use marline_time::Duration;

pub use spec::BadPathHealthSpec;

/// Address pair and interface, shared by all connections over the same network to the same host.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressPair {
    /// Local IP address, without the port.
    pub local: IpAddr,
    /// Remote IP address, without the port.
    pub remote: IpAddr,
    /// Interface index of the operating system; 0 if unknown. An address on another interface belongs to another
    /// network.
    pub interface: u32,
}

/// Reasons why an address pair is degraded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressPairFault {
    /// The smoothed share of lost segments exceeds its threshold.
    Loss,
    /// The smoothed share of retransmitted segments exceeds its threshold.
    Retransmissions,
    /// A subflow on this address pair has a long retransmission timeout ([`PathHealthConfig::rto`]).
    Rto,
    /// A timer of a subflow fired, and probes were not answered.
    Unanswered,
    /// A receive timer or the keepalives of a subflow expired.
    Silent,
    /// Not observed but reported by the radio monitor: the signal fades
    /// ([`PathCost::fading`](crate::PathCost::fading)).
    Fading,
}

impl AddressPairFault {
    /// Short name of the fault, for status and messages.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            AddressPairFault::Loss => "loss",
            AddressPairFault::Retransmissions => "retransmissions",
            AddressPairFault::Rto => "rto",
            AddressPairFault::Unanswered => "unanswered",
            AddressPairFault::Silent => "silent",
            AddressPairFault::Fading => "fading",
        }
    }
}

impl Display for AddressPairFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Conditions under which the path health monitor considers an address pair degraded, and usable again.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PathHealthConfig {
    /// Interval between statistics updates; above zero.
    pub period: Duration,
    /// Weight of the newest interval in the averages, 0 (exclusive) to 1.
    pub weight: f64,
    /// Smoothed share (0 to 1) of lost segments at which the pair becomes degraded, if the last interval increased
    /// the share.
    pub loss: f64,
    /// Denominator of the loss share.
    pub loss_base: LossBase,
    /// Like `loss`, for the share of retransmissions among all segments sent.
    pub retransmissions: f64,
    /// Minimum number of segments on which both averages must be based. One lost segment out of three proves nothing.
    pub least: u64,
    /// The pair is degraded if a subflow's backed-off retransmission timeout is at least this long.
    pub rto: Duration,
    /// Probe an address pair after a timeout on it. `None` relies on the statistics alone.
    pub watch: Option<PairProbing>,
    /// Conditions under which a degraded pair becomes usable again. `None` makes verdicts permanent.
    pub recovery: Option<RecoveryRule>,
    /// Maximum number of address pairs. The least recently used one is evicted.
    pub address_pairs: usize,
}

/// Denominator of the loss share.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum LossBase {
    /// Segments that could have been lost: outstanding when the interval began, or sent during it.
    #[default]
    AtRisk,
    /// Segments outstanding when the interval ended, plus those that were lost and are being repaired. A flow
    /// of short messages has very few, so one loss weighs heavily.
    Outstanding,
}

/// Probing of an address pair after a timeout. The pair becomes degraded if nothing is received on it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PairProbing {
    /// Minimum wait for an answer. Paths with long round trips wait SRTT plus four times RTTVAR.
    pub wait: Duration,
    /// Number of consecutive waits without an answer after which the address pair is degraded, at least 1.
    pub count: u32,
}

/// Conditions under which a degraded address pair becomes usable again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RecoveryRule {
    /// The period during which every probe must be answered and nothing may time out.
    pub period: Duration,
    /// Time between two probes, and the time allowed for an answer.
    pub probe: Duration,
    /// Maximum time between two unanswered probes (the interval doubles after each one).
    pub max_probe_interval: Duration,
}

impl PathHealthConfig {
    /// Values that MultiMob's kernel module uses: statistics every second, no probing, and permanent verdicts.
    #[must_use]
    pub const fn multimob() -> Self {
        PathHealthConfig {
            period: Duration::from_secs(1),
            weight: 0.5,
            loss: 0.25,
            loss_base: LossBase::Outstanding,
            retransmissions: 0.5,
            least: 0,
            rto: Duration::from_millis(1_500),
            watch: None,
            recovery: None,
            address_pairs: 1_024,
        }
    }

    /// The thresholds of [`multimob`](Self::multimob) over shorter intervals. In addition, a timeout makes the address
    /// pair degraded within about 150 ms unless a segment is received on it, and two seconds of answered probes make it
    /// usable again.
    #[must_use]
    pub const fn prompt() -> Self {
        let watch = PairProbing { wait: Duration::from_millis(50), count: 3 };
        let clean = RecoveryRule {
            period: Duration::from_secs(2),
            // Linux answers at most one empty segment per half second.
            probe: Duration::from_millis(600),
            max_probe_interval: Duration::from_millis(1_200),
        };
        PathHealthConfig {
            period: Duration::from_millis(250),
            // An average decays by half within one second, as in `multimob`.
            weight: 0.16,
            least: 10,
            loss_base: LossBase::AtRisk,
            watch: Some(watch),
            recovery: Some(clean),
            ..PathHealthConfig::multimob()
        }
    }
}

impl Default for PathHealthConfig {
    fn default() -> Self {
        PathHealthConfig::prompt()
    }
}
