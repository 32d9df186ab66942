//! Read-only view of a subflow for policies.

use marline_time::{Duration, Instant, Rate};

use crate::{AddressId, Forecast, Health, SubflowId};

/// Congestion phase of a subflow.
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

impl Phase {
    /// Name of the phase in records and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Open => "open",
            Phase::Recovery => "recovery",
            Phase::Loss => "loss",
        }
    }
}

/// Room of a subflow for data now, or the reason why it has none.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Eligibility {
    /// The subflow can take data.
    Ready {
        /// Bytes that fit into the congestion window now.
        room: u64,
    },
    /// The congestion window is full.
    CwndLimited,
    /// The pacer allows the next segment at this time.
    PacingLimited(Instant),
    /// The subflow is not established, is closing, or has been disabled.
    NotActive,
}

/// A read-only snapshot of one subflow, shared by scheduler, path manager and coupled congestion control. The core
/// takes it just before it consults a policy.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct SubflowView {
    /// Slot of the subflow in the connection.
    pub id: SubflowId,
    /// Address id of the local address.
    pub local_id: AddressId,
    /// Address id of the remote address.
    pub remote_id: AddressId,
    /// Either side marked the subflow as a backup: it carries data only if no regular subflow can.
    pub backup: bool,
    /// Bytes on the subflow cost money.
    pub metered: bool,
    /// Bytes on the subflow may count against an allowance ([`PathCost::limited`](crate::PathCost::limited)).
    pub limited: bool,
    /// Share of a radio wake-up that a packet on this subflow costs now
    /// ([`PathCost::wake_share`](crate::PathCost::wake_share)): 0 without a radio whose sleep matters, 1 while its
    /// radio sleeps.
    pub wake_share: f32,
    /// Health of the subflow, with the cause if it is not usable.
    pub health: Health,
    /// Congestion phase.
    pub phase: Phase,
    /// Room for data now, or the reason why there is none.
    pub eligibility: Eligibility,
    /// Payload of a full segment in bytes.
    pub mss: u32,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Slow-start threshold in bytes, `u64::MAX` while unknown.
    pub ssthresh: u64,
    /// Bytes sent and considered to be in the network.
    pub bytes_in_flight: u64,
    /// Bytes lost and not yet retransmitted on the subflow.
    pub bytes_queued: u64,
    /// Stream bytes sent on this subflow that another subflow had already carried, modulo 2^32.
    pub bytes_copied: u32,
    /// Payload bytes sent on this subflow, retransmissions included, modulo 2^32.
    pub bytes_sent: u32,
    /// Payload bytes received on this subflow, excluding duplicates, modulo 2^32.
    pub bytes_received: u32,
    /// Smoothed RTT; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// RTT variation.
    pub rttvar: Duration,
    /// Smallest RTT within the last few minutes.
    pub min_rtt: Option<Duration>,
    /// Largest delivery rate within the last second or two (five to ten round trips on long paths), from samples that
    /// were not application-limited.
    pub delivery_rate: Option<Rate>,
    /// Forecast of the answer time of data sent now.
    pub forecast: Forecast,
    /// Time at which the answer to the oldest segment in flight becomes overdue: the p99 of the forecast made when it
    /// was sent. `None` if nothing is in flight or nothing is known about the path.
    pub overdue_at: Option<Instant>,
    /// Time at which the newest data in flight was sent; `None` if it cannot be repeated by [`Decision::RepeatNewest`]:
    /// nothing is in flight, it was repeated before, or a loss is being repaired.
    ///
    /// [`Decision::RepeatNewest`]: crate::Decision::RepeatNewest
    pub newest_sent_at: Option<Instant>,
    /// Bytes acknowledged since the last loss (OLIA's l1).
    pub bytes_since_loss: u64,
    /// Bytes acknowledged between the last two losses (OLIA's l2).
    pub bytes_between_losses: u64,
    /// Time at which a segment was last sent on this subflow.
    pub last_sent_at: Instant,
    /// Time at which a valid segment last arrived on this subflow.
    pub last_rx_at: Instant,
    /// Time at which the subflow last advanced the connection: by new data, an advancing DATA_ACK, or the peer's join.
    /// The peer currently uses the path where this time is the most recent.
    pub last_new_at: Instant,
}

impl SubflowView {
    /// Returns true if the subflow can take at least one byte now.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self.eligibility, Eligibility::Ready { room } if room > 0)
    }

    /// Returns true if the subflow is established and not closing. It may be full.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        !matches!(self.eligibility, Eligibility::NotActive)
    }
}
