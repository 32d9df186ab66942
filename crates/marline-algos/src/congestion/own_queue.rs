//! Limit on a queue that only our own data fills.
//!
//! *Problem.* A loss-based sender fills every queue until it overflows. Routers and modems hold half a second of
//! uplink and more, and a call, a game or a shell on the same path waits behind an upload of the same user.
//!
//! *How.* A sender that is limited by its window needs no more in flight than the path delivers within its smallest
//! round trip; more only waits. If the queueing delay stays above twice the target for [`ROUNDS_TO_LIMIT`] round
//! trips, the window is limited to rate x (smallest RTT + target). If the queue becomes short, it was ours, and the
//! limit stays. Several senders of one user each limit themselves, and their queues add up to about one target.
//!
//! If the queue is long for more than [`MAX_LONG_SHARE`] of the time although our window is limited, somebody else
//! fills it. A limit would only give away our share. It is lifted, CUBIC's window is again what it was before, and the
//! next attempt follows after twice the time on each failure. The share of time decides because a queue that a CUBIC
//! sender fills becomes short for a moment after each of its losses.
//!
//! Where a link's rate varies, as on mobile networks, a short queue runs empty when the rate rises. There the target is
//! up to [`MAX_FACTOR`] times as long. It is measured while the queue is full: when the limit drains the queue, and when
//! others compete, the rate varies for other reasons.
//!
//! *Source.* Rate x RTT as the useful window: TCP Vegas (Brakmo and Peterson, 1995) and BBR. Leaving the delay-based
//! mode when others fill the queue: Copa (Arun and Balakrishnan, NSDI 2018). The test by the effect of our own limit
//! is ours.
//!
//! *p99 of a small message* next to our own bulk data: the path's round trip plus two targets.

use marline_policy::AckSample;
use marline_time::{Duration, Instant, Rate};

/// Smallest queueing delay that is aimed at, so that jitter does not empty the queue.
const MIN_TARGET: Duration = Duration::from_millis(20);
/// The target is at least this fraction of the smallest RTT (divisor).
const TARGET_SHARE: u32 = 8;
/// Largest rate relative to the smoothed one up to which a link counts as steady.
const STEADY_SPREAD: f64 = 1.2;
/// On links that vary more, the target grows by this factor per unit of that ratio, up to [`MAX_FACTOR`].
const SPREAD_SLOPE: f64 = 20.0;
const MAX_FACTOR: f64 = 15.0;
/// Round trips with a long queue before the window is limited. Bursts end sooner.
const ROUNDS_TO_LIMIT: u32 = 3;
/// Smallest limit in segments, so that a loss is still detected without a timeout.
const MIN_LIMIT: f64 = 4.0;
/// Round trips that the queue has to drain before its length counts.
const ROUNDS_TO_DRAIN: u32 = 3;
/// Share of the time with a long queue above which the queue is not ours.
const MAX_LONG_SHARE: f64 = 0.5;
/// Time over which that share is averaged.
const SHARE_MEMORY: Duration = Duration::from_secs(2);
/// First and longest time without a limit after a failure.
const RETRY: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(80)];
/// Time with a limit after which the next failure counts as the first.
const SUCCESS: Duration = Duration::from_secs(20);

#[derive(Copy, Clone, Debug, PartialEq)]
enum State {
    /// No limit. `long_rounds` counts the round trips with a long queue.
    Unlimited { long_rounds: u32 },
    /// The window is limited. `long_share` is the share of the time with a long queue in spite of it, from `since` on.
    Limited { since: Instant, long_share: f64 },
    /// Others fill the queue. There is no limit until then.
    Others { until: Instant },
}

/// What the congestion controller knows about the path.
#[derive(Copy, Clone, Debug)]
pub(super) struct PathEstimate {
    pub(super) min_rtt: Duration,
    /// Largest delivery rate of the last round trips.
    pub(super) largest_rate: Rate,
    pub(super) smoothed_rate: Rate,
    /// Segment size in bytes.
    pub(super) mss: f64,
}

/// Limit on our own queue on one path.
#[derive(Copy, Clone, Debug)]
pub(super) struct OwnQueue {
    state: State,
    retry: Duration,
    /// Queueing delay that is aimed at, constant while the window is limited.
    target: Duration,
    /// Largest useful window in bytes, as of the last ACK.
    window: u64,
    /// True if the window limited the sender in the current round trip.
    is_limited_by_window: bool,
}

impl OwnQueue {
    pub(super) const fn new() -> Self {
        OwnQueue {
            state: State::Unlimited { long_rounds: 0 },
            retry: RETRY[0],
            target: MIN_TARGET,
            window: u64::MAX,
            is_limited_by_window: false,
        }
    }

    /// Returns the largest useful window in bytes, if the window is limited.
    pub(super) fn limit(&self) -> Option<u64> {
        matches!(self.state, State::Limited { .. }).then_some(self.window)
    }

    /// True if the limit was lifted because others fill the queue.
    pub(super) const fn yields_to_others(&self) -> bool {
        matches!(self.state, State::Others { .. })
    }

    /// Processes an ACK. `new_round` is true if a round trip has ended.
    pub(super) fn on_ack(&mut self, ack: &AckSample, path: &PathEstimate, new_round: bool) {
        self.is_limited_by_window |= ack.cwnd_limited;
        if new_round {
            if !matches!(self.state, State::Limited { .. }) {
                self.target = target(path);
            }
            let srtt = ack.srtt.unwrap_or(path.min_rtt);
            let is_long = srtt.saturating_sub(path.min_rtt) > self.target * 2;
            self.on_round(ack.now, srtt, is_long);
        }
        let useful = path.largest_rate.bytes_in(path.min_rtt + self.target);
        self.window = useful.max((MIN_LIMIT * path.mss) as u64);
    }

    /// True if the window is limited and the queue is short. Its link has room for more, so a loss is random.
    pub(super) fn keeps_queue_short(&self, queue: Duration) -> bool {
        matches!(self.state, State::Limited { .. }) && queue <= self.target * 2
    }

    fn on_round(&mut self, now: Instant, rtt: Duration, is_long: bool) {
        let is_bulk = core::mem::take(&mut self.is_limited_by_window);
        self.state = match self.state {
            State::Unlimited { long_rounds } if is_long && is_bulk => match long_rounds + 1 {
                ROUNDS_TO_LIMIT.. => {
                    State::Limited { since: now + rtt * ROUNDS_TO_DRAIN, long_share: 0.0 }
                }
                long_rounds => State::Unlimited { long_rounds },
            },
            State::Unlimited { .. } => State::Unlimited { long_rounds: 0 },
            State::Limited { since, .. } if now < since => self.state,
            State::Limited { .. } if !is_bulk => State::Unlimited { long_rounds: 0 },
            State::Limited { since, long_share } => {
                let weight = (rtt.as_secs_f64() / SHARE_MEMORY.as_secs_f64()).min(1.0);
                let long_share = long_share + (f64::from(u8::from(is_long)) - long_share) * weight;
                self.on_share(now, since, long_share)
            }
            State::Others { until } if now < until => self.state,
            State::Others { .. } => State::Unlimited { long_rounds: 0 },
        };
    }

    /// Decides whether the limit stays.
    fn on_share(&mut self, now: Instant, since: Instant, long_share: f64) -> State {
        if now.since(since) > SUCCESS {
            self.retry = RETRY[0];
        }
        if long_share <= MAX_LONG_SHARE {
            return State::Limited { since, long_share };
        }
        let until = now + self.retry;
        self.retry = (self.retry * 2).min(RETRY[1]);
        State::Others { until }
    }
}

/// Queueing delay to aim at.
fn target(path: &PathEstimate) -> Duration {
    let smoothed = path.smoothed_rate.bits_per_s().max(1);
    let spread = path.largest_rate.bits_per_s() as f64 / smoothed as f64;
    let factor = (1.0 + SPREAD_SLOPE * (spread - STEADY_SPREAD)).clamp(1.0, MAX_FACTOR);
    MIN_TARGET.max(path.min_rtt / TARGET_SHARE).mul_f64(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RTT: Duration = Duration::from_millis(30);
    const RATE: Rate = Rate::from_bits_per_s(8_000_000);
    /// 8 Mbit/s for 30 ms and a target of 20 ms.
    const LIMIT: Option<u64> = Some(50_000);

    /// Queue and time of a test.
    struct Sender {
        queue: OwnQueue,
        now: Instant,
    }

    impl Sender {
        const fn new() -> Self {
            Sender { queue: OwnQueue::new(), now: Instant::from_secs(1) }
        }

        /// Processes rounds of one ACK each with this queueing delay; returns the last limit.
        fn rounds(&mut self, count: u32, delay_ms: u64, is_bulk: bool) -> Option<u64> {
            for _ in 0..count {
                let rtt = MIN_RTT + Duration::from_millis(delay_ms);
                self.now += rtt;
                let ack = AckSample {
                    now: self.now,
                    delivered: 10_000,
                    total_delivered: 0,
                    lost: 0,
                    prior_in_flight: 100_000,
                    bytes_in_flight: 90_000,
                    rtt: Some(rtt),
                    srtt: Some(rtt),
                    min_rtt: Some(MIN_RTT),
                    rate: None,
                    cwnd_limited: is_bulk,
                    in_recovery: false,
                };
                let path = PathEstimate {
                    min_rtt: MIN_RTT,
                    largest_rate: RATE,
                    smoothed_rate: RATE,
                    mss: 1_000.0,
                };
                self.queue.on_ack(&ack, &path, true);
            }
            self.queue.limit()
        }

        /// Waits with long queues until there is no limit. Returns the time that it took.
        fn time_until_lifted(&mut self) -> Duration {
            let began = self.now;
            while self.rounds(1, 300, true).is_some() {}
            self.now.since(began)
        }
    }

    #[test]
    fn a_queue_that_shrinks_with_the_window_stays_limited() {
        let mut sender = Sender::new();
        assert_eq!(sender.rounds(2, 300, true), None);
        assert_eq!(sender.rounds(1, 300, true), LIMIT);
        assert_eq!(sender.rounds(2, 300, true), LIMIT);
        assert_eq!(sender.rounds(1_000, 20, true), LIMIT);
        assert!(sender.queue.keeps_queue_short(Duration::from_millis(40)));
        assert!(!sender.queue.keeps_queue_short(Duration::from_millis(41)));
        // The application pauses.
        assert_eq!(sender.rounds(1, 20, false), None);
        assert!(!sender.queue.keeps_queue_short(Duration::ZERO));
    }

    #[test]
    fn a_queue_of_others_is_left_alone_for_longer_each_time() {
        let mut sender = Sender::new();
        for seconds in [10, 20, 40, 80, 80] {
            assert!(sender.rounds(ROUNDS_TO_LIMIT, 300, true).is_some());
            assert!(sender.time_until_lifted() < Duration::from_secs(2));
            let until = sender.now + Duration::from_secs(seconds);
            while sender.now < until {
                assert_eq!(sender.rounds(1, 300, true), None, "{seconds} s");
            }
        }
        // A lasting success shortens the time again.
        assert!(sender.rounds(ROUNDS_TO_LIMIT, 300, true).is_some());
        let until = sender.now + SUCCESS;
        while sender.now < until {
            assert!(sender.rounds(1, 10, true).is_some());
        }
        sender.time_until_lifted();
        sender.now += RETRY[0];
        assert_eq!(sender.rounds(1, 300, true), None);
        assert!(sender.rounds(ROUNDS_TO_LIMIT, 300, true).is_some());
    }

    #[test]
    fn a_queue_that_becomes_short_only_after_losses_of_others_is_left_alone() {
        let mut sender = Sender::new();
        assert!(sender.rounds(ROUNDS_TO_LIMIT, 100, true).is_some());
        let mut limited = 0;
        for _ in 0..3 {
            limited += u32::from(sender.rounds(4, 20, true).is_some());
            sender.rounds(20, 100, true);
        }
        assert!(limited <= 2, "{limited}");
        assert_eq!(sender.queue.limit(), None);
    }

    #[test]
    fn a_burst_or_an_application_with_little_data_is_not_limited() {
        let mut sender = Sender::new();
        for _ in 0..20 {
            assert_eq!(sender.rounds(ROUNDS_TO_LIMIT - 1, 300, true), None);
            assert_eq!(sender.rounds(1, 0, true), None);
        }
        assert_eq!(sender.rounds(100, 300, false), None);
    }
}
