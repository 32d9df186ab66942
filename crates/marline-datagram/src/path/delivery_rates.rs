//! Largest rate at which a path has delivered data within the last seconds, even if little was offered.
//!
//! A window that has collapsed due to random losses stops a flow that the path carried just before. Then no data is
//! delivered that would let the window grow. So data up to the recent rate may be in transit with any window, unless
//! the delay indicates a queue.

use marline_time::{Duration, Instant, Rate};

/// Length of a span. Rates are remembered for one to two spans.
const SPAN: Duration = Duration::from_secs(4);

/// Largest delivery rates in the current span and the previous one.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct DeliveryRates {
    largest: [Rate; 2],
    began_at: Option<Instant>,
}

impl DeliveryRates {
    pub(super) fn on_rate(&mut self, rate: Rate, now: Instant) {
        let began_at = *self.began_at.get_or_insert(now);
        if now.since(began_at) >= SPAN {
            self.largest = [Rate::ZERO, self.largest[0]];
            self.began_at = Some(now);
        }
        self.largest[0] = self.largest[0].max(rate);
    }

    pub(super) fn rate(&self) -> Rate {
        self.largest[0].max(self.largest[1])
    }
}
