//! Parameters of the path health monitor, and the address pairs it judges.

mod spec;

use core::fmt::{self, Display, Formatter};
use core::net::IpAddr;

use marline_time::Duration;

pub use spec::BadPathHealthSpec;

/// Address pair and interface: what connections over the same network to the same host have in
/// common.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressPair {
    /// Our address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// The interface's number in the system; 0 if it is not known. The same address on another
    /// interface is another network.
    pub interface: u32,
}

/// Why an address pair is bad.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressPairFault {
    /// The smoothed share of lost segments.
    Loss,
    /// The smoothed share of retransmissions.
    Retransmissions,
    /// A member's retransmission timeout.
    Rto,
    /// A member's timer fired, and questions were not answered.
    Unanswered,
    /// A member's receive timer, or its keepalives, ran out.
    Silent,
    /// Not observed, but said by who knows its radio: the signal fades ([`PathCost::fading`](crate::PathCost::fading)).
    Fading,
}

impl Display for AddressPairFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressPairFault::Loss => "loss",
            AddressPairFault::Retransmissions => "retransmissions",
            AddressPairFault::Rto => "rto",
            AddressPairFault::Unanswered => "unanswered",
            AddressPairFault::Silent => "silent",
            AddressPairFault::Fading => "fading",
        })
    }
}

/// Conditions under which the path health monitor considers an address pair bad, and good again.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PathHealthConfig {
    /// How often statistics are taken; above zero.
    pub period: Duration,
    /// Weight of the newest period in the averages, 0 (exclusive) to 1.
    pub weight: f64,
    /// Bad from this smoothed share of lost segments on, if the last period made it larger; 0 to 1.
    pub loss: f64,
    /// Denominator of that share.
    pub loss_base: LossBase,
    /// The same for the share of retransmissions in all segments sent.
    pub retransmissions: f64,
    /// Minimum number of segments behind both averages, over all remembered periods: one lost
    /// segment of three proves nothing.
    pub least: u64,
    /// Bad when a subflow's retransmission timeout, backed off, is this long.
    pub rto: Duration,
    /// Probe an address pair when something timed out there; `None`: wait for the statistics.
    pub watch: Option<Watch>,
    /// What lifts the verdict; `None`: nothing does.
    pub clean: Option<Clean>,
    /// Maximum number of address pairs; the least recently used one is evicted.
    pub address_pairs: usize,
}

/// Denominator of the loss share.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum LossBase {
    /// Those that could get lost: outstanding when the period began, or sent since.
    #[default]
    AtRisk,
    /// Those outstanding when it ended, besides what was lost and is repaired. Next to nothing for a flow
    /// of short messages, so that one loss weighs much.
    Outstanding,
}

/// Probing of an address pair on which something timed out. The pair becomes bad if nothing is
/// received there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Minimum wait for an answer; on longer paths, SRTT plus four times its variation.
    pub wait: Duration,
    /// Unanswered waits after which the address pair is bad, at least 1.
    pub count: u32,
}

/// How a bad address pair becomes good again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Clean {
    /// The clean period, during which every probe must be answered and nothing may time out.
    pub period: Duration,
    /// Time between two probes, and the time allowed for an answer.
    pub probe: Duration,
    /// Maximum time between two probes while none is answered (doubled each time).
    pub longest_probe: Duration,
}

impl PathHealthConfig {
    /// Values of MultiMob's kernel module: statistics each second, no probing, and verdicts that
    /// are never lifted.
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
            clean: None,
            address_pairs: 1_024,
        }
    }

    /// The same thresholds over shorter periods. In addition, a timeout makes the address pair bad
    /// in some 150 ms unless something is received on it, and two seconds of answered probes make
    /// it good again.
    #[must_use]
    pub const fn prompt() -> Self {
        let watch = Watch { wait: Duration::from_millis(50), count: 3 };
        let clean = Clean {
            period: Duration::from_secs(2),
            // Linux answers one empty segment in half a second.
            probe: Duration::from_millis(600),
            longest_probe: Duration::from_millis(1_200),
        };
        PathHealthConfig {
            period: Duration::from_millis(250),
            // Half of it is forgotten after one second, as there.
            weight: 0.16,
            least: 10,
            loss_base: LossBase::AtRisk,
            watch: Some(watch),
            clean: Some(clean),
            ..PathHealthConfig::multimob()
        }
    }
}

impl Default for PathHealthConfig {
    fn default() -> Self {
        PathHealthConfig::prompt()
    }
}
