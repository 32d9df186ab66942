//! Report from a subflow to the path health monitor, in segments instead of bytes, because losses are counted in
//! segments.

use marline_time::Duration;

use super::Subflow;
use crate::path_health::MemberActivity;

/// Maximum time until an answer on a path without RTT samples.
const UNKNOWN_ANSWER_TIME: Duration = Duration::from_millis(300);

/// Segments since the last report to the path health monitor.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Tally {
    /// Segments sent, including retransmissions.
    pub(super) sent: u32,
    /// Retransmissions among the sent segments.
    pub(super) retransmitted: u32,
    /// Segments marked lost.
    pub(super) lost: u32,
    /// Segments that were waiting for repair at the last report.
    lost_before: u32,
    /// Outstanding segments at the last report.
    outstanding_before: u32,
}

impl Subflow {
    /// Activity since the last call.
    pub(crate) fn contribute(&mut self) -> MemberActivity {
        let board = &self.tx.board;
        let waiting = match board.bytes_lost() {
            0 => 0,
            _ => board.iter().filter(|s| s.lost).map(|s| s.segments() as u32).sum(),
        };
        let outstanding = board.segments() as u32;
        let rto = if board.is_empty() { Duration::ZERO } else { self.tx.timeout() };
        let tally = core::mem::take(&mut self.tx.tally);
        self.tx.tally.lost_before = waiting;
        self.tx.tally.outstanding_before = outstanding;
        let lost = u64::from(tally.lost_before) + u64::from(tally.lost);
        // Segments lost and repaired in the meantime are no longer marked on the scoreboard.
        let repaired = lost.saturating_sub(u64::from(waiting));
        MemberActivity {
            members: 1,
            lost,
            outstanding: u64::from(outstanding) + repaired,
            at_risk: u64::from(tally.outstanding_before) + u64::from(tally.sent),
            retransmitted: tally.retransmitted.into(),
            sent: tally.sent.into(),
            rto,
        }
    }

    /// Maximum time until the answer to a probe, based on the known round trip.
    pub(crate) fn max_answer_time(&self) -> Duration {
        self.srtt().map_or(UNKNOWN_ANSWER_TIME, |srtt| srtt + self.tx.rtt.rttvar() * 4)
    }
}
