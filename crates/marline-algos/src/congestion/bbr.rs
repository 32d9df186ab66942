//! BBR version 1: window and pacing rate follow a model of the path instead of losses.
//!
//! *Problem.* Loss-based controllers fill the bottleneck's queue before they get a signal (latency), and they treat
//! every random loss as congestion (throughput on radio). The right amount in flight depends on the path's rate and its
//! RTT without a queue.
//!
//! *How.* The rate is the largest delivery rate of the last ten rounds, and the RTT is the smallest of the last ten
//! seconds. They cannot be measured at the same time: a higher rate shows only with more in flight than fits, and the
//! true RTT only with less. So the controller cycles through one RTT at 1.25 times the rate, one at 0.75, and six at 1.
//! If the RTT has not reached its minimum for ten seconds, it keeps only four segments in flight for 200 ms
//! (`states.rs`). Sending is paced at gain x rate. The window is twice rate x RTT, so that delayed and aggregated ACKs
//! do not stall sending. Samples taken while the application had nothing to send count only if they raise the estimate
//! (`filter.rs`).
//!
//! *Losses* do not change the model. In the first round of a recovery, the sender sends as much as is delivered. After
//! that, the window grows back to what the model allows. After a timeout, the window starts from one segment and grows
//! in the same way. After recovery, the window is restored.
//!
//! *Source.* Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016, and
//! draft-cardwell-iccrg-bbr-congestion-control-00 (2017). The multipath kernels since v0.93 ran this on each subflow,
//! without any coupling.
//!
//! *Choices and differences.*
//! - It has no long-term estimate for token-bucket policers and no allowance for aggregated ACKs (added to Linux in
//!   2016 and 2018), because neither is in the paper.
//! - `ssthresh` is unknown until Startup ends and then one rate x RTT, as in Linux. So a scheduler can see, for any
//!   controller, whether a subflow is still searching for its path's rate.
//! - A round in which the sender had too little to send still counts toward the end of Startup if the path was full in
//!   it (`RoundEvidence`). A connection limited by its buffer has no other rounds. It would stay in Startup
//!   indefinitely and send each bufferful as one burst at 2.9 times the rate.
//! - Linux chooses the first phase of the cycle at random. Here the start time determines it.
//! - A scheduler's penalty halves the window once. As in Linux, the model grows it back within a round or two. ECN
//!   marks are ignored, as in version 1.
//! - The pacing rate is 1 % below the measured rate, as in Linux, so that a queue drains eventually.

mod states;

use marline_policy::{
    AckSample, CongestionController, CongestionSignal, RateSample, SubflowId, SubflowView,
};
use marline_time::{Duration, Instant, Rate};

use self::states::{Cycle, FullPipe, PhaseTest, ProbeRtt, RoundEvidence, STARTUP_GAIN, State};
use super::filter::{MaxRateFilter, MinRttFilter, Rounds};

/// Minimum number of segments in flight: enough to keep ACKs coming with delayed ACKs at both ends.
const MIN_SEGMENTS: u64 = 4;
/// Share of the measured rate used for pacing.
const PACING_MARGIN: f64 = 0.99;

/// Number of rounds covered by the maximum of the delivery rate.
const RATE_ROUNDS: u64 = 10;
/// Length of the window for the minimum RTT.
const RTT_WINDOW: Duration = Duration::from_secs(10);
/// Duration of the reduced flight in which the RTT is measured.
const PROBE_RTT: Duration = Duration::from_millis(200);
/// Window in multiples of rate x RTT while probing for bandwidth.
const WINDOW_GAIN: f64 = 2.0;

/// Effect of a loss on the window.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Repair {
    /// The window is not changed.
    No,
    /// In the first round, the sender sends as much as is delivered.
    Conserve,
    /// In later rounds, the window grows back to the model.
    Grow,
}

/// BBR congestion control of one subflow.
#[derive(Debug)]
pub struct Bbr {
    mss: u64,
    initial_window: u64,
    state: State,
    rounds: Rounds,
    rate: MaxRateFilter,
    rtt: MinRttFilter,
    pipe: FullPipe,
    evidence: RoundEvidence,
    window: u64,
    /// Window to restore after recovery or ProbeRtt.
    saved_window: u64,
    repair: Repair,
    pace: Option<Rate>,
    ssthresh: u64,
    /// Samples of segments sent before this many bytes were delivered reflect ProbeRtt, not the path.
    held_back_until: u64,
    /// True if the latest sample was app-limited.
    app_limited: bool,
    in_flight: u64,
    delivered: u64,
    /// True if sending resumed with nothing in flight, which makes ProbeRtt unnecessary for now.
    after_idle: bool,
}

impl Bbr {
    /// Creates a controller that starts with `initial_window` bytes.
    #[must_use]
    pub fn new(mss: u32, initial_window: u64, now: Instant) -> Self {
        Bbr {
            mss: u64::from(mss.max(1)),
            initial_window,
            state: State::Startup,
            rounds: Rounds::default(),
            rate: MaxRateFilter::new(RATE_ROUNDS),
            rtt: MinRttFilter::new(RTT_WINDOW, now),
            pipe: FullPipe::default(),
            evidence: RoundEvidence::default(),
            window: initial_window.max(u64::from(mss.max(1))),
            saved_window: 0,
            repair: Repair::No,
            pace: None,
            ssthresh: u64::MAX,
            held_back_until: 0,
            app_limited: false,
            in_flight: 0,
            delivered: 0,
            after_idle: false,
        }
    }

    const fn min_window(&self) -> u64 {
        MIN_SEGMENTS * self.mss
    }

    /// Returns the number of bytes in flight according to the model at this gain.
    fn model(&self, gain: f64) -> u64 {
        let Some(rtt) = self.rtt.get() else { return self.initial_window };
        if self.rate.get() == Rate::ZERO {
            return self.initial_window;
        }
        (self.rate.get().bytes_in(rtt) as f64 * gain) as u64
    }

    /// Returns the model plus room for bursts: one in the pacer, one on the link, and one behind a delayed ACK.
    fn target(&self, gain: f64) -> u64 {
        let burst = self.pace.map_or(0, |pace| pace.bytes_in(Duration::from_millis(1)));
        let probing = matches!(self.state, State::ProbeBw(cycle) if cycle.is_probing());
        let more = if probing { 2 * self.mss } else { 0 };
        self.model(gain) + 3 * burst.max(2 * self.mss) + more
    }

    /// Updates the rate and the rounds. Returns true if a round has ended.
    fn measure(&mut self, ack: &AckSample, sample: &RateSample) -> bool {
        let ended = self.rounds.on_sample(sample, ack.total_delivered);
        self.app_limited = sample.app_limited || sample.prior_delivered < self.held_back_until;
        if !self.app_limited || sample.rate >= self.rate.get() {
            self.rate.on_sample(self.rounds.count(), sample.rate);
        }
        if ended {
            if self.repair == Repair::Conserve {
                self.repair = Repair::Grow;
            }
            let bdp = self.model(1.0);
            let was_full = self.evidence.end_round(self.rtt.get(), bdp, ack.total_delivered);
            if !self.app_limited || was_full {
                self.pipe.on_round(self.rate.get());
            }
        }
        ended
    }

    fn advance(&mut self, ack: &AckSample) {
        let bdp = self.model(1.0);
        match &mut self.state {
            State::Startup if self.pipe.is_full() => {
                self.state = State::Drain;
                self.ssthresh = bdp.max(self.min_window());
            }
            State::ProbeBw(cycle) => cycle.advance(&PhaseTest {
                now: ack.now,
                min_rtt: self.rtt.get().unwrap_or_default(),
                in_flight_before: ack.prior_in_flight,
                lost: ack.lost > 0,
                bdp,
            }),
            _ => {}
        }
        if self.state == State::Drain && ack.bytes_in_flight <= self.target(1.0) {
            self.state = State::ProbeBw(Cycle::start(ack.now));
        }
    }

    fn watch_rtt(&mut self, ack: &AckSample, new_round: bool) {
        let expired = self.rtt.on_sample(ack.now, ack.rtt);
        let probing = matches!(self.state, State::ProbeRtt(_));
        if expired && !self.after_idle && !probing {
            self.save_window();
            self.state = State::ProbeRtt(ProbeRtt::default());
        }
        let least = self.min_window();
        if let State::ProbeRtt(probe) = &mut self.state {
            self.held_back_until = ack.total_delivered + ack.bytes_in_flight;
            let small = ack.bytes_in_flight <= least;
            let (count, over) = probe.on_ack(ack.now, PROBE_RTT, small, new_round);
            if count {
                self.rounds.restart(ack.total_delivered);
            }
            if over {
                self.leave_probe_rtt(ack.now);
            }
        }
        self.after_idle &= ack.delivered == 0;
    }

    fn leave_probe_rtt(&mut self, now: Instant) {
        self.rtt.confirm(now);
        self.window = self.window.max(self.saved_window);
        self.state =
            if self.pipe.is_full() { State::ProbeBw(Cycle::start(now)) } else { State::Startup };
    }

    /// Saves the current window, unless recovery or ProbeRtt has reduced it. In that case it keeps the larger of the
    /// two.
    fn save_window(&mut self) {
        let probing = matches!(self.state, State::ProbeRtt(_));
        self.saved_window = if self.repair == Repair::No && !probing {
            self.window
        } else {
            self.saved_window.max(self.window)
        };
    }

    fn set_pace(&mut self, srtt: Option<Duration>) {
        let bits = self.rate.get().bits_per_s() as f64 * self.state.pacing_gain() * PACING_MARGIN;
        let modeled = Rate::from_bits_per_s(bits as u64);
        if self.pipe.is_full() {
            self.pace = Some(modeled);
            return;
        }
        // Until the rate is known, samples are too small rather than too large (for a one-byte greeting, one byte per
        // RTT). So the pacing rate starts with that of the initial window and only rises.
        let Some(srtt) = srtt.filter(|srtt| !srtt.is_zero()) else { return };
        let first = Rate::over((self.initial_window as f64 * STARTUP_GAIN) as u64, srtt);
        self.pace = Some(self.pace.unwrap_or(first).max(modeled));
    }

    fn set_window(&mut self, ack: &AckSample) {
        let conserved = ack.bytes_in_flight + ack.delivered;
        self.window = self.window.saturating_sub(ack.lost).max(self.mss);
        if self.repair == Repair::Conserve {
            self.window = self.window.max(conserved);
        } else {
            let target = self.target(self.state.window_gain(WINDOW_GAIN));
            let grown = self.window + ack.delivered;
            if self.pipe.is_full() {
                self.window = grown.min(target);
            } else if self.window < target || ack.total_delivered < self.initial_window {
                self.window = grown;
            }
            self.window = self.window.max(self.min_window());
        }
        if matches!(self.state, State::ProbeRtt(_)) {
            self.window = self.window.min(self.min_window());
        }
    }
}

impl CongestionController for Bbr {
    fn on_sent(&mut self, bytes: u64, _now: Instant) {
        self.after_idle |= self.in_flight == 0 && self.app_limited;
        self.in_flight += bytes;
    }

    fn on_ack(&mut self, ack: &AckSample, _me: SubflowId, _group: &[SubflowView]) {
        self.in_flight = ack.bytes_in_flight;
        self.delivered = ack.total_delivered;
        self.evidence.on_ack(ack);
        let new_round = ack.rate.is_some_and(|sample| self.measure(ack, &sample));
        self.advance(ack);
        self.watch_rtt(ack, new_round);
        self.set_pace(ack.srtt);
        self.set_window(ack);
    }

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        _now: Instant,
        _me: SubflowId,
        _group: &[SubflowView],
    ) {
        match signal {
            CongestionSignal::Loss { .. } => {
                self.save_window();
                self.repair = Repair::Conserve;
                self.rounds.restart(self.delivered);
                self.window = self.mss;
            }
            CongestionSignal::Rto { first, .. } => {
                if first {
                    self.save_window();
                    self.pipe.restart_evaluation();
                }
                self.repair = Repair::Grow;
                self.window = self.mss;
            }
            CongestionSignal::Spurious | CongestionSignal::RecoveryDone => {
                if self.repair != Repair::No {
                    self.repair = Repair::No;
                    self.window = self.window.max(self.saved_window);
                }
            }
            CongestionSignal::Penalty(_) => {
                self.window = (self.window / 2).max(self.mss);
            }
            CongestionSignal::Ecn { .. } | CongestionSignal::Idle => {}
        }
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.pace
    }

    fn on_mss_change(&mut self, mss: u32) {
        self.mss = u64::from(mss.max(1));
    }

    fn holds_window_in_recovery(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
