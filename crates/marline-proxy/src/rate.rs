//! Rate limits: a burst, then one event per interval (the generic cell rate algorithm).

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// A rate: `burst` events together, then one per `interval`.
#[derive(Copy, Clone, Debug)]
pub struct Rate {
    /// Events allowed together, at least 1.
    pub burst: u32,
    /// Time until one more event is allowed.
    pub interval: Duration,
}

/// State of one rate limit.
#[derive(Copy, Clone, Debug)]
pub struct RateLimit {
    rate: Rate,
    /// Time at which the full burst is available again.
    due: Option<Instant>,
}

impl RateLimit {
    /// Creates an unused limit.
    #[must_use]
    pub const fn new(rate: Rate) -> RateLimit {
        RateLimit { rate, due: None }
    }

    /// Takes one event. Returns `false` if the limit is reached.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let paid = self.due.map_or(now, |due| due.max(now));
        let is_within = paid.duration_since(now) <= self.rate.interval * (self.rate.burst - 1);
        if is_within {
            self.due = Some(paid + self.rate.interval);
        }
        is_within
    }

    /// Returns true if the full burst is available.
    fn is_idle(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }
}

/// One rate limit for each of a bounded number of keys.
#[derive(Debug)]
pub struct RateLimits<K> {
    rate: Rate,
    capacity: usize,
    by_key: BTreeMap<K, RateLimit>,
}

impl<K: Ord> RateLimits<K> {
    /// Creates limits for at most `capacity` keys in use at a time.
    #[must_use]
    pub const fn new(rate: Rate, capacity: usize) -> RateLimits<K> {
        RateLimits { rate, capacity, by_key: BTreeMap::new() }
    }

    /// Takes one event of this key. Returns `false` if its limit is reached, or too many other keys are in use.
    pub fn try_take(&mut self, key: K, now: Instant) -> bool {
        if self.by_key.len() >= self.capacity && !self.by_key.contains_key(&key) {
            self.by_key.retain(|_, limit| !limit.is_idle(now));
            if self.by_key.len() >= self.capacity {
                return false;
            }
        }
        self.by_key.entry(key).or_insert(RateLimit::new(self.rate)).try_take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 3, interval: Duration::from_secs(10) };

    #[test]
    fn a_burst_passes_and_then_one_in_each_interval() {
        let (mut limit, start) = (RateLimit::new(RATE), Instant::now());
        let passed = |limit: &mut RateLimit, after_s: u64| {
            (0..100).filter(|_| limit.try_take(start + Duration::from_secs(after_s))).count()
        };
        assert_eq!(passed(&mut limit, 0), 3);
        assert_eq!(passed(&mut limit, 9), 0);
        assert_eq!(passed(&mut limit, 10), 1);
        assert_eq!(
            passed(&mut limit, 1_000),
            3,
            "idle time does not accumulate more than the burst"
        );
    }

    #[test]
    fn each_key_has_its_own_limit_until_it_is_idle() {
        let (mut limits, start) = (RateLimits::new(RATE, 2), Instant::now());
        for key in ["a", "b"] {
            assert_eq!((0..100).filter(|_| limits.try_take(key, start)).count(), 3);
        }
        assert!(!limits.try_take("c", start), "the table is full");
        let later = start + Duration::from_secs(30);
        assert!(limits.try_take("c", later) && limits.try_take("a", later));
        assert_eq!(limits.by_key.len(), 2);
    }
}
