//! Reno: one more segment per round trip, half the window after a loss (RFC 5681).
//!
//! *Problem.* Flows must share a bottleneck of unknown capacity. Additive increase and multiplicative decrease converge
//! to fair shares. All later controllers are variations.
//!
//! *Source.* RFC 5681 with appropriate byte counting (RFC 3465): congestion avoidance adds one segment per delivered
//! window of bytes, regardless of the number of ACKs. Fast recovery is not part of this module: the core retransmits,
//! and limits sending with PRR, with [`ssthresh`] as the target.
//!
//! *Deviations.* See `window.rs`; CUBIC shares them.
//!
//! *Purpose.* Reno is the reference: fairness and coupled controllers are defined in terms of it, and its behavior can
//! be computed by hand.
//!
//! [`ssthresh`]: CongestionController::ssthresh

use marline_policy::{AckSample, CongestionController, CongestionSignal, SubflowId, SubflowView};
use marline_time::Instant;

use super::window::{Change, Window};
use crate::slow_start::SlowStartKind;

/// Share of the window that remains after a loss.
const BETA: f64 = 0.5;

/// Reno congestion control of one subflow.
#[derive(Debug)]
pub struct Reno {
    window: Window,
    /// Bytes delivered since the window last grew in congestion avoidance.
    counted: f64,
}

impl Reno {
    /// Creates a controller that starts with `initial_window` bytes.
    #[must_use]
    pub fn new(mss: u32, initial_window: u64, slow_start: SlowStartKind) -> Self {
        Reno { window: Window::new(mss, initial_window, slow_start), counted: 0.0 }
    }
}

impl CongestionController for Reno {
    fn on_ack(&mut self, ack: &AckSample, _me: SubflowId, _group: &[SubflowView]) {
        if ack.in_recovery {
            return;
        }
        let rest = self.window.slow_start(ack);
        if rest <= 0.0 || !self.window.is_limit(ack) {
            return;
        }
        self.counted += rest;
        if self.counted >= self.window.cwnd() {
            self.counted -= self.window.cwnd();
            self.window.raise_to(self.window.cwnd() + self.window.mss());
        }
    }

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        _now: Instant,
        _me: SubflowId,
        _group: &[SubflowView],
    ) {
        if self.window.on_signal(signal, BETA) != Change::None {
            self.counted = 0.0;
        }
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
}

#[cfg(test)]
mod tests;
