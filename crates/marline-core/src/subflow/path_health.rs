//! Report of a subflow to the path health monitor, in segments rather than bytes, since losses are
//! counted in segments.

use marline_time::Duration;

use super::Subflow;
use crate::path_health::Contribution;

/// An answer on a path without a measured round trip takes no longer.
const UNKNOWN_ANSWER: Duration = Duration::from_millis(300);

/// Segments since the path health monitor was last told.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Tally {
    /// Sent, repeats included.
    pub(super) sent: u64,
    /// Of these, repeats.
    pub(super) retransmitted: u64,
    /// Marked lost.
    pub(super) lost: u64,
    /// Waited for repair when the path health monitor was last told.
    lost_before: u64,
    /// Were outstanding then.
    outstanding_before: u64,
}

impl Subflow {
    /// What happened since this was last asked.
    pub(crate) fn contribute(&mut self) -> Contribution {
        let board = &self.tx.board;
        let waiting = match board.bytes_lost() {
            0 => 0,
            _ => board.iter().filter(|s| s.lost).map(|s| s.segments() as u64).sum(),
        };
        let outstanding = board.segments() as u64;
        let rto = if board.is_empty() { Duration::ZERO } else { self.tx.timeout() };
        let tally = core::mem::take(&mut self.tx.tally);
        self.tx.tally.lost_before = waiting;
        self.tx.tally.outstanding_before = outstanding;
        let lost = tally.lost_before + tally.lost;
        // What was lost and repaired in the meantime is no longer on the board as such.
        let repaired = lost.saturating_sub(waiting);
        Contribution {
            members: 1,
            lost,
            outstanding: outstanding + repaired,
            at_risk: tally.outstanding_before + tally.sent,
            retransmitted: tally.retransmitted,
            sent: tally.sent,
            rto,
        }
    }

    /// The longest that an answer to a probe takes, by what is known of the round trip.
    pub(crate) fn answer_takes(&self) -> Duration {
        self.srtt().map_or(UNKNOWN_ANSWER, |srtt| srtt + self.tx.rtt.rttvar() * 4)
    }
}
