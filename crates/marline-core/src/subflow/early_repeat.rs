//! Early repeat: the newest segment is sent again on its own path before its answer is due.
//!
//! *Problem.* A path that loses single packets, as WiFi does, delays about one small message in a hundred by a probe
//! timeout. A copy on another path repairs that only if the other path is nearly as fast, and uses its capacity all
//! the time.
//!
//! *How.* The scheduler requests the repeat a few milliseconds after the segment ([`Decision::RepeatNewest`]), so
//! that a short burst of losses does not affect both. The scoreboard does not record it: round trips, loss detection
//! and the probe timer refer to the original, and if both are lost, recovery proceeds as without the repeat. If both
//! arrive, the peer reports a duplicate (RFC 2883), which must not be taken as a sign of a spurious retransmission or
//! of reordering.
//!
//! *Source.* Ours. For proactive retransmission of all data, see Flach et al., "Reducing Web Latency", SIGCOMM 2013.
//!
//! [`Decision::RepeatNewest`]: marline_policy::Decision::RepeatNewest

use marline_policy::{Phase, SentSegment, Ssn};
use marline_time::Instant;

use super::{PayloadRoom, Subflow};

/// Number of repeated ranges that are remembered until the peer reports them.
const MAX_REMEMBERED: usize = 4;

/// Early repeats of a subflow.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct EarlyRepeats {
    /// A repeat is requested.
    wanted: bool,
    /// The last repeated ranges, in a ring buffer.
    ranges: [(Ssn, Ssn); MAX_REMEMBERED],
    next: usize,
}

impl EarlyRepeats {
    pub(super) const NONE: EarlyRepeats =
        EarlyRepeats { wanted: false, ranges: [(Ssn(0), Ssn(0)); MAX_REMEMBERED], next: 0 };

    fn last_end(&self) -> Ssn {
        self.ranges[(self.next + MAX_REMEMBERED - 1) % MAX_REMEMBERED].1
    }

    fn remember(&mut self, start: Ssn, end: Ssn) {
        self.ranges[self.next] = (start, end);
        self.next = (self.next + 1) % MAX_REMEMBERED;
    }

    /// True if a repeated range covers this one.
    pub(super) fn covers(&self, start: Ssn, end: Ssn) -> bool {
        self.ranges.iter().any(|&(from, to)| from <= start && end <= to && start < end)
    }

    /// True if a repeat is requested but was not sent.
    pub(super) const fn is_wanted(&self) -> bool {
        self.wanted
    }
}

impl Subflow {
    /// Time at which the newest segment was sent, if it may be repeated early.
    pub(super) fn newest_repeatable(&self) -> Option<Instant> {
        let newest = self.tx.board.back()?;
        let once = newest.in_flight() && !newest.retransmitted() && !newest.sacked;
        let last = newest.end.since(newest.last_segment_start());
        let is_data = newest.payload_len() > 0 && !newest.repair && !newest.untimed;
        let calm = self.tx.phase == Phase::Open
            && self.tx.probe.is_none()
            && self.tx.board.bytes_sacked() == 0;
        let is_lossy = self.tx.sack_enabled && !self.tx.rto.carrier.is_reliable();
        let fits = last <= u64::from(self.tx.mss) && !self.mtu.is_probe(newest.start);
        let may = once && is_data && calm && is_lossy && fits;
        (may && newest.end > self.tx.notes.early.last_end()).then_some(newest.sent_at)
    }

    /// Requests that the newest segment be sent again.
    pub(crate) fn request_early_repeat(&mut self) {
        if self.newest_repeatable().is_some() {
            self.tx.notes.early.wanted = true;
        }
    }

    /// The requested repeat, if it is still possible and fits into one segment.
    pub(super) fn next_early_repeat(
        &mut self,
        now: Instant,
        room: PayloadRoom,
    ) -> Option<SentSegment> {
        self.tx.notes.if_used()?.early.wanted = false;
        self.newest_repeatable()?;
        let mut index = self.tx.board.len() - 1;
        let at = self.tx.board.get(index)?.last_segment_start();
        index += usize::from(self.tx.cut(index, at));
        let segment = *self.tx.board.get(index)?;
        if self.payload_limit(&segment, room, self.mtu.current())? < segment.len() {
            return None;
        }
        self.tx.notes.early.remember(segment.start, segment.end);
        self.stats.bytes_sent += segment.payload_len();
        self.stats.trouble.bytes_retransmitted += segment.payload_len();
        self.pacer.on_sent(now, segment.len());
        Some(segment)
    }
}
