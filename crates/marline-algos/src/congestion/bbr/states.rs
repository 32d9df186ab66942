//! BBR's state machine: the gains of each state and the condition for leaving it.
//!
//! ```text
//! Startup --(no growth for 3 rounds)--> Drain --(queue gone)--> ProbeBw --+
//!                                                                  ^      | 10 s without a smaller RTT
//!                                                                  |      v
//!                                                                  +-- ProbeRtt (4 segments, 200 ms)
//! ```

use marline_policy::AckSample;
use marline_time::{Duration, Instant, Rate};

/// 2 / ln 2: the smallest gain at which the amount of sent data doubles every round trip.
pub(super) const STARTUP_GAIN: f64 = 2.885_390_081_777_926_8;
/// Inverse of the Startup gain, which drains within one round trip what Startup queued in one.
const DRAIN_GAIN: f64 = 1.0 / STARTUP_GAIN;
/// Gains of the phases: one round trip faster, one slower to drain the resulting queue, and six at the measured rate.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Number of rounds without growth by [`GROWTH`] after which the pipe counts as full.
const FULL_ROUNDS: u32 = 3;
const GROWTH: f64 = 1.25;
/// A round whose smallest RTT is at least this multiple of the path's RTT had a standing queue.
const STANDING_QUEUE_RTT: f64 = 1.1;
/// Bytes in flight, in multiples of rate x RTT, at which a higher rate would have been measured.
const FULL_FLIGHT: f64 = 1.5;
/// Share of lost bytes that indicates a full queue (as in later BBR versions).
const FULL_QUEUE_LOSS: f64 = 0.02;
/// Minimum number of bytes per round that count as evidence. Smaller rounds mostly show jitter and chance.
const MIN_EVIDENCE_BYTES: u64 = 15_000;

/// State of the BBR state machine.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Doubles the sending rate every round trip until the delivery rate stops growing.
    Startup,
    /// Drains the queue that Startup created.
    Drain,
    /// Sends at the measured rate and probes for more once in eight round trips.
    ProbeBw(Cycle),
    /// Empties the queue to measure the path's own RTT.
    ProbeRtt(ProbeRtt),
}

impl State {
    /// Pacing rate relative to the measured rate.
    pub(super) fn pacing_gain(self) -> f64 {
        match self {
            State::Startup => STARTUP_GAIN,
            State::Drain => DRAIN_GAIN,
            State::ProbeBw(cycle) => cycle.gain(),
            State::ProbeRtt(_) => 1.0,
        }
    }

    /// Window relative to rate x RTT; `steady` is the gain in [`State::ProbeBw`].
    pub(super) const fn window_gain(self, steady: f64) -> f64 {
        match self {
            State::Startup | State::Drain => STARTUP_GAIN,
            State::ProbeBw(_) => steady,
            State::ProbeRtt(_) => 1.0,
        }
    }
}

/// Detects that Startup has found the path's rate.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct FullPipe {
    best: f64,
    rounds: u32,
}

impl FullPipe {
    /// Processes the end of a round, with `rate` as the largest rate so far.
    pub(super) fn on_round(&mut self, rate: Rate) {
        let rate = rate.bits_per_s() as f64;
        if self.is_full() {
            return;
        }
        if rate >= self.best * GROWTH {
            self.best = rate;
            self.rounds = 0;
        } else {
            self.rounds += 1;
        }
    }

    /// Restarts the evaluation with the next round. A pipe already found full stays full.
    pub(super) const fn restart_evaluation(&mut self) {
        if !self.is_full() {
            self.best = 0.0;
            self.rounds = 0;
        }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.rounds >= FULL_ROUNDS
    }
}

/// Evidence from one round, other than its rate, that the path was full. A sender that sometimes had too little to send
/// may still have filled the pipe. Then the largest rate it measured is the rate of the path.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct RoundEvidence {
    min_rtt_filter: Option<Duration>,
    max_in_flight: u64,
    lost: u64,
    delivered_before: u64,
}

impl RoundEvidence {
    pub(super) fn on_ack(&mut self, ack: &AckSample) {
        self.min_rtt_filter = match (self.min_rtt_filter, ack.rtt) {
            (Some(least), Some(rtt)) => Some(least.min(rtt)),
            (least, rtt) => least.or(rtt),
        };
        self.max_in_flight = self.max_in_flight.max(ack.prior_in_flight);
        self.lost += ack.lost;
    }

    /// Ends a round and returns true if the path was full in it. A queue throughout the round, much more in flight than
    /// rate x RTT, or losses are evidence, but in a round with little data they prove nothing.
    pub(super) fn end_round(&mut self, rtt: Option<Duration>, bdp: u64, delivered: u64) -> bool {
        let before = core::mem::replace(
            self,
            RoundEvidence { delivered_before: delivered, ..RoundEvidence::default() },
        );
        let brought = delivered - before.delivered_before;
        let stood = before
            .min_rtt_filter
            .zip(rtt)
            .is_some_and(|(least, path)| least > path.mul_f64(STANDING_QUEUE_RTT));
        let crammed = before.max_in_flight as f64 > bdp as f64 * FULL_FLIGHT;
        let lossy = before.lost as f64 > brought as f64 * FULL_QUEUE_LOSS;
        brought > MIN_EVIDENCE_BYTES && (stood || crammed || lossy)
    }
}

/// Position in the eight phases of ProbeBw.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    phase: u8,
    since: Instant,
}

/// Inputs that decide whether a phase has lasted long enough.
#[derive(Copy, Clone, Debug)]
pub(super) struct PhaseTest {
    pub(super) now: Instant,
    pub(super) min_rtt: Duration,
    pub(super) in_flight_before: u64,
    pub(super) lost: bool,
    /// Bytes in flight at gain 1.
    pub(super) bdp: u64,
}

impl Cycle {
    /// Starts in any phase except the draining one. Flows that start together should not probe together. The start time
    /// is random enough for that and reproducible for a given seed.
    pub(super) const fn start(now: Instant) -> Self {
        let die = now.as_nanos().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let phase = (die % (CYCLE.len() as u64 - 1)) as u8;
        Cycle { phase: if phase == 0 { 0 } else { phase + 1 }, since: now }
    }

    pub(super) const fn gain(self) -> f64 {
        CYCLE[self.phase as usize]
    }

    pub(super) const fn is_probing(self) -> bool {
        self.phase == 0
    }

    /// Moves to the next phase if this one has ended. Each lasts one RTT. Probing continues until the higher target is
    /// in flight (or loss occurs), and draining ends as soon as nothing is queued.
    pub(super) fn advance(&mut self, test: &PhaseTest) {
        let long_enough = test.now.since(self.since) > test.min_rtt;
        let gain = self.gain();
        let over = if gain > 1.0 {
            let wanted = (test.bdp as f64 * gain) as u64;
            long_enough && (test.lost || test.in_flight_before >= wanted)
        } else if gain < 1.0 {
            long_enough || test.in_flight_before <= test.bdp
        } else {
            long_enough
        };
        if over {
            self.phase = (self.phase + 1) % CYCLE.len() as u8;
            self.since = test.now;
        }
    }
}

/// Progress of an RTT measurement.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeRtt {
    /// Earliest end; `None` until few enough bytes are in flight.
    done_at: Option<Instant>,
    /// True if a round trip has passed since few enough bytes were in flight.
    round_done: bool,
}

impl ProbeRtt {
    /// Processes an ACK. `small` means that at most the minimum is in flight, and `new_round` that a round has ended.
    /// Returns two flags: whether to start a new round for counting, and whether the measurement is complete.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        length: Duration,
        small: bool,
        new_round: bool,
    ) -> (bool, bool) {
        match self.done_at {
            None if small => {
                self.done_at = Some(now + length);
                self.round_done = false;
                (true, false)
            }
            None => (false, false),
            Some(done_at) => {
                self.round_done |= new_round;
                (false, self.round_done && now >= done_at)
            }
        }
    }
}
