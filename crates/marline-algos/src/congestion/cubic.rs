//! CUBIC (RFC 9438): the window is a cubic function of the time since the last loss.
//!
//! *Problem.* Reno adds one segment per round trip. After a loss on a fast, long path it needs minutes to recover, and
//! a flow with a short RTT starves one with a long RTT.
//!
//! *How.* After a loss at `W_max`, the window falls to 0.7 of it and then follows `W(t) = C (t - K)^3 + W_max`, where
//! `K` is such that `W(0)` is the reduced window. Growth is fast at first, slow around `W_max`, and fast again beyond.
//! It depends on time, not on the RTT. Where Reno would be faster (short RTT, small window), the window follows an
//! estimate of Reno's window instead. *Fast convergence*: a flow with a loss below `W_max` lowers its target, which
//! leaves room for new flows.
//!
//! *Choices and differences.*
//! - `t` advances only while the window is the limit, and by at most one SRTT per ACK: an application's pause must not
//!   cause growth (RFC 9438 section 5.8).
//! - After a timeout, the curve starts flat where congestion avoidance begins (section 4.8). This also applies after
//!   HyStart++ has left slow start without a loss.
//! - A spurious reduction is undone completely: window, ssthresh and the curve (section 4.9).
//! - Once the estimate of Reno's window is back where the last loss was, it grows by a whole segment per round trip
//!   (section 4.3). Linux continues with [`ALPHA`] of a segment, and so does [`RenoEstimate::Linux`]. Where the window
//!   follows the estimate, this makes a difference of about 10 %: at 50 Mbit/s, 20 ms and 0.1 % loss, 24.5 instead of
//!   22.4 Mbit/s (Linux over an emulated link: 21.7).
//! - A scheduler's penalty restarts the curve from the reduced window. Otherwise the old curve would undo the reduction
//!   within one round trip.
//! - Floating-point code uses only + - * /, and a cube root built from these. The results are equal on every machine,
//!   so runs are reproducible. The libm `cbrt` differs between systems.
//! - Reductions start from the window; see `window.rs` for this and other shared choices.

use marline_policy::{AckSample, CongestionController, CongestionSignal, SubflowId, SubflowView};
use marline_time::{Duration, Instant};

use super::window::{Change, Window};
use crate::slow_start::SlowStartKind;

/// Steepness of the curve, segments per second cubed.
const C: f64 = 0.4;
/// Share of the window that remains after a loss.
const BETA: f64 = 0.7;
/// Growth of the Reno estimate in segments per round trip. With [`BETA`], this formula makes CUBIC as fair as Reno.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Maximum growth of the window per round trip, as a multiple of the window.
const MAX_TARGET: f64 = 1.5;

/// Growth of the estimate of Reno's window beyond the window of the last loss.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum RenoEstimate {
    /// Like Reno itself: one segment per round trip (RFC 9438 section 4.3).
    #[default]
    Rfc9438,
    /// `ALPHA` segments per round trip, as below that window.
    Linux,
}

/// State of the curve in congestion avoidance. Windows are in segments.
#[derive(Copy, Clone, Debug, Default)]
struct Curve {
    /// Window at the last loss (lowered by fast convergence); 0 if unknown.
    w_max: f64,
    /// Window before the last reduction, beyond which the Reno estimate grows faster.
    cwnd_prior: f64,
    /// Plateau of the current epoch.
    origin: f64,
    /// Seconds from the epoch's start to the plateau.
    k: f64,
    /// Estimate of Reno's window.
    w_est: f64,
    /// Time in the epoch, excluding pauses.
    elapsed: Duration,
    /// Last ACK that advanced the epoch; `None` between epochs.
    last_ack: Option<Instant>,
    /// Share of one TCP's growth in this epoch.
    share: f64,
}

impl Curve {
    fn start(&mut self, cwnd: f64, share: f64, now: Instant) {
        self.share = share;
        if self.w_max > cwnd {
            self.k = cube_root((self.w_max - cwnd) / (C * share));
            self.origin = self.w_max;
        } else {
            self.k = 0.0;
            self.origin = cwnd;
        }
        self.w_est = cwnd;
        self.elapsed = Duration::ZERO;
        self.last_ack = Some(now);
    }

    /// Advances the epoch's clock by the time since the previous ACK, unless this was a pause.
    fn advance_epoch(&mut self, now: Instant, srtt: Duration, counts: bool) {
        let Some(last) = self.last_ack else { return };
        if counts {
            self.elapsed += now.since(last).min(srtt);
        }
        self.last_ack = Some(now);
    }

    /// Returns the value of the cubic function in segments, `seconds` into the epoch.
    fn window_at(&self, seconds: f64) -> f64 {
        let x = seconds - self.k;
        C * self.share * x * x * x + self.origin
    }

    /// Returns the window after `segments` more have been delivered.
    fn window_after(&mut self, cwnd: f64, segments: f64, rtt: f64, estimate: RenoEstimate) -> f64 {
        let beyond = estimate == RenoEstimate::Rfc9438 && self.w_est >= self.cwnd_prior;
        let alpha = if beyond { 1.0 } else { ALPHA };
        self.w_est += self.share * alpha * segments / cwnd;
        let now = seconds(self.elapsed);
        if self.window_at(now) < self.w_est {
            return self.w_est;
        }
        let target = self.window_at(now + rtt).clamp(cwnd, cwnd * MAX_TARGET);
        // When a gap is filled, one ACK may deliver more than a window. This is still one round.
        cwnd + (target - cwnd) * (segments / cwnd).min(1.0)
    }

    fn on_reduction(&mut self, before: f64) {
        // Fast convergence: a loss below the last maximum means that another flow needs room.
        self.w_max = if before < self.w_max { before * (1.0 + BETA) / 2.0 } else { before };
        self.cwnd_prior = before;
        self.last_ack = None;
    }
}

/// CUBIC congestion control of one subflow.
#[derive(Debug)]
pub struct Cubic {
    window: Window,
    estimate: RenoEstimate,
    /// This subflow's share of one TCP's growth, starting with the next epoch.
    share: f64,
    /// State of the curve; `None` before the first slow start ends.
    curve: Option<Box<Curve>>,
    /// Curve before the latest reduction, which may turn out to be spurious.
    saved: Option<Box<Curve>>,
}

impl Cubic {
    /// Creates a controller that starts with `initial_window` bytes.
    #[must_use]
    pub fn new(mss: u32, initial_window: u64, slow_start: SlowStartKind) -> Self {
        Cubic {
            window: Window::new(mss, initial_window, slow_start),
            estimate: RenoEstimate::default(),
            share: 1.0,
            curve: None,
            saved: None,
        }
    }

    /// Selects how the estimate of Reno's window grows.
    #[must_use]
    pub fn with_reno_estimate(mut self, estimate: RenoEstimate) -> Self {
        self.estimate = estimate;
        self
    }

    /// Sets this subflow's share of one TCP's growth, more than 0 and at most 1. After the next loss or pause, it
    /// scales the steepness of the curve and the estimate of Reno's window.
    pub(super) fn set_growth_share(&mut self, share: f64) {
        self.share = share;
    }

    /// Limits the reduction just made: the window does not fall below this many bytes.
    pub(super) fn stop_reduction_at(&mut self, bytes: f64) {
        self.window.raise_threshold_to(bytes);
        self.window.raise_to(bytes);
    }

    /// Extends slow start to at least this many bytes.
    pub(super) fn raise_threshold_to(&mut self, bytes: f64) {
        self.window.raise_threshold_to(bytes);
    }

    /// Limits a partly used window to this many bytes, but not below the window after a pause.
    pub(super) fn limit_window_to(&mut self, bytes: f64) {
        self.window.limit_window_to(bytes);
        if let Some(curve) = &mut self.curve {
            curve.last_ack = None;
        }
    }

    /// Ends slow start at the present window.
    pub(super) fn end_slow_start(&mut self) {
        self.window.end_slow_start();
    }

    /// Limits the window and ssthresh to `bytes`, but not below the initial window. Growth restarts from there.
    pub(super) fn bound_window(&mut self, bytes: f64) {
        if self.window.bound_to(bytes)
            && let Some(curve) = &mut self.curve
        {
            curve.last_ack = None;
        }
    }

    fn save(&mut self) {
        self.saved = Some(self.curve.clone().unwrap_or_default());
    }

    fn avoid_congestion(&mut self, ack: &AckSample, delivered: f64) {
        let mss = self.window.mss();
        let cwnd = self.window.cwnd() / mss;
        let curve = self.curve.get_or_insert_default();
        if curve.last_ack.is_none() {
            curve.start(cwnd, self.share, ack.now);
        }
        let rtt = ack.srtt.map_or(0.0, seconds);
        let grown = curve.window_after(cwnd, delivered / mss, rtt, self.estimate);
        self.window.raise_to(grown * mss);
    }
}

impl CongestionController for Cubic {
    fn on_ack(&mut self, ack: &AckSample, _me: SubflowId, _group: &[SubflowView]) {
        let counts = !ack.in_recovery && self.window.is_limit(ack);
        if let Some(curve) = &mut self.curve {
            curve.advance_epoch(ack.now, ack.srtt.unwrap_or(Duration::ZERO), counts);
        }
        if ack.in_recovery {
            return;
        }
        let rest = self.window.slow_start(ack);
        if rest > 0.0 && counts {
            self.avoid_congestion(ack, rest);
        }
    }

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        _now: Instant,
        _me: SubflowId,
        _group: &[SubflowView],
    ) {
        let mss = self.window.mss();
        match self.window.on_signal(signal, BETA) {
            Change::None => {}
            Change::TimedOut { before: None } => self.save(),
            Change::Reduced { undoable, before } => {
                self.saved = None;
                if undoable {
                    self.save();
                }
                self.curve.get_or_insert_default().on_reduction(before / mss);
            }
            Change::TimedOut { before: Some(before) } => {
                self.save();
                // There is no plateau, so the curve starts where slow start will end.
                let curve = self.curve.get_or_insert_default();
                **curve = Curve { cwnd_prior: before / mss, ..Curve::default() };
            }
            Change::Undone => {
                if let Some(curve) = self.saved.take() {
                    self.curve = Some(curve);
                }
            }
            Change::Moved => {
                if let Some(curve) = &mut self.curve {
                    curve.last_ack = None;
                }
            }
        }
    }

    fn window(&self) -> u64 {
        self.window.bytes()
    }

    fn ssthresh(&self) -> u64 {
        self.window.ssthresh_bytes()
    }

    fn on_mss_change(&mut self, mss: u32) {
        // The curve counts segments, so it does not change.
        self.window.on_mss_change(mss);
    }
}

fn seconds(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e9
}

/// Computes the cube root of a nonnegative number, accurate to the last bit or two. Dividing the exponent by three
/// gives a guess within 10 %, and each Newton step doubles the number of correct digits.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut root = f64::from_bits(x.to_bits() / 3 + (1023 - 1023 / 3) * (1 << 52));
    for _ in 0..6 {
        root = (2.0 * root + x / (root * root)) / 3.0;
    }
    root
}

#[cfg(test)]
mod tests;
