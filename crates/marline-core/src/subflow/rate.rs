//! Delivery-rate sampler (draft-ietf-ccwg-bbr, formerly
//! draft-cheng-iccrg-delivery-rate-estimation).
//!
//! The delivery rate of a path cannot be measured as bytes per time between two ACKs, which ACK
//! compression distorts, nor as bytes per RTT, which an idle sender distorts. So each segment
//! records the amount delivered when it was sent; when it is delivered, the difference over the
//! longer of the send and the ACK phase is the rate. Application-limited samples are marked: they
//! are only a lower bound.
//!
//! The estimate is the largest of the last samples, over one to two seconds or five to ten round trips, whichever is
//! longer: a sample taken while the path fills again after a pause is too low. Marked samples count only if they
//! exceed the estimate.

use marline_policy::{Expected, RateSample, RateStamp};
use marline_time::{Duration, Instant, Rate};

/// Delivery counters of one subflow.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct RateSampler {
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// Samples of segments sent before this many bytes were delivered are app-limited; 0 if none are.
    app_limited_until: u64,
    peak: LargestRecentRate,
}

/// Send time and stamp of the newest segment that an ACK delivers.
pub(super) type NewestSegment = Option<(Instant, RateStamp)>;

/// Largest sample of the current and the previous time span.
#[derive(Copy, Clone, Debug, Default)]
struct LargestRecentRate {
    now: LargestRate,
    before: LargestRate,
    span_ends_at: Instant,
}

/// Largest rate of a span, if any, stored as bits per second plus one, so that 0 means none.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LargestRate(u64);

impl LargestRate {
    const fn from_rate(rate: Rate) -> Self {
        LargestRate(rate.bits_per_s().saturating_add(1))
    }

    fn get(self) -> Option<Rate> {
        self.0.checked_sub(1).map(Rate::from_bits_per_s)
    }
}

impl LargestRecentRate {
    const MIN_SPAN: Duration = Duration::from_secs(1);
    const SPAN_RTTS: u32 = 5;

    fn get(&self) -> Option<Rate> {
        self.now.max(self.before).get()
    }

    fn on_sample(&mut self, now: Instant, rate: Rate, limited: bool, rtt: Duration) {
        if limited && self.get().is_some_and(|known| rate <= known) {
            return;
        }
        if now >= self.span_ends_at {
            self.before = core::mem::take(&mut self.now);
            self.span_ends_at = now + (rtt * Self::SPAN_RTTS).max(Self::MIN_SPAN);
        }
        self.now = self.now.max(LargestRate::from_rate(rate));
    }
}

impl RateSampler {
    /// Creates the stamp of a segment that is sent now while `in_flight` bytes are in flight.
    pub(super) fn stamp(&mut self, now: Instant, in_flight: u64) -> RateStamp {
        if in_flight == 0 {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        RateStamp {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            app_limited: self.app_limited_until > 0,
            expected: Expected::default(),
        }
    }

    /// Records the delivery of `bytes` of a segment that was last sent at `sent_at`.
    pub(super) fn on_delivered(
        &mut self,
        bytes: u64,
        sent_at: Instant,
        stamp: RateStamp,
        newest: &mut NewestSegment,
    ) {
        self.delivered += bytes;
        if newest.is_none_or(|(newest, _)| sent_at >= newest) {
            *newest = Some((sent_at, stamp));
        }
    }

    /// Records that the sender has no more data while `in_flight` bytes are in flight.
    pub(super) fn set_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = (self.delivered + in_flight).max(1);
    }

    /// Sample of a processed ACK, if its interval is long enough.
    pub(super) fn sample(
        &mut self,
        now: Instant,
        newest: NewestSegment,
        min_rtt: Option<Duration>,
    ) -> Option<RateSample> {
        let (sent_at, stamp) = newest?;
        self.skip_sample(now, newest);
        let send_phase = sent_at.since(stamp.first_sent_at);
        let interval = send_phase.max(now.since(stamp.delivered_at));
        if interval.is_zero() || min_rtt.is_some_and(|min| interval < min) {
            return None;
        }
        let delivered = self.delivered - stamp.delivered;
        let rate = rate_over(delivered, interval);
        self.peak.on_sample(now, rate, stamp.app_limited, now.since(sent_at));
        Some(RateSample {
            rate,
            delivered,
            interval,
            app_limited: stamp.app_limited,
            prior_delivered: stamp.delivered,
        })
    }

    /// Skips the sample of a processed ACK, because the process was suspended while some of its data was in flight.
    pub(super) fn skip_sample(&mut self, now: Instant, newest: NewestSegment) {
        let Some((sent_at, _)) = newest else { return };
        self.delivered_at = now;
        self.first_sent_at = sent_at;
        if self.app_limited_until > 0 && self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
    }

    /// Total bytes delivered.
    pub(super) const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Recently observed capacity of the path; a lower bound if the path was not fully used.
    pub(super) fn peak(&self) -> Option<Rate> {
        self.peak.get()
    }
}

/// Like [`Rate::over`], but without a 128-bit division for small numbers, which are the usual case.
fn rate_over(bytes: u64, interval: Duration) -> Rate {
    match bytes.checked_mul(8_000_000_000) {
        Some(bits) => {
            let nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
            Rate::from_bits_per_s(bits / nanos)
        }
        None => Rate::over(bytes, interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    #[test]
    fn a_steady_flow_shows_its_rate_despite_compressed_acks() {
        let mut sampler = RateSampler::default();
        let mut stamps = Vec::new();
        // 1,000 bytes every ms at an RTT of 10 ms; ACKs arrive compressed, five at a time.
        let mut last = None;
        for t in 0..100_u64 {
            stamps.push((ms(t), sampler.stamp(ms(t), if t == 0 { 0 } else { 1 })));
            if t >= 15 && t % 5 == 0 {
                let mut newest = None;
                for i in t - 15..t - 10 {
                    let (sent_at, stamp) = stamps[i as usize];
                    sampler.on_delivered(1_000, sent_at, stamp, &mut newest);
                }
                last = sampler.sample(ms(t), newest, Some(Duration::from_millis(5))).or(last);
            }
        }
        let rate = last.map(|s| s.rate.bits_per_s()).unwrap_or_default();
        assert!((7_000_000..=8_500_000).contains(&rate), "{rate}");
        assert_eq!(last.map(|s| s.app_limited), Some(false));
    }

    #[test]
    fn samples_of_an_idle_application_are_app_limited() {
        let mut sampler = RateSampler::default();
        sampler.set_app_limited(0);
        let stamp = sampler.stamp(ms(0), 0);
        let mut newest = None;
        sampler.on_delivered(100, ms(0), stamp, &mut newest);
        let sample = sampler.sample(ms(10), newest, None).unwrap();
        assert!(sample.app_limited);
        let stamp = sampler.stamp(ms(20), 0);
        assert!(!stamp.app_limited);
    }

    #[test]
    fn the_largest_recent_sample_counts_despite_a_pause() {
        let rtt = Duration::from_millis(50);
        let mbit = |n| Rate::from_mbit(n);
        let mut peak = LargestRecentRate::default();
        peak.on_sample(ms(100), mbit(80), false, rtt);
        peak.on_sample(ms(900), mbit(7), false, rtt);
        peak.on_sample(ms(1_200), mbit(7), false, rtt);
        assert_eq!(peak.get(), Some(mbit(80)));
        peak.on_sample(ms(9_000), mbit(7), true, rtt);
        assert_eq!(peak.get(), Some(mbit(80)), "a lower bound does not replace the peak");
        peak.on_sample(ms(9_000), mbit(6), false, rtt);
        assert_eq!(peak.get(), Some(mbit(7)), "the path became slower");
    }
}
