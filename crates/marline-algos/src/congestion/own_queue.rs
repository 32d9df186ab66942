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
    /// True if the window limited the sender in the current round trip.
    is_limited_by_window: bool,
}

impl OwnQueue {
    pub(super) const fn new() -> Self {
        OwnQueue {
            state: State::Unlimited { long_rounds: 0 },
            retry: RETRY[0],
            is_limited_by_window: false,
        }
    }

    /// Processes an ACK. Returns the largest useful window, in bytes, if it is limited. `rate` is the path's rate;
    /// `new_round` is true if a round trip has ended.
    pub(super) fn limit(
        &mut self,
        ack: &AckSample,
        min_rtt: Duration,
        rate: Rate,
        new_round: bool,
    ) -> Option<u64> {
        self.is_limited_by_window |= ack.cwnd_limited;
        let target = target(min_rtt);
        if new_round {
            let queue = ack.srtt.unwrap_or(min_rtt).saturating_sub(min_rtt);
            self.on_round(ack.now, queue > target * 2);
        }
        matches!(self.state, State::Limited { .. }).then(|| rate.bytes_in(min_rtt + target))
    }

    /// True if the window is limited and the queue is short. Its link has room for more, so a loss is random.
    pub(super) fn keeps_queue_short(&self, queue: Duration, min_rtt: Duration) -> bool {
        matches!(self.state, State::Limited { .. }) && queue <= target(min_rtt) * 2
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

/// Queueing delay that is aimed at.
fn target(min_rtt: Duration) -> Duration {
    MIN_TARGET.max(min_rtt / TARGET_SHARE)
}
