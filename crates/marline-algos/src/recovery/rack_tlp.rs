//! RACK-TLP (RFC 8985): losses are told by time, and a silent tail is probed.
//!
//! *Problem.* Counting duplicate ACKs finds no loss at the end of a burst (nothing follows that
//! could be acknowledged), takes reordering for loss, and cannot see that a retransmission was lost.
//! All three end in a retransmission timeout: at least 200 ms of silence, which is the p99 of an
//! interactive flow.
//!
//! *How.* RACK (`rack_tlp/rack.rs`): a segment is lost if one that was *sent* later has arrived and
//! enough time passed for reordering to settle. TLP (`rack_tlp/tlp.rs`): about two round trips after
//! the last sign of life, one segment is sent to provoke an ACK, from which RACK sees the rest. Peers
//! without SACK get what RFC 5681 and 6582 offer (`rack_tlp/no_sack.rs`).
//!
//! *Differences from the RFC's text.*
//! - The reordering timer is set to the *first* segment that may become lost, not to the last: what
//!   is due is repaired now, not with the slowest.
//! - Segments are kept in order of transmission (the RFC recommends it in section 8), so an ACK costs
//!   O(log n) per segment it decides about and nothing for the others.
//! - The delay a peer may add to the ACK of a lone segment is taken to be 40 ms
//!   ([`DEFAULT_PEER_ACK_DELAY`]) instead of 200 ms: Linux's and Marline's receivers acknowledge a
//!   lone small segment at once or within 40 ms. If it was wrong, the price is one repeated segment.
//!   `rack-tlp-rfc` keeps the RFC's value.
//! - By default the probe timeout follows the path's variation, and recovery is watched over too (see
//!   `rack_tlp/tlp.rs`); `rack-tlp-rfc` does as the RFC says.
//! - A probe timeout is never shorter than [`MIN_PTO`]: on paths with an RTT of microseconds, twice
//!   the RTT is less than a scheduler's whim, and here an unanswered probe makes a path suspect.
//! - The RTT of RACK is that of the newest transmission an ACK delivers (the RFC takes the last one
//!   in the order of processing; they differ only if an ACK fills a hole).

mod no_sack;
mod rack;
mod tlp;

use marline_policy::{
    AckSummary, AckVerdict, LossRecovery, Phase, RecoveryContext, SentKind, SentNotice, Ssn,
    TimeoutAction,
};
use marline_time::{Duration, Instant};

use no_sack::NoSack;
use rack::Rack;
use tlp::{Eagerness, Tlp};

/// The longest that a peer is expected to sit on the ACK of a lone segment.
pub const DEFAULT_PEER_ACK_DELAY: Duration = Duration::from_millis(40);
/// The same as RFC 8985 section 7.2 has it.
pub const RFC_PEER_ACK_DELAY: Duration = Duration::from_millis(200);
/// Shortest probe timeout.
pub const MIN_PTO: Duration = Duration::from_millis(5);

/// Time-based loss detection and tail loss probes of one subflow.
#[derive(Clone, Debug)]
pub struct RackTlp {
    rack: Rack,
    tlp: Tlp,
    no_sack: NoSack,
}

impl RackTlp {
    /// Loss recovery that probes as early as the path's variation allows, and allows the peer up to
    /// this delay for the ACK of a lone segment.
    #[must_use]
    pub fn new(peer_ack_delay: Duration) -> Self {
        RackTlp::with(Eagerness::Adaptive, peer_ack_delay)
    }

    /// Loss recovery with the RFC's own probe timeout.
    #[must_use]
    pub fn rfc8985() -> Self {
        RackTlp::with(Eagerness::Rfc8985, RFC_PEER_ACK_DELAY)
    }

    fn with(eagerness: Eagerness, peer_ack_delay: Duration) -> Self {
        let tlp = Tlp::new(eagerness, peer_ack_delay);
        RackTlp { rack: Rack::default(), tlp, no_sack: NoSack::default() }
    }
}

impl Default for RackTlp {
    fn default() -> Self {
        RackTlp::new(DEFAULT_PEER_ACK_DELAY)
    }
}

impl LossRecovery for RackTlp {
    fn on_sent(&mut self, sent: &SentNotice, cx: &RecoveryContext<'_>) {
        if cx.sack_enabled {
            self.rack.on_sent(sent, cx);
        }
        match sent.kind {
            SentKind::New => self.tlp.on_new(sent.start, cx),
            SentKind::Retransmission => self.tlp.on_repeat(cx),
            SentKind::ProbeNew => self.tlp.on_probe(cx, false),
            SentKind::ProbeRepeat => self.tlp.on_probe(cx, true),
        }
    }

    fn on_ack(
        &mut self,
        ack: &AckSummary<'_>,
        cx: &RecoveryContext<'_>,
        lost: &mut Vec<Ssn>,
    ) -> AckVerdict {
        let before = lost.len();
        if cx.sack_enabled {
            self.rack.on_ack(ack, cx);
            self.rack.detect(cx, lost);
        } else {
            self.no_sack.on_ack(ack, cx, lost);
        }
        let verdict = self.tlp.on_ack(ack, cx);
        if lost.len() > before {
            self.tlp.cancel();
        } else if ack.una > ack.prior_una || !ack.delivered.is_empty() {
            self.tlp.schedule(cx, cx.phase);
        }
        verdict
    }

    fn next_timeout(&self) -> Option<Instant> {
        match (self.rack.timeout(), self.tlp.timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn on_timeout(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) -> TimeoutAction {
        let before = lost.len();
        if self.rack.timeout().is_some_and(|at| at <= cx.now) {
            self.rack.detect(cx, lost);
        }
        if self.tlp.fires(cx) && lost.len() == before {
            return TimeoutAction::SendProbe;
        }
        TimeoutAction::None
    }

    fn on_rto(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        self.tlp.end_episode();
        self.no_sack.restart();
        self.rack.on_rto(cx, lost);
    }

    fn on_recovery(&mut self, entered: bool, cx: &RecoveryContext<'_>) {
        if entered {
            self.tlp.end_episode();
        } else {
            self.rack.on_recovery_done();
            self.no_sack.restart();
            // The core may have taken loss marks back: the order of transmission is made anew.
            self.rack.rebuild(cx);
            self.tlp.schedule(cx, Phase::Open);
        }
    }

    fn set_peer_ack_delay(&mut self, delay: Duration) {
        self.tlp.set_peer_ack_delay(delay);
    }
}

#[cfg(test)]
mod tests;
