//! Limit on a queue that only our own data fills.
//!
//! *Problem.* A loss-based sender fills every queue until it overflows. Routers and modems hold half a second of
//! uplink and more, and a call, a game or a shell on the same path waits behind an upload of the same user.
//!
//! *How.* A sender that is limited by its window needs no more in flight than the path delivers within its smallest
//! round trip; more only waits. If the queueing delay stays above twice the target for [`ROUNDS_TO_BOUND`] round
//! trips, the window is limited to rate x (smallest RTT + target). If the delay then falls, the queue was ours, and
//! the limit stays. Several senders of one user each limit themselves, and their queues add up to about one target.
//! If the delay does not fall within [`ROUNDS_OF_OTHERS`] round trips, somebody else fills the queue. A limit would
//! only give away our share, so it is lifted and tried again later, after twice the time on each failure.
//!
//! Where a link's rate varies, as on mobile networks, a short queue runs empty when the rate rises. There the target is
//! up to [`MAX_FACTOR`] times as long.
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
const ROUNDS_TO_BOUND: u32 = 3;
/// Round trips after which a queue that has not become shorter is not ours.
const ROUNDS_OF_OTHERS: u32 = 6;
/// First and longest time without a limit after a failure.
const RETRY: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(80)];

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum State {
    /// No limit. `long_rounds` counts the round trips with a long queue.
    Unlimited { long_rounds: u32 },
    /// The window is limited. `long_rounds` counts the round trips with a long queue in spite of it.
    Limited { long_rounds: u32 },
    /// Others fill the queue. There is no limit until then.
    Others { until: Instant },
}

/// Limit on our own queue on one path.
#[derive(Copy, Clone, Debug)]
pub(super) struct OwnQueue {
    state: State,
    retry: Duration,
    /// Queueing delay that is aimed at.
    target: Duration,
    /// True if the window limited the sender in the current round trip.
    is_limited_by_window: bool,
}

impl OwnQueue {
    pub(super) const fn new() -> Self {
        OwnQueue {
            state: State::Unlimited { long_rounds: 0 },
            retry: RETRY[0],
            target: MIN_TARGET,
            is_limited_by_window: false,
        }
    }

    /// Processes an ACK. Returns the largest useful window, in bytes, if it is limited. `rate` is the path's largest
    /// recent rate; `new_round` is true if a round trip has ended.
    pub(super) fn limit(
        &mut self,
        ack: &AckSample,
        min_rtt: Duration,
        rate: Rate,
        smoothed_rate: Rate,
        new_round: bool,
    ) -> Option<u64> {
        self.is_limited_by_window |= ack.cwnd_limited;
        if new_round {
            let spread = rate.bits_per_s() as f64 / smoothed_rate.bits_per_s().max(1) as f64;
            let factor = 1.0 + SPREAD_SLOPE * (spread - STEADY_SPREAD);
            let factor = factor.clamp(1.0, MAX_FACTOR);
            self.target = MIN_TARGET.max(min_rtt / TARGET_SHARE).mul_f64(factor);
            let queue = ack.srtt.unwrap_or(min_rtt).saturating_sub(min_rtt);
            self.on_round(ack.now, queue > self.target * 2);
        }
        matches!(self.state, State::Limited { .. }).then(|| rate.bytes_in(min_rtt + self.target))
    }

    /// True if the window is limited and the queue is short. Its link has room for more, so a loss is random.
    pub(super) fn keeps_queue_short(&self, queue: Duration) -> bool {
        matches!(self.state, State::Limited { .. }) && queue <= self.target * 2
    }

    fn on_round(&mut self, now: Instant, is_long: bool) {
        let is_bulk = core::mem::take(&mut self.is_limited_by_window);
        self.state = match self.state {
            State::Unlimited { long_rounds } if is_long && is_bulk => match long_rounds + 1 {
                ROUNDS_TO_BOUND.. => State::Limited { long_rounds: 0 },
                long_rounds => State::Unlimited { long_rounds },
            },
            State::Unlimited { .. } => State::Unlimited { long_rounds: 0 },
            State::Limited { .. } if !is_bulk => State::Unlimited { long_rounds: 0 },
            State::Limited { .. } if !is_long => {
                self.retry = RETRY[0];
                State::Limited { long_rounds: 0 }
            }
            State::Limited { long_rounds } if long_rounds + 1 < ROUNDS_OF_OTHERS => {
                State::Limited { long_rounds: long_rounds + 1 }
            }
            State::Limited { .. } => {
                let until = now + self.retry;
                self.retry = (self.retry * 2).min(RETRY[1]);
                State::Others { until }
            }
            State::Others { until } if now < until => self.state,
            State::Others { .. } => State::Unlimited { long_rounds: 0 },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RTT: Duration = Duration::from_millis(30);
    const RATE: Rate = Rate::from_bits_per_s(8_000_000);

    /// Feeds rounds of one ACK each with this queueing delay; returns the last limit.
    fn rounds(
        queue: &mut OwnQueue,
        now: &mut Instant,
        count: u32,
        delay_ms: u64,
        is_bulk: bool,
    ) -> Option<u64> {
        let mut limit = None;
        for _ in 0..count {
            let rtt = MIN_RTT + Duration::from_millis(delay_ms);
            *now += rtt;
            let ack = AckSample {
                now: *now,
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
            limit = queue.limit(&ack, MIN_RTT, RATE, RATE, true);
        }
        limit
    }

    #[test]
    fn a_queue_that_shrinks_with_the_window_stays_limited() {
        let (mut queue, mut now) = (OwnQueue::new(), Instant::from_secs(1));
        assert_eq!(rounds(&mut queue, &mut now, 2, 300, true), None);
        // 8 Mbit/s for 30 ms and a target of 20 ms.
        assert_eq!(rounds(&mut queue, &mut now, 1, 300, true), Some(50_000));
        assert_eq!(rounds(&mut queue, &mut now, 4, 100, true), Some(50_000));
        assert_eq!(rounds(&mut queue, &mut now, 1_000, 20, true), Some(50_000));
        assert!(queue.keeps_queue_short(Duration::from_millis(40)));
        assert!(!queue.keeps_queue_short(Duration::from_millis(41)));
        // The application pauses.
        assert_eq!(rounds(&mut queue, &mut now, 1, 20, false), None);
        assert!(!queue.keeps_queue_short(Duration::ZERO));
    }

    #[test]
    fn a_queue_of_others_is_left_alone_for_longer_each_time() {
        let (mut queue, mut now) = (OwnQueue::new(), Instant::from_secs(1));
        for seconds in [10, 20, 40, 80, 80] {
            assert!(rounds(&mut queue, &mut now, ROUNDS_TO_BOUND, 300, true).is_some());
            assert!(rounds(&mut queue, &mut now, ROUNDS_OF_OTHERS - 1, 300, true).is_some());
            assert_eq!(rounds(&mut queue, &mut now, 1, 300, true), None);
            let until = now + Duration::from_secs(seconds);
            while now < until {
                assert_eq!(rounds(&mut queue, &mut now, 1, 300, true), None, "{seconds} s");
            }
        }
        // A success shortens the time again.
        assert!(rounds(&mut queue, &mut now, ROUNDS_TO_BOUND, 300, true).is_some());
        assert!(rounds(&mut queue, &mut now, 1, 10, true).is_some());
        assert_eq!(rounds(&mut queue, &mut now, ROUNDS_OF_OTHERS, 300, true), None);
        now += RETRY[0];
        rounds(&mut queue, &mut now, 1, 300, true);
        assert!(rounds(&mut queue, &mut now, ROUNDS_TO_BOUND, 300, true).is_some());
    }

    #[test]
    fn a_burst_or_an_application_with_little_data_is_not_limited() {
        let (mut queue, mut now) = (OwnQueue::new(), Instant::from_secs(1));
        for _ in 0..20 {
            assert_eq!(rounds(&mut queue, &mut now, ROUNDS_TO_BOUND - 1, 300, true), None);
            assert_eq!(rounds(&mut queue, &mut now, 1, 0, true), None);
        }
        assert_eq!(rounds(&mut queue, &mut now, 100, 300, false), None);
    }
}
