//! Wrapper `+keep-window` around any congestion control: a congestion window that is not reduced by idle times.
//!
//! *Problem.* RFC 5681 section 4.1 makes a sender start over after a pause longer than its timeout, because its
//! knowledge of the path may be outdated. With bursty traffic, every burst then begins with the initial window. With
//! several paths, most of a burst that would fit the fast path's earlier window moves to the slow one.
//!
//! *How.* The inner controller is not notified of pauses. Linux does the same with
//! `net.ipv4.tcp_slow_start_after_idle=0`, which web servers commonly set. The core's pacer still spreads the burst
//! over a round trip.
//!
//! *p99 of a small message:* unchanged on an idle path; worse behind a burst if other flows have filled the queue in
//! the meantime.

use marline_policy::{AckSample, CongestionController, CongestionSignal, SubflowId, SubflowView};
use marline_time::{Instant, Rate};

/// Congestion control that hides pauses from the inner controller.
#[derive(Debug)]
pub struct KeepWindow {
    inner: Box<dyn CongestionController>,
}

impl KeepWindow {
    /// Wraps a controller.
    #[must_use]
    pub fn new(inner: Box<dyn CongestionController>) -> Self {
        KeepWindow { inner }
    }
}

impl CongestionController for KeepWindow {
    fn on_sent(&mut self, bytes: u64, now: Instant) {
        self.inner.on_sent(bytes, now);
    }

    fn on_ack(&mut self, ack: &AckSample, me: SubflowId, group: &[SubflowView]) {
        self.inner.on_ack(ack, me, group);
    }

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        now: Instant,
        me: SubflowId,
        group: &[SubflowView],
    ) {
        if signal != CongestionSignal::Idle {
            self.inner.on_signal(signal, now, me, group);
        }
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn ssthresh(&self) -> u64 {
        self.inner.ssthresh()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.inner.pacing_rate()
    }

    fn on_mss_change(&mut self, mss: u32) {
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
    use marline_testkit::views::{BulkSender, MSS};

    use super::*;

    #[test]
    fn a_pause_costs_nothing_but_a_loss_does() {
        let start = 10 * u64::from(MSS);
        let mut plain = Reno::new(MSS, start, SlowStartKind::Classic);
        let mut kept = KeepWindow::new(Box::new(Reno::new(MSS, start, SlowStartKind::Classic)));
        let mut bulk = BulkSender::new(20);
        (0..3).for_each(|_| bulk.round(&mut kept));
        let mut bulk = BulkSender::new(20);
        (0..3).for_each(|_| bulk.round(&mut plain));
        let grown = kept.window();
        assert_eq!((grown, plain.window()), (8 * start, 8 * start));
        let signal = |cc: &mut dyn CongestionController, signal| {
            cc.on_signal(signal, Instant::from_secs(9), SubflowId(0), &[]);
        };
        signal(&mut kept, CongestionSignal::Idle);
        signal(&mut plain, CongestionSignal::Idle);
        assert_eq!((kept.window(), plain.window()), (grown, start));
        signal(&mut kept, CongestionSignal::Loss { bytes_in_flight: grown });
        assert!(kept.window() < grown);
    }
}
