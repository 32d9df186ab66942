//! Pacer of a path: spreads its window over the round trip.
//!
//! The rate is set by the congestion controller, or is the window divided by SRTT, times 1.25 (times 2 in slow start).
//! A pause earns up to [`CREDIT`], so that the packets of a video frame are sent together. Datagrams that are not bulk
//! are counted but do not wait: they are few, and late ones are useless.

use marline_time::{Duration, Instant, Rate};

/// Maximum credit earned by a pause.
const CREDIT: Duration = Duration::from_millis(2);

/// Pacing state of a path.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pacer {
    /// Time until which the data sent so far keeps the path busy at the current rate.
    paid_until: Instant,
    rate: Option<Rate>,
}

impl Pacer {
    pub(crate) const fn new() -> Self {
        Pacer { paid_until: Instant::ZERO, rate: None }
    }

    /// Sets the rate: the congestion controller's rate, or a window per round trip.
    pub(crate) fn set(
        &mut self,
        own: Option<Rate>,
        window_bytes: u64,
        srtt: Duration,
        slow_start: bool,
    ) {
        let percent = if slow_start { 200 } else { 125 };
        self.rate = own.or_else(|| {
            (!srtt.is_zero()).then(|| Rate::over(window_bytes.saturating_mul(percent) / 100, srtt))
        });
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64) {
        let Some(rate) = self.rate.filter(|rate| *rate != Rate::ZERO) else { return };
        let since = Instant::from_nanos(now.as_nanos().saturating_sub(CREDIT.as_nanos() as u64));
        self.paid_until = self.paid_until.max(since) + rate.time_for(bytes);
    }

    /// Time at which more data may be sent.
    pub(crate) const fn next_send_at(&self) -> Instant {
        self.paid_until
    }
}
