//! Delivery times by the forecasts: when data arrives on a path, and what the other paths bring by then. Every rule of
//! ours that weighs one path against another (`min_rtt.rs`, `auto.rs`) compares these.
//!
//! *Problem.* A fast path is full, a slow one has room. Under load that room is useful. It does harm
//! - where the end of what was written is near: the fast path would bring all of it before the slow
//!   one's segment has even arrived, so a burst spread over both completes only with the slow one;
//! - where the buffers are small: all subflows share one receive window, and one send buffer holds what is not
//!   DATA_ACKed. What is on the slow path arrives late; until then everything on the faster ones waits behind it,
//!   and if they bring more in that time than the buffers hold, they stop.
//!
//! *How.* A segment on slow path S arrives by S's forecast, behind what the sender put into S's queue, less the way
//! back: for `min_rtt` at its p90; for `auto`, which repairs a wrong choice with copies, at its p50 and with what the
//! risk of trouble adds. Against that stand its [`Rivals`], the paths of S's class that have something to do, so that
//! whoever waits for them is woken:
//! - [`Rivals::would_block`]: until the segment's DATA_ACK, which returns on the quickest of them, those that are
//!   faster bring their rate times that time. If that and S's outstanding data exceed the buffers, S takes nothing
//!   now. It is later the longer S's queue is, so S is kept only as full as the buffers allow;
//! - [`Rivals::full_is_sooner`]: one that is full has brought all that is unsent when its window has let the last
//!   byte go and its queue has let it through. If that is before the segment arrives, S takes nothing now. While the
//!   send buffer is nearly full the application has more to write, and nothing is held back.
//!
//! Each segment is decided separately, by the amount of unsent data: under load there is always more.
//!
//! *Sources.* The second question is ECF's (Lim et al., CoNEXT 2017), the first weighs the quantities of BLEST
//! (Ferlin et al., IFIP Networking 2016).
//!
//! *Differences.* ECF compares round trips by SRTT, with a margin and a hysteresis, and counts whole windows of the
//! present size, which makes a fast path that is just starting look slow. BLEST takes the windows of the fast path
//! for its rate and S's whole RTT for the time, with a factor that is learned from how often it blocks; that avoids
//! S although much of its data would arrive in time. It looks at the peer's window only; here the send buffer's
//! largest size counts, too.

use marline_policy::{
    Eligibility, Phase, Quantile, SchedulerContext, SubflowId, SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant, Rate};

use super::classes::{Class, members};

/// Time for which an answer is under way after its segment arrived.
pub(super) fn way_back(view: &SubflowView) -> Duration {
    view.min_rtt.unwrap_or_default() / 2
}

/// Time until so many bytes more have arrived that leave now, by this quantile; `None` where nothing is known.
pub(super) fn arrival_by(view: &SubflowView, bytes: u64, quantile: Quantile) -> Option<Duration> {
    let answer = view.forecast.answer_after(bytes, quantile)?;
    Some(answer.saturating_sub(way_back(view)))
}

/// The same, which nine of ten are not later than; as long as can be where nothing is known.
pub(super) fn arrival(view: &SubflowView, bytes: u64) -> Duration {
    arrival_by(view, bytes, Quantile::P90).unwrap_or(Duration::MAX)
}

/// Whether the answer to its oldest segment is later than 99 of 100 are.
pub(super) fn is_overdue(view: &SubflowView, now: Instant) -> bool {
    view.overdue_at.is_some_and(|at| at <= now)
}

/// Whether answers to what it carries open its window. One that a loss has shut opens when that is repaired.
pub(super) fn opens_soon(view: &SubflowView) -> bool {
    view.phase == Phase::Open && view.bytes_queued == 0
}

/// Whether the end of what was written is none: writers are woken before the buffer is empty, and fill it again.
pub(super) fn writer_has_more(cx: &SchedulerContext<'_>) -> bool {
    cx.written.since(cx.data_una) >= cx.send_limit / 4 * 3
}

/// What a subflow brings home: as measured, but never more than its window allows.
fn rate(view: &SubflowView) -> Rate {
    let by_window = view.srtt.map_or(Rate::ZERO, |srtt| Rate::over(view.cwnd, srtt));
    view.delivery_rate.map_or(by_window, |measured| measured.min(by_window))
}

/// Whether paths are waited for whose oldest answer is overdue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// As if it were not. Most such alarms are false, and what then goes on a slow path is there for as long as that
    /// takes.
    WaitedFor,
    /// They are not: for who repairs a wrong choice with copies.
    LeftOut,
}

/// A path that has room, and the other paths of its class for which data may wait instead: those that something moves.
/// Whoever waits for one of them is woken, by the answers to what it carries, or by its pacer.
#[derive(Copy, Clone)]
pub(super) struct Rivals<'a> {
    of: &'a SubflowView,
    class: Class,
    overdue: Overdue,
    without: SubflowSet,
    cx: &'a SchedulerContext<'a>,
}

impl<'a> Rivals<'a> {
    /// The rivals of this path; `None`: it has none.
    pub(super) fn of(
        view: &'a SubflowView,
        class: Class,
        overdue: Overdue,
        cx: &'a SchedulerContext<'a>,
    ) -> Option<Self> {
        let rivals = Rivals { of: view, class, overdue, without: SubflowSet::EMPTY, cx };
        rivals.all().next().map(|_| rivals)
    }

    /// All but these, which take nothing.
    pub(super) fn without(self, spared: SubflowSet) -> Self {
        Rivals { without: spared, ..self }
    }

    fn all(self) -> impl Iterator<Item = &'a SubflowView> {
        members(self.cx.subflows, self.class).filter(move |other| {
            let moves = other.bytes_in_flight > 0
                || matches!(other.eligibility, Eligibility::PacingLimited(_));
            let late = || self.overdue == Overdue::LeftOut && is_overdue(other, self.cx.now);
            other.id != self.of.id && moves && !late() && !self.without.contains(other.id)
        })
    }

    /// Whether data that the path takes now, and that has arrived after this time, would leave faster ones without room
    /// before it is acknowledged.
    pub(super) fn would_block(self, arrives: Duration) -> bool {
        // Of a path of which nothing is known nobody can say that it would hold up the others.
        if arrives == Duration::MAX {
            return false;
        }
        let Rivals { of, cx, .. } = self;
        let back = self.all().map(way_back).min().unwrap_or_default();
        let until = arrives.saturating_add(back);
        let faster = self.all().filter(|other| arrival(other, other.mss.into()) < arrives);
        let brought = faster.map(|other| rate(other).bytes_in(until)).fold(0, u64::saturating_add);
        let bound = cx.window_end.since(cx.data_una).min(cx.send_limit);
        let takes = of.bytes_in_flight + u64::from(of.mss);
        brought > 0 && brought.saturating_add(takes) > bound
    }

    /// One that takes nothing now and has brought all that is unsent before this time, in which a segment on the
    /// path would arrive; and when it has. `last_leaves` says when its window lets the last of so many bytes go.
    pub(super) fn full_is_sooner(
        self,
        arrives: Duration,
        last_leaves: fn(&SubflowView, u64) -> Option<Duration>,
    ) -> Option<(SubflowId, Duration)> {
        let cx = self.cx;
        if writer_has_more(cx) {
            return None;
        }
        let left = cx.written.since(cx.unsent.start);
        let brings_all = |other: &SubflowView| {
            let leaves = last_leaves(other, left).filter(|_| other.forecast.is_known())?;
            let opens = match other.eligibility {
                Eligibility::PacingLimited(at) => at.since(cx.now),
                _ => Duration::ZERO,
            };
            Some(opens + arrival(other, left).max(arrival(other, 0) + leaves))
        };
        self.all()
            .filter(|other| !other.is_ready() && opens_soon(other))
            .filter_map(|other| Some((other.id, brings_all(other)?)))
            .find(|(_, all)| *all < arrives)
    }
}

/// When the last of so many bytes leaves if windows stay as they are and begin with their room: whole windows later,
/// a round trip each. `None`: nobody knows.
pub(super) fn in_whole_windows(view: &SubflowView, bytes: u64) -> Option<Duration> {
    let rounds = u32::try_from(bytes / view.cwnd.max(1)).unwrap_or(u32::MAX).min(1_000);
    Some(view.srtt? * rounds)
}

/// When the last of so many bytes leaves if each answer lets go as much as it is for, and in slow start twice as
/// much, so that a round trip doubles the window. `None`: nobody knows.
pub(super) fn answer_by_answer(view: &SubflowView, bytes: u64) -> Option<Duration> {
    let srtt = view.srtt?;
    let window = view.cwnd.max(1);
    let (mut rounds, mut before, mut round) = (0, 0, window);
    if view.cwnd < view.ssthresh {
        // Two windows in the first round trip, four in the second: after n of them 2 (2^n - 1) windows have left.
        rounds = (bytes / window).saturating_add(2).ilog2() - 1;
        before = window.saturating_mul((2 << rounds) - 2);
        round = window.saturating_mul(2 << rounds);
    }
    let share = bytes.saturating_sub(before) as f32 / round as f32;
    Some(srtt.saturating_mul(rounds).saturating_add(srtt.mul_f32(share)))
}

#[cfg(test)]
mod tests;
