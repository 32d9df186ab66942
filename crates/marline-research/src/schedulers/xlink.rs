//! XLINK: reinjects data only while the receiver needs it (Zheng et al., SIGCOMM 2021).
//!
//! *Problem.* With lowest RTT on paths whose delay changes quickly, the last data of a video chunk waits on a path that
//! has just become slow. Sending all unacknowledged data again on another path solves this, but doubles the bytes. A
//! player with seconds of data in its buffer gains nothing: a late chunk matters only when the buffer is nearly empty.
//!
//! *How.* Lowest RTT places new data. When no new data is left, data that is not DATA_ACKed is also sent on the fastest
//! subflow with room that did not carry it, oldest first (all later data waits for it). Whether this is permitted
//! depends on the time that the receiver has left, with two thresholds:
//!
//! | time left | reinjection |
//! |---|---|
//! | less than `near` | on |
//! | `near` to `far` | on if a subflow with data in flight may take longer than the time left: SRTT + RTTVAR |
//! | more than `far` | off |
//!
//! *Source.* "XLINK: QoE-driven multi-path QUIC transport in large-scale video services": its abstract (2.1 % more
//! bytes), and published summaries for the two thresholds and the test between them. That the delivery time is the RTT
//! plus its deviation is not verified. Nothing is taken from the successor in XQUIC, which uses the age of each packet
//! instead.
//!
//! *What differs.* In XLINK, the client reports how long its player can continue. A byte stream has no such report. It
//! is replaced by the tail of the written data: the bytes that are not DATA_ACKed, divided by the delivery rate of the
//! subflows (window per RTT where no rate was measured). During that time, the peer still receives data; after it, the
//! peer must wait for missing data. So `near` and `far` are also our choice. Without any rate, the time left is unknown
//! and counts as zero, like a player that is just starting with an empty buffer. Priorities of streams and of the first
//! video frame have no counterpart: there is one stream, and each end of written data counts as the end of a frame. The
//! core decides which path ACKs take.
//!
//! *Extra bytes:* those of the last round trip before each pause; almost none for bulk data. *p99 of a small message:*
//! as with `redundant-idle`, because for a small message, the time left is nearly zero.

use marline_algos::schedulers::classes::{self, Class};
use marline_algos::schedulers::copies::{CopyRule, CopyingScheduler, oldest_copy, queue_is_empty};
use marline_algos::schedulers::{MinRtt, MinRttConfig};
use marline_policy::{Decision, SchedulerContext, SubflowView};
use marline_time::{Duration, Rate};

/// Settings: thresholds for the time left.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct XlinkConfig {
    /// Time left below which data is always reinjected.
    pub near: Duration,
    /// Time left above which data is never reinjected.
    pub far: Duration,
}

impl Default for XlinkConfig {
    fn default() -> Self {
        XlinkConfig { near: Duration::from_millis(20), far: Duration::from_millis(500) }
    }
}

/// Copy rule for outstanding data when all data has been sent and little time is left.
#[derive(Debug)]
pub struct EndCopies {
    config: XlinkConfig,
}

/// Scheduler that reinjects outstanding data when all data has been sent and little time is left. If not used as a
/// wrapper, it is based on `lowest-rtt`, as published.
pub type Xlink = CopyingScheduler<EndCopies>;

impl EndCopies {
    /// Returns true if the receiver needs the outstanding data soon enough to justify sending it twice.
    fn allows_copies(&self, cx: &SchedulerContext<'_>) -> bool {
        let left = time_left(cx);
        if left < self.config.near {
            return true;
        }
        left <= self.config.far && longest_delivery(cx).is_some_and(|longest| left < longest)
    }
}

/// Returns the subflows that new data may use now.
fn used_subflows<'a>(cx: &SchedulerContext<'a>) -> impl Iterator<Item = &'a SubflowView> {
    let class = classes::best_class(cx.subflows);
    cx.subflows.iter().filter(move |view| class.is_some() && Class::from_view(view) == class)
}

/// Returns the time until the peer has all written data; zero if no rate is known.
fn time_left(cx: &SchedulerContext<'_>) -> Duration {
    let total =
        used_subflows(cx).filter_map(rate).map(Rate::bits_per_s).fold(0, u64::saturating_add);
    if total == 0 {
        return Duration::ZERO;
    }
    Rate::from_bits_per_s(total).time_for(cx.written.since(cx.data_una))
}

/// Returns the delivery rate of a subflow: as measured, otherwise the window per round trip.
fn rate(view: &SubflowView) -> Option<Rate> {
    let measured = view.delivery_rate.filter(|rate| *rate != Rate::ZERO);
    let by_window = || {
        let srtt = view.srtt.filter(|srtt| !srtt.is_zero())?;
        Some(Rate::over(view.cwnd, srtt))
    };
    measured.or_else(by_window)
}

/// Returns the longest time that data currently in flight may take.
fn longest_delivery(cx: &SchedulerContext<'_>) -> Option<Duration> {
    let carrying = used_subflows(cx).filter(|view| view.bytes_in_flight > 0);
    carrying.filter_map(|view| Some(view.srtt?.saturating_add(view.rttvar))).max()
}

impl CopyRule for EndCopies {
    type Config = XlinkConfig;

    fn from_config(config: XlinkConfig) -> Self {
        EndCopies { config }
    }

    fn base_scheduler() -> MinRtt {
        MinRtt::new(MinRttConfig::LOWEST_RTT)
    }

    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        if !queue_is_empty(cx) || !self.allows_copies(cx) {
            return Decision::Wait;
        }
        oldest_copy(class, cx.data_una, cx).unwrap_or(Decision::Wait)
    }
}

#[cfg(test)]
mod tests;
