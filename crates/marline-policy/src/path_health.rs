//! The path health monitor's parameters, and what it judges: address pairs.

mod spec;

use core::net::IpAddr;

use marline_time::Duration;

pub use spec::BadPathHealthSpec;

/// What connections that use the same network to the same host have in common.
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

/// When the path health monitor holds an address pair to be bad, and when to be good again.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PathHealthConfig {
    /// How often statistics are taken; above zero.
    pub period: Duration,
    /// Weight of the newest period in the averages, 0 (exclusive) to 1.
    pub weight: f64,
    /// Bad from this smoothed share of lost segments on, if the last period made it larger; 0 to 1.
    pub loss: f64,
    /// Share of what.
    pub loss_base: LossBase,
    /// The same for the share of retransmissions in all segments sent.
    pub retransmissions: f64,
    /// Segments that both averages must rest on, all remembered periods together: one lost segment of
    /// three is no judgement.
    pub least: u64,
    /// Bad when a subflow's retransmission timeout, backed off, is this long.
    pub rto: Duration,
    /// Ask an address pair for a sign of life when something timed out there; `None`: wait for the
    /// statistics.
    pub watch: Option<Watch>,
    /// What lifts the verdict; `None`: nothing does.
    pub clean: Option<Clean>,
    /// Address pairs kept at most: beyond, the one unused for longest goes.
    pub address_pairs: usize,
}

/// What lost segments are set against.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum LossBase {
    /// Those that could get lost: outstanding when the period began, or sent since.
    #[default]
    AtRisk,
    /// Those outstanding when it ended, besides what was lost and is repaired. Next to nothing for a flow
    /// of short messages, so that one loss weighs much.
    Outstanding,
}

/// How an address pair on which something timed out is asked for a sign of life. Bad if nothing is heard there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The shortest wait for an answer; longer where the round trip is (SRTT and four times its
    /// variation).
    pub wait: Duration,
    /// Waits without a sign of life until the address pair is bad, at least 1.
    pub count: u32,
}

/// How a bad address pair becomes good again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Clean {
    /// The clean period: so long every question must have been answered, and nothing timed out.
    pub period: Duration,
    /// Time between two questions, and how long an answer may take.
    pub probe: Duration,
    /// The longest time between two questions, while none is answered (doubled each time).
    pub longest_probe: Duration,
}

impl PathHealthConfig {
    /// MultiMob's kernel module: statistics each second, nothing between, nothing ever lifted.
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

    /// The same thresholds over shorter periods; besides, a timeout that nothing heard on the address pair
    /// contradicts makes it bad in some 150 ms, and two seconds of answers make it good again.
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
