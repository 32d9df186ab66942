//! Rate limits on replies that any sender can cause (RFC 5961 section 7).

use marline_time::{Duration, Instant, Rng};

/// Limit on replies of one kind per second.
///
/// A shared budget that every sender can exhaust can also be observed: an attacker that causes replies on its own
/// connection learns how many others were sent, and thereby whether its forged segments were accepted
/// (CVE-2016-5696). Each second therefore allows a random number of replies, at least half the limit.
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    per_s: u32,
    left: u32,
    since: Instant,
}

impl ReplyBudget {
    pub(crate) const fn new(per_s: u32) -> Self {
        ReplyBudget { per_s, left: per_s, since: Instant::ZERO }
    }

    /// True if another reply may be sent now.
    pub(crate) fn take(&mut self, now: Instant, rng: &mut dyn Rng) -> bool {
        if now.since(self.since) >= Duration::from_secs(1) {
            self.since = now;
            self.left = self.per_s - rng.below(u64::from(self.per_s / 2) + 1) as u32;
        }
        let granted = self.left > 0;
        self.left = self.left.saturating_sub(1);
        granted
    }
}
