//! Carried: the largest rate at which a path delivered within the last seconds, however little was offered.
//!
//! A window that collapsed by random losses stops a flow that the path carried a moment ago, and then nothing is
//! delivered by which it could grow. What was delivered lately may be on its way whatever the window is, unless the
//! delay says that there is a queue.

use marline_time::{Duration, Instant, Rate};

/// Rates are remembered for one to two of these.
const SPAN: Duration = Duration::from_secs(4);

/// The largest delivery rate of this span and the one before.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Carried {
    largest: [Rate; 2],
    began_at: Option<Instant>,
}

impl Carried {
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
