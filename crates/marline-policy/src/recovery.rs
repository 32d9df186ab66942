//! Loss recovery interface: loss detection and probe timeouts. The retransmission timer itself
//! stays in the core.

use core::fmt::Debug;

use marline_time::{Duration, Instant};

use crate::{Phase, RttEstimator, Scoreboard, Ssn};

/// What kind of transmission it was.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SentKind {
    /// Data sent for the first time.
    New,
    /// A retransmission.
    Retransmission,
    /// A tail loss probe of new data.
    ProbeNew,
    /// A tail loss probe that repeats the last segment.
    ProbeRepeat,
}

/// Notice of a transmission to loss recovery: of a segment, or of a run of them that leave together
/// (see [`LossRecovery::judges_runs`]).
#[derive(Copy, Clone, Debug)]
pub struct SentNotice {
    /// First sequence number.
    pub start: Ssn,
    /// One past the last.
    pub end: Ssn,
    /// Its kind.
    pub kind: SentKind,
}

/// A segment, or several of a run, that an ACK newly delivered.
#[derive(Copy, Clone, Debug)]
pub struct DeliveredSegment {
    /// First sequence number.
    pub start: Ssn,
    /// One past the last.
    pub end: Ssn,
    /// When it was last sent.
    pub sent_at: Instant,
    /// It was sent more than once.
    pub retransmitted: bool,
    /// Delivered by SACK, not by the cumulative ACK.
    pub by_sack: bool,
}

/// Summary of one ACK for loss recovery.
#[derive(Copy, Clone, Debug)]
pub struct AckSummary<'a> {
    /// SND.UNA before it.
    pub prior_una: Ssn,
    /// SND.UNA after it.
    pub una: Ssn,
    /// What it newly delivered, in sequence order.
    pub delivered: &'a [DeliveredSegment],
    /// A DSACK block it carried.
    pub dsack: Option<(Ssn, Ssn)>,
    /// The ACK echoes the timestamp of a transmission sent then or later (timestamps only):
    /// a retransmitted segment delivered earlier than this came from its original.
    pub echoed_sent_at: Option<Instant>,
    /// It carried SACK blocks beyond a DSACK.
    pub has_sack: bool,
    /// A duplicate ACK in the sense of RFC 5681 section 2: no payload, no SYN or FIN, an unchanged
    /// SND.UNA with data outstanding, an unchanged window. SACK blocks do not matter.
    pub duplicate: bool,
}

/// Input of loss recovery.
#[derive(Copy, Clone, Debug)]
pub struct RecoveryContext<'a> {
    /// The current time.
    pub now: Instant,
    /// The sent segments.
    pub board: &'a Scoreboard,
    /// The RTT estimator.
    pub rtt: &'a RttEstimator,
    /// Congestion phase.
    pub phase: Phase,
    /// Next new sequence number.
    pub snd_nxt: Ssn,
    /// When the retransmission timer would fire.
    pub rto_at: Option<Instant>,
    /// The peer agreed to SACK.
    pub sack_enabled: bool,
    /// The subflow was last application-limited: it had room and was given no new data.
    pub app_limited: bool,
    /// Payload bytes of a full segment.
    pub mss: u32,
}

/// Conclusions of an ACK about loss besides the segments it marked lost.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct AckOutcome {
    /// A tail loss probe repaired a loss: reduce the window once (RFC 8985 section 7.4.2).
    pub probe_repaired_loss: bool,
    /// A probe was answered: the path is alive.
    pub probe_answered: bool,
}

/// Sending on duplicate ACKs before recovery is entered (limited transmit).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum LimitedTransmit {
    /// Nothing new while anything is SACKed.
    Off,
    /// SACKed bytes make room for as many new ones (RFC 6675 section 5 step 3).
    #[default]
    BySack,
    /// This many bytes beyond the window (RFC 3042, for peers without SACK).
    Beyond(u64),
}

/// Action requested by a recovery timer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TimeoutAction {
    /// Nothing beyond the segments it marked lost.
    None,
    /// Send a tail loss probe: new data if there is any, else the last segment.
    SendProbe,
}

/// Detects loss on one subflow.
pub trait LossRecovery: Debug + Send {
    /// A segment was sent. It is already on the scoreboard.
    fn on_sent(&mut self, sent: &SentNotice, cx: &RecoveryContext<'_>);

    /// An ACK was applied to the scoreboard. Pushes the start of each entry that is lost now.
    fn on_ack(
        &mut self,
        ack: &AckSummary<'_>,
        cx: &RecoveryContext<'_>,
        lost: &mut Vec<Ssn>,
    ) -> AckOutcome;

    /// When it wants to be woken: the earlier of reordering and probe timer.
    fn next_timeout(&self) -> Option<Instant>;

    /// Called when that time is reached.
    fn on_timeout(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) -> TimeoutAction;

    /// The retransmission timer fired: which segments are lost.
    fn on_rto(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>);

    /// Recovery was entered (`true`) or left (`false`).
    fn on_recovery(&mut self, _entered: bool, _cx: &RecoveryContext<'_>) {}

    /// Whether an entry of the scoreboard may stand for a run of segments that were sent at the same time.
    /// Where not, each segment has an entry of its own. A run is cut where SACKs tell its segments apart, but
    /// what is named lost is lost as a whole: only for algorithms that judge by the time of sending, or that
    /// count [`SentSegment::segments`](crate::SentSegment::segments).
    fn judges_runs(&self) -> bool {
        false
    }

    /// What may be sent on duplicate ACKs before recovery is entered.
    fn limited_transmit(&self) -> LimitedTransmit {
        LimitedTransmit::BySack
    }

    /// The delay the peer may add before it acknowledges a lone segment, if known better than the
    /// default.
    fn set_peer_ack_delay(&mut self, _delay: Duration) {}

    /// Gives back memory that is not needed now: the subflow has been idle for a while.
    fn shrink(&mut self) {}
}
