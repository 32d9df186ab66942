//! Minimal policies for tests of subflows: a Reno window, and loss by three segments or by time.

use std::sync::{Arc, Mutex};

use marline_policy::{
    AckOutcome, AckSample, AckSummary, CongestionController, CongestionFactory, CongestionSignal,
    LossRecovery, RecoveryContext, RecoveryFactory, SentKind, SentNotice, Ssn, SubflowId,
    SubflowView, TimeoutAction,
};
use marline_time::{Duration, Instant};

/// Signals that a window received, for tests to read.
pub(super) type Signals = Arc<Mutex<Vec<CongestionSignal>>>;

#[derive(Debug, Default)]
pub(super) struct Reno {
    pub(super) signals: Signals,
}

#[derive(Debug)]
struct RenoWindow {
    mss: u64,
    window: u64,
    ssthresh: u64,
    before: (u64, u64),
    signals: Signals,
}

impl CongestionFactory for Reno {
    fn name(&self) -> &str {
        "test-reno"
    }

    fn build(&self, mss: u32, initial_window: u64, _now: Instant) -> Box<dyn CongestionController> {
        Box::new(RenoWindow {
            mss: u64::from(mss),
            window: initial_window,
            ssthresh: u64::MAX,
            before: (initial_window, u64::MAX),
            signals: self.signals.clone(),
        })
    }
}

impl CongestionController for RenoWindow {
    fn on_ack(&mut self, ack: &AckSample, _me: SubflowId, _group: &[SubflowView]) {
        if ack.in_recovery || !ack.cwnd_limited {
            return;
        }
        if self.window < self.ssthresh {
            self.window += ack.delivered;
        } else {
            self.window += (self.mss * ack.delivered / self.window).max(1);
        }
    }

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        _now: Instant,
        _me: SubflowId,
        _group: &[SubflowView],
    ) {
        self.signals.lock().unwrap().push(signal);
        match signal {
            CongestionSignal::Loss { .. } | CongestionSignal::Ecn { .. } => {
                self.before = (self.window, self.ssthresh);
                self.ssthresh = (self.window / 2).max(2 * self.mss);
                self.window = self.ssthresh;
            }
            CongestionSignal::Rto { first, .. } => {
                if first {
                    self.before = (self.window, self.ssthresh);
                    self.ssthresh = (self.window / 2).max(2 * self.mss);
                }
                self.window = self.mss;
            }
            CongestionSignal::Spurious => (self.window, self.ssthresh) = self.before,
            CongestionSignal::Idle => self.window = self.window.min(10 * self.mss),
            CongestionSignal::RecoveryDone | CongestionSignal::Penalty(_) => {}
        }
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn on_mss_change(&mut self, mss: u32) {
        self.window = self.window / self.mss * u64::from(mss);
        self.mss = u64::from(mss);
    }
}

/// A segment is lost when one sent a quarter RTT later was delivered, or three later segments were.
#[derive(Debug, Default)]
pub(super) struct Recovery;

#[derive(Debug, Default)]
struct ByTime {
    newest: Instant,
    newest_end: Ssn,
    reorder_at: Option<Instant>,
    probe_at: Option<Instant>,
}

impl RecoveryFactory for Recovery {
    fn name(&self) -> &str {
        "test-recovery"
    }

    fn build(&self) -> Box<dyn LossRecovery> {
        Box::new(ByTime::default())
    }
}

impl ByTime {
    fn detect(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        self.reorder_at = None;
        let slack = cx.rtt.srtt().unwrap_or(Duration::ZERO) / 4;
        let rtt = cx.rtt.latest();
        for segment in cx.board.iter().filter(|s| s.in_flight()) {
            let overtaken = (segment.sent_at, segment.end) < (self.newest, self.newest_end);
            if !overtaken {
                continue;
            }
            let at = segment.sent_at + rtt + slack;
            if at <= cx.now {
                lost.push(segment.start);
            } else {
                self.reorder_at = Some(self.reorder_at.map_or(at, |other| other.max(at)));
            }
        }
    }
}

impl LossRecovery for ByTime {
    fn on_sent(&mut self, sent: &SentNotice, cx: &RecoveryContext<'_>) {
        if matches!(sent.kind, SentKind::New | SentKind::Retransmission) {
            let pto = cx.rtt.srtt().map_or(Duration::from_secs(1), |srtt| srtt * 2);
            let ack_delay = Duration::from_millis(if cx.board.len() == 1 { 40 } else { 0 });
            let at = cx.now + pto + ack_delay + Duration::from_millis(2);
            self.probe_at = cx.rto_at.map_or(Some(at), |rto| Some(rto.min(at)));
        } else {
            self.probe_at = None;
        }
    }

    fn on_ack(
        &mut self,
        ack: &AckSummary<'_>,
        cx: &RecoveryContext<'_>,
        lost: &mut Vec<Ssn>,
    ) -> AckOutcome {
        for segment in ack.delivered {
            let spurious = segment.retransmitted
                && ack.echoed_sent_at.is_some_and(|echoed| echoed < segment.sent_at);
            if !spurious {
                let newest = (self.newest, self.newest_end).max((segment.sent_at, segment.end));
                (self.newest, self.newest_end) = newest;
            }
        }
        self.detect(cx, lost);
        if cx.board.bytes_sacked() > 0 {
            self.probe_at = None;
        }
        AckOutcome::default()
    }

    fn next_timeout(&self) -> Option<Instant> {
        match (self.reorder_at, self.probe_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn on_timeout(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) -> TimeoutAction {
        if self.reorder_at.is_some_and(|at| at <= cx.now) {
            self.detect(cx, lost);
            return TimeoutAction::None;
        }
        self.probe_at = None;
        TimeoutAction::SendProbe
    }

    fn on_rto(&mut self, cx: &RecoveryContext<'_>, lost: &mut Vec<Ssn>) {
        self.probe_at = None;
        self.reorder_at = None;
        lost.extend(cx.board.iter().filter(|s| s.in_flight()).map(|s| s.start));
    }
}
