//! Loss recovery interface: loss detection and probe timeouts. The retransmission timer itself stays in the core.

use core::fmt::Debug;

use marline_time::{Duration, Instant};

use crate::{Phase, RttEstimator, Scoreboard, Ssn};

/// Kind of a transmission.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SentKind {
    /// Data sent for the first time.
    New,
    /// A retransmission.
    Retransmission,
    /// A tail loss probe of new data.
    ProbeNew,
    /// A tail loss probe that retransmits the last segment.
    ProbeRepeat,
}

/// Reports a transmission to loss recovery: one segment, or a run of segments sent together (see
/// [`LossRecovery::allows_segment_runs`]).
#[derive(Copy, Clone, Debug)]
pub struct SentNotice {
    /// First sequence number.
    pub start: Ssn,
    /// One past the last.
    pub end: Ssn,
    /// Kind of the transmission.
    pub kind: SentKind,
}

/// One or more segments of a run that an ACK newly delivered.
#[derive(Copy, Clone, Debug)]
pub struct DeliveredSegment {
    /// First sequence number.
    pub start: Ssn,
    /// One past the last.
    pub end: Ssn,
    /// Time at which it was last sent.
    pub sent_at: Instant,
    /// It was sent more than once.
    pub retransmitted: bool,
    /// Delivered by SACK, not by the cumulative ACK.
    pub by_sack: bool,
}

/// Summary of one ACK for loss recovery.
#[derive(Copy, Clone, Debug)]
pub struct AckSummary<'a> {
    /// SND.UNA before the ACK.
    pub prior_una: Ssn,
    /// SND.UNA after the ACK.
    pub una: Ssn,
    /// Segments that the ACK newly delivered, in sequence order.
    pub delivered: &'a [DeliveredSegment],
    /// The DSACK block, if the ACK carried one.
    pub dsack: Option<(Ssn, Ssn)>,
    /// The ACK echoes the timestamp of a transmission sent at this time or later (timestamps only). If a retransmitted
    /// segment was last sent after this time, its original was delivered.
    pub echoed_sent_at: Option<Instant>,
    /// The ACK carried SACK blocks other than a DSACK.
    pub has_sack: bool,
    /// A duplicate ACK in the sense of RFC 5681 section 2: no payload, no SYN or FIN, an unchanged
    /// SND.UNA with data outstanding, an unchanged window. SACK blocks are irrelevant.
    pub duplicate: bool,
}

/// Input to loss recovery.
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
    /// Time at which the retransmission timer will fire.
    pub rto_at: Option<Instant>,
    /// The peer accepts SACK blocks.
    pub sack_enabled: bool,
    /// The application most recently limited the subflow: there was room but no new data.
    pub app_limited: bool,
    /// Payload of a full segment in bytes.
    pub mss: u32,
}

/// Results of an ACK, apart from the segments that it marked lost.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct AckOutcome {
    /// A tail loss probe repaired a loss, so the window must be reduced once (RFC 8985 section 7.4.2).
    pub probe_repaired_loss: bool,
    /// A probe was answered, so the path works.
    pub probe_answered: bool,
}

/// Amount of data that duplicate ACKs allow before recovery is entered (limited transmit).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum LimitedTransmit {
    /// No new data while anything is SACKed.
    Off,
    /// Each SACKed byte makes room for a new byte (RFC 6675 section 5 step 3).
    #[default]
    BySack,
    /// This many bytes beyond the window (RFC 3042, for peers without SACK).
    Beyond(u64),
}

/// Action requested by a recovery timer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TimeoutAction {
    /// No action beyond the segments marked lost.
    None,
    /// Send a tail loss probe: new data if there is any, otherwise the last segment.
    SendProbe,
}

/// Detects loss on one subflow.
pub trait LossRecovery: Debug + Send {
    /// Handles a transmission. The segment is already on the scoreboard.
    fn on_sent(&mut self, sent: &SentNotice, cx: &RecoveryContext<'_>);

    /// Handles an ACK that was applied to the scoreboard. Pushes the start of each entry that is now considered lost to
    /// `lost`.
    fn on_ack(
        &mut self,
        ack: &AckSummary<'_>,
        cx: &RecoveryContext<'_>,
        lost: &mut Vec<Ssn>,
    ) -> AckOutcome;

    /// Time at which to call [`on_timeout`](Self::on_timeout): the earlier of the reordering timer and the probe timer.
    fn next_timeout(&self) -> Option<Instant>;

    /// Called when [`next_timeout`](Self::next_timeout) is reached.
    fn on_timeout(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) -> TimeoutAction;

    /// Handles an expiry of the retransmission timer. Pushes the start of each lost entry to `lost`.
    fn on_rto(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>);

    /// Handles the start (`true`) or end (`false`) of recovery.
    fn on_recovery(&mut self, _entered: bool, _cx: &RecoveryContext<'_>) {}

    /// Returns true if a scoreboard entry may represent a run of segments that were sent at the same time. Otherwise
    /// each segment has its own entry. SACKs split a run where they distinguish its segments, but an entry reported
    /// lost is lost as a whole. So this suits only algorithms that judge by send time or that count
    /// [`SentSegment::segments`](crate::SentSegment::segments).
    fn allows_segment_runs(&self) -> bool {
        false
    }

    /// Limit on data sent on duplicate ACKs before recovery is entered.
    fn limited_transmit(&self) -> LimitedTransmit {
        LimitedTransmit::BySack
    }

    /// Sets the maximum time for which the peer delays its acknowledgment of a lone segment, if a better value than the
    /// default is known.
    fn set_peer_ack_delay(&mut self, _delay: Duration) {}

    /// Releases memory that is not needed while the subflow is idle.
    fn shrink(&mut self) {}
}
