//! Common part of the coupled controllers: their snapshot of all subflows, and the behavior that they share with any
//! loss-based TCP.
//!
//! *Problem.* Each uncoupled subflow takes the share of one TCP connection, and several subflows at one bottleneck take
//! several shares. A coupled controller reads the views of its siblings and grows each subflow less. Together, they are
//! no more aggressive than one TCP at a shared bottleneck, and get at least the throughput of the best path alone.
//!
//! *Common ground* (RFC 6356 section 3). Only the increase in congestion avoidance is coupled (BALIA also couples the
//! decrease). Slow start, loss detection, timeouts and undo belong to each subflow and work as in Reno
//! (`marline_algos::congestion::window`). A window grows only while it is the limit.
//!
//! *Windows and RTTs.* As in the formulas, windows are counted in each subflow's segments and RTTs in seconds. During
//! recovery, a subflow counts with the window that it will have afterward (ssthresh), because the current window is not
//! meaningful. A controller uses the current value of its own window, not the one in the snapshot, which was taken
//! before the ACK. Suspected subflows do not count, because no data flows on them and they must not slow down the
//! others. Subflows without an RTT sample do not count either.

mod balia;
mod lia;
mod olia;

pub use balia::Balia;
use core::fmt::Debug;
pub use lia::Lia;
pub use olia::Olia;

use marline_algos::congestion::window::Window;
use marline_algos::slow_start::SlowStartKind;
use marline_policy::{
    AckSample, CongestionController, CongestionSignal, Phase, SubflowId, SubflowView,
};
use marline_time::Instant;

/// Subflow as used in the formulas.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Member {
    /// Window in segments.
    window: f64,
    /// Smoothed RTT in seconds.
    rtt: f64,
    /// Number of bytes between two losses: the larger of the last two values.
    between_losses: f64,
    /// True if this is the controller's own subflow.
    is_own: bool,
}

impl Member {
    /// Returns the rate in segments per second.
    fn rate(&self) -> f64 {
        self.window / self.rtt
    }

    fn from_view(view: &SubflowView) -> Option<Member> {
        let rtt = view.srtt?.as_nanos() as f64 / 1e9;
        let repairing = view.phase != Phase::Open && view.ssthresh != u64::MAX;
        let bytes = if repairing { view.ssthresh } else { view.cwnd };
        (view.is_active() && !view.health.is_unreachable() && rtt > 0.0).then(|| Member {
            window: (bytes as f64 / f64::from(view.mss.max(1))).max(1.0),
            rtt,
            between_losses: view.bytes_since_loss.max(view.bytes_between_losses) as f64,
            is_own: false,
        })
    }
}

/// All subflows that the formulas include, with the controller's own subflow.
#[derive(Clone, Debug, Default)]
pub struct Group {
    members: Vec<Member>,
}

impl Group {
    /// Reads the views. `window` is the window of the controller's own subflow, in segments.
    fn read(&mut self, views: &[SubflowView], me: SubflowId, window: f64) {
        self.members.clear();
        for view in views {
            if let Some(mut member) = Member::from_view(view) {
                if view.id == me {
                    member.window = window;
                    member.is_own = true;
                }
                self.members.push(member);
            }
        }
    }

    fn own_member(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.is_own)
    }

    /// Returns true if there is no other subflow to couple with.
    fn is_alone(&self) -> bool {
        self.members.len() < 2 || self.own_member().is_none()
    }

    /// Returns the total rate in segments per second.
    fn total_rate(&self) -> f64 {
        self.members.iter().map(Member::rate).sum()
    }
}

/// Coupling rule.
pub trait Coupling: Debug + Send + Default {
    /// Returns the change of the window, in segments per segment acknowledged in congestion avoidance.
    fn increase(group: &Group) -> f64;

    /// Returns the share of the window that remains after a loss.
    fn remaining_share(_group: &Group) -> f64 {
        0.5
    }
}

/// Coupled controller of one subflow, with its rule.
#[derive(Debug)]
pub struct Coupled<C> {
    window: Window,
    group: Group,
    rule: core::marker::PhantomData<C>,
}

impl<C: Coupling> Coupled<C> {
    /// Creates a controller that starts with `initial_window` bytes.
    #[must_use]
    pub fn new(mss: u32, initial_window: u64) -> Self {
        Coupled {
            window: Window::new(mss, initial_window, SlowStartKind::Classic),
            group: Group::default(),
            rule: core::marker::PhantomData,
        }
    }

    fn update_members(&mut self, views: &[SubflowView], me: SubflowId) {
        let segments = self.window.cwnd() / self.window.mss();
        self.group.read(views, me, segments);
    }
}

impl<C: Coupling> CongestionController for Coupled<C> {
    fn on_ack(&mut self, ack: &AckSample, me: SubflowId, views: &[SubflowView]) {
        if ack.in_recovery {
            return;
        }
        let rest = self.window.slow_start(ack);
        if rest <= 0.0 || !self.window.is_limit(ack) {
            return;
        }
        self.update_members(views, me);
        let (cwnd, mss) = (self.window.cwnd(), self.window.mss());
        let acked = rest / mss;
        let per_segment = if self.group.is_alone() { mss / cwnd } else { C::increase(&self.group) };
        // At most doubles the window, regardless of the amount that one ACK acknowledges.
        self.window.set(cwnd + (per_segment * acked * mss).min(rest));
    }

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        _now: Instant,
        me: SubflowId,
        views: &[SubflowView],
    ) {
        self.update_members(views, me);
        let keeps = if self.group.is_alone() { 0.5 } else { C::remaining_share(&self.group) };
        self.window.on_signal(signal, keeps);
    }

    fn window(&self) -> u64 {
        self.window.bytes()
    }

    fn ssthresh(&self) -> u64 {
        self.window.ssthresh_bytes()
    }

    fn on_mss_change(&mut self, mss: u32) {
        self.window.on_mss_change(mss);
    }

    fn wants_group(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
