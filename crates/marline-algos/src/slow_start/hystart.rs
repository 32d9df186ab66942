//! HyStart++ (RFC 9406): slow start that ends when the round-trip time rises.
//!
//! *Problem.* Classic slow start ends with a loss, at up to twice the window that the path holds. On a path with a deep
//! queue, this causes a window's worth of losses and a full queue, which delays competing interactive flows. A rising
//! RTT shows earlier that the queue is filling.
//!
//! *How.* Time is divided into rounds (a round ends when everything that was in flight at its start is delivered).
//! After 8 samples in a round, its smallest RTT is compared with that of the previous round. If it rose by an eighth
//! (at least 4 ms; 16 ms is always enough), growth slows down to a quarter: conservative slow start (CSS). Slow start
//! ends after five rounds of CSS, including the one in which it began. If the RTT falls below its value at the
//! beginning of CSS, the rise was transient, and full growth resumes.
//!
//! *Differences from the RFC's text.*
//! - Rounds are counted in delivered bytes instead of sequence numbers, which a controller here does not see. Without
//!   loss (which ends slow start), both are equivalent.
//! - `L`, the growth limit per ACK, is infinite, which section 4.3 allows for paced senders.
//! - It is used only for the initial slow start, as section 4.3 recommends. Later slow starts have an ssthresh.

use marline_policy::AckSample;

use super::{Growth, SlowStart};

/// Smallest RTT increase that counts, in nanoseconds.
const MIN_RTT_THRESH_NANOS: u64 = 4_000_000;
/// RTT increase that always counts, in nanoseconds.
const MAX_RTT_THRESH_NANOS: u64 = 16_000_000;
/// Between these two values, an increase counts if it is at least this fraction (divisor) of the previous round's RTT.
const MIN_RTT_DIVISOR: u64 = 8;
/// Minimum number of samples before a round is judged.
const N_RTT_SAMPLE: u32 = 8;
/// Factor by which CSS grows more slowly.
const CSS_GROWTH_DIVISOR: u64 = 4;
/// Number of rounds in CSS.
const CSS_ROUNDS: u32 = 5;

/// State of conservative slow start.
#[derive(Copy, Clone, Debug)]
struct Css {
    /// Smallest RTT of the round in which CSS began, in nanoseconds.
    baseline: u64,
    /// Number of rounds completed in CSS.
    rounds: u32,
}

/// Slow start that observes the RTT. Small, because every subflow keeps one for its lifetime.
#[derive(Clone, Debug)]
pub struct HyStart {
    /// The round ends when this many bytes have been delivered in total; `NONE` before the first ACK.
    round_end: u64,
    /// Smallest RTTs of the previous round and of this one in nanoseconds, or `NONE`.
    last_min: u64,
    current_min: u64,
    samples: u32,
    css: Option<Box<Css>>,
}

/// Marks an unknown value.
const NONE: u64 = u64::MAX;

impl Default for HyStart {
    fn default() -> Self {
        HyStart { round_end: NONE, last_min: NONE, current_min: NONE, samples: 0, css: None }
    }
}

impl HyStart {
    /// Returns true if conservative slow start is active.
    #[must_use]
    pub const fn in_css(&self) -> bool {
        self.css.is_some()
    }

    fn judge(&mut self) {
        let (current, last) = (self.current_min, self.last_min);
        if current == NONE || last == NONE || self.samples < N_RTT_SAMPLE {
            return;
        }
        match &self.css {
            None => {
                let rise = last / MIN_RTT_DIVISOR;
                let rise = rise.clamp(MIN_RTT_THRESH_NANOS, MAX_RTT_THRESH_NANOS);
                if current >= last.saturating_add(rise) {
                    self.css = Some(Box::new(Css { baseline: current, rounds: 0 }));
                }
            }
            Some(css) if current < css.baseline => self.css = None,
            Some(_) => {}
        }
    }

    /// Starts the next round. Returns true if CSS has lasted long enough.
    fn next_round(&mut self, ack: &AckSample) -> bool {
        self.round_end = ack.total_delivered + ack.bytes_in_flight;
        self.last_min = core::mem::replace(&mut self.current_min, NONE);
        self.samples = 0;
        let Some(css) = &mut self.css else { return false };
        css.rounds += 1;
        css.rounds >= CSS_ROUNDS
    }
}

impl SlowStart for HyStart {
    fn on_ack(&mut self, ack: &AckSample, _mss: u32) -> Growth {
        if self.round_end == NONE {
            self.round_end = ack.total_delivered + ack.bytes_in_flight;
        }
        let round_end = self.round_end;
        if let Some(rtt) = ack.rtt {
            let nanos = u64::try_from(rtt.as_nanos()).unwrap_or(NONE - 1);
            self.current_min = self.current_min.min(nanos);
            self.samples += 1;
            self.judge();
        }
        let divisor = if self.in_css() { CSS_GROWTH_DIVISOR } else { 1 };
        let leave = ack.total_delivered >= round_end && self.next_round(ack);
        Growth { bytes: ack.delivered / divisor, leave }
    }

    fn restart(&mut self) {
        *self = HyStart::default();
    }
}

#[cfg(test)]
mod tests;
