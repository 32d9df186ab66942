//! Datagram policy `auto`: chooses the path with the best forecast, and sends a copy on another path if the benefit
//! justifies its bytes.
//!
//! *Problem.* If all datagrams are sent on both paths, they arrive as early as possible, but cost twice the bytes. On
//! one path, they are late whenever the path is, and a late datagram is useless. Most of the time the paths work well,
//! and a copy is useless.
//!
//! *How.* Extra bytes have a budget ([`BudgetConfig`]: a quarter of the sent bytes, or 16 kB/s) and are spent where
//! they help most:
//! - *Sparse flows* (voice, game inputs) are sent on two paths while the budget lasts, which for them is always.
//! - *Other flows* use the path with the earliest forecast p90, including data that waits there. A flow stays on its
//!   path until another is better by [`MIN_RELATIVE_GAIN`] and [`MIN_TIME_GAIN`], so that similar paths do not reorder
//!   it.
//! - *Signs of trouble* on that path (an answer is overdue, a frame was recently lost, the radio signal fades, or the
//!   round trips vary greatly) cause a copy on a second path for as long as they last.
//! - *A new path* may lose data without having shown any sign of it, so copies are sent until its losses are known.
//! - *Without signs*, a copy is sent if it is likely enough to arrive first. The required probability rises with the
//!   spent share of the budget.
//! - *Repairs* replace copies where a path loses single packets ([`MIN_REPAIR_LOSS`]) but shows no other sign of
//!   trouble, for flows that send several datagrams at once: repairs of a quarter of the group's size recover any lost
//!   datagram. The larger the group, the more of the budget may be spent on it. An interruption of a path affects more
//!   than one datagram of a group, so in other trouble copies are sent.
//! - *Rescue.* As soon as an answer is overdue by its forecast p99, all data in transit that is still useful is sent on
//!   another path. It arrives a round trip late instead of being lost, and costs the bytes in transit. The last part of
//!   the budget is reserved for rescues, which may overdraw it by a quarter.
//! - *Costly paths* (metered ones, and those whose radio should sleep) carry datagrams only if they are earlier by
//!   [`MAX_EXTRA_DELAY`], copies only in trouble, and bulk only if there is no other path.
//! - *Bulk* uses one path at a time and is never copied, because its own congestion control treats reordering as loss.
//!   It uses the path that delivers fastest, judged by the rates at which paths pass trains of frames, and changes
//!   paths more reluctantly. The rate of a lightly used path is measured with a train of padded frames every two
//!   seconds.
//!
//! *Sources.* For repairs, and the cases in which they save more than copies, see docs/decisions/coding.md. Copies
//! while there are signs of trouble: ReMP (Frömmgen et al., 2016), which always copies. The byte budget is that of the
//! scheduler `auto`. *Differs* from that scheduler: a datagram never delays those that follow, so order does not
//! matter.

use core::cmp::Reverse;

use marline_policy::{
    DatagramContext, DatagramPathView, DatagramPolicy, FlowClass, FlowView, Group, Health, PathId,
    Quantile, Repairs, Route,
};
use marline_time::{Duration, Instant, Rate};

use super::candidates::{self, is_costly};
use crate::budget::{Budget, BudgetConfig};

/// A flow moves to a path that is earlier by both this share and this time.
const MIN_RELATIVE_GAIN: f32 = 0.15;
const MIN_TIME_GAIN: Duration = Duration::from_millis(3);
/// A metered path, or one whose radio should sleep, is avoided if another path is later by no more than this.
const MAX_EXTRA_DELAY: Duration = Duration::from_millis(100);
/// Delay that a lost datagram counts as: a path that loses one in a hundred is avoided if a path without losses is
/// later by at most a hundredth of this.
const LOSS_PENALTY: Duration = Duration::from_secs(10);
/// Assumed answer time of a path before its first answer.
const UNKNOWN: Duration = Duration::from_millis(400);
/// Time for which a sign of trouble remains relevant.
const TROUBLE_DURATION: Duration = Duration::from_millis(1_500);
/// Divisor: round trips vary greatly if their variation is at least this fraction of them.
const RTT_VARIATION_DIVISOR: u32 = 4;
/// Shares of the budget up to which three kinds of copies are made: those without signs of trouble, those with signs,
/// and rescues.
const CALM_COPY_LIMIT: f32 = 0.7;
const TROUBLE_COPY_LIMIT: f32 = 0.9;
const RESCUE_LIMIT: f32 = 1.25;
/// Repairs are made on a path that loses at least this share of its frames one by one, for flows with at least this
/// many datagrams per burst. There is one repair per this many frames.
const MIN_REPAIR_LOSS: f32 = 0.002;
const MIN_BURST: f32 = 1.5;
const FRAMES_PER_REPAIR: u8 = 4;
/// Shares of the budget up to which groups of one, two, three, and more frames are repaired.
const REPAIR_LIMITS: [f32; 4] = [0.25, 0.5, 0.9, 1.0];
/// A copy without signs of trouble is made if the probability that it arrives first is at least this value plus the
/// square of the spent share.
const MIN_COPY_CHANCE: f32 = 0.02;
/// Rate ratios at which bulk moves to a faster path: after [`MIN_BULK_STAY`] on the old path, and before that. A move
/// wastes the data in transit and the window of the other path.
const MIN_BULK_SPEEDUP: f64 = 1.5;
const IMMEDIATE_BULK_SPEEDUP: f64 = 2.5;
const MIN_BULK_STAY: Duration = Duration::from_secs(5);
/// Time for which bulk waits for a path that has fallen silent.
const MAX_BULK_WAIT: Duration = Duration::from_secs(1);
/// Interval at which an unused path is probed for its round trip and its rate.
const EXPLORE_INTERVAL: Duration = Duration::from_millis(500);
const RATE_EXPLORE_INTERVAL: Duration = Duration::from_secs(2);

/// Settings of the policy.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AutoConfig {
    /// Budget of copies and repairs.
    pub budget: BudgetConfig,
    /// True if repairs are enabled.
    pub repairs: bool,
}

impl Default for AutoConfig {
    fn default() -> Self {
        AutoConfig { budget: BudgetConfig::default(), repairs: true }
    }
}

/// Datagram policy that uses the path with the best forecast, and copies within a budget.
#[derive(Debug, Default)]
pub struct Auto {
    config: AutoConfig,
    budget: Budget,
}

impl Auto {
    /// Creates a policy with these settings.
    #[must_use]
    pub fn new(config: AutoConfig) -> Self {
        Auto { config, budget: Budget::default() }
    }

    fn spent_share(&mut self, now: Instant) -> f32 {
        self.budget.spent_share(now, &self.config.budget)
    }

    fn copy_of(
        &mut self,
        context: &DatagramContext<'_>,
        flow: &FlowView,
        main: &DatagramPathView,
    ) -> Option<PathId> {
        let spent = self.spent_share(context.now);
        let trouble = is_in_trouble(context.now, main);
        let other = earliest(candidates::for_copies(context, main.id, trouble), flow)?;
        let wanted = match flow.class {
            FlowClass::Bulk => false,
            FlowClass::Sparse => spent < 1.0,
            // The losses of a path become known only after some time.
            FlowClass::Steady if trouble || !main.losses_known => spent < TROUBLE_COPY_LIMIT,
            FlowClass::Steady => {
                spent < CALM_COPY_LIMIT
                    && first_probability(other, main, flow) > MIN_COPY_CHANCE + spent * spent
            }
        };
        wanted.then_some(other.id)
    }
}

impl DatagramPolicy for Auto {
    fn route(&mut self, context: &DatagramContext<'_>, flow: &FlowView) -> Route {
        let best = candidates::best_paths(context);
        let stays = flow.last.and_then(|(last, _)| best.clone().find(|path| path.id == last));
        let main = match flow.class {
            FlowClass::Bulk => fastest(context, flow),
            FlowClass::Sparse | FlowClass::Steady => {
                earliest(best, flow).map(|best| path_without_exploration(best, stays, flow))
            }
        };
        let Some(main) = main else { return Route::only(context.paths[0].id) };
        let grouped = self.config.repairs && uses_group_repair(context, flow, main);
        let copy = if grouped { None } else { self.copy_of(context, flow, main) };
        Route { path: main.id, copy, grouped }
    }

    fn repairs(
        &mut self,
        context: &DatagramContext<'_>,
        flow: &FlowView,
        group: Group,
    ) -> Option<Repairs> {
        let most = REPAIR_LIMITS[usize::from(group.frames.clamp(1, 4)) - 1];
        if self.spent_share(context.now) > most {
            return None;
        }
        let other = earliest(candidates::for_copies(context, group.on, true), flow)?;
        let count = group.frames.div_ceil(FRAMES_PER_REPAIR);
        let in_time = context.now + delay(other, flow) / 2 < flow.deadline;
        in_time.then_some(Repairs { path: other.id, count })
    }

    fn rescue(
        &mut self,
        context: &DatagramContext<'_>,
        flow: &FlowView,
        on: PathId,
    ) -> Option<PathId> {
        if flow.class == FlowClass::Bulk || self.spent_share(context.now) > RESCUE_LIMIT {
            return None;
        }
        let other = earliest(candidates::for_copies(context, on, true), flow)?;
        // A copy needs half a round trip on the other path. If that is too late, the copy is useless.
        (context.now + delay(other, flow) / 2 < flow.deadline).then_some(other.id)
    }

    fn on_sent(&mut self, now: Instant, bytes: u64, copy: bool) {
        if copy {
            self.budget.on_copy(now, bytes);
        } else {
            self.budget.on_new(now, bytes);
        }
    }

    fn exploration_interval(&self) -> Option<Duration> {
        Some(EXPLORE_INTERVAL)
    }

    fn rate_exploration_interval(&self) -> Option<Duration> {
        Some(RATE_EXPLORE_INTERVAL)
    }
}

/// Returns the time until a datagram sent now would be acknowledged on a path, at the 90th percentile.
fn delay(path: &DatagramPathView, flow: &FlowView) -> Duration {
    let ahead = path.bytes_queued + u64::from(flow.bytes);
    let answer = path.forecast.answer_after(ahead, Quantile::P90).unwrap_or(UNKNOWN);
    // Overdue data is not ahead of new data in the queue.
    answer + path.overdue
}

/// Returns the delay of a path, plus the required saving on costly paths and a penalty for losses.
fn delay_with_costs(path: &DatagramPathView, flow: &FlowView) -> Duration {
    let price = if is_costly(path) { MAX_EXTRA_DELAY } else { Duration::ZERO };
    delay(path, flow) + price + LOSS_PENALTY.mul_f32(path.losses)
}

fn earliest<'a>(
    paths: impl Iterator<Item = &'a DatagramPathView>,
    flow: &FlowView,
) -> Option<&'a DatagramPathView> {
    paths.min_by_key(|path| delay_with_costs(path, flow))
}

/// Returns the best path, or the flow's current one if that is about as good.
fn path_without_exploration<'a>(
    best: &'a DatagramPathView,
    stays: Option<&'a DatagramPathView>,
    flow: &FlowView,
) -> &'a DatagramPathView {
    let Some(stays) = stays else { return best };
    let (now, then) = (delay_with_costs(stays, flow), delay_with_costs(best, flow));
    let better = then.mul_f32(1.0 + MIN_RELATIVE_GAIN).max(then + MIN_TIME_GAIN);
    if now <= better { stays } else { best }
}

fn is_in_trouble(now: Instant, path: &DatagramPathView) -> bool {
    let lately = path.last_trouble_at.is_some_and(|at| now.since(at) < TROUBLE_DURATION);
    lately || !path.overdue.is_zero() || has_trouble_signs(path)
}

/// Returns true for signs of trouble other than isolated losses.
fn has_trouble_signs(path: &DatagramPathView) -> bool {
    let varies = path.srtt.is_some_and(|srtt| path.rttvar > srtt / RTT_VARIATION_DIVISOR);
    varies || path.fading || !path.is_usable() || !path.stalled.is_zero()
}

/// Returns true if datagrams on this path are repaired as a group instead of being copied.
fn uses_group_repair(
    context: &DatagramContext<'_>,
    flow: &FlowView,
    main: &DatagramPathView,
) -> bool {
    context.repairs
        && flow.class == FlowClass::Steady
        && flow.burst >= MIN_BURST
        && main.lone_losses >= MIN_REPAIR_LOSS
        && !has_trouble_signs(main)
}

/// Returns the probability that a copy on `other` is acknowledged first.
fn first_probability(other: &DatagramPathView, main: &DatagramPathView, flow: &FlowView) -> f32 {
    let ahead = other.bytes_queued + u64::from(flow.bytes);
    let Some(then) = other.forecast.answer_after(ahead, Quantile::P50) else { return 1.0 };
    let own = main.forecast.queued() + main.forecast.transit_time(main.bytes_queued);
    main.forecast.late_probability(then.saturating_sub(own))
}

/// Returns the path with the highest known delivery rate for bulk.
fn fastest<'a>(context: &DatagramContext<'a>, flow: &FlowView) -> Option<&'a DatagramPathView> {
    let now = context.now;
    let order = |path: &&DatagramPathView| (!is_costly(path), rate(path), Reverse(path.srtt));
    let best = candidates::best_paths(context).max_by_key(order)?;
    let waits = |path: &&DatagramPathView| match path.health {
        Health::Unreachable { since, .. } => !path.backup && now.since(since) < MAX_BULK_WAIT,
        Health::Usable | Health::Degraded { .. } => path.backup == best.backup,
    };
    let stays = flow.last.and_then(|(id, since)| {
        let path = context.paths.iter().find(|path| path.id == id).filter(waits)?;
        Some((since, path))
    });
    let Some((since, stays)) = stays else { return Some(best) };
    if is_costly(stays) && !is_costly(best) {
        return Some(best);
    }
    let delivers = rate(stays).max(stays.delivery_rate.unwrap_or(Rate::ZERO));
    let times = rate(best).bits_per_s() as f64 / delivers.bits_per_s().max(1) as f64;
    let wanted =
        if now.since(since) < MIN_BULK_STAY { IMMEDIATE_BULK_SPEEDUP } else { MIN_BULK_SPEEDUP };
    Some(if times > wanted { best } else { stays })
}

/// Returns the delivery rate of a path: the rate at which it passes trains, or, before the first train, the rate that
/// its window allows.
fn rate(path: &DatagramPathView) -> Rate {
    const SECOND: Duration = Duration::from_secs(1);
    match path.forecast.bytes_in(SECOND) {
        u64::MAX => path.srtt.map_or(Rate::ZERO, |srtt| Rate::over(path.cwnd, srtt)),
        bytes => Rate::from_bytes_per_s(bytes),
    }
}

#[cfg(test)]
mod tests;
