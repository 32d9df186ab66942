//! Coded scheduler: covers sent data with repair sums, from which the peer recovers lost bytes.
//!
//! *Problem.* A copy repairs one segment, and it is unknown which one will be lost, so the whole burst would have to be
//! copied. A sum of all segments on another path repairs any one of them, and two sums repair any two. For a burst of
//! 20 segments with one or two losses, two repairs replace 20 copies.
//!
//! *How.* `min-rtt` places new data, without holding anything back (as in `copies.rs`). Once a burst, or `window`
//! segments of it, is in flight, its repairs are sent on the path with room that carried the least of it: `rate` of its
//! segments (default 30 %), rounded up. So a message of one segment gets a copy, and costs as much as with `redundant`.
//! With `every=off`, nothing is rounded up: fractions accumulate, a repair covers all unacknowledged data, and three of
//! ten one-segment messages get one.
//!
//! Each piece of data is covered by repairs only once. If there is no room, a repair waits while the data is
//! unacknowledged. New data always goes first, so bulk transfers that fill all paths have repairs only at their end. A
//! connection with one path has none, because they would be lost together with the data.
//!
//! *Peers.* Only a Marline peer that has agreed to repairs (`SchedulerContext::repairs`) supports them. For others,
//! `without=copies` sends copies of the end of the burst with the same number of bytes; `without=nothing` sends none.
//!
//! *Source.* The authors of ReMP name coding as the step after duplication. The code and its place in TCP belong to the
//! core (`docs/decisions/coding.md`). Our contribution: repairs follow the burst instead of being spread over time,
//! because interactive bursts are shorter than a round trip.
//!
//! *p99:* docs/research/papers/remp2015.md, table `coding`. Repairs pay off for bursts of several segments on paths
//! that lose some of them. They cannot help if more than the share `rate` is lost at once.

use marline_policy::{DataRange, Decision, Dsn, SchedulerContext, SubflowView};

use super::classes::{self, Class};
use super::copies::{CopyRule, CopyingScheduler, oldest_copy, queue_is_empty};

/// Maximum number of mappings examined to find which subflow carried a burst.
const MAX_PARTS: usize = 128;

/// Behavior with a peer that does not support repairs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WithoutRepairs {
    /// Copies of the end of each burst, with the same number of bytes.
    Copies,
    /// Nothing is sent instead.
    Nothing,
}

/// Settings for the number of repairs.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct CodedConfig {
    /// Repairs per segment, 0 to 1.
    pub rate: f64,
    /// Maximum number of segments per repair, 1 to 45.
    pub window: u32,
    /// True if every burst gets at least one repair.
    pub every: bool,
    /// Behavior with peers that do not support repairs.
    pub without: WithoutRepairs,
}

impl Default for CodedConfig {
    fn default() -> Self {
        CodedConfig { rate: 0.3, window: 40, every: true, without: WithoutRepairs::Copies }
    }
}

/// Repairs still to be sent.
#[derive(Copy, Clone, Debug)]
struct Plan {
    range: DataRange,
    segments: u32,
}

/// Copy rule that sends repairs of each burst.
#[derive(Debug)]
pub struct Repairs {
    config: CodedConfig,
    /// Start of the data that has no repairs yet.
    done: Dsn,
    /// Accumulated fractions of a repair, in thousandths.
    saved: u64,
    plan: Option<Plan>,
}

impl Repairs {
    /// Plans the repairs of recently sent data, once it is a complete burst or fills a window.
    fn make_plan(&mut self, class: Class, cx: &SchedulerContext<'_>) {
        let sent = cx.unsent.start;
        let mss = |view: &SubflowView| u64::from(view.mss.max(1));
        let longest = classes::members(cx.subflows, class).map(mss).max().unwrap_or(1);
        let shortest = classes::members(cx.subflows, class).map(mss).min().unwrap_or(longest);
        let window = longest * u64::from(self.config.window);
        let new = DataRange::new(self.done.max(cx.data_una), sent);
        let is_whole = queue_is_empty(cx) || new.len() >= window;
        if new.is_empty() || !is_whole {
            return;
        }
        let range = new.prefix(window);
        self.done = range.end;
        // In thousandths, so that sums are exact.
        let rate = (self.config.rate * 1e3).round() as u64;
        let wanted = rate * range.len().div_ceil(longest);
        let repairs = if self.config.every {
            wanted.div_ceil(1_000)
        } else {
            self.saved += wanted;
            let whole = self.saved / 1_000;
            self.saved %= 1_000;
            whole
        };
        let back = Dsn(range.end.0.saturating_sub(window)).max(cx.data_una);
        let start = if self.config.every { range.start } else { back };
        // A symbol may have to be split on a path with smaller segments.
        let parts = longest.div_ceil(shortest) as u32;
        let segments = repairs as u32 * parts;
        self.plan = Some(Plan { range: DataRange::new(start, range.end), segments });
    }

    /// Returns the next repair of the plan. The plan ends when all its data is acknowledged or no second path is left.
    fn next_repair(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        let Some(mut plan) = self.plan.take() else { return Decision::Wait };
        let range = DataRange::new(plan.range.start.max(cx.data_una), plan.range.end);
        if plan.segments == 0 || range.is_empty() || has_single_path(class, cx) {
            return Decision::Wait;
        }
        if !cx.repairs {
            return self.copy(plan, range, class, cx);
        }
        let whole = range.len();
        let candidates = classes::members(cx.subflows, class).filter(|view| view.is_ready());
        let candidates = candidates.map(|view| (carried_bytes(view, range, cx), view));
        let best = candidates
            .filter(|(bytes, _)| *bytes < whole)
            .min_by_key(|(bytes, view)| (*bytes, classes::rank(view)));
        let Some((_, view)) = best else {
            self.plan = Some(plan);
            return Decision::Wait;
        };
        plan.segments -= 1;
        self.plan = Some(plan);
        Decision::Repair { subflow: view.id, range }
    }

    fn copy(
        &mut self,
        plan: Plan,
        range: DataRange,
        class: Class,
        cx: &SchedulerContext<'_>,
    ) -> Decision {
        if self.config.without == WithoutRepairs::Nothing {
            return Decision::Wait;
        }
        self.plan = Some(plan);
        let mss = classes::members(cx.subflows, class).map(|view| view.mss).max().unwrap_or(0);
        let bytes = u64::from(mss) * u64::from(plan.segments);
        let from = Dsn(range.end.0.saturating_sub(bytes)).max(range.start);
        let copy = oldest_copy(class, from, cx);
        match copy {
            Some(Decision::Send { subflow, range: all }) if all.start < range.end => {
                let range = all.intersection(&range);
                Decision::Send { subflow, range }
            }
            _ => Decision::Wait,
        }
    }
}

/// Returns true if there is only one path.
fn has_single_path(class: Class, cx: &SchedulerContext<'_>) -> bool {
    classes::members(cx.subflows, class).count() < 2
}

/// Returns the number of bytes of a range that a subflow carried.
fn carried_bytes(view: &SubflowView, range: DataRange, cx: &SchedulerContext<'_>) -> u64 {
    let (mut at, mut bytes) = (range.start, 0);
    for _ in 0..MAX_PARTS {
        let Some(part) = cx.mappings.mapping_at(at).filter(|_| at < range.end) else { break };
        if part.carried_by.contains(view.id) {
            bytes += part.range.intersection(&range).len();
        }
        at = part.range.end;
    }
    bytes
}

impl CopyRule for Repairs {
    type Config = CodedConfig;

    fn from_config(config: CodedConfig) -> Self {
        Repairs { config, done: Dsn(0), saved: 0, plan: None }
    }

    fn next_copy(&mut self, class: Class, cx: &SchedulerContext<'_>) -> Decision {
        for _ in 0..MAX_PARTS {
            match self.next_repair(class, cx) {
                Decision::Wait if self.plan.is_none() => self.make_plan(class, cx),
                decision => return decision,
            }
            if self.plan.is_none() {
                break;
            }
        }
        Decision::Wait
    }
}

/// Min-RTT scheduler with repairs of each burst on the other paths.
pub type Coded = CopyingScheduler<Repairs>;

#[cfg(test)]
mod tests;
