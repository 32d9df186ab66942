//! Peekaboo: learns whether to wait for the fast path (Wu, Alay, Brunstrom, Ferlin and Caso, IEEE JSAC 2020).
//!
//! *Problem.* The fastest path is full. Whether the next one should take the segment (lowest RTT) or the segment should
//! wait (BLEST, ECF) depends on how long both will take. Formulas for this assume that paths do not change, but
//! wireless paths do.
//!
//! *How.* A contextual bandit, LinUCB (`peekaboo/bandit.rs`), chooses between two actions: wait, or send on the next
//! path. Its input is six numbers: congestion window, bytes in flight and the peer's window, for each path divided by
//! its RTT. The estimated reward of each action is linear in them. The action with the higher estimate is taken; rarely
//! tried actions get `alpha` times their uncertainty as a bonus. The reward is the throughput from the decision until
//! the segment is DATA_ACKed, where each round trip that a byte takes discounts that byte. Finally, the stochastic
//! adjustment reverses some decisions if delays vary. Once the scheduler waits, it waits until the fast path has room.
//!
//! *Source.* The paper's abstract (bandit, deterministic and stochastic part, online learning). Its text was not
//! available. A published port of its code (SHARANTANGEDA/mp-quic-schedulers) gives the six numbers, 0.75 for `alpha`,
//! and the probabilities of keeping decisions: 70 % for waiting, 90 % for sending. That the reward is a discounted
//! throughput is not verified.
//!
//! *Left open, and chosen.*
//! - All values are divided by what both windows deliver together per RTT, so that nothing depends on the rates of the
//!   paths.
//! - The adjustment grows with the ratio of RTT variation to RTT, up to the published shares at one half. How the paper
//!   derives the shares from the paths' dynamics is not known; `adjust=off` disables the adjustment.
//! - Decisions decay (`memory`), whereas the paper restarts learning after a change.
//! - The outcome of either action is observed for one to four times the longer RTT; with a shorter time, waiting, which
//!   ends sooner, would always look better. At most 32 outcomes are pending; nothing is learned from further decisions.
//! - The scheduler waits no longer than two RTTs of the fast path. A path delayed by its pacer counts as full, and the
//!   bandit learns the value of waiting for it.
//! - Random numbers come from a stream named by `seed`, which is equal in each connection, so runs are reproducible.
//!
//! *Extra bytes:* none. *p99 of a small message:* as with lowest RTT if it fits the fast path's window; for a larger
//! burst, it depends on what was learned and, in some cases, on an experiment.

mod bandit;

use std::collections::VecDeque;

use marline_algos::schedulers::classes;
use marline_policy::{
    DataRange, Decision, Dsn, Reinjection, Scheduler, SchedulerAction, SchedulerContext,
    SchedulerEvent, SubflowId, SubflowView,
};
use marline_time::{Duration, Instant, PcgRng, Rng, SeedTree};

use bandit::{Arm, Context, RewardEstimate};

/// Maximum number of decisions with pending outcomes.
const MAX_EPISODES: usize = 32;
/// Maximum time to observe an outcome, in multiples of the longer RTT.
const EPISODE_RTTS: u32 = 4;
/// Maximum time to wait, in RTTs of the awaited path.
const PATIENCE_RTTS: u32 = 2;
/// Upper limit on features and rewards.
const MAX_FEATURE: f64 = 4.0;
/// Number of round trips after which the discount no longer grows.
const MAX_ROUNDS: u128 = 64;
/// Lower limit on an RTT.
const RTT_FLOOR: Duration = Duration::from_micros(100);

/// Settings of the learning algorithm.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PeekabooConfig {
    /// Weight of an action's uncertainty, at least 0.
    pub alpha: f64,
    /// Value of a byte for each additional round trip that it takes, 0 to 1.
    pub discount: f64,
    /// Number of decisions remembered, at least 1.
    pub memory: u32,
    /// True if the stochastic adjustment is enabled.
    pub adjusts: bool,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for PeekabooConfig {
    fn default() -> Self {
        PeekabooConfig { alpha: 0.75, discount: 0.9, memory: 200, adjusts: true, seed: 1 }
    }
}

/// Possible actions while the fastest path is full.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Action {
    Wait,
    Next,
}

impl Action {
    const fn other(self) -> Action {
        match self {
            Action::Wait => Action::Next,
            Action::Next => Action::Wait,
        }
    }

    /// Probability of keeping such a decision if delays vary to the maximum extent.
    const fn keep_probability(self) -> f64 {
        match self {
            Action::Wait => 0.7,
            Action::Next => 0.9,
        }
    }
}

/// Decision with a pending outcome.
#[derive(Copy, Clone, Debug)]
struct Episode {
    action: Action,
    context: Context,
    begun_at: Instant,
    /// Minimum duration: the longer RTT, for either action.
    horizon: Duration,
    /// Time at which its segment was DATA_ACKed.
    acked_at: Option<Instant>,
    /// Round trip of the fast path.
    round: Duration,
    /// Rate of both windows together in bytes per second.
    scale: f64,
    /// Segment about which the decision was made.
    segment: DataRange,
    /// Discounted number of bytes DATA_ACKed since the decision.
    gain: f64,
}

impl Episode {
    /// Counts bytes DATA_ACKed since the last call. Returns true if the episode continues.
    fn is_running(&mut self, bytes: f64, discount: f64, cx: &SchedulerContext<'_>) -> bool {
        let age = cx.now.since(self.begun_at);
        if bytes > 0.0 {
            self.gain += bytes * apply_discount(discount, age, self.round);
        }
        if cx.data_una >= self.segment.end {
            self.acked_at.get_or_insert(cx.now);
        }
        let least = if self.acked_at.is_some() { 1 } else { EPISODE_RTTS };
        age < self.horizon * least
    }

    /// Returns the discounted throughput relative to the rate of both windows.
    fn reward(&self, now: Instant) -> f64 {
        let length = self.acked_at.unwrap_or(now).since(self.begun_at).max(self.horizon);
        (self.gain / length.as_secs_f64() / self.scale).clamp(0.0, MAX_FEATURE)
    }
}

/// Wait for a path with room.
#[derive(Copy, Clone, Debug)]
struct WaitState {
    on: SubflowId,
    until: Instant,
}

/// Lowest-RTT scheduler that learns when to wait.
#[derive(Debug)]
pub struct Peekaboo {
    config: PeekabooConfig,
    rng: PcgRng,
    wait: Arm,
    next: Arm,
    episodes: VecDeque<Episode>,
    waiting: Option<WaitState>,
    /// Position that was DATA_ACKed at the last call.
    acked: Option<Dsn>,
}

impl Peekaboo {
    /// Creates a scheduler without learned values.
    #[must_use]
    pub fn new(config: PeekabooConfig) -> Self {
        Peekaboo {
            config,
            rng: SeedTree::new(config.seed).stream("scheduler/peekaboo"),
            wait: Arm::default(),
            next: Arm::default(),
            episodes: VecDeque::new(),
            waiting: None,
            acked: None,
        }
    }

    /// Credits DATA_ACKed bytes to the open episodes and learns from those that end.
    fn credit_episodes(&mut self, cx: &SchedulerContext<'_>) {
        if self.episodes.is_empty() {
            self.acked = Some(cx.data_una);
            return;
        }
        let bytes = cx.data_una.since(self.acked.unwrap_or(cx.data_una)) as f64;
        self.acked = Some(cx.data_una);
        let kept = 1.0 - 1.0 / f64::from(self.config.memory.max(1));
        let discount = self.config.discount;
        let (wait, next) = (&mut self.wait, &mut self.next);
        self.episodes.retain_mut(|episode| {
            let goes_on = episode.is_running(bytes, discount, cx);
            if !goes_on {
                wait.apply_decay(kept);
                next.apply_decay(kept);
                let arm = if episode.action == Action::Wait { &mut *wait } else { &mut *next };
                arm.learn(&episode.context, episode.reward(cx.now));
            }
            goes_on
        });
    }

    /// Decides whether the next segment waits when `fast` is full and `next` is not.
    fn decide(
        &mut self,
        fast: &SubflowView,
        next: &SubflowView,
        cx: &SchedulerContext<'_>,
    ) -> Action {
        let (Some(fast_rtt), Some(next_rtt)) = (fast.srtt, next.srtt) else { return Action::Next };
        let (fast_rtt, next_rtt) = (fast_rtt.max(RTT_FLOOR), next_rtt.max(RTT_FLOOR));
        let Some((context, scale)) = observe_context(fast, fast_rtt, next, next_rtt, cx) else {
            return Action::Next;
        };
        let hoped = |arm: &Arm| {
            let RewardEstimate { reward, uncertainty } = arm.estimate(&context);
            reward + self.config.alpha * uncertainty
        };
        let better = hoped(&self.next) < hoped(&self.wait);
        let chosen = if better { Action::Wait } else { Action::Next };
        let action = self.adjust(chosen, fast, next);
        let segment = cx.unsent.prefix(u64::from(next.mss));
        // The core may have rejected the last segment.
        let refused = |episode: &Episode| {
            episode.action == Action::Next && episode.segment.start == segment.start
        };
        if self.episodes.back().is_some_and(refused) {
            self.episodes.pop_back();
        }
        if self.episodes.len() < MAX_EPISODES {
            self.episodes.push_back(Episode {
                action,
                context,
                begun_at: cx.now,
                horizon: fast_rtt.max(next_rtt),
                acked_at: None,
                round: fast_rtt,
                scale,
                segment,
                gain: 0.0,
            });
        }
        action
    }

    /// Applies the stochastic adjustment.
    fn adjust(&mut self, action: Action, fast: &SubflowView, next: &SubflowView) -> Action {
        let variation = variation(fast).max(variation(next));
        let reversed = (1.0 - action.keep_probability()) * (2.0 * variation).min(1.0);
        let reverses = self.config.adjusts && self.rng.chance(reversed);
        if reverses { action.other() } else { action }
    }

    /// Returns the end of the current wait for this path; `None` if there is none.
    fn current_wait_end(&self, fast: &SubflowView, now: Instant) -> Option<Instant> {
        self.waiting.filter(|waiting| waiting.on == fast.id && now < waiting.until).map(|w| w.until)
    }
}

/// Returns the value of a byte that took this long.
fn apply_discount(discount: f64, age: Duration, round: Duration) -> f64 {
    let rounds = (age.as_nanos() / round.as_nanos().max(1)).min(MAX_ROUNDS);
    (0..rounds).fold(1.0, |worth, _| worth * discount)
}

/// Returns the RTT variation relative to the RTT.
fn variation(view: &SubflowView) -> f64 {
    let srtt = view.srtt.unwrap_or_default().max(RTT_FLOOR);
    view.rttvar.as_secs_f64() / srtt.as_secs_f64()
}

/// Returns the context, and the rate of both windows in bytes per second; `None` if the rate is zero.
fn observe_context(
    fast: &SubflowView,
    fast_rtt: Duration,
    next: &SubflowView,
    next_rtt: Duration,
    cx: &SchedulerContext<'_>,
) -> Option<(Context, f64)> {
    let per = |bytes: u64, rtt: Duration| bytes as f64 / rtt.as_secs_f64();
    let scale = per(fast.cwnd, fast_rtt) + per(next.cwnd, next_rtt);
    if scale <= 0.0 {
        return None;
    }
    let window = cx.window_end.since(cx.unsent.start);
    let context = [
        per(fast.cwnd, fast_rtt),
        per(fast.bytes_in_flight, fast_rtt),
        per(window, fast_rtt),
        per(next.cwnd, next_rtt),
        per(next.bytes_in_flight, next_rtt),
        per(window, next_rtt),
    ];
    Some((context.map(|rate| (rate / scale).min(MAX_FEATURE)), scale))
}

impl Default for Peekaboo {
    fn default() -> Self {
        Peekaboo::new(PeekabooConfig::default())
    }
}

impl Scheduler for Peekaboo {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.credit_episodes(cx);
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        let members = || classes::members(cx.subflows, class);
        let Some(picked) = classes::pick(members(), class) else { return classes::wait(members()) };
        let fastest = members().min_by_key(|view| classes::rank(view)).unwrap_or(picked);
        let sent = Decision::Send { subflow: picked.id, range: cx.unsent };
        if !class.is_usable() || fastest.id == picked.id {
            self.waiting = None;
            return sent;
        }
        let until = match (self.current_wait_end(fastest, cx.now), self.waiting.take()) {
            (Some(until), _) => until,
            // The wait has lasted long enough.
            (None, Some(waited)) if waited.on == fastest.id => return sent,
            _ => match self.decide(fastest, picked, cx) {
                Action::Next => return sent,
                Action::Wait => {
                    let srtt = fastest.srtt.unwrap_or_default().max(RTT_FLOOR);
                    cx.now + srtt * PATIENCE_RTTS
                }
            },
        };
        self.waiting = Some(WaitState { on: fastest.id, until });
        match classes::wait(core::iter::once(fastest)) {
            Decision::WaitUntil(opens) => Decision::WaitUntil(opens.min(until)),
            _ => Decision::WaitUntil(until),
        }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        _cx: &SchedulerContext<'_>,
        _out: &mut Vec<SchedulerAction>,
    ) {
        // Decisions about other paths are not evidence about these paths.
        if let SchedulerEvent::SubflowUp(_) | SchedulerEvent::SubflowDown(_) = event {
            self.waiting = None;
            self.episodes.clear();
        }
    }
}

#[cfg(test)]
mod tests;
