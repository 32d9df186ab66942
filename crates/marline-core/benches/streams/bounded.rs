//! A bound on the congestion window of a subflow, so that the first one is sometimes full.

use std::sync::Arc;

use marline_policy::{
    AckSample, CongestionController, CongestionFactory, CongestionSignal, SubflowId, SubflowView,
};
use marline_time::{Instant, Rate};

/// Makes another factory's controllers, with windows of at most this many segments.
#[derive(Debug)]
pub(crate) struct BoundedFactory {
    pub(crate) inner: Arc<dyn CongestionFactory>,
    pub(crate) segments: u64,
}

impl CongestionFactory for BoundedFactory {
    fn name(&self) -> &str {
        "bounded"
    }

    fn build(&self, mss: u32, initial_window: u64, now: Instant) -> Box<dyn CongestionController> {
        let inner = self.inner.build(mss, initial_window, now);
        Box::new(Bounded { inner, most: self.segments * u64::from(mss) })
    }
}

#[derive(Debug)]
struct Bounded {
    inner: Box<dyn CongestionController>,
    most: u64,
}

impl CongestionController for Bounded {
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
        self.inner.on_signal(signal, now, me, group);
    }

    fn window(&self) -> u64 {
        self.inner.window().min(self.most)
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
}
