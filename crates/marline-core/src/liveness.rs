//! Configuration of liveness detection, by which a client detects a dead path on its own.

mod spec;

use marline_time::Duration;

pub use spec::BadSilenceSpec;

/// The receive timer of a client: how long a path from which more is due may stay silent.
///
/// It runs only while the connection has an address up that no subflow starts at: otherwise there
/// would be nothing to do about it. [`multimob`](Self::multimob) and [`probing`](Self::probing) are
/// two sets of parameters; the essay in `connection/receive_clock.rs` argues for both.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ReceiveTimer {
    /// The wait as long as the peer has not told its retransmission timeout.
    pub unknown_rto: Duration,
    /// The shortest wait, whatever the peer told.
    pub floor: Duration,
    /// The longest wait, whatever the peer told.
    pub ceiling: Duration,
    /// Age from which on the peer is asked for its retransmission timeout again.
    pub refresh: Duration,
    /// Ask a silent path for a sign of life, and judge by the answer; `None`: wait only. A peer that
    /// does not tell when it has nothing more to send (no MP_IDLE) is never judged without it.
    pub probing: Option<Probing>,
}

/// How a silent path is asked for a sign of life: an empty segment that TCP answers at once.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Probing {
    /// The shortest silence before the first probe. It is longer where the round trip is (SRTT and four
    /// times its variation), and twice the longest gap between arrivals in the last seconds.
    pub after: Duration,
    /// The shortest wait for the answer to each; longer where the round trip is.
    pub wait: Duration,
    /// Unanswered probes that prove the path dead, at least 1.
    pub count: u32,
}

impl ReceiveTimer {
    /// The defaults of MultiMob's kernel module: the peer's largest retransmission timeout, 1.5 s if it is
    /// not known, half a second at least.
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

    /// Sooner where a probe proves it: three of them unanswered, in two tenths of a second on a short
    /// path. Later where the path answers probes and loses data: a sender may well need a second timeout
    /// to repair what it lost, and such a path is bad, not dead.
    #[must_use]
    pub const fn probing() -> Self {
        let probing =
            Probing { after: Duration::from_millis(50), wait: Duration::from_millis(50), count: 3 };
        let floor = Duration::from_millis(1_000);
        ReceiveTimer { floor, probing: Some(probing), ..ReceiveTimer::multimob() }
    }
}

/// Questions of a client that only waits, to learn of a peer that is gone: the essay in
/// `connection/receive_probes.rs` argues for them. An hour of silence costs some 35 empty segments each way.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ReceiveProbes {
    /// Silence before the first, from when data moved last.
    pub first: Duration,
    /// The longest time from one to the next; it doubles until then.
    pub longest: Duration,
}

impl Default for ReceiveProbes {
    fn default() -> Self {
        ReceiveProbes { first: Duration::from_secs(2), longest: Duration::from_secs(120) }
    }
}

/// Keepalives of a connection that is idle and has one subflow left, while an address is up that no
/// subflow starts at. Not if the one left starts at an address flagged `backup`.
/// (`ConnectionConfig::keepalive` is for every subflow and in minutes.)
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LoneKeepalive {
    /// Silence before the first.
    pub idle: Duration,
    /// The wait for the answer to each.
    pub interval: Duration,
    /// Unanswered ones that prove the path dead, at least 1 (MultiMob: 2).
    pub count: u32,
}

impl Default for LoneKeepalive {
    fn default() -> Self {
        let (idle, interval) = (Duration::from_secs(10), Duration::from_secs(1));
        LoneKeepalive { idle, interval, count: 2 }
    }
}
