//! Limit on warnings: each is logged at most once per minute, however often a program retries.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use marline_proxy::rate::{Rate, RateLimits};
use tokio::time::Instant;

const RATE: Rate = Rate { burst: 1, interval: Duration::from_secs(60) };
/// Maximum number of different warnings stored.
const MAX_REMEMBERED: usize = 64;

/// Warnings of the last minute.
#[derive(Debug)]
pub(crate) struct WarningLimit(Mutex<RateLimits<String>>);

impl Default for WarningLimit {
    fn default() -> Self {
        WarningLimit(Mutex::new(RateLimits::new(RATE, MAX_REMEMBERED)))
    }
}

impl WarningLimit {
    /// Returns true if this warning should be logged now, and records it as logged.
    pub(crate) fn should_log(&self, text: &str) -> bool {
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        limits.try_take(text.to_owned(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn warnings_are_limited_per_minute_and_in_total() {
        let limit = WarningLimit::default();
        assert!(limit.should_log("a") && limit.should_log("b"));
        assert!(!limit.should_log("a"));
        tokio::time::advance(RATE.interval).await;
        assert!(limit.should_log("a"));
        let admitted = (0..1_000).filter(|number| limit.should_log(&number.to_string())).count();
        assert_eq!(admitted, MAX_REMEMBERED - 1);
    }
}
