//! State machine that selects one of two modes by measurement.
//!
//! ```text
//! Start --(every path's rate is found)--> Hold winner --> Try the other --+
//!   |  redundant                            ^  (1 .. 1/share - 1 wind.) | 1 window
//!   +--(it takes too long)------------------+--------------------------+ the better one wins
//! ```
//!
//! A mode that has just won is on probation: it is used for one window only before the other is measured again. So a
//! comparison decided by chance (a path that measured its RTT at that time, or a loss) is soon corrected.
//!
//! The first part of a window does not count, because data that arrives then was sent in the previous mode. A window in
//! which the application had too little to send, or in which there was only one path, is not evidence about the modes.
//! It counts for neither mode, and without a comparison, the other mode is not tried.

use marline_policy::Dsn;
use marline_time::{Duration, Instant};

use super::PapdConfig;

/// Distribution of data over the paths.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// All data on all paths, or on the best path alone.
    Redundant,
    /// Different data on each path.
    Multipath,
}

impl Mode {
    const fn other(self) -> Self {
        match self {
            Mode::Redundant => Mode::Multipath,
            Mode::Multipath => Mode::Redundant,
        }
    }
}

/// Input to the state machine for each decision of the scheduler.
#[derive(Copy, Clone, Debug)]
pub(super) struct ModeInput {
    pub(super) now: Instant,
    /// Position before which all data was delivered.
    pub(super) data_una: Dsn,
    /// Longest RTT among the paths in use.
    pub(super) longest_rtt: Duration,
    /// Upper limit on the multipath mode's rate in bytes per second, if known.
    pub(super) spread_limit: f64,
    /// Rate of the best path alone in bytes per second, if known.
    pub(super) single_path_rate: f64,
    /// True if no path is still searching for its rate.
    pub(super) rates_are_known: bool,
    /// True if the current rate is not meaningful: there is too little to send, or only one path.
    pub(super) is_void: bool,
}

/// Bytes delivered in a measured time.
#[derive(Copy, Clone, Debug)]
struct Measurement {
    counted_from: Instant,
    ends_at: Instant,
    /// Time and position at which counting started.
    first: Option<(Instant, Dsn)>,
    is_void: bool,
}

impl Measurement {
    fn start(now: Instant, discard: Duration, length: Duration) -> Self {
        let counted_from = now + discard;
        Measurement { counted_from, ends_at: now + length, first: None, is_void: false }
    }

    fn read(&mut self, reading: &ModeInput) {
        if reading.now < self.counted_from {
            return;
        }
        self.is_void |= reading.is_void;
        self.first.get_or_insert((reading.now, reading.data_una));
    }

    /// Returns the rate in bytes per second; `None` if the measurement is not meaningful.
    fn rate(&self, reading: &ModeInput) -> Option<f64> {
        let (since, from) = self.first.filter(|_| !self.is_void)?;
        let seconds = reading.now.since(since).as_nanos() as f64 / 1e9;
        (seconds > 0.0).then(|| reading.data_una.since(from) as f64 / seconds)
    }
}

#[derive(Copy, Clone, Debug)]
enum Phase {
    /// Redundant until the rates of all paths are known.
    Start { ends_at: Option<Instant> },
    /// The winning mode is used.
    Hold(Measurement),
    /// The other mode is measured; the winner previously had this rate.
    Try { measurement: Measurement, winner_rate: f64 },
}

/// State machine of the modes.
#[derive(Clone, Debug)]
pub(super) struct Modes {
    config: PapdConfig,
    winner: Mode,
    phase: Phase,
    /// Last window of the multipath mode while it is the winner.
    recent: Option<Measurement>,
}

impl Modes {
    pub(super) const fn new(config: PapdConfig) -> Self {
        let phase = Phase::Start { ends_at: None };
        Modes { config, winner: Mode::Redundant, phase, recent: None }
    }

    /// Current mode.
    pub(super) const fn mode(&self) -> Mode {
        match self.phase {
            Phase::Start { .. } => Mode::Redundant,
            Phase::Hold(_) => self.winner,
            Phase::Try { .. } => self.winner.other(),
        }
    }

    /// Returns true if the modes are already being compared.
    pub(super) const fn has_started(&self) -> bool {
        !matches!(self.phase, Phase::Start { .. })
    }

    /// Restarts because a path appeared or disappeared.
    pub(super) fn restart(&mut self) {
        *self = Modes::new(self.config);
    }

    /// End of the phase; `None` if an event ends it.
    pub(super) const fn next_change(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Start { ends_at } => *ends_at,
            Phase::Hold(measurement) | Phase::Try { measurement, .. } => Some(measurement.ends_at),
        }
    }

    /// Processes the time and the delivered data. Returns true if the mode has changed.
    pub(super) fn on_reading(&mut self, reading: &ModeInput) -> bool {
        let before = self.mode();
        let holds = matches!(self.phase, Phase::Hold(_)) && self.winner == Mode::Multipath;
        let beaten = holds && self.is_slower_than_one_path(reading);
        match &mut self.phase {
            Phase::Hold(_) if beaten => {
                self.winner = Mode::Redundant;
                self.phase = Phase::Hold(self.window(reading, 1.0));
            }
            Phase::Start { ends_at } => {
                let limit = reading.longest_rtt * self.config.start_rtts;
                let ends_at = *ends_at.get_or_insert(reading.now + limit);
                if reading.rates_are_known || (reading.now >= ends_at && !reading.is_void) {
                    // One window of the redundant mode for comparison, all of which counts.
                    let length = self.config.window(reading.longest_rtt);
                    let hold = Measurement::start(reading.now, Duration::ZERO, length);
                    self.phase = Phase::Hold(hold);
                }
            }
            Phase::Hold(measurement) => {
                measurement.read(reading);
                if reading.now >= measurement.ends_at {
                    let winner_rate = measurement.rate(reading);
                    let measurement = self.window(reading, 1.0);
                    let hopeless =
                        |rate: f64| self.winner == Mode::Redundant && reading.spread_limit < rate;
                    self.phase = match winner_rate.filter(|rate| !hopeless(*rate)) {
                        Some(winner_rate) => Phase::Try { measurement, winner_rate },
                        None => Phase::Hold(measurement),
                    };
                }
            }
            Phase::Try { measurement, winner_rate } => {
                measurement.read(reading);
                if reading.now >= measurement.ends_at {
                    let enough = *winner_rate * (1.0 + self.config.hysteresis);
                    let better = measurement.rate(reading).is_some_and(|tried| tried > enough);
                    if better {
                        self.winner = self.winner.other();
                    }
                    let windows = if better { 1.0 } else { 1.0 / self.config.share - 1.0 };
                    self.phase = Phase::Hold(self.window(reading, windows));
                }
            }
        }
        if self.mode() != before {
            self.recent = None;
        }
        self.mode() != before
    }

    /// Returns true if the multipath mode delivered less, over a whole window, than one path would have.
    fn is_slower_than_one_path(&mut self, reading: &ModeInput) -> bool {
        let mut recent = self.recent.take().unwrap_or_else(|| self.window(reading, 1.0));
        recent.read(reading);
        self.recent = Some(recent);
        if reading.now < recent.ends_at {
            return false;
        }
        let brought = recent.rate(reading);
        self.recent = None;
        brought.is_some_and(|rate| rate * (1.0 + self.config.hysteresis) < reading.single_path_rate)
    }

    /// Creates a measurement of this many windows that starts now, in a mode that was not in use just before.
    fn window(&self, reading: &ModeInput, windows: f64) -> Measurement {
        let length = self.config.window(reading.longest_rtt).mul_f64(windows);
        let discard = reading.longest_rtt.mul_f64(self.config.discard_rtts).min(length / 2);
        Measurement::start(reading.now, discard, length)
    }
}

#[cfg(test)]
mod tests;
