//! XLINK: reinjection only while the receiver needs it (Zheng et al., SIGCOMM 2021).
//!
//! *Problem.* With lowest RTT on paths whose delay changes fast, the last data of a video chunk waits on
//! whichever path has just become slow. Sending all unacknowledged data again elsewhere cures that, and
//! doubles the bytes. But a player that has seconds in its buffer gains nothing by it: only when the
//! buffer is about to run dry is a late chunk noticed.
//!
//! *How.* Lowest RTT for new data. When nothing new is left to send, data that is not DATA_ACKed goes also
//! on the fastest subflow with room that did not carry it, the oldest first (all that follows waits for
//! it). This is permitted by the time that the receiver has left, with two thresholds:
//!
//! | time left | reinjection |
//! |---|---|
//! | less than `near` | on |
//! | `near` to `far` | on if some subflow that has data in flight may take longer than that: SRTT + RTTVAR |
//! | more than `far` | off |
//!
//! *Source.* "XLINK: QoE-driven multi-path QUIC transport in large-scale video services": its abstract (2.1 %
//! more bytes), and published summaries for the two thresholds and the test between them. From memory: that
//! the delivery time is the RTT plus its deviation. Nothing here is taken from its successor in XQUIC, which
//! goes by the age of each packet instead.
//!
//! *What differs.* There the client reports how long its player can go on. A byte stream has no such report.
//! What stands in for it is the tail of what was written: the bytes that are not DATA_ACKed, divided by the
//! rate at which the subflows deliver (window per RTT where no rate was measured). For so long the peer is
//! still being supplied; then it has to wait for whatever is missing. So `near` and `far` are ours, too.
//! Without any rate the time left is unknown and counts as none, as a player that is starting has nothing
//! buffered. Priorities of streams and of the first video frame have no counterpart: there is one stream,
//! and each end of what was written is treated as the end of a frame. Which path ACKs take is the core's
//! business.
//!
//! *Extra bytes:* those of the last round trip before each pause; of bulk next to nothing. *p99 of a small
//! message:* as `redundant-idle`, since a small message leaves no time.

use marline_algos::schedulers::classes::{self, Class};
use marline_algos::schedulers::copies::{CopyRule, WithCopies, oldest_copy, queue_is_empty};
use marline_algos::schedulers::{MinRtt, MinRttConfig};
use marline_policy::{Decision, SchedulerContext, SubflowView};
use marline_time::{Duration, Rate};

/// The two thresholds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct XlinkConfig {
    /// With less time left, data is always reinjected.
    pub near: Duration,
    /// With more time left, never.
    pub far: Duration,
}

impl Default for XlinkConfig {
    fn default() -> Self {
        XlinkConfig { near: Duration::from_millis(20), far: Duration::from_millis(500) }
    }
}

/// Copies of what is outstanding when nothing is left to send and little time is left.
#[derive(Debug)]
pub struct WhenNear {
    config: XlinkConfig,
}

/// Reinjects what is outstanding when nothing is left to send and little time is left. By itself over `lowest-rtt`, as
/// published.
pub type Xlink = WithCopies<WhenNear>;

impl WhenNear {
    /// Whether the receiver needs what is outstanding soon enough to send it twice.
    fn permits(&self, cx: &SchedulerContext<'_>) -> bool {
        let left = time_left(cx);
        if left < self.config.near {
            return true;
        }
        left <= self.config.far && longest_delivery(cx).is_some_and(|longest| left < longest)
    }
}

/// The subflows that new data may use now.
fn in_use<'a>(cx: &SchedulerContext<'a>) -> impl Iterator<Item = &'a SubflowView> {
    let class = classes::best_class(cx.subflows);
    cx.subflows.iter().filter(move |view| class.is_some() && Class::of(view) == class)
}

/// How long it takes until the peer has all that was written; zero if nothing is known of the rates.
fn time_left(cx: &SchedulerContext<'_>) -> Duration {
    let total = in_use(cx).filter_map(rate).map(Rate::bits_per_s).fold(0, u64::saturating_add);
    if total == 0 {
        return Duration::ZERO;
    }
    Rate::from_bits_per_s(total).time_for(cx.written.since(cx.data_una))
}

/// At what rate a subflow delivers: as measured, else its window per round trip.
fn rate(view: &SubflowView) -> Option<Rate> {
    let measured = view.delivery_rate.filter(|rate| *rate != Rate::ZERO);
    let by_window = || {
        let srtt = view.srtt.filter(|srtt| !srtt.is_zero())?;
        Some(Rate::over(view.cwnd, srtt))
    };
    measured.or_else(by_window)
}

/// How long data now in flight may take at most.
fn longest_delivery(cx: &SchedulerContext<'_>) -> Option<Duration> {
    let carrying = in_use(cx).filter(|view| view.bytes_in_flight > 0);
    carrying.filter_map(|view| Some(view.srtt?.saturating_add(view.rttvar))).max()
}

impl CopyRule for WhenNear {
    type Config = XlinkConfig;

    fn of(config: XlinkConfig) -> Self {
        WhenNear { config }
    }

    fn base() -> MinRtt {
        MinRtt::new(MinRttConfig::BARE)
    }

    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        if !queue_is_empty(cx) || !self.permits(cx) {
            return Decision::Wait;
        }
        oldest_copy(class, cx.data_una, cx).unwrap_or(Decision::Wait)
    }
}

#[cfg(test)]
mod tests;
