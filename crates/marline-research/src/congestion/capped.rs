//! Wrapper `+cap` around any congestion control: a congestion window that does not fill a deep buffer (NSDI 2012,
//! mechanism M4).
//!
//! *Problem.* Some links, mainly cellular ones, have buffers of several seconds. A loss-based controller fills them,
//! and then everything sent on such a link arrives seconds late. A multipath connection must hold all later data in its
//! reassembly buffer, and a message on that path waits.
//!
//! *How.* A queue is visible in the RTT: if the smoothed RTT is more than `ratio` times the smallest one (2 in the
//! paper), half the window or more is in queues. Then the window is capped to the size that would produce exactly this
//! ratio: `window * ratio * base / srtt`. The cap is updated at most once per smoothed RTT, because the RTT responds
//! one round trip later. While the RTT is below the bound, the cap rises by the same rule, by at most a quarter per
//! round trip, and is removed when it no longer limits anything. If it were removed immediately, the window would
//! refill the queue. While the cap applies, the inner controller sees samples in which its window is not the limit, so
//! that it does not grow behind the cap. Losses are reported to it as usual.
//!
//! *Source.* Raiciu et al., NSDI 2012, names the mechanism and its condition. Neither Linux implementation seems to
//! contain code for it.
//!
//! *Left open, and chosen.* The size of the cap: the paper's wording allows freezing the window, but then a full queue
//! stays full. *Location:* here, not in the scheduler. The window and both RTTs are available with every ACK, the cap
//! also works for a single path, and a scheduler could only halve the window (penalize). The base is the core's
//! smallest RTT within the last few minutes. A link whose delay varies without a queue (jitter above half the mean) is
//! capped unnecessarily. This follows from the paper's condition; `ratio` is a parameter.

use marline_policy::{AckSample, CongestionController, CongestionSignal, SubflowId, SubflowView};
use marline_time::{Instant, Rate};

/// Minimum cap, in segments.
const MIN_SEGMENTS: u64 = 4;
/// Largest growth factor of a cap per round trip.
const MAX_CAP_GROWTH: f64 = 1.25;

/// Congestion control that caps the window of the inner controller.
#[derive(Debug)]
pub struct Capped {
    inner: Box<dyn CongestionController>,
    /// Ratio of smoothed to smallest RTT above which the window is capped.
    ratio: f64,
    mss: u64,
    /// Current cap; `None` if the window is not capped.
    cap: Option<u64>,
    /// Earliest time of the next update of the cap.
    next_at: Instant,
}

impl Capped {
    /// Wraps a controller. `ratio` must be more than 1.
    #[must_use]
    pub fn new(inner: Box<dyn CongestionController>, ratio: f64, mss: u32) -> Self {
        let mss = u64::from(mss.max(1));
        Capped { inner, ratio, mss, cap: None, next_at: Instant::ZERO }
    }

    fn update_cap(&mut self, ack: &AckSample) {
        let (Some(srtt), Some(base)) = (ack.srtt, ack.min_rtt) else { return };
        let share = base.as_secs_f64() * self.ratio / srtt.as_secs_f64().max(1e-9);
        if ack.now < self.next_at || (self.cap.is_none() && share >= 1.0) {
            return;
        }
        let window = (self.window() as f64 * share.min(MAX_CAP_GROWTH)) as u64;
        self.cap = Some(window.max(MIN_SEGMENTS * self.mss));
        self.cap = self.cap.filter(|cap| *cap < self.inner.window());
        self.next_at = ack.now + srtt;
    }
}

impl CongestionController for Capped {
    fn on_sent(&mut self, bytes: u64, now: Instant) {
        self.inner.on_sent(bytes, now);
    }

    fn on_ack(&mut self, ack: &AckSample, me: SubflowId, group: &[SubflowView]) {
        self.update_cap(ack);
        if self.cap.is_some_and(|cap| cap < self.inner.window()) {
            // As for an application that sends little, neither the curve nor slow start advances.
            let idle = AckSample { cwnd_limited: false, prior_in_flight: 0, ..*ack };
            self.inner.on_ack(&idle, me, group);
        } else {
            self.inner.on_ack(ack, me, group);
        }
    }

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        now: Instant,
        me: SubflowId,
        group: &[SubflowView],
    ) {
        self.inner.on_signal(signal, now, me, group);
    }

    fn window(&self) -> u64 {
        let inner = self.inner.window();
        self.cap.map_or(inner, |cap| cap.min(inner))
    }

    fn ssthresh(&self) -> u64 {
        self.inner.ssthresh()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.inner.pacing_rate()
    }

    fn on_mss_change(&mut self, mss: u32) {
        self.mss = u64::from(mss.max(1));
        self.inner.on_mss_change(mss);
    }

    fn wants_group(&self) -> bool {
        self.inner.wants_group()
    }

    fn holds_window_in_recovery(&self) -> bool {
        self.inner.holds_window_in_recovery()
    }

    fn recovery_floor(&self) -> u64 {
        self.inner.recovery_floor()
    }
}

#[cfg(test)]
mod tests {
    use marline_algos::congestion::Reno;
    use marline_algos::slow_start::SlowStartKind;
    use marline_testkit::views::{MSS, ack, ms};
    use marline_time::Duration;

    use super::*;

    const SEGMENT: u64 = MSS as u64;
    const ME: SubflowId = SubflowId(0);

    /// Creates a controller with 100 segments in congestion avoidance.
    fn capped() -> Capped {
        let mut inner = Reno::new(MSS, 200 * SEGMENT, SlowStartKind::Classic);
        let loss = CongestionSignal::Loss { bytes_in_flight: 0 };
        inner.on_signal(loss, Instant::ZERO, ME, &[]);
        inner.on_signal(CongestionSignal::RecoveryDone, Instant::ZERO, ME, &[]);
        Capped::new(Box::new(inner), 2.0, MSS)
    }

    fn deliver(cc: &mut Capped, at_ms: u64, srtt: Duration, bytes: u64) {
        let mut sample = ack(Instant::from_millis(at_ms), bytes, cc.window(), srtt);
        sample.min_rtt = Some(ms(100));
        cc.on_ack(&sample, ME, &[]);
    }

    #[test]
    fn below_the_bound_nothing_changes() {
        let mut cc = capped();
        deliver(&mut cc, 1_000, ms(200), SEGMENT);
        assert_eq!(cc.window(), 100 * SEGMENT);
        deliver(&mut cc, 1_100, ms(200), 100 * SEGMENT);
        assert_eq!(cc.window(), 101 * SEGMENT, "the window grows as before");
    }

    #[test]
    fn a_queue_is_capped_once_per_round_trip() {
        let mut cc = capped();
        deliver(&mut cc, 1_000, ms(400), SEGMENT);
        assert_eq!(
            cc.window(),
            50 * SEGMENT,
            "the cap is twice the base RTT instead of four times"
        );
        deliver(&mut cc, 1_399, ms(400), 200 * SEGMENT);
        assert_eq!(cc.window(), 50 * SEGMENT, "too early for the RTT to react");
        deliver(&mut cc, 1_400, ms(400), SEGMENT);
        assert_eq!(cc.window(), 25 * SEGMENT, "the RTT has fallen, but a queue remains");
        for at in 0..20 {
            deliver(&mut cc, 2_000 + at * 1_000, ms(1_000), SEGMENT);
        }
        assert_eq!(cc.window(), MIN_SEGMENTS * SEGMENT, "the window never falls below the minimum");
    }

    #[test]
    fn when_the_queue_is_gone_the_cap_rises_until_it_holds_nothing_back() {
        let mut cc = capped();
        deliver(&mut cc, 1_000, ms(400), SEGMENT);
        let windows: Vec<u64> = (0..5)
            .map(|round| {
                deliver(&mut cc, 2_000 + round * 100, ms(100), SEGMENT);
                cc.window()
            })
            .collect();
        assert_eq!(windows, [62_500, 78_125, 97_656, 100_000, 100_000]);
        assert_eq!(cc.cap, None, "the inner window did not grow beyond the cap");
    }

    #[test]
    fn losses_reach_the_wrapped_controller() {
        let mut cc = capped();
        deliver(&mut cc, 1_000, ms(400), SEGMENT);
        let loss = CongestionSignal::Loss { bytes_in_flight: 0 };
        cc.on_signal(loss, Instant::from_secs(2), ME, &[]);
        assert_eq!((cc.ssthresh(), cc.window()), (50 * SEGMENT, 50 * SEGMENT));
    }
}
