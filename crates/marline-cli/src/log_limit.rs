//! Limit on repeated log lines, so that clients, applications and unauthenticated peers cannot fill the disk.
//!
//! Each place in the code that writes a line (a callsite of tracing) may write a burst of lines and then one per second
//! ([`RATE`]). The next line after a gap is preceded by the number of suppressed ones. Lines of the levels debug and
//! trace are not limited.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use marline_proxy::rate::{Rate, RateLimit};
use tokio::time::Instant;
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};

/// Rate of lines per call site.
const RATE: Rate = Rate { burst: 100, interval: Duration::from_secs(1) };

/// Rate limits on the log lines of a process.
#[derive(Debug, Default)]
pub(crate) struct RepeatLimit(Mutex<HashMap<Identifier, CallSite>>);

/// A place in the code that writes lines.
#[derive(Debug)]
struct CallSite {
    limit: RateLimit,
    left_out: u64,
}

impl Default for CallSite {
    fn default() -> Self {
        CallSite { limit: RateLimit::new(RATE), left_out: 0 }
    }
}

impl CallSite {
    /// Takes permission for a line. Returns the number of lines suppressed since the last one.
    fn try_acquire(&mut self, now: Instant) -> Option<u64> {
        if !self.limit.try_take(now) {
            self.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

impl RepeatLimit {
    /// Takes permission for this line. Returns the number of similar lines suppressed since the last one.
    pub(crate) fn try_acquire(&self, line: &Metadata<'_>) -> Option<u64> {
        if *line.level() > Level::INFO {
            return Some(0);
        }
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.entry(line.callsite()).or_default().try_acquire(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_site_writes_a_burst_and_then_one_line_per_second() {
        let (mut place, start) = (CallSite::default(), Instant::now());
        let mut written = Vec::new();
        // 20,000 lines in five seconds
        for at in 0..20_000_u32 {
            written.extend(place.try_acquire(start + Duration::from_micros(250) * at));
        }
        assert!((100..=106).contains(&written.len()), "{}", written.len());
        let counted: u64 = written.iter().sum::<u64>() + place.left_out;
        assert_eq!(counted + written.len() as u64, 20_000, "each line is written or counted");
        let later = place.try_acquire(start + Duration::from_secs(10));
        assert!(later.is_some_and(|left_out| left_out > 0));
    }
}
