//! Congestion window shared by the loss-based controllers: the window itself, its slow start, and its reduction on
//! congestion signals. The growth curve for congestion avoidance and the reduction factor belong to each controller.
//!
//! Choices where the RFCs allow alternatives:
//! - *Reductions start from the window, not from the bytes in flight* (RFC 5681 equation 4 uses the latter, RFC 9438
//!   section 4.6 allows the former). A window that grows only while it is the limit is sufficient evidence, and the
//!   loss of a small message must not collapse a window that large ones have validated.
//! - *One reduction per episode.* A timeout during fast recovery sets the window to one segment
//!   but keeps ssthresh; an ECN mark during recovery changes nothing (RFC 3168 section 6.1.2).
//! - *Undo* restores the state before the last reduction, even shortly after its episode has ended, because a DSACK may
//!   arrive late. A spurious timeout during fast recovery undoes the timeout, not the loss that began the recovery.
//!   Reductions for ECN are kept, because the mark was not an error.
//! - *Idle* (RFC 5681 section 4.1): the window falls back to the initial one. ssthresh keeps three
//!   quarters of the validated window (RFC 2861), so slow start regains it in a few round trips.
//! - In slow start the window counts as the limit if half of it was in flight (as in Linux), because a paced sender
//!   lags behind a doubling window most of the time.

use marline_policy::{AckSample, CongestionSignal, Penalty};

use crate::slow_start::{SlowStart, SlowStartKind};

/// Smallest ssthresh, in segments.
const MIN_SSTHRESH_SEGMENTS: f64 = 2.0;

/// Effect of a congestion signal on the window.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Change {
    /// No change that the curve must handle.
    None,
    /// The window was reduced. If `undoable`, the previous state was saved.
    Reduced {
        /// The reduction may turn out to be spurious.
        undoable: bool,
        /// Window before the reduction, in bytes.
        before: f64,
    },
    /// The window was set to one segment, and the previous state was saved. `before` is `None` if ssthresh was already
    /// reduced for the same episode.
    TimedOut {
        /// Window before the timeout, in bytes.
        before: Option<f64>,
    },
    /// The last reduction was undone.
    Undone,
    /// The window changed for reasons other than congestion.
    Moved,
}

/// Window and ssthresh of one subflow, in fractional bytes.
#[derive(Debug)]
pub struct Window {
    mss: f64,
    cwnd: f64,
    /// Slow-start threshold; infinite while unknown.
    ssthresh: f64,
    initial: f64,
    slow_start: Box<dyn SlowStart>,
    /// True if a reduction was made for losses that are not yet repaired.
    in_episode: bool,
    /// Window and ssthresh before the latest reduction.
    saved: Option<Box<(f64, f64)>>,
}

impl Window {
    /// Creates a window of `initial_window` bytes, in slow start.
    #[must_use]
    pub fn new(mss: u32, initial_window: u64, slow_start: SlowStartKind) -> Self {
        let mss = f64::from(mss.max(1));
        let initial = (initial_window as f64).max(mss);
        Window {
            mss,
            cwnd: initial,
            ssthresh: f64::INFINITY,
            initial,
            slow_start: slow_start.build(),
            in_episode: false,
            saved: None,
        }
    }

    /// The window in whole bytes, at least one segment.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.cwnd.max(self.mss) + 0.5) as u64
    }

    /// ssthresh in whole bytes; `u64::MAX` while unknown.
    #[must_use]
    pub fn ssthresh_bytes(&self) -> u64 {
        // The conversion saturates: infinity becomes `u64::MAX`.
        (self.ssthresh + 0.5) as u64
    }

    /// The MSS in bytes.
    #[must_use]
    pub const fn mss(&self) -> f64 {
        self.mss
    }

    /// The window in bytes.
    #[must_use]
    pub const fn cwnd(&self) -> f64 {
        self.cwnd
    }

    /// Grows the window in congestion avoidance. Never shrinks it.
    pub fn raise_to(&mut self, bytes: f64) {
        self.cwnd = self.cwnd.max(bytes);
    }

    /// Raises ssthresh to at least `bytes`. No effect while it is unknown.
    pub(super) fn raise_threshold_to(&mut self, bytes: f64) {
        self.ssthresh = self.ssthresh.max(bytes);
    }

    /// Ends slow start at the present window.
    pub(super) fn end_slow_start(&mut self) {
        self.ssthresh = self.ssthresh.min(self.cwnd);
    }

    /// Limits the window and ssthresh to `bytes`, but not below the initial window. Returns true if the window shrank.
    pub(super) fn bound_to(&mut self, bytes: f64) -> bool {
        let kept = bytes.max(self.initial);
        let shrinks = kept < self.cwnd;
        if shrinks {
            self.cwnd = kept;
            self.ssthresh = self.ssthresh.min(kept);
        }
        shrinks
    }

    /// Limits the window to `bytes`, but not below the initial window. ssthresh is set to at least three quarters of
    /// the old window, so that slow start regains it.
    pub(super) fn limit_window_to(&mut self, bytes: f64) {
        let kept = bytes.max(self.initial);
        if kept < self.cwnd {
            if self.ssthresh.is_finite() {
                self.ssthresh = self.ssthresh.max(self.cwnd * 0.75);
            }
            self.cwnd = kept;
        }
    }

    /// Sets the window in congestion avoidance, for a controller that may shrink it (OLIA). At least one segment.
    pub fn set(&mut self, bytes: f64) {
        self.cwnd = bytes.max(self.mss);
    }

    /// Returns true if the window is below ssthresh.
    #[must_use]
    pub fn is_in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Returns true if the window limits the sender, so that it may grow.
    #[must_use]
    pub fn is_limit(&self, ack: &AckSample) -> bool {
        ack.cwnd_limited
            || (self.is_in_slow_start() && 2.0 * ack.prior_in_flight as f64 > self.cwnd)
    }

    /// Applies slow start to an ACK. Returns the delivered bytes left for congestion avoidance.
    pub fn slow_start(&mut self, ack: &AckSample) -> f64 {
        let delivered = ack.delivered as f64;
        if !self.is_in_slow_start() {
            return delivered;
        }
        let is_limit = self.is_limit(ack);
        if self.ssthresh.is_infinite() {
            let growth = self.slow_start.on_ack(ack, self.mss as u32);
            if is_limit {
                self.cwnd += growth.bytes as f64;
            }
            if growth.leave {
                self.ssthresh = self.cwnd;
            }
            return 0.0;
        }
        if !is_limit {
            return 0.0;
        }
        let used = delivered.min(self.ssthresh - self.cwnd);
        self.cwnd += used;
        delivered - used
    }

    /// Applies a signal. `beta` is the share of the window that a reduction leaves.
    pub fn on_signal(&mut self, signal: CongestionSignal, beta: f64) -> Change {
        let before = self.cwnd;
        match signal {
            CongestionSignal::Loss { .. } => {
                self.save();
                self.in_episode = true;
                self.ssthresh = self.reduced_window(beta);
                self.cwnd = self.ssthresh;
                Change::Reduced { undoable: true, before }
            }
            CongestionSignal::Ecn { .. } if self.in_episode => Change::None,
            CongestionSignal::Ecn { .. } => {
                self.saved = None;
                self.ssthresh = self.reduced_window(beta);
                self.cwnd = self.ssthresh;
                Change::Reduced { undoable: false, before }
            }
            CongestionSignal::Rto { first, .. } => {
                let fresh = first && !self.in_episode;
                if first {
                    self.save();
                }
                if fresh {
                    self.ssthresh = self.reduced_window(beta);
                }
                self.in_episode = true;
                self.cwnd = self.mss;
                if !first {
                    return Change::None;
                }
                Change::TimedOut { before: fresh.then_some(before) }
            }
            CongestionSignal::Spurious => self.undo(),
            CongestionSignal::RecoveryDone => {
                self.in_episode = false;
                Change::None
            }
            CongestionSignal::Penalty(penalty) => self.penalize(penalty),
            CongestionSignal::Idle => self.restart(),
        }
    }

    /// Adapts to a new MSS by scaling all values counted in segments.
    pub fn on_mss_change(&mut self, mss: u32) {
        let mss = f64::from(mss.max(1));
        let scale = mss / self.mss;
        self.mss = mss;
        self.cwnd *= scale;
        self.ssthresh *= scale;
        self.initial *= scale;
        if let Some(saved) = &mut self.saved {
            saved.0 *= scale;
            saved.1 *= scale;
        }
    }

    fn reduced_window(&self, beta: f64) -> f64 {
        (self.cwnd * beta).max(MIN_SSTHRESH_SEGMENTS * self.mss)
    }

    fn save(&mut self) {
        self.saved = Some(Box::new((self.cwnd, self.ssthresh)));
    }

    fn undo(&mut self) -> Change {
        self.in_episode = false;
        let Some(saved) = self.saved.take() else { return Change::None };
        let (cwnd, ssthresh) = *saved;
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = self.ssthresh.max(ssthresh);
        Change::Undone
    }

    /// Has no effect during a loss episode.
    fn penalize(&mut self, penalty: Penalty) -> Change {
        if self.in_episode {
            return Change::None;
        }
        let least = MIN_SSTHRESH_SEGMENTS * self.mss;
        let slow_start_goes_on = penalty == Penalty::Window && self.is_in_slow_start();
        self.cwnd = (self.cwnd / 2.0).max(self.mss);
        match penalty {
            Penalty::Window if slow_start_goes_on => {}
            Penalty::Window => self.ssthresh = (self.ssthresh / 2.0).max(least),
            Penalty::WindowAndThreshold => self.ssthresh = self.cwnd.max(least),
        }
        Change::Moved
    }

    fn restart(&mut self) -> Change {
        if self.ssthresh.is_finite() {
            self.ssthresh = self.ssthresh.max(self.cwnd * 0.75);
        }
        self.cwnd = self.cwnd.min(self.initial);
        self.slow_start.restart();
        Change::Moved
    }
}
