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
    /// The pacer allows the next segment at this time.
    PacingLimited(Instant),
    /// It is not established, is closing, or is shut off.
    NotUsable,
}

/// A read-only snapshot of one subflow, the same for scheduler, path manager and coupled congestion
/// control. The core takes it just before it consults a policy.
#[derive(Copy, Clone, Debug)]
pub struct SubflowView {
    /// Its slot.
    pub id: SubflowId,
    /// Address id of its local address.
    pub local_id: AddressId,
    /// Address id of its remote address.
    pub remote_id: AddressId,
    /// Either side has marked it as a backup: it carries data only if no regular subflow can.
    pub backup: bool,
    /// Bytes on it cost money.
    pub metered: bool,
    /// Share of a wake-up that a packet on it costs now ([`PathCost::wake_share`](crate::PathCost::wake_share)): 0
    /// where it has no radio whose sleep matters, 1 where its radio sleeps.
    pub wake_share: f32,
    /// Whether data sent on it is expected to arrive.
    pub health: Health,
    /// Congestion phase.
    pub phase: Phase,
    /// Whether it may take data now.
    pub eligibility: Eligibility,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Slow-start threshold in bytes, `u64::MAX` while unknown.
    pub ssthresh: u64,
    /// Bytes sent and believed to be in the network.
    pub bytes_in_flight: u64,
    /// Bytes lost and not yet retransmitted on the subflow.
    pub bytes_queued: u64,
    /// Bytes of the stream that it carried as copies so far, modulo 2^32: another subflow had carried them before.
    pub bytes_copied: u32,
    /// Payload bytes that it sent, repeats included, modulo 2^32.
    pub bytes_sent: u32,
    /// Payload bytes that came in on it, each once, modulo 2^32.
    pub bytes_received: u32,
    /// Smoothed RTT; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// RTT variation.
    pub rttvar: Duration,
    /// Smallest RTT of the last minutes.
    pub min_rtt: Option<Duration>,
    /// Largest delivery rate of the last second or two (five to ten round trips on long paths),
    /// from samples that were not application-limited.
    pub delivery_rate: Option<Rate>,
    /// When answers to what is sent now are to be expected.
    pub forecast: Forecast,
    /// When the answer to the oldest segment on its way is overdue: the forecast p99, as of when it was
    /// sent. `None`: nothing is on its way, or nothing is known of the path.
    pub overdue_at: Option<Instant>,
    /// Bytes acknowledged since the last loss (OLIA's l1).
    pub bytes_since_loss: u64,
    /// Bytes acknowledged between the last two losses (OLIA's l2).
    pub bytes_between_losses: u64,
    /// When it last sent anything.
    pub last_sent_at: Instant,
    /// When a valid segment last came in on it.
    pub last_heard_at: Instant,
    /// When it last brought progress of the connection: new data, a DATA_ACK that advanced, or the
    /// peer's join. The path that the peer currently uses is the one where this is newest.
    pub last_new_at: Instant,
}

impl SubflowView {
    /// Whether it may take at least one byte now.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self.eligibility, Eligibility::Ready { room } if room > 0)
    }

    /// Whether it is established and not closing, though it may be full.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        !matches!(self.eligibility, Eligibility::NotUsable)
    }
}
