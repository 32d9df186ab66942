//! Round-trip time estimation (RFC 6298) in nanoseconds, plus a windowed minimum.
//!
//! Like Linux, it differs from the RFC in one point. The floor applies to the variance term, RTO = SRTT + max(4 *
//! RTTVAR, floor), so that a path with a long but steady RTT keeps a margin.

use std::sync::Arc;

use marline_time::{Duration, Instant};

/// Bounds of the retransmission timeout.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RttConfig {
    /// RTO before any sample (RFC 6298 section 2.1: 1 s).
    pub initial_rto: Duration,
    /// Floor of the variance term (Linux: 200 ms).
    pub min_rto: Duration,
    /// Ceiling of the RTO, backoff included (Linux: 120 s).
    pub max_rto: Duration,
    /// Age at which a minimum is discarded (Linux: 300 s).
    pub min_rtt_window: Duration,
}

impl Default for RttConfig {
    fn default() -> Self {
        RttConfig {
            initial_rto: Duration::from_secs(1),
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(120),
            min_rtt_window: Duration::from_secs(300),
        }
    }
}

/// SRTT, RTTVAR, the latest sample and the windowed minimum of one subflow. Several estimators may share their bounds.
#[derive(Clone, Debug)]
pub struct RttEstimator {
    config: Arc<RttConfig>,
    // Stored as nanoseconds, one word each, because every subflow of every idle connection has an estimator.
    srtt: u64,
    rttvar: u64,
    latest: u64,
    min: u64,
    min_at: Instant,
    samples: u32,
    /// True if the first sample may be far too long.
    is_first_ambiguous: bool,
}

impl RttEstimator {
    /// An estimator without samples.
    #[must_use]
    pub fn new(config: impl Into<Arc<RttConfig>>) -> Self {
        RttEstimator {
            config: config.into(),
            srtt: 0,
            rttvar: 0,
            latest: 0,
            min: u64::MAX,
            min_at: Instant::ZERO,
            samples: 0,
            is_first_ambiguous: false,
        }
    }

    /// Adds a sample from a segment that was sent once (Karn's algorithm) or whose transmission is identified by
    /// timestamps.
    pub fn on_sample(&mut self, rtt: Duration, now: Instant) {
        let rtt = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX / 8).min(u64::MAX / 8);
        let replaces_first = self.is_first_ambiguous && rtt < self.srtt / 2;
        let first = self.samples == 0 || replaces_first;
        self.is_first_ambiguous = false;
        self.samples = self.samples.saturating_add(1);
        self.latest = rtt;
        if rtt <= self.min || now.since(self.min_at) > self.config.min_rtt_window {
            self.min = rtt;
            self.min_at = now;
        }
        if first {
            (self.srtt, self.rttvar) = (rtt, rtt / 2);
        } else {
            self.rttvar = (self.rttvar * 3 + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = (self.srtt * 7 + rtt) / 8;
        }
    }

    /// Adds the sample of a handshake whose last segment may be a repetition, or the answer to an earlier transmission.
    /// The sample is limited to the initial RTO, so that the RTO is at most 3 s (RFC 6298 section 5.7), and does not
    /// count as a minimum. If the next sample is shorter than half of this one, it replaces this one.
    pub fn on_ambiguous_handshake(&mut self, rtt: Duration, now: Instant) {
        self.on_sample(rtt.min(self.config.initial_rto), now);
        self.min = u64::MAX;
        self.is_first_ambiguous = true;
    }

    /// Smoothed RTT; `None` before the first sample.
    #[must_use]
    pub const fn srtt(&self) -> Option<Duration> {
        if self.samples > 0 { Some(Duration::from_nanos(self.srtt)) } else { None }
    }

    /// RTT variation; zero before the first sample.
    #[must_use]
    pub const fn rttvar(&self) -> Duration {
        Duration::from_nanos(self.rttvar)
    }

    /// The latest sample; zero before the first.
    #[must_use]
    pub const fn latest(&self) -> Duration {
        Duration::from_nanos(self.latest)
    }

    /// The smallest sample within the window; `None` before the first reliable sample.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        (self.min < u64::MAX).then(|| Duration::from_nanos(self.min))
    }

    /// Number of samples so far.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples as u64
    }

    /// The retransmission timeout, without backoff.
    #[must_use]
    pub fn rto(&self) -> Duration {
        match self.srtt() {
            None => self.config.initial_rto,
            Some(srtt) => {
                (srtt + (self.rttvar() * 4).max(self.config.min_rto)).min(self.config.max_rto)
            }
        }
    }

    /// The current bounds.
    #[must_use]
    pub fn config(&self) -> &RttConfig {
        &self.config
    }

    /// The current bounds, to be shared with another estimator.
    #[must_use]
    pub fn shared_config(&self) -> Arc<RttConfig> {
        Arc::clone(&self.config)
    }

    /// Changes the bounds and keeps the samples.
    pub fn set_config(&mut self, config: impl Into<Arc<RttConfig>>) {
        self.config = config.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn first_sample_sets_half_of_itself_as_variation() {
        let mut rtt = RttEstimator::new(RttConfig::default());
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        rtt.on_sample(MS(100), Instant::from_secs(1));
        assert_eq!(rtt.srtt(), Some(MS(100)));
        assert_eq!(rtt.rttvar(), MS(50));
        assert_eq!(rtt.rto(), MS(300));
    }

    #[test]
    fn a_shorter_sample_replaces_an_ambiguous_handshake() {
        let after = |next_ms: u64| {
            let mut rtt = RttEstimator::new(RttConfig::default());
            rtt.on_ambiguous_handshake(MS(1_000), Instant::from_secs(1));
            rtt.on_sample(MS(next_ms), Instant::from_secs(2));
            rtt.on_sample(MS(100), Instant::from_secs(3));
            rtt.srtt()
        };
        assert_eq!(after(100), Some(MS(100)));
        assert!(after(600) > Some(MS(800)), "a slow path may have such an RTT");
    }

    #[test]
    fn an_ambiguous_handshake_sets_no_minimum_and_limits_the_timeout() {
        let mut rtt = RttEstimator::new(RttConfig::default());
        rtt.on_ambiguous_handshake(MS(1_971), Instant::from_secs(5));
        assert_eq!((rtt.srtt(), rtt.rto(), rtt.min()), (Some(MS(1_000)), MS(3_000), None));
        rtt.on_sample(MS(700), Instant::from_secs(6));
        assert_eq!(rtt.min(), Some(MS(700)));
    }

    #[test]
    fn a_steady_path_keeps_the_floor_above_its_rtt() {
        let mut rtt = RttEstimator::new(RttConfig::default());
        for i in 0..200 {
            rtt.on_sample(MS(13), Instant::from_secs(i));
        }
        assert!(rtt.rto() >= MS(213) && rtt.rto() < MS(214), "{:?}", rtt.rto());
    }

    #[test]
    fn an_old_minimum_is_forgotten() {
        let mut rtt = RttEstimator::new(RttConfig::default());
        rtt.on_sample(MS(10), Instant::from_secs(0));
        rtt.on_sample(MS(50), Instant::from_secs(200));
        assert_eq!(rtt.min(), Some(MS(10)));
        rtt.on_sample(MS(60), Instant::from_secs(301));
        assert_eq!(rtt.min(), Some(MS(60)));
    }
}
