//! BLEST: blocking estimation (Ferlin, Alay, Mehani and Boreli, IFIP Networking 2016).
//!
//! *Problem.* Data on a slow subflow blocks the shared receive window until it arrives. Repeating it afterward (OR&P)
//! costs bytes and is late. It is better not to send it on the slow subflow at all.
//!
//! *How.* F is the fastest subflow, full or not; S is the one that lowest-RTT would choose. If S is not F, BLEST
//! estimates what F would send until a segment sent on S now is acknowledged: n round trips of F, with a growing window
//! (doubling in slow start, otherwise one more segment per round trip). If this amount, times lambda, does not fit into
//! the window together with the data of S, nothing is sent now: the segment waits for F. Lambda adapts: it grows if the
//! window blocked anyway, and otherwise shrinks slowly.
//!
//! *Source.* The scheduler of the out-of-tree Linux implementation in its last version, which goes beyond the paper:
//! its delay on S is interpolated between the shortest and longest RTT seen, according to how full S is. The numbers
//! (1.2 within 1.0 to 1.3, +0.04, -0.01, at most once per shortest RTT of S) are from that version. Reimplemented from
//! a description.
//!
//! *Left open, and chosen.*
//! - F has the same class as S (`classes.rs`). The kernel considers any subflow that can send, even a backup, and may
//!   then wait for a subflow that it never uses.
//! - The kernel adapts lambda when OR&P has acted. Here it adapts when the window has blocked, whether or not BLEST is
//!   wrapped in OR&P (`blest+orp`, which is the kernel's BLEST).
//! - A subflow with a full congestion window also counts its next segment, as in the kernel.

use marline_algos::schedulers::classes;
use marline_policy::{
    Decision, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent, SubflowId,
    SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

/// Maximum number of doublings in slow start in the estimate.
const MAX_DOUBLINGS: u32 = 16;

/// Parameters of lambda.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct BlestConfig {
    /// Initial value of lambda.
    pub lambda: f64,
    /// Smallest and largest value of lambda.
    pub bounds: (f64, f64),
    /// Increase of lambda when the window blocked.
    pub up: f64,
    /// Decrease of lambda when the window did not block.
    pub down: f64,
    /// True if lambda adapts; otherwise it keeps its initial value.
    pub adapts: bool,
}

impl Default for BlestConfig {
    fn default() -> Self {
        BlestConfig { lambda: 1.2, bounds: (1.0, 1.3), up: 0.04, down: 0.01, adapts: true }
    }
}

/// Smallest and largest smoothed RTT seen.
#[derive(Copy, Clone, Debug)]
struct SeenRtts {
    min: Duration,
    max: Duration,
}

/// Scheduler that waits for the fast subflow instead of blocking it.
#[derive(Clone, Debug)]
pub struct Blest {
    config: BlestConfig,
    lambda: f64,
    seen: [Option<SeenRtts>; SubflowSet::CAPACITY as usize],
    /// True if the window has blocked since lambda last changed.
    was_blocked: bool,
    moved_at: Option<Instant>,
}

impl Blest {
    /// Creates a scheduler with these parameters.
    #[must_use]
    pub const fn new(config: BlestConfig) -> Self {
        let seen = [None; SubflowSet::CAPACITY as usize];
        Blest { config, lambda: config.lambda, seen, was_blocked: false, moved_at: None }
    }

    fn slot(&mut self, id: SubflowId) -> &mut Option<SeenRtts> {
        &mut self.seen[usize::from(id.0 % SubflowSet::CAPACITY)]
    }

    /// Records the smallest and largest RTTs.
    fn observe(&mut self, subflows: &[SubflowView]) {
        for view in subflows {
            if let Some(srtt) = view.srtt {
                let seen = self.slot(view.id).get_or_insert(SeenRtts { min: srtt, max: srtt });
                *seen = SeenRtts { min: seen.min.min(srtt), max: seen.max.max(srtt) };
            }
        }
    }

    fn adapt(&mut self, now: Instant, slow_min: Duration) {
        let due = self.moved_at.is_none_or(|at| now.since(at) >= slow_min);
        if !self.config.adapts || !due {
            return;
        }
        let step = if self.was_blocked { self.config.up } else { -self.config.down };
        self.lambda = (self.lambda + step).clamp(self.config.bounds.0, self.config.bounds.1);
        self.was_blocked = false;
        self.moved_at = Some(now);
    }

    /// Returns true if a segment on `slow` would block what `fast` could send in the meantime.
    fn would_block(
        &mut self,
        fast: &SubflowView,
        slow: &SubflowView,
        cx: &SchedulerContext<'_>,
    ) -> bool {
        let (Some(fast_seen), Some(slow_seen)) = (*self.slot(fast.id), *self.slot(slow.id)) else {
            return false;
        };
        self.adapt(cx.now, slow_seen.min);
        let fast_rtt = ((fast_seen.min + fast_seen.max) / 2).max(Duration::from_nanos(1));
        let rounds = ack_delay(slow, slow_seen).as_nanos() / fast_rtt.as_nanos() + 1;
        let could_send = segments_in(fast, rounds.min(1 << 20) as u32) * f64::from(fast.mss);
        let held = slow.bytes_in_flight + slow.bytes_queued + u64::from(slow.mss);
        let room = cx.window_end.since(cx.data_una).saturating_sub(held);
        could_send * self.lambda > room as f64
    }
}

/// Returns the time until a segment given to this subflow now is acknowledged: from the shortest RTT if the subflow is
/// empty to the longest if it is full, at least the current RTT.
fn ack_delay(view: &SubflowView, seen: SeenRtts) -> Duration {
    let mss = u64::from(view.mss.max(1));
    let (in_flight, window) = (view.bytes_in_flight.div_ceil(mss) + 1, (view.cwnd / mss).max(1));
    let expected = if in_flight >= window {
        seen.max
    } else {
        seen.min + (seen.max - seen.min).mul_f64(in_flight as f64 / window as f64)
    };
    view.srtt.map_or(expected, |srtt| expected.max(srtt))
}

/// Returns the number of segments that a subflow sends in this many round trips if nothing limits it.
fn segments_in(view: &SubflowView, rounds: u32) -> f64 {
    let mss = f64::from(view.mss.max(1));
    let window = (view.cwnd as f64 / mss).max(1.0);
    if view.ssthresh == u64::MAX {
        let doublings = rounds.min(MAX_DOUBLINGS);
        return window * (f64::from(1u32 << doublings) - 1.0);
    }
    let window = window.max(view.ssthresh as f64 / mss + 1.0);
    (window + f64::from((rounds - 1) / 2)) * f64::from(rounds)
}

impl Default for Blest {
    fn default() -> Self {
        Blest::new(BlestConfig::default())
    }
}

impl Scheduler for Blest {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.observe(cx.subflows);
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        let members = || classes::members(cx.subflows, class);
        let Some(picked) = classes::pick(members(), class) else { return classes::wait(members()) };
        let fastest = members().min_by_key(|view| classes::rank(view)).unwrap_or(picked);
        if class.is_usable() && fastest.id != picked.id && self.would_block(fastest, picked, cx) {
            return classes::wait(members());
        }
        Decision::Send { subflow: picked.id, range: cx.unsent }
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
        match event {
            SchedulerEvent::SubflowUp(id) | SchedulerEvent::SubflowDown(id) => {
                *self.slot(id) = None;
            }
            SchedulerEvent::PeerWindowBlocked { .. } => self.was_blocked = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
