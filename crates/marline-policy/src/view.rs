//! What a policy may see of a subflow.

use marline_time::{Duration, Instant, Rate};

use crate::{AddressId, SubflowId};

/// Where a subflow's congestion control stands.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No loss outstanding.
    #[default]
    Open,
    /// Repairing a detected loss (fast recovery).
    Recovery,
    /// After a retransmission timeout.
    Loss,
}

/// Whether a subflow may take data now, and if not, why.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Eligibility {
    /// It may take `room` bytes.
    Ready {
        /// Bytes it may take now without overrunning its congestion window.
        room: u64,
    },
    /// Its congestion window is full.
    CwndLimited,
    /// Its pacer opens again then.
    PacingLimited(Instant),
    /// It is not established, is closing, or is shut off.
    NotUsable,
}

/// A read-only picture of one subflow, the same for scheduler, path manager and coupled congestion
/// control. Taken by the core just before it asks.
#[derive(Copy, Clone, Debug)]
pub struct SubflowView {
    /// Its slot.
    pub id: SubflowId,
    /// Address id of its local address.
    pub local_id: AddressId,
    /// Address id of its remote address.
    pub remote_id: AddressId,
    /// Either side asked that it carry data only if nothing else can.
    pub backup: bool,
    /// A probe or a retransmission timed out, and nothing was heard on it since. Probes count unless the
    /// scheduler leaves them to the retransmission timer (`probe_patience`).
    pub potentially_failed: bool,
    /// Congestion phase.
    pub phase: Phase,
    /// May it take data now.
    pub eligibility: Eligibility,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Slow-start threshold in bytes, `u64::MAX` while unknown.
    pub ssthresh: u64,
    /// Bytes sent and believed to be in the network.
    pub bytes_in_flight: u64,
    /// Bytes that wait on the subflow: lost and not yet retransmitted.
    pub bytes_queued: u64,
    /// Smoothed RTT; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// RTT variation.
    pub rttvar: Duration,
    /// Smallest RTT of the last minutes.
    pub min_rtt: Option<Duration>,
    /// Largest delivery rate of the last second or two (five to ten round trips on long paths), as far
    /// as it was not limited by lack of data.
    pub delivery_rate: Option<Rate>,
    /// Bytes acknowledged since the last loss (OLIA's l1).
    pub bytes_since_loss: u64,
    /// Bytes acknowledged between the last two losses (OLIA's l2).
    pub bytes_between_losses: u64,
    /// When it last sent anything.
    pub last_sent_at: Instant,
    /// When a valid segment last came in on it.
    pub last_heard_at: Instant,
    /// When it last brought news of the stream: data that was not there yet, a DATA_ACK that advanced,
    /// or the peer's join. The path that the peer uses is the one where this is newest.
    pub last_new_at: Instant,
    /// The path health monitor holds its address pair (both addresses and the interface) to be bad, from
    /// what all connections of the process see there. It should carry new data only if nothing else can.
    pub bad_address_pair: bool,
}

impl SubflowView {
    /// Whether it may take at least one byte now.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self.eligibility, Eligibility::Ready { room } if room > 0)
    }

    /// Whether data is better off elsewhere: something timed out on it and nothing was heard since, or
    /// its address pair is bad.
    #[must_use]
    pub const fn is_suspect(&self) -> bool {
        self.potentially_failed || self.bad_address_pair
    }

    /// Whether it is established and not closing, though it may be full.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        !matches!(self.eligibility, Eligibility::NotUsable)
    }
}
