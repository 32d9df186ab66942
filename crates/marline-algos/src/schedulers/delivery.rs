//! Delivery times computed from forecasts: when data arrives on a path, and how much the other paths deliver in the
//! meantime. All our own rules that compare paths (`min_rtt.rs`, `auto.rs`) use these.
//!
//! *Problem.* A fast path is full, and a slow one has room. Under load, this room is useful. Using it does harm
//! - near the end of the written data: the fast path would deliver all of it before the slow one's segment has even
//!   arrived, so a burst spread over both paths completes only when the slow one has delivered;
//! - with small buffers: all subflows share one receive window, and one send buffer holds all data that is not
//!   DATA_ACKed. Data on the slow path arrives late. Until then, everything on the faster paths waits behind it, and if
//!   they deliver more in that time than the buffers hold, they stop.
//!
//! *How.* The arrival time of a segment on a slow path S is the forecast of S, including the sender's own queue on S,
//! minus the return delay. `min-rtt` uses the p90. `auto`, which repairs wrong choices with copies, uses the p50 plus
//! the risk of trouble. This is compared with its [`Alternatives`]: the paths of S's class with something in flight or
//! paced, so that an event ends the wait for them.
//! - [`Alternatives::would_block`]: until the segment's DATA_ACK, which returns on the quickest of them, the faster
//!   paths deliver their rate times that time. If this amount and the outstanding data of S exceed the buffers, S gets
//!   nothing now. The longer the queue of S, the later the DATA_ACK, so S is kept only as full as the buffers allow;
//! - [`Alternatives::earlier_full_path`]: a full path has delivered all unsent data once its window has released the
//!   last byte and its queue has transmitted it. If this happens before the segment would arrive, S gets nothing now.
//!   While the send buffer is nearly full, the application has more to write, and nothing is held back.
//!
//! Each segment is decided separately, based on the amount of unsent data, which under load never runs out.
//!
//! *Sources.* The second question comes from ECF (Lim et al., CoNEXT 2017). The first uses the quantities of BLEST
//! (Ferlin et al., IFIP Networking 2016).
//!
//! *Differences.* ECF compares round trips by SRTT, with a margin and hysteresis, and counts whole windows of the
//! current size, which makes a fast path that is just starting look slow. BLEST uses the fast path's windows as its
//! rate and the whole RTT of S as the time, with a factor learned from how often S blocks. It avoids S even though much
//! of its data would arrive in time. BLEST considers only the peer's window; here the maximum size of the send buffer
//! also counts.

use marline_policy::{
    Eligibility, Phase, Quantile, SchedulerContext, SubflowId, SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant, Rate};

use super::classes::{Class, members};

/// Returns the time between the arrival of a segment and its answer.
pub(super) fn return_delay(view: &SubflowView) -> Duration {
    view.min_rtt.unwrap_or_default() / 2
}

/// Returns the time until `bytes` more bytes sent now have arrived, at this quantile; `None` if nothing is known.
pub(super) fn arrival_by(view: &SubflowView, bytes: u64, quantile: Quantile) -> Option<Duration> {
    let answer = view.forecast.answer_after(bytes, quantile)?;
    Some(answer.saturating_sub(return_delay(view)))
}

/// Returns this time at the 90th percentile; `Duration::MAX` if nothing is known.
pub(super) fn arrival(view: &SubflowView, bytes: u64) -> Duration {
    arrival_by(view, bytes, Quantile::P90).unwrap_or(Duration::MAX)
}

/// Returns true if the answer to the oldest segment is later than 99 % of all answers.
pub(super) fn is_overdue(view: &SubflowView, now: Instant) -> bool {
    view.overdue_at.is_some_and(|at| at <= now)
}

/// Returns true if answers to data in flight open the window. A window closed by a loss opens only when the loss is
/// repaired.
pub(super) fn is_window_opening(view: &SubflowView) -> bool {
    view.phase == Phase::Open && view.bytes_queued == 0
}

/// Returns true if the writer probably has more data than it has written: writers are woken before the buffer is empty,
/// and fill it again.
pub(super) fn expects_more_data(cx: &SchedulerContext<'_>) -> bool {
    cx.written.since(cx.data_una) >= cx.send_limit / 4 * 3
}

/// Returns the delivery rate of a subflow: as measured, but at most what the window allows.
fn rate(view: &SubflowView) -> Rate {
    let by_window = view.srtt.map_or(Rate::ZERO, |srtt| Rate::over(view.cwnd, srtt));
    view.delivery_rate.map_or(by_window, |measured| measured.min(by_window))
}

/// Permission to wait for paths whose oldest answer is overdue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum OverdueWait {
    /// Data may wait. Most such alarms are false, and data then sent on a slow path takes as long as that path.
    Allowed,
    /// Data may not wait: for schedulers that repair a wrong choice with copies.
    Forbidden,
}

/// Path with room, and the other paths of its class for which data may wait instead. Each of these has data in flight
/// or paced, so that an answer or its pacer ends the wait.
#[derive(Copy, Clone)]
pub(super) struct Alternatives<'a> {
    of: &'a SubflowView,
    class: Class,
    overdue: OverdueWait,
    without: SubflowSet,
    cx: &'a SchedulerContext<'a>,
}

impl<'a> Alternatives<'a> {
    /// Finds the rivals of this path; `None` if there are none.
    #[inline]
    pub(super) fn find(
        view: &'a SubflowView,
        class: Class,
        overdue: OverdueWait,
        cx: &'a SchedulerContext<'a>,
    ) -> Option<Self> {
        let rivals = Alternatives { of: view, class, overdue, without: SubflowSet::EMPTY, cx };
        rivals.all().next().map(|_| rivals)
    }

    /// Excludes these paths, which get no data.
    pub(super) fn excluding(self, spared: SubflowSet) -> Self {
        Alternatives { without: spared, ..self }
    }

    fn all(self) -> impl Iterator<Item = &'a SubflowView> {
        members(self.cx.subflows, self.class).filter(move |other| {
            let moves = other.bytes_in_flight > 0
                || matches!(other.eligibility, Eligibility::PacingLimited(_));
            let late = || self.overdue == OverdueWait::Forbidden && is_overdue(other, self.cx.now);
            other.id != self.of.id && moves && !late() && !self.without.contains(other.id)
        })
    }

    /// Returns true if data sent on the path now, arriving after this time, would leave faster paths without room
    /// before that data is acknowledged.
    pub(super) fn would_block(self, arrives: Duration) -> bool {
        // There is no evidence that an unknown path blocks the others.
        if arrives == Duration::MAX {
            return false;
        }
        let Alternatives { of, cx, .. } = self;
        let back = self.all().map(return_delay).min().unwrap_or_default();
        let until = arrives.saturating_add(back);
        let faster = self.all().filter(|other| arrival(other, other.mss.into()) < arrives);
        let brought = faster.map(|other| rate(other).bytes_in(until)).fold(0, u64::saturating_add);
        let bound = cx.window_end.since(cx.data_una).min(cx.send_limit);
        let takes = of.bytes_in_flight + u64::from(of.mss);
        brought > 0 && brought.saturating_add(takes) > bound
    }

    /// Returns a full path that will have delivered all unsent data before a segment would arrive on this path, and the
    /// time until then. `last_leaves` computes when a path's window releases the last of a number of bytes.
    pub(super) fn earlier_full_path(
        self,
        arrives: Duration,
        last_leaves: fn(&SubflowView, u64) -> Option<Duration>,
    ) -> Option<(SubflowId, Duration)> {
        let cx = self.cx;
        if expects_more_data(cx) {
            return None;
        }
        let left = cx.written.since(cx.unsent.start);
        let delivery_time_of_rest = |other: &SubflowView| {
            let leaves = last_leaves(other, left).filter(|_| other.forecast.is_known())?;
            let opens = match other.eligibility {
                Eligibility::PacingLimited(at) => at.since(cx.now),
                _ => Duration::ZERO,
            };
            Some(opens + arrival(other, left).max(arrival(other, 0) + leaves))
        };
        self.all()
            .filter(|other| !other.is_ready() && is_window_opening(other))
            .filter_map(|other| Some((other.id, delivery_time_of_rest(other)?)))
            .find(|(_, all)| *all < arrives)
    }
}

/// Returns the time until the last of `bytes` is sent if windows keep their size: one round trip per whole window.
/// `None` if the RTT is unknown.
pub(super) fn send_time_by_windows(view: &SubflowView, bytes: u64) -> Option<Duration> {
    let rounds = u32::try_from(bytes / view.cwnd.max(1)).unwrap_or(u32::MAX).min(1_000);
    Some(view.srtt? * rounds)
}

/// Returns the time until the last of `bytes` is sent if each answer releases as much as it acknowledges, or twice as
/// much in slow start, so that a round trip doubles the window. `None` if the RTT is unknown.
pub(super) fn send_time_by_answers(view: &SubflowView, bytes: u64) -> Option<Duration> {
    let srtt = view.srtt?;
    let window = view.cwnd.max(1);
    let (mut rounds, mut before, mut round) = (0, 0, window);
    if view.cwnd < view.ssthresh {
        // Two windows in the first round trip, four in the second: after n of them, 2 (2^n - 1) windows have been sent.
        rounds = (bytes / window).saturating_add(2).ilog2() - 1;
        before = window.saturating_mul((2 << rounds) - 2);
        round = window.saturating_mul(2 << rounds);
    }
    let share = bytes.saturating_sub(before) as f32 / round as f32;
    Some(srtt.saturating_mul(rounds).saturating_add(srtt.mul_f32(share)))
}

#[cfg(test)]
mod tests;
