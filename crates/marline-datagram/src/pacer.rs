//! Pacer of a path: spreads its window over the round trip.
//!
//! The rate is the congestion controller's own, or the window over SRTT times 1.25, in slow start times 2. A pause
//! is made up for by [`CREDIT`], so that the packets of a video frame leave together. Datagrams that are not bulk
//! are charged for but do not wait: they are few, and late is lost.

use marline_time::{Duration, Instant, Rate};

/// What a pause may be made up for.
const CREDIT: Duration = Duration::from_millis(2);

/// When the path may take more.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pacer {
    /// What was sent is paid for up to then.
    paid_until: Instant,
    rate: Option<Rate>,
}

impl Pacer {
    pub(crate) const fn new() -> Self {
        Pacer { paid_until: Instant::ZERO, rate: None }
    }

    /// Paces at a rate of the controller's own, or a window over a round trip.
    pub(crate) fn set(&mut self, own: Option<Rate>, window: (u64, Duration), slow_start: bool) {
        let (bytes, srtt) = window;
        let percent = if slow_start { 200 } else { 125 };
        self.rate = own.or_else(|| {
            (!srtt.is_zero()).then(|| Rate::over(bytes.saturating_mul(percent) / 100, srtt))
        });
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64) {
        let Some(rate) = self.rate.filter(|rate| *rate != Rate::ZERO) else { return };
        let since = Instant::from_nanos(now.as_nanos().saturating_sub(CREDIT.as_nanos() as u64));
        self.paid_until = self.paid_until.max(since) + rate.time_for(bytes);
    }

    /// When it takes more; in the past: now.
    pub(crate) const fn opens_at(&self) -> Instant {
        self.paid_until
    }
}
