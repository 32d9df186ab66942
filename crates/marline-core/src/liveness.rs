//! Configuration of liveness detection, which lets a client detect a dead path without help from the peer.

mod spec;

use marline_time::Duration;

pub use spec::BadSilenceSpec;

/// Receive timer of a client: limits the silence of a path on which more data is due.
///
/// It runs only while the connection has a local address that is up and has no subflow; otherwise
/// there would be no alternative to use. [`multimob`](Self::multimob) and
/// [`with_probes`](Self::with_probes) are two sets of parameters, explained in
/// `connection/receive_clock.rs`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveTimer {
    /// Timeout while the peer's retransmission timeout is unknown.
    pub unknown_rto: Duration,
    /// Minimum timeout, regardless of the peer's report.
    pub floor: Duration,
    /// Maximum timeout, regardless of the peer's report.
    pub ceiling: Duration,
    /// Age after which the peer's retransmission timeout is requested again.
    pub refresh: Duration,
    /// Probe a silent path and decide based on the answer; `None` decides based on silence alone. With a peer that
    /// does not signal the end of its data (no MP_IDLE), silence alone never counts.
    pub probing: Option<Probing>,
}

/// Probing of a silent path with empty segments that TCP answers immediately.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Probing {
    /// Minimum silence before the first probe. It is at least SRTT plus four times its variation, and at least twice
    /// the longest pause between arrivals in the last one to two seconds.
    pub after: Duration,
    /// Minimum wait for the answer to each probe; longer on paths with a longer round trip.
    pub wait: Duration,
    /// Number of unanswered probes that prove the path dead, at least 1.
    pub count: u32,
}

impl ReceiveTimer {
    /// Defaults of MultiMob's kernel module: the peer's largest retransmission timeout, 1.5 s if
    /// unknown, at least half a second.
    #[must_use]
    pub const fn multimob() -> Self {
        ReceiveTimer {
            unknown_rto: Duration::from_millis(1_500),
            floor: Duration::from_millis(500),
            ceiling: Duration::from_secs(10),
            refresh: Duration::from_secs(10),
            probing: None,
        }
    }

    /// Decision based on probes: three unanswered probes prove the path dead, within 0.2 s on a short path. On a path
    /// that answers probes but loses data, the decision takes longer: the sender may need a second timeout to repair
    /// the loss, and such a path is poor but not dead.
    #[must_use]
    pub const fn with_probes() -> Self {
        let probing =
            Probing { after: Duration::from_millis(50), wait: Duration::from_millis(50), count: 3 };
        let floor = Duration::from_millis(1_000);
        ReceiveTimer { floor, probing: Some(probing), ..ReceiveTimer::multimob() }
    }
}

/// Probes of a client that only waits for data, to detect that the peer is gone; explained in
/// `connection/receive_probes.rs`. An hour of silence costs about 35 empty segments in each direction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveProbes {
    /// Silence before the first probe, counted from the last transfer of data.
    pub first: Duration,
    /// Maximum interval between two probes. The interval doubles up to this value.
    pub longest: Duration,
}

impl Default for ReceiveProbes {
    fn default() -> Self {
        ReceiveProbes { first: Duration::from_secs(2), longest: Duration::from_secs(120) }
    }
}

/// Keepalives of an idle connection with a single subflow, while another local address is up that has no subflow. Not
/// used if that subflow starts at an address flagged `backup`. (`ConnectionConfig::keepalive` applies to every
/// subflow, on a scale of minutes.)
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LoneKeepalive {
    /// Silence before the first keepalive.
    pub idle: Duration,
    /// Time to wait for the answer to each keepalive.
    pub interval: Duration,
    /// Number of unanswered keepalives that prove the path dead, at least 1 (MultiMob: 2).
    pub count: u32,
}

impl Default for LoneKeepalive {
    fn default() -> Self {
        let (idle, interval) = (Duration::from_secs(10), Duration::from_secs(1));
        LoneKeepalive { idle, interval, count: 2 }
    }
}
