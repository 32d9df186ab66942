//! RACK loss detection (RFC 8985 section 6). Step numbers refer to section 6.2.

use std::collections::VecDeque;

use marline_policy::{
    AckSummary, DeliveredSegment, Phase, RecoveryContext, Scoreboard, SentNotice, SentSegment, Ssn,
};
use marline_time::{Duration, Instant, nanos};

/// Number of SACKed segments after which reordering is no longer assumed (unless it was seen before).
const DUP_THRESH: usize = 3;
/// Number of recoveries without DSACK after which the reordering window is reset.
const REO_WND_PERSIST: u32 = 16;
/// Maximum reordering window, in quarters of the smallest RTT; it is also at most one SRTT.
const MAX_REO_WND_MULT: u32 = 255;
/// Granularity of the timestamp option. An echo is significant only if it is older than a transmission by more than
/// this.
const TIMESTAMP_TICK: Duration = Duration::from_millis(1);

/// A transmission that is not known to have arrived.
#[derive(Copy, Clone, Debug)]
pub(super) struct Transmission {
    sent_at: Instant,
    start: Ssn,
    end: Ssn,
}

/// State of RACK.
#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// Transmissions in order. An entry becomes stale when its segment is delivered, lost or retransmitted. Stale
    /// entries are dropped when they reach the front.
    pub(super) order: VecDeque<Transmission>,
    /// Send time and end of the most recently sent segment that was delivered.
    pub(super) newest_delivered: Option<(Instant, Ssn)>,
    /// RTT of that transmission in nanoseconds. These take one word instead of a `Duration`'s two, and every idle
    /// subflow has this field.
    rtt_ns: u64,
    /// Highest delivered sequence number.
    fack: Ssn,
    pub(super) reordering_seen: bool,
    reo_wnd_mult: u32,
    reo_wnd_persist: u32,
    /// End of the current DSACK round, in which the window has already been widened; 0 if there is none.
    dsack_round: Ssn,
    reorder_at: Option<Instant>,
    /// If true, step 2 follows the RFC exactly: the RTT is that of the segment processed last.
    rtt_of_last: bool,
}

impl Default for Rack {
    fn default() -> Self {
        Rack {
            order: VecDeque::new(),
            newest_delivered: None,
            rtt_ns: 0,
            fack: Ssn::default(),
            reordering_seen: false,
            reo_wnd_mult: 1,
            reo_wnd_persist: 0,
            dsack_round: Ssn(0),
            reorder_at: None,
            rtt_of_last: false,
        }
    }
}

impl Rack {
    /// Creates the state. With `rtt_of_last`, the RTT is that of the segment processed last, as in the RFC.
    pub(super) fn new(rtt_of_last: bool) -> Self {
        Rack { rtt_of_last, ..Rack::default() }
    }

    const fn rtt(&self) -> Duration {
        Duration::from_nanos(self.rtt_ns)
    }

    pub(super) const fn timeout(&self) -> Option<Instant> {
        self.reorder_at
    }

    /// Step 0: records the time at which the segment was sent.
    pub(super) fn on_sent(&mut self, sent: &SentNotice, cx: &RecoveryContext<'_>) {
        if self.order.capacity() == 0 {
            self.make_room_for_one();
        }
        self.order.push_back(Transmission { sent_at: cx.now, start: sent.start, end: sent.end });
        // The number of stale entries behind a live one is bounded by one round trip's transmissions. If there are
        // more, rebuilding the queue is cheaper than letting it grow.
        if self.order.len() > 4 * cx.board.len() + 64 {
            self.rebuild(cx);
        }
    }

    #[cold]
    fn make_room_for_one(&mut self) {
        self.order.reserve_exact(1);
    }

    /// Steps 1 to 4, except for the minimum RTT, which the core maintains.
    pub(super) fn on_ack(&mut self, ack: &AckSummary<'_>, cx: &RecoveryContext<'_>) {
        let mut newest: Option<(Instant, Ssn)> = None;
        let mut last = None;
        for segment in ack.delivered {
            self.detect_reordering(segment);
            if may_be_original(segment, ack, cx) {
                continue;
            }
            newest = newest.max(Some((segment.sent_at, segment.end)));
            last = Some(segment.sent_at);
        }
        if let Some((sent_at, end)) = newest {
            let judged = last.filter(|_| self.rtt_of_last).unwrap_or(sent_at);
            self.rtt_ns = nanos(cx.now.since(judged));
            self.newest_delivered = self.newest_delivered.max(Some((sent_at, end)));
        }
        self.adapt_to_dsack(ack, cx);
    }

    /// Step 3: detects reordering, in which a segment that was never retransmitted arrives below one that arrived
    /// earlier.
    fn detect_reordering(&mut self, segment: &DeliveredSegment) {
        if segment.end > self.fack {
            self.fack = segment.end;
        } else if segment.end < self.fack && !segment.retransmitted {
            self.reordering_seen = true;
        }
    }

    /// Step 4, first half: a DSACK means that a retransmission was unnecessary, so the window is widened once per round
    /// trip.
    fn adapt_to_dsack(&mut self, ack: &AckSummary<'_>, cx: &RecoveryContext<'_>) {
        if ack.una >= self.dsack_round {
            self.dsack_round = Ssn(0);
        }
        if ack.dsack.is_some() && self.dsack_round == Ssn(0) {
            self.dsack_round = cx.snd_nxt;
            self.reo_wnd_mult = (self.reo_wnd_mult + 1).min(MAX_REO_WND_MULT);
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Step 4, at the end of recovery: after sixteen recoveries without DSACK, the widening is undone.
    pub(super) fn on_recovery_done(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 1;
        }
    }

    /// Step 4, second half: returns the time allowed for reordering to settle.
    pub(super) fn reordering_window(&self, cx: &RecoveryContext<'_>) -> Duration {
        if !self.reordering_seen
            && (cx.phase != Phase::Open || cx.board.segments_sacked() >= DUP_THRESH)
        {
            return Duration::ZERO;
        }
        let min_rtt = cx.rtt.min().unwrap_or(self.rtt());
        let window = min_rtt * self.reo_wnd_mult / 4;
        window.min(cx.rtt.srtt().unwrap_or(window))
    }

    /// Step 5: all segments sent before the newest delivered transmission are lost once the reordering window has
    /// passed. Sets the timer for the first segment that is not yet due.
    pub(super) fn detect(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        self.reorder_at = None;
        let una = cx.board.front().map_or(cx.snd_nxt, |front| front.start);
        let patience = self.rtt() + self.reordering_window(cx);
        while let Some(&sent) = self.order.front() {
            if sent.end > una && !self.judge_transmission(sent, una, patience, cx, lost) {
                break;
            }
            self.order.pop_front();
        }
    }

    /// Judges one transmission; the segments of a run are judged one by one. Returns true if the entry is finished.
    fn judge_transmission(
        &mut self,
        sent: Transmission,
        una: Ssn,
        patience: Duration,
        cx: &RecoveryContext<'_>,
        lost: &mut Vec<Ssn>,
    ) -> bool {
        let due = sent.sent_at + patience;
        for part in outstanding(cx.board, sent, una) {
            let before_newest =
                self.newest_delivered.is_some_and(|newest| (sent.sent_at, part.end) < newest);
            if before_newest && due <= cx.now {
                lost.push(part.start);
                continue;
            }
            // The segment cannot be judged yet, or is not yet due. Those before it are finished.
            if before_newest {
                self.reorder_at = Some(due);
            }
            if let Some(front) = self.order.front_mut() {
                front.start = part.start;
            }
            return false;
        }
        true
    }

    /// Section 6.3: after a timeout, the first segment and all overdue ones are lost.
    pub(super) fn on_rto(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        self.reorder_at = None;
        let patience = self.rtt() + self.reordering_window(cx);
        for (index, segment) in cx.board.iter().enumerate() {
            let overdue = segment.sent_at + patience <= cx.now;
            if segment.in_flight() && (index == 0 || overdue) {
                lost.push(segment.start);
            }
        }
    }

    /// Rebuilds the order of transmission from the scoreboard.
    pub(super) fn rebuild(&mut self, cx: &RecoveryContext<'_>) {
        self.order.clear();
        self.order.extend(cx.board.iter().filter(|s| s.in_flight()).map(|s| Transmission {
            sent_at: s.sent_at,
            start: s.start,
            end: s.end,
        }));
        self.order.make_contiguous().sort_by_key(|t| (t.sent_at, t.end));
    }
}

/// Step 2's exception: a retransmitted segment may have been delivered by its original transmission. This is assumed if
/// the ACK echoes an older timestamp or arrived faster than the path allows. The echo applies only to cumulatively
/// acknowledged data, because a segment beyond a gap does not change what the receiver echoes (RFC 7323 section 4.3).
/// Otherwise every SACK of a retransmission would look like the original's. Jitter can make answers slightly faster
/// than the smallest RTT so far, so they may be a quarter faster: missing the only answer to a probe costs a timeout,
/// while accepting a wrong answer costs only a retransmission.
fn may_be_original(
    segment: &DeliveredSegment,
    ack: &AckSummary<'_>,
    cx: &RecoveryContext<'_>,
) -> bool {
    if !segment.retransmitted {
        return false;
    }
    let in_order = segment.end <= ack.una;
    let is_echo_older = in_order
        && ack.echoed_sent_at.is_some_and(|echoed| segment.sent_at > echoed + TIMESTAMP_TICK);
    is_echo_older || cx.rtt.min().is_some_and(|min| cx.now.since(segment.sent_at) < min * 3 / 4)
}

/// Returns the parts of a transmission that are still in flight: usually one, several if it has been split, or none if
/// it was delivered, lost or retransmitted.
fn outstanding(
    board: &Scoreboard,
    sent: Transmission,
    una: Ssn,
) -> impl Iterator<Item = &SentSegment> {
    let first = board.index_of(sent.start.max(una)).unwrap_or(board.len());
    (first..board.len())
        .map_while(move |index| board.get(index).filter(|s| s.start < sent.end))
        .filter(move |s| s.in_flight() && s.sent_at == sent.sent_at)
}
