//! Evidence that a middlebox acknowledges data that the peer does not have.
//!
//! A receiver never reduces its acknowledgment (RFC 9293 section 3.4). ACKs below SND.UNA are normal if they are late
//! because they were reordered with newer ones. If such an ACK still arrives a retransmission timeout after SND.UNA
//! has passed it, it is not late: the peer is waiting for octets that a middlebox has acknowledged. They will not be
//! sent again, so the gap in the subflow is permanent, regardless of the data level.
//!
//! A proxy that acknowledges early and then delivers the data itself also causes such ACKs, but not for a whole
//! timeout.
//!
//! Evidence expires. A peer that is still waiting repeats its ACK in answer to the next transmission, so only an ACK
//! after the last transmission counts. Old ACKs that arrived long after they were sent (a suspended process, a path
//! that was interrupted for a while) are not repeated, and prove nothing about a later timeout.

use marline_policy::Ssn;
use marline_time::{Duration, Instant};

/// Silence after which a repeated ACK starts new evidence, because no earlier segment can still be in flight (RFC 9293
/// section 3.4.2).
const EVIDENCE_LIFETIME: Duration = Duration::from_secs(120);

/// ACKs below SND.UNA.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct FalseAcks {
    repeated: Option<OldAck>,
}

/// An ACK first received below SND.UNA, and its repetitions.
#[derive(Copy, Clone, Debug)]
struct OldAck {
    ack: Ssn,
    first_at: Instant,
    last_at: Instant,
}

impl FalseAcks {
    pub(super) const NONE: FalseAcks = FalseAcks { repeated: None };

    /// Handles an acceptable segment that acknowledges less than earlier ones.
    pub(super) fn on_old_ack(&mut self, now: Instant, ack: Ssn) {
        match &mut self.repeated {
            // The ACK was reordered with other old ACKs.
            Some(old) if ack < old.ack => {}
            Some(old) if ack == old.ack && now.since(old.last_at) <= EVIDENCE_LIFETIME => {
                old.last_at = now;
            }
            _ => self.repeated = Some(OldAck { ack, first_at: now, last_at: now }),
        }
    }

    /// True if these ACKs kept arriving for a retransmission timeout, and also in answer to the last transmission.
    pub(super) fn is_proof(&self, rto: Duration, last_sent_at: Instant) -> bool {
        self.repeated
            .is_some_and(|old| old.last_at.since(old.first_at) >= rto && old.last_at > last_sent_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: Duration = Duration::from_millis(200);

    fn heard(acks: &[(u64, u64)]) -> bool {
        heard_after(0, acks)
    }

    /// True if these ACKs, with times in milliseconds, are proof when the last transmission was at `sent_ms`.
    fn heard_after(sent_ms: u64, acks: &[(u64, u64)]) -> bool {
        let mut evidence = FalseAcks::NONE;
        for &(at_ms, ack) in acks {
            evidence.on_old_ack(Instant::from_millis(at_ms), Ssn(ack));
        }
        evidence.is_proof(RTO, Instant::from_millis(sent_ms))
    }

    #[test]
    fn an_ack_that_others_overtook_proves_nothing() {
        assert!(!heard(&[]));
        assert!(!heard(&[(0, 1_000)]));
        assert!(!heard(&[(0, 1_000), (50, 2_000), (150, 2_000)]));
    }

    #[test]
    fn an_ack_below_one_older_than_the_timeout_is_proof() {
        assert!(heard(&[(0, 1_000), (200, 1_000)]));
        assert!(heard(&[(0, 1_000), (100, 1_000), (150, 500), (300, 1_000)]));
    }

    #[test]
    fn evidence_from_before_the_last_transmission_has_expired() {
        let acks = [(10, 1_000), (300, 1_000)];
        assert!(heard_after(250, &acks));
        assert!(!heard_after(300, &acks) && !heard_after(600_000, &acks));
        assert!(!heard_after(600_000, &[(10, 1_000), (300, 1_000), (600_100, 1_000)]), "one ACK");
        assert!(heard_after(600_000, &[(10, 1_000), (600_100, 1_000), (600_400, 1_000)]));
    }

    #[test]
    fn repeated_reordering_restarts_the_evidence_each_time() {
        assert!(!heard(&[(0, 1_000), (300, 4_000), (600, 6_000)]));
    }
}
