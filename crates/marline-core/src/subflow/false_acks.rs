//! Evidence that a middlebox acknowledges in the peer's name what the peer does not have.
//!
//! A receiver never takes an acknowledgment back (RFC 9293 section 3.4). ACKs below SND.UNA are ordinary as long as
//! they are late, overtaken by newer ones on the way. If the same one still comes a retransmission timeout after
//! SND.UNA has passed it, nobody is late: the peer waits for octets that somebody else has acknowledged. They will
//! not be sent again, so that the hole in the subflow stays for good, whatever the data level does about it.
//!
//! A proxy that acknowledges early and then delivers by itself looks like that, too, but not for a timeout.
//!
//! Evidence expires. A peer that still waits answers whatever is sent next with the same ACK, so only an ACK that
//! came after the last transmission counts. Old ACKs that arrived long after they were sent (a process that stood
//! still, a path that was cut off for a while) are not repeated, and prove nothing about a later timeout.

use marline_policy::Ssn;
use marline_time::{Duration, Instant};

/// The same ACK after a longer silence is new evidence, not more of it: nothing sent before is still under way (RFC
/// 9293 section 3.4.2).
const MOST_SILENCE: Duration = Duration::from_secs(120);

/// ACKs below SND.UNA.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct FalseAcks {
    repeated: Option<OldAck>,
}

/// One that came for the first time below SND.UNA, and perhaps again.
#[derive(Copy, Clone, Debug)]
struct OldAck {
    ack: Ssn,
    first_at: Instant,
    last_at: Instant,
}

impl FalseAcks {
    pub(super) const NONE: FalseAcks = FalseAcks { repeated: None };

    /// An acceptable segment acknowledges less than others did before it.
    pub(super) fn on_old_ack(&mut self, now: Instant, ack: Ssn) {
        match &mut self.repeated {
            // Overtaken by the others of its kind.
            Some(old) if ack < old.ack => {}
            Some(old) if ack == old.ack && now.since(old.last_at) <= MOST_SILENCE => {
                old.last_at = now;
            }
            _ => self.repeated = Some(OldAck { ack, first_at: now, last_at: now }),
        }
    }

    /// Whether they have come for as long as a retransmission timeout, and in answer to what was sent last.
    pub(super) fn are_certain(&self, rto: Duration, last_sent_at: Instant) -> bool {
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

    /// Whether ACKs, each with its time in milliseconds, are proof if something was last sent at `sent_ms`.
    fn heard_after(sent_ms: u64, acks: &[(u64, u64)]) -> bool {
        let mut evidence = FalseAcks::NONE;
        for &(at_ms, ack) in acks {
            evidence.on_old_ack(Instant::from_millis(at_ms), Ssn(ack));
        }
        evidence.are_certain(RTO, Instant::from_millis(sent_ms))
    }

    #[test]
    fn an_ack_that_others_overtook_proves_nothing() {
        assert!(!heard(&[]));
        assert!(!heard(&[(0, 1_000)]));
        assert!(!heard(&[(0, 1_000), (50, 2_000), (150, 2_000)]));
    }

    #[test]
    fn an_ack_below_what_was_acknowledged_a_timeout_ago_is_proof() {
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
    fn a_path_that_reorders_again_and_again_begins_anew_each_time() {
        assert!(!heard(&[(0, 1_000), (300, 4_000), (600, 6_000)]));
    }
}
