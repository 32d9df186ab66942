//! ECF: earliest completion first (Lim, Nahum, Towsley and Gibbens, CoNEXT 2017).
//!
//! *Problem.* At the end of a burst, the fast subflow is briefly full, so lowest-RTT gives the last segments to a slow
//! subflow. Then the fast one is idle, and everything waits for the slow one.
//!
//! *How.* F is the fastest subflow, full or not; S is the one that lowest-RTT would choose. If S is not F, they are
//! compared. For k unsent bytes, F needs about srtt_F * (1 + k / cwnd_F), including one round trip of waiting for room.
//! If S would need longer than that for its first window (srtt_S plus a margin for the variation of both), and also for
//! its own share, nothing is sent on S: the data waits for F. Once waiting, it waits a little longer (beta), so that
//! the choice does not change with every ACK.
//!
//! *Source.* The scheduler of the out-of-tree Linux implementation, with inequalities that avoid divisions: beta is
//! 1/4, the margin is the larger RTT variation, k is at least F's window. Reimplemented from a description.
//!
//! *Left open, and chosen.* F has the same class as S (`classes.rs`). The scheduler never waits for a subflow without
//! an RTT sample, and rejects none for lack of a sample. The kernel's ECF has OR&P built in; here that is `ecf+orp`.

use marline_algos::schedulers::classes;
use marline_policy::{Decision, Reinjection, Scheduler, SchedulerContext, SubflowView};
use marline_time::Duration;

/// Parameter of the hysteresis.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct EcfConfig {
    /// Share by which S must be better to be used while data waits.
    pub beta: f64,
}

impl Default for EcfConfig {
    fn default() -> Self {
        EcfConfig { beta: 0.25 }
    }
}

/// Scheduler that waits for the fast subflow if everything then completes earlier.
#[derive(Clone, Debug, Default)]
pub struct Ecf {
    config: EcfConfig,
    /// True if data is waiting for the fast subflow.
    waiting: bool,
}

impl Ecf {
    /// Creates a scheduler with these parameters.
    #[must_use]
    pub const fn new(config: EcfConfig) -> Self {
        Ecf { config, waiting: false }
    }

    /// Returns true if `unsent` bytes complete earlier if they wait for `fast` than if `slow` takes some of them.
    fn should_wait(&mut self, fast: &SubflowView, slow: &SubflowView, unsent: u64) -> bool {
        let (Some(fast_srtt), Some(slow_srtt)) = (fast.srtt, slow.srtt) else { return false };
        let (fast_cwnd, slow_cwnd) = (fast.cwnd as f64, slow.cwnd as f64);
        let on_fast = (unsent as f64).max(fast_cwnd);
        let on_slow = (unsent as f64).max(slow_cwnd);
        let margin = seconds(fast.rttvar.max(slow.rttvar));
        let (fast_srtt, slow_srtt) = (seconds(fast_srtt), seconds(slow_srtt));
        let reluctance = if self.waiting { 1.0 + self.config.beta } else { 1.0 };
        if fast_srtt * (on_fast + fast_cwnd) >= reluctance * fast_cwnd * (slow_srtt + margin) {
            self.waiting = false;
            return false;
        }
        if slow_srtt * on_slow >= slow_cwnd * 2.0f64.mul_add(fast_srtt, margin) {
            self.waiting = true;
            return true;
        }
        false
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

impl Scheduler for Ecf {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        if cx.unsent.is_empty() {
            return Decision::Wait;
        }
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        let members = || classes::members(cx.subflows, class);
        let Some(picked) = classes::pick(members(), class) else { return classes::wait(members()) };
        let fastest = members().min_by_key(|view| classes::rank(view)).unwrap_or(picked);
        // The peer's window is irrelevant here: everything the application has written must be completed.
        let unsent = cx.written.since(cx.unsent.start);
        if class.is_usable() && fastest.id != picked.id && self.should_wait(fastest, picked, unsent)
        {
            return classes::wait(members());
        }
        Decision::Send { subflow: picked.id, range: cx.unsent }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        classes::reinject(item, cx)
    }
}

#[cfg(test)]
mod tests;
