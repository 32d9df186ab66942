//! RACK-TLP (RFC 8985): time-based loss detection, and probes when the tail of a flight is not acknowledged.
//!
//! *Problem.* Counting duplicate ACKs misses losses at the end of a burst (no later segment can be acknowledged),
//! mistakes reordering for loss, and misses the loss of a retransmission. Missed losses end in a retransmission
//! timeout: at least 200 ms of silence, which then determines the p99 of an interactive flow.
//!
//! *How.* RACK (`rack_tlp/rack.rs`): a segment is lost if one that was *sent* later has arrived and enough time has
//! passed for reordering to settle. TLP (`tlp.rs`): about two round trips after the last ACK, one segment is sent to
//! provoke an ACK, from which RACK detects losses. Without SACK, RFC 5681 and 6582 apply (`no_sack.rs`).
//!
//! *Differences from the RFC's text.*
//! - The reordering timer is set for the *first* segment that may become lost, not for the last, so that each is
//!   retransmitted as soon as it is due.
//! - Segments are kept in order of transmission (which the RFC recommends in section 8), so an ACK costs O(log n) per
//!   segment that it affects and nothing for the others.
//! - The probe timeout is a parameter (`tlp.rs`). By default it is as early as the RTT variation allows, and probes are
//!   also sent during recovery. `rack-tlp-rfc` follows the RFC.
//! - RACK's RTT is that of the newest transmission that an ACK delivers. The RFC uses the last one processed; the two
//!   differ only if an ACK fills a gap. `rack-tlp-rfc` follows the RFC.

mod rack;

use marline_policy::{
    AckOutcome, AckSummary, LimitedTransmit, LossRecovery, Phase, RecoveryContext, SentNotice, Ssn,
    TimeoutAction,
};
use marline_time::{Duration, Instant};

use super::no_sack::{self, NoSack};
use super::tlp::{ProbeConfig, PtoFormula, Tlp};
use rack::Rack;

/// Loss recovery with time-based loss detection and tail loss probes for one subflow.
#[derive(Clone, Debug)]
pub struct RackTlp {
    rack: Rack,
    tlp: Tlp,
    no_sack: NoSack,
    /// Bytes that duplicate ACKs allow beyond the window if there is no SACK.
    bytes_beyond_window: Option<u32>,
}

impl RackTlp {
    /// Creates RACK with these probes, which may be [off](ProbeConfig::OFF).
    #[must_use]
    pub fn new(probes: ProbeConfig) -> Self {
        let to_the_letter = probes.formula == Some(PtoFormula::Rfc8985);
        let rack = Rack::new(to_the_letter);
        RackTlp {
            rack,
            tlp: Tlp::new(probes),
            no_sack: NoSack::default(),
            bytes_beyond_window: None,
        }
    }

    /// Creates loss recovery with the probe timeout of the RFC.
    #[must_use]
    pub fn rfc8985() -> Self {
        RackTlp::new(ProbeConfig::new(PtoFormula::Rfc8985))
    }
}

impl Default for RackTlp {
    fn default() -> Self {
        RackTlp::new(ProbeConfig::default())
    }
}

impl LossRecovery for RackTlp {
    fn on_sent(&mut self, sent: &SentNotice, cx: &RecoveryContext<'_>) {
        if cx.sack_enabled {
            self.rack.on_sent(sent, cx);
        }
        self.tlp.on_sent(sent, cx);
    }

    fn on_ack(
        &mut self,
        ack: &AckSummary<'_>,
        cx: &RecoveryContext<'_>,
        lost: &mut Vec<Ssn>,
    ) -> AckOutcome {
        let before = lost.len();
        if cx.sack_enabled {
            self.rack.on_ack(ack, cx);
            self.rack.detect(cx, lost);
        } else {
            self.no_sack.on_ack(ack, cx, no_sack::DUP_THRESH, lost);
            let segments = self.no_sack.duplicates().min(no_sack::DUP_THRESH - 1);
            self.bytes_beyond_window = Some(segments.saturating_mul(cx.mss));
        }
        self.tlp.on_ack(ack, cx, lost.len() > before)
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
        if self.tlp.is_probe_due(cx) && lost.len() == before {
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
            // The core may have removed loss marks, so the transmission order is rebuilt.
            self.rack.rebuild(cx);
            self.tlp.schedule(cx, Phase::Open);
        }
    }

    fn allows_segment_runs(&self) -> bool {
        true
    }

    fn limited_transmit(&self) -> LimitedTransmit {
        let beyond = self.bytes_beyond_window.map(u64::from);
        beyond.map_or(LimitedTransmit::BySack, LimitedTransmit::Beyond)
    }

    fn set_peer_ack_delay(&mut self, delay: Duration) {
        self.tlp.set_peer_ack_delay(delay);
    }

    fn shrink(&mut self) {
        self.rack.order.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests;
