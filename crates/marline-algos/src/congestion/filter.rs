//! BBR's filters: the largest delivery rate of the last rounds, the smallest RTT of the last seconds, and the round
//! counter.

use marline_policy::RateSample;
use marline_time::{Duration, Instant, Rate};

/// Counts round trips by delivered bytes: a round ends when a segment sent after the end of the previous round is
/// delivered. No timer is involved, so this works even if the RTT changes.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Rounds {
    count: u64,
    /// The round ends when a segment is delivered that was sent after at least this many bytes had been delivered.
    ends_at_delivered: u64,
}

impl Rounds {
    /// Processes a sample. Returns true if a new round has begun.
    pub(super) fn on_sample(&mut self, sample: &RateSample, total_delivered: u64) -> bool {
        let ended = sample.prior_delivered >= self.ends_at_delivered;
        if ended {
            self.count += 1;
            self.restart(total_delivered);
        }
        ended
    }

    /// Starts a new round now.
    pub(super) const fn restart(&mut self, total_delivered: u64) {
        self.ends_at_delivered = total_delivered;
    }

    /// Number of completed rounds.
    pub(super) const fn count(self) -> u64 {
        self.count
    }
}

/// The largest rate of the last `window` rounds, exact to a third of the window. It keeps the largest rate, the largest
/// rate after it, and the largest rate after that one.
#[derive(Copy, Clone, Debug)]
pub(super) struct MaxRateFilter {
    window: u64,
    best: [Sample; 3],
}

#[derive(Copy, Clone, Debug)]
struct Sample {
    round: u64,
    rate: Rate,
}

impl MaxRateFilter {
    pub(super) const fn new(window: u64) -> Self {
        MaxRateFilter { window, best: [Sample { round: 0, rate: Rate::ZERO }; 3] }
    }

    pub(super) const fn get(&self) -> Rate {
        self.best[0].rate
    }

    /// Adds a sample of `round`. Rounds must not decrease.
    pub(super) fn on_sample(&mut self, round: u64, rate: Rate) {
        let new = Sample { round, rate };
        let all_old = round.saturating_sub(self.best[2].round) > self.window;
        if rate >= self.best[0].rate || all_old {
            self.best = [new; 3];
            return;
        }
        if rate >= self.best[1].rate {
            self.best[1] = new;
            self.best[2] = new;
        } else if rate >= self.best[2].rate {
            self.best[2] = new;
        }
        self.drop_expired(new);
    }

    /// Replaces a maximum that is too old with the next largest, and ensures that a maximum of every third of the
    /// window is known.
    fn drop_expired(&mut self, new: Sample) {
        let age = new.round - self.best[0].round;
        if age > self.window {
            self.best = [self.best[1], self.best[2], new];
            if new.round - self.best[0].round > self.window {
                self.best = [self.best[1], new, new];
            }
        } else if self.best[1].round == self.best[0].round && age > self.window / 4 {
            self.best[1] = new;
            self.best[2] = new;
        } else if self.best[2].round == self.best[1].round && age > self.window / 2 {
            self.best[2] = new;
        }
    }
}

/// Smallest RTT of the last seconds, and the time at which it was measured.
#[derive(Copy, Clone, Debug)]
pub(super) struct MinRttFilter {
    window: Duration,
    least: Option<Duration>,
    seen_at: Instant,
}

impl MinRttFilter {
    pub(super) const fn new(window: Duration, now: Instant) -> Self {
        MinRttFilter { window, least: None, seen_at: now }
    }

    pub(super) const fn get(&self) -> Option<Duration> {
        self.least
    }

    /// Adds a sample. Returns true if the window had passed without an equally small sample.
    pub(super) fn on_sample(&mut self, now: Instant, rtt: Option<Duration>) -> bool {
        let expired = now.since(self.seen_at) > self.window;
        if let Some(rtt) = rtt
            && (expired || self.least.is_none_or(|least| rtt <= least))
        {
            self.least = Some(rtt);
            self.seen_at = now;
        }
        expired
    }

    /// Extends the minimum for another window, because it was just measured with an empty pipe.
    pub(super) const fn confirm(&mut self, now: Instant) {
        self.seen_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mbit(n: u64) -> Rate {
        Rate::from_mbit(n)
    }

    #[test]
    fn the_largest_of_the_last_rounds_and_no_older() {
        let mut filter = MaxRateFilter::new(10);
        filter.on_sample(1, mbit(80));
        for round in 2..=11 {
            filter.on_sample(round, mbit(50));
            assert_eq!(filter.get(), mbit(80), "round {round}");
        }
        filter.on_sample(12, mbit(40));
        assert_eq!(filter.get(), mbit(50), "the sample of 80 has expired");
        filter.on_sample(13, mbit(90));
        assert_eq!(filter.get(), mbit(90), "a larger sample takes effect immediately");
        filter.on_sample(100, mbit(10));
        assert_eq!(filter.get(), mbit(10), "old samples have expired");
    }

    /// Compares with the definition, within the precision of thirds.
    #[test]
    fn the_filter_stays_between_the_recent_and_the_window_maximum() {
        let mut filter = MaxRateFilter::new(12);
        let mut history: Vec<u64> = Vec::new();
        let mut state = 1_u64;
        for round in 0..2_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let rate = 10 + (state >> 58);
            history.push(rate);
            filter.on_sample(round, mbit(rate));
            let last = |rounds: usize| {
                history[history.len().saturating_sub(rounds)..].iter().max().copied().unwrap_or(0)
            };
            let got = filter.get().bits_per_s() / 1_000_000;
            assert!(got <= last(13), "round {round}: {got} of {:?}", last(13));
            assert!(got >= last(4), "round {round}: {got} below {:?}", last(4));
        }
    }

    #[test]
    fn a_round_ends_with_the_first_data_sent_after_it_began() {
        let sample = |prior_delivered| RateSample {
            rate: mbit(1),
            delivered: 1,
            interval: Duration::from_millis(1),
            app_limited: false,
            prior_delivered,
        };
        let mut rounds = Rounds::default();
        assert!(rounds.on_sample(&sample(0), 1_000));
        assert!(!rounds.on_sample(&sample(0), 2_000));
        assert!(!rounds.on_sample(&sample(999), 10_000));
        assert!(rounds.on_sample(&sample(1_000), 11_000));
        assert!(!rounds.on_sample(&sample(10_000), 12_000));
        assert_eq!(rounds.count(), 2);
    }

    #[test]
    fn the_smallest_rtt_is_replaced_when_it_is_old() {
        let ms = Duration::from_millis;
        let mut least = MinRttFilter::new(Duration::from_secs(10), Instant::ZERO);
        assert!(!least.on_sample(Instant::from_secs(1), Some(ms(50))));
        assert!(!least.on_sample(Instant::from_secs(5), Some(ms(60))));
        assert_eq!(least.get(), Some(ms(50)));
        assert!(least.on_sample(Instant::from_millis(11_001), Some(ms(60))));
        assert_eq!(least.get(), Some(ms(60)));
        least.confirm(Instant::from_secs(20));
        assert!(!least.on_sample(Instant::from_secs(30), None));
    }
}
