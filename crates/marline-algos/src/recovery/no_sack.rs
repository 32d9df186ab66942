//! Loss detection for peers without SACK: three duplicate ACKs mean loss (RFC 5681 section 3.2), and a partial ACK
//! during recovery reveals the next gap (NewReno, RFC 6582). Time-based detection does not apply, because without SACK
//! it is unknown which older segments arrived.

use marline_policy::{AckSummary, Phase, RecoveryContext, Ssn};

/// Number of duplicate ACKs that indicate a loss (RFC 5681 section 3.2).
pub const DUP_THRESH: u32 = 3;

/// Counts duplicate ACKs for a sender without SACK.
#[derive(Clone, Debug, Default)]
pub struct NoSack {
    duplicates: u32,
}

impl NoSack {
    /// Creates a counter at zero.
    #[must_use]
    pub const fn new() -> Self {
        NoSack { duplicates: 0 }
    }

    /// Number of duplicate ACKs since SND.UNA last moved.
    #[must_use]
    pub const fn duplicates(&self) -> u32 {
        self.duplicates
    }

    /// Restarts the count.
    pub const fn restart(&mut self) {
        self.duplicates = 0;
    }

    /// Handles an ACK. Appends segments that are now known to be lost to `lost`; `threshold` duplicates indicate a
    /// loss.
    pub fn on_ack(
        &mut self,
        ack: &AckSummary<'_>,
        cx: &RecoveryContext<'_>,
        threshold: u32,
        lost: &mut Vec<Ssn>,
    ) {
        let Some(front) = cx.board.front() else {
            self.duplicates = 0;
            return;
        };
        if ack.una > ack.prior_una {
            self.duplicates = 0;
            // A gap that was already retransmitted waits for its ACK or for the timer.
            if cx.phase != Phase::Open && front.in_flight() && !front.retransmitted() {
                lost.push(front.start);
            }
        } else if ack.duplicate {
            self.duplicates += 1;
            if self.duplicates == threshold && cx.phase == Phase::Open && front.in_flight() {
                lost.push(front.start);
            }
        }
    }
}
