//! Limit on the queue of a path that only the user's own data fills, shared by all senders of a process.
//!
//! *Problem.* A loss-based sender fills every queue until it overflows. Routers and modems hold half a second of
//! uplink and more, and a call, a game or a shell on the same path waits behind an upload of the same user. A sender
//! could limit itself. But where others fill the queue, a limit gives its share away, and a sender by itself cannot
//! tell another connection of its user from a stranger.
//!
//! *How.* All bulk senders of a process on one path (from one local address to one remote address and port) share a
//! [`PathQueue`] and report each round trip to it. If their queueing delay stays above twice the target for
//! [`ROUNDS_TO_LIMIT`] round trips, all of them limit their windows to rate x (smallest RTT + target) at once. If the
//! queue was theirs, it becomes short, and together they deliver as much as before. The limit then stays.
//!
//! Otherwise somebody else fills the queue: it stays long for more than [`MAX_LONG_SHARE`] of the time, or the senders
//! deliver less than before ([`MIN_KEPT_RATE`]). The limit is lifted, and the next attempt follows after a time that
//! doubles with each failure. The share of time decides because a queue that a CUBIC sender fills becomes short for a
//! moment after each of its losses. The rate decides because a BBR sender takes a share without a long queue, and
//! takes it slowly. A link that becomes slower looks the same, and then the next attempt begins with its new rate.
//!
//! Where a link's rate varies, as on mobile networks, a short queue runs empty when the rate rises. There the target is
//! longer, up to [`MAX_TARGET`]. The variation is measured while the queue is full: when the limit drains the queue,
//! and when others compete, the rate varies for other reasons. Later the target grows each time the queue runs empty,
//! which a queue of others does not, and slowly returns.
//!
//! *Source.* Rate x RTT as the useful window: TCP Vegas (Brakmo and Peterson, 1995) and BBR. Leaving the delay-based
//! mode when others fill the queue: Copa (Arun and Balakrishnan, NSDI 2018). The joint test by the effect of the limit
//! is ours.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_time::{Duration, Instant, Rate};

/// Smallest queueing delay that is aimed at, so that jitter does not empty the queue.
const MIN_TARGET: Duration = Duration::from_millis(8);
/// On slow links the queue holds at least this many bytes, as ACKs and windows consist of whole segments, but is at
/// most this long.
const MIN_QUEUE_BYTES: f64 = 12_000.0;
const MAX_MIN_TARGET: Duration = Duration::from_millis(20);
/// The target is at least this fraction of the smallest RTT (divisor).
const TARGET_SHARE: u32 = 8;
/// Largest rate relative to the smoothed one up to which a link counts as steady.
const STEADY_SPREAD: f64 = 1.2;
/// On links that vary more, the target is longer by this much per unit of that ratio.
const SPREAD_SLOPE: Duration = Duration::from_millis(400);
/// Longest target, except where the smallest RTT is long: there it is 15 eighths of it.
const MAX_TARGET: Duration = Duration::from_millis(300);
/// The queue runs empty below this fraction of the target (divisor), and the target then grows by this factor.
const EMPTY_SHARE: u32 = 4;
const TARGET_GROWTH: f64 = 1.25;
/// Otherwise it returns to its first value by this factor in each round trip: a queue may run empty once in forty.
const TARGET_DECAY: f64 = 0.995;
/// Round trips with a long queue before windows are limited. Bursts end sooner.
const ROUNDS_TO_LIMIT: u32 = 3;
/// Round trips that the queue has to drain before its length counts.
const ROUNDS_TO_DRAIN: u32 = 2;
/// Share of the time with a long queue above which the queue is not ours.
const MAX_LONG_SHARE: f64 = 0.5;
/// Time over which that share is averaged.
const SHARE_MEMORY: Duration = Duration::from_secs(1);
/// Shortest time over which the rate under the limit is measured to compare it with the rate before.
const TRIAL: Duration = Duration::from_secs(1);
/// Smallest number of round trips of that measurement.
const TRIAL_ROUNDS: u32 = 4;
/// Smallest part of the earlier rate that our own queue leaves us under the limit: in the first measurement, when a
/// link hardly changes by chance, and in later ones.
const MIN_KEPT_RATE: [f64; 2] = [0.8, 0.7];
/// First and longest time without a limit after a failure.
const RETRY: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(80)];
/// Time with a limit after which the next failure counts as the first.
const SUCCESS: Duration = Duration::from_secs(20);
/// Round trips without a report of a bulk sender after which there is none.
const MAX_ROUNDS_BETWEEN_REPORTS: u32 = 4;
/// Time after which the smallest RTT of the senders is measured again.
const MIN_RTT_SPAN: Duration = Duration::from_secs(30);

/// Measurements of a sender in a round trip.
#[derive(Copy, Clone, Debug)]
pub struct SenderRound {
    /// End of the round trip.
    pub now: Instant,
    /// Smoothed RTT.
    pub rtt: Duration,
    /// Smallest RTT that the sender knows.
    pub min_rtt: Duration,
    /// Difference between the average RTT and the smallest one that jitter explains.
    pub jitter: Duration,
    /// Smoothed delivery rate.
    pub smoothed_rate: Rate,
    /// Largest delivery rate of the last round trips.
    pub largest_rate: Rate,
    /// Bytes delivered in the round trip.
    pub delivered: u64,
    /// True if the window, not the application, limited the sender.
    pub is_bulk: bool,
}

/// Limit on the windows of the senders of a path.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum QueueLimit {
    /// No limit.
    #[default]
    None,
    /// A window holds at most what the sender delivers within this RTT.
    Rtt {
        /// Smallest RTT plus target.
        rtt: Duration,
        /// Queueing delay that is aimed at.
        target: Duration,
    },
    /// No limit, because others fill the queue.
    Others,
}

/// Queue of a path, as all senders of a process see it together. Clones refer to the same queue.
#[derive(Clone, Debug, Default)]
pub struct PathQueue(Arc<Mutex<State>>);

impl PathQueue {
    /// Processes the report of a sender, once per round trip. Returns the limit that applies from now on.
    pub fn report(&self, round: &SenderRound) -> QueueLimit {
        self.lock().on_round(round)
    }

    /// True if no sender shares the queue.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Phase {
    /// No limit. The queue has been long since `long`, if it is.
    Unlimited { long: Option<Mark> },
    /// Windows are limited.
    Limited(Limited),
    /// Others fill the queue. There is no limit until then.
    Others { until: Instant },
}

/// A time, and the bytes delivered until then.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Mark {
    at: Instant,
    delivered: u64,
}

#[derive(Copy, Clone, Debug, PartialEq)]
struct Limited {
    /// Target when the limit began. The target returns to it.
    first_target: Duration,
    /// The queue has drained if it was ours.
    drained_at: Instant,
    /// Share of the time with a long queue since then.
    long_share: f64,
    bytes_per_s_before: f64,
    /// Smallest part of that rate in the current measurement, which began at `measured_from`.
    min_kept_rate: f64,
    measured_from: Option<Mark>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    retry: Duration,
    /// Queueing delay that is aimed at.
    target: Duration,
    target_at: Instant,
    /// Bytes delivered by all senders.
    delivered: u64,
    /// Smallest RTT in the current span and the previous one.
    min_rtt: [Duration; 2],
    span_began: Instant,
    /// Time of the last report of a bulk sender.
    bulk_at: Instant,
}

impl Default for State {
    fn default() -> Self {
        State {
            phase: Phase::Unlimited { long: None },
            retry: RETRY[0],
            target: MIN_TARGET,
            target_at: Instant::ZERO,
            delivered: 0,
            min_rtt: [Duration::MAX; 2],
            span_began: Instant::ZERO,
            bulk_at: Instant::ZERO,
        }
    }
}

impl State {
    fn on_round(&mut self, round: &SenderRound) -> QueueLimit {
        let (now, rtt) = (round.now, round.rtt);
        let since_bulk = now.since(self.bulk_at);
        let interrupted = since_bulk > rtt * MAX_ROUNDS_BETWEEN_REPORTS;
        self.delivered += round.delivered;
        let min_rtt = self.update_min_rtt(round);
        if round.is_bulk {
            self.bulk_at = now;
        }
        let queue = rtt.saturating_sub(min_rtt + round.jitter);
        self.phase = match self.phase {
            Phase::Limited(_) if interrupted => Phase::Unlimited { long: None },
            Phase::Limited(_) | Phase::Unlimited { .. } if !round.is_bulk => self.phase,
            Phase::Unlimited { long } => {
                self.update_target(round, min_rtt, since_bulk >= rtt / 2);
                let long = long.filter(|_| !interrupted);
                self.unlimited(queue > self.target * 2, long, round)
            }
            Phase::Limited(limited) if now < limited.drained_at => self.phase,
            Phase::Limited(limited) => {
                let most = longest_target(min_rtt);
                self.target = if queue < self.target / EMPTY_SHARE {
                    self.target.mul_f64(TARGET_GROWTH).min(most)
                } else {
                    self.target.mul_f64(TARGET_DECAY).max(limited.first_target)
                };
                self.limited(limited, queue > self.target * 2, since_bulk, round)
            }
            Phase::Others { until } if now < until => self.phase,
            Phase::Others { .. } => Phase::Unlimited { long: None },
        };
        match self.phase {
            Phase::Unlimited { .. } => QueueLimit::None,
            Phase::Limited(_) => {
                QueueLimit::Rtt { rtt: min_rtt + round.jitter + self.target, target: self.target }
            }
            Phase::Others { .. } => QueueLimit::Others,
        }
    }

    /// The latest target of a sender that is alone, otherwise the smallest of the senders' latest ones: their rates
    /// vary more than the link's, because they compete.
    fn update_target(&mut self, round: &SenderRound, min_rtt: Duration, is_alone: bool) {
        let target = target(round, min_rtt);
        let is_stale = round.now.since(self.target_at) > round.rtt * 2;
        if target <= self.target || is_alone || is_stale {
            (self.target, self.target_at) = (target, round.now);
        }
    }

    /// The smallest RTT of all senders. A sender that began while the queue was full does not know it.
    fn update_min_rtt(&mut self, round: &SenderRound) -> Duration {
        if round.now.since(self.span_began) > MIN_RTT_SPAN {
            self.min_rtt = [Duration::MAX, self.min_rtt[0]];
            self.span_began = round.now;
        }
        self.min_rtt[0] = self.min_rtt[0].min(round.min_rtt);
        self.min_rtt[0].min(self.min_rtt[1])
    }

    fn unlimited(&mut self, is_long: bool, long: Option<Mark>, round: &SenderRound) -> Phase {
        let (now, delivered) = (round.now, self.delivered);
        if !is_long {
            return Phase::Unlimited { long: None };
        }
        let Some(began) = long else {
            return Phase::Unlimited { long: Some(Mark { at: now, delivered }) };
        };
        if now.since(began.at) < round.rtt * (ROUNDS_TO_LIMIT - 1) {
            return Phase::Unlimited { long };
        }
        let bytes_per_s_before = rate_since(began, Mark { at: now, delivered });
        let time = Duration::from_secs_f64(MIN_QUEUE_BYTES / bytes_per_s_before.max(1.0));
        self.target = self.target.max(time.min(MAX_MIN_TARGET));
        Phase::Limited(Limited {
            first_target: self.target,
            drained_at: now + round.rtt * ROUNDS_TO_DRAIN,
            long_share: 0.0,
            bytes_per_s_before,
            min_kept_rate: MIN_KEPT_RATE[0],
            measured_from: None,
        })
    }

    /// Decides whether the limit stays.
    fn limited(
        &mut self,
        mut limited: Limited,
        is_long: bool,
        elapsed: Duration,
        round: &SenderRound,
    ) -> Phase {
        let now = round.now;
        let weight = (elapsed.as_secs_f64() / SHARE_MEMORY.as_secs_f64()).min(1.0);
        limited.long_share += (f64::from(u8::from(is_long)) - limited.long_share) * weight;
        if now.since(limited.drained_at) > SUCCESS {
            self.retry = RETRY[0];
        }
        let here = Mark { at: now, delivered: self.delivered };
        let from = *limited.measured_from.get_or_insert(here);
        let mut is_slower = false;
        if now.since(from.at) >= TRIAL.max(round.rtt * TRIAL_ROUNDS) {
            is_slower = rate_since(from, here) < limited.min_kept_rate * limited.bytes_per_s_before;
            (limited.min_kept_rate, limited.measured_from) = (MIN_KEPT_RATE[1], Some(here));
        }
        if limited.long_share <= MAX_LONG_SHARE && !is_slower {
            return Phase::Limited(limited);
        }
        let until = now + self.retry;
        self.retry = (self.retry * 2).min(RETRY[1]);
        Phase::Others { until }
    }
}

/// Bytes per second delivered between two times.
fn rate_since(began: Mark, ended: Mark) -> f64 {
    let seconds = ended.at.since(began.at).as_secs_f64();
    if seconds > 0.0 { (ended.delivered - began.delivered) as f64 / seconds } else { 0.0 }
}

/// Queueing delay to aim at.
fn target(round: &SenderRound, min_rtt: Duration) -> Duration {
    let smoothed = round.smoothed_rate.bits_per_s().max(1);
    let spread = round.largest_rate.bits_per_s() as f64 / smoothed as f64;
    let variation = SPREAD_SLOPE.mul_f64((spread - STEADY_SPREAD).clamp(0.0, 10.0));
    (steady_target(min_rtt) + variation).min(longest_target(min_rtt))
}

fn longest_target(min_rtt: Duration) -> Duration {
    MAX_TARGET.max(min_rtt / TARGET_SHARE * 15)
}

/// Queueing delay to aim at where the link's rate is steady.
fn steady_target(min_rtt: Duration) -> Duration {
    MIN_TARGET.max(min_rtt / TARGET_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RTT: Duration = Duration::from_millis(30);
    const LIMIT: QueueLimit =
        QueueLimit::Rtt { rtt: Duration::from_millis(38), target: Duration::from_millis(8) };

    /// A path with senders that report in turn.
    struct Path {
        queue: PathQueue,
        now: Instant,
        senders: u32,
        /// Bytes that each sender delivers per second.
        rate: u64,
        jitter: Duration,
        /// Smallest RTT that the senders other than the first one know.
        min_rtt_of_others: Duration,
    }

    impl Path {
        fn new(senders: u32) -> Self {
            Path {
                queue: PathQueue::default(),
                now: Instant::from_secs(1),
                senders,
                rate: 3_000_000,
                jitter: Duration::ZERO,
                min_rtt_of_others: MIN_RTT,
            }
        }

        /// Lets round trips with this queueing delay pass. Returns the last limit.
        fn rounds(&mut self, count: u32, delay_ms: u64, is_bulk: bool) -> QueueLimit {
            let rtt = MIN_RTT + Duration::from_millis(delay_ms);
            let mut limit = QueueLimit::None;
            for turn in 0..count * self.senders {
                self.now += rtt / self.senders;
                let is_first = turn % self.senders == 0;
                let rate = Rate::from_bytes_per_s(self.rate);
                limit = self.queue.report(&SenderRound {
                    now: self.now,
                    rtt,
                    jitter: self.jitter,
                    min_rtt: if is_first { MIN_RTT } else { self.min_rtt_of_others },
                    smoothed_rate: rate,
                    largest_rate: rate,
                    delivered: rate.bytes_in(rtt),
                    is_bulk,
                });
            }
            limit
        }

        /// Waits with this queueing delay until there is no limit. Returns the time that it took.
        fn time_until_lifted(&mut self, delay_ms: u64) -> Duration {
            let began = self.now;
            while matches!(self.rounds(1, delay_ms, true), QueueLimit::Rtt { .. }) {}
            self.now.since(began)
        }
    }

    #[test]
    fn a_queue_that_shrinks_with_the_windows_stays_limited() {
        for senders in [1, 4] {
            let mut path = Path::new(senders);
            assert_eq!(path.rounds(2, 300, true), QueueLimit::None);
            assert_eq!(path.rounds(2, 300, true), LIMIT);
            assert_eq!(path.rounds(1, 300, true), LIMIT);
            assert_eq!(path.rounds(1_000, 8, true), LIMIT);
            // The applications pause.
            assert_eq!(path.rounds(10, 8, false), QueueLimit::None);
        }
    }

    #[test]
    fn a_sender_that_began_while_the_queue_was_full_learns_the_smallest_rtt() {
        let mut path = Path::new(2);
        path.min_rtt_of_others = Duration::from_millis(250);
        assert_eq!(path.rounds(4, 300, true), LIMIT);
    }

    #[test]
    fn a_queue_of_others_is_left_alone_for_longer_each_time() {
        let mut path = Path::new(2);
        for seconds in [20, 40, 80, 80] {
            assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 300, true), LIMIT);
            assert!(path.time_until_lifted(300) < Duration::from_secs(2));
            let until = path.now + Duration::from_secs(seconds);
            while path.now + Duration::from_secs(1) < until {
                assert_eq!(path.rounds(1, 300, true), QueueLimit::Others, "{seconds} s");
            }
            path.now = until;
            assert_eq!(path.rounds(1, 10, true), QueueLimit::None);
        }
        // A lasting success shortens the time again.
        assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 300, true), LIMIT);
        let until = path.now + SUCCESS + Duration::from_secs(2);
        while path.now < until {
            assert_eq!(path.rounds(1, 10, true), LIMIT);
        }
        path.time_until_lifted(300);
        path.now += RETRY[0];
        assert_eq!(path.rounds(1, 10, true), QueueLimit::None);
        assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 300, true), LIMIT);
    }

    #[test]
    fn a_queue_that_becomes_short_only_after_losses_of_others_is_left_alone() {
        let mut path = Path::new(1);
        assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 100, true), LIMIT);
        for _ in 0..3 {
            path.rounds(4, 8, true);
            path.rounds(20, 100, true);
        }
        assert_eq!(path.rounds(1, 8, true), QueueLimit::Others);
    }

    #[test]
    fn a_limit_that_costs_the_share_is_lifted_even_if_the_queue_is_short() {
        let mut path = Path::new(1);
        assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 100, true), LIMIT);
        path.rate /= 2;
        assert!(path.time_until_lifted(12) < Duration::from_secs(2));
        // Others may take it slowly. A link that becomes slower looks the same.
        let mut path = Path::new(1);
        assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 100, true), LIMIT);
        assert_eq!(path.rounds(100, 12, true), LIMIT);
        path.rate = path.rate * 3 / 4;
        assert_eq!(path.rounds(100, 12, true), LIMIT);
        path.rate = path.rate * 3 / 4;
        assert_eq!(path.rounds(100, 12, true), QueueLimit::Others);
    }

    #[test]
    fn on_a_slow_link_the_queue_holds_a_few_segments() {
        let limit = |target_ms| QueueLimit::Rtt {
            rtt: MIN_RTT + Duration::from_millis(target_ms),
            target: Duration::from_millis(target_ms),
        };
        for (rate, target_ms) in [(1_000_000, 12), (600_000, 20), (100_000, 20)] {
            let mut path = Path { rate, ..Path::new(1) };
            assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 300, true), limit(target_ms), "{rate}");
        }
    }

    #[test]
    fn jitter_is_no_queue() {
        let mut path = Path { jitter: Duration::from_millis(15), ..Path::new(1) };
        assert_eq!(path.rounds(100, 30, true), QueueLimit::None);
        let rtt = Duration::from_millis(30 + 15 + 8);
        let limit = QueueLimit::Rtt { rtt, target: Duration::from_millis(8) };
        assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 32, true), limit);
        assert_eq!(path.rounds(100, 23, true), limit);
    }

    #[test]
    fn a_target_that_grew_because_the_queue_ran_empty_slowly_returns() {
        let mut path = Path::new(1);
        assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 300, true), LIMIT);
        path.rounds(ROUNDS_TO_DRAIN - 1, 300, true);
        let QueueLimit::Rtt { target, .. } = path.rounds(1, 0, true) else { panic!("a limit") };
        assert_eq!(target, Duration::from_millis(10));
        let QueueLimit::Rtt { target, .. } = path.rounds(20, 8, true) else { panic!("a limit") };
        assert!(Duration::from_millis(8) < target && target < Duration::from_millis(10));
        assert_eq!(path.rounds(100, 8, true), LIMIT);
    }

    #[test]
    fn the_target_is_longer_where_the_rate_varies() {
        let round = SenderRound {
            now: Instant::from_secs(1),
            rtt: MIN_RTT * 2,
            min_rtt: MIN_RTT,
            jitter: Duration::ZERO,
            smoothed_rate: Rate::from_mbit(10),
            largest_rate: Rate::from_mbit(12),
            delivered: 10_000,
            is_bulk: true,
        };
        assert_eq!(target(&round, MIN_RTT), MIN_TARGET);
        assert_eq!(target(&round, Duration::from_millis(800)), Duration::from_millis(100));
        let varies = SenderRound { largest_rate: Rate::from_mbit(13), ..round };
        assert_eq!(target(&varies, MIN_RTT), MIN_TARGET + Duration::from_millis(40));
        let varies = SenderRound { largest_rate: Rate::from_mbit(40), ..round };
        assert_eq!(target(&varies, MIN_RTT), Duration::from_millis(300));
    }

    #[test]
    fn the_target_grows_where_the_queue_runs_empty() {
        let mut path = Path::new(1);
        assert_eq!(path.rounds(ROUNDS_TO_LIMIT + 1, 100, true), LIMIT);
        path.rounds(2, 100, true);
        let QueueLimit::Rtt { target, .. } = path.rounds(3, 1, true) else { panic!("no limit") };
        assert!(target > Duration::from_millis(14), "{target:?}");
        let QueueLimit::Rtt { target, .. } = path.rounds(50, 1, true) else { panic!("no limit") };
        assert_eq!(target, Duration::from_millis(300));
    }

    #[test]
    fn a_burst_or_an_application_with_little_data_is_not_limited() {
        let mut path = Path::new(1);
        for _ in 0..20 {
            assert_eq!(path.rounds(ROUNDS_TO_LIMIT - 1, 300, true), QueueLimit::None);
            assert_eq!(path.rounds(1, 0, true), QueueLimit::None);
        }
        assert_eq!(path.rounds(100, 300, false), QueueLimit::None);
    }
}
