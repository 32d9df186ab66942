//! Forecast of a path's near future: the distribution of the time until a segment sent now is answered.
//!
//! *Problem.* Every rule that compares two paths needs the arrival time of a segment. The smoothed RTT estimates the
//! middle of the distribution, and may be out of date. SRTT + 4 RTTVAR estimates "late", but no answer exceeds it on a
//! steady path, and one in ten does on a train. Neither includes the bytes that the sender itself has queued since the
//! last sample.
//!
//! *How.* In the core, [`Forecaster`] processes each answer (an RTT sample with the bytes that were ahead of
//! the segment) and each loss once:
//! - It subtracts the time that the sender's own bytes ahead of the segment took. The rest describes the path
//!   alone: its smoothed *center*, and its *spread*, the smoothed distance from the center. The rate for this
//!   subtraction is the rate at which the path delivers trains of segments (packet dispersion). The delivery
//!   rate over a round trip of a bursty sender shows only how little it had to send.
//! - The quantiles are multiples of the spread and learn from their own errors. An answer later than the p99 forecast
//!   *when the segment was sent* raises the p99 multiple by 99 parts; an earlier one lowers it by one part. So one in
//!   a hundred is later for any distribution (the update of online quantile regression and of adaptive conformal
//!   inference). The forecast at the time of the answer would be the wrong reference, because it includes answers
//!   that the sender had not yet seen.
//! - Unusual values decay. The forecast also keeps the mean of the center over ten seconds of answers, and
//!   returns to this mean during a pause. A path that was poor when last used is not considered poor forever.
//! - Uncertainty grows without samples. The *drift* is the observed movement of the center over pauses, and its
//!   contribution grows with the square root of the age of the last sample. The learned quantiles fade over
//!   pauses, and an answer after a pause that is earlier than expected discards the slow period before it.
//! - Losses, unanswered probes and answers late by half a round trip are *trouble*, which is modeled by frequency
//!   instead of quantiles. Episodes per second are counted with a memory of ten seconds, and [`Forecast::risk`] is
//!   the probability that one begins while a message is in flight.
//!
//! [`Forecast`] is the policies' view: quantiles of the answer time of a segment that leaves now, either with
//! nothing ahead of it or behind a number of bytes that the policy names.
//!
//! *Sources.* Adaptive conformal inference: Gibbs and Candès, NeurIPS 2021. Delay-based congestion control
//! separates the sender's own queueing from the path's delay in the same way. Trains: packet dispersion
//! (Keshav's packet pairs, SIGCOMM 1991).
//!
//! *Limits.* Queues of other senders count as part of the path. Paths with few samples use the initial
//! quantiles ([`INITIAL_MULTIPLES`]). The quantiles describe only answers that arrive; the risk covers those that do
//! not.

use marline_time::{Duration, Instant, Rate};

/// Probabilities of the forecast quantiles.
const QUANTILE_SHARES: [f32; 3] = [0.5, 0.9, 0.99];
/// Initial multiples of the spread, one per quantile.
const INITIAL_MULTIPLES: [f32; 3] = [0.0, 2.0, 5.0];
/// Learning steps, in spreads.
const LEARNING_STEPS: [f32; 3] = [0.025, 0.06, 0.3];
/// Largest multiple. The retransmission timer covers anything later.
const MAX_MULTIPLE: f32 = 60.0;
/// Relative uncertainty of the delay from the sender's own bytes, per spread.
const OWN_SPREAD_SHARE: f32 = 0.25;
const MAX_OWN_DELAY_UNCERTAINTY: f32 = 4.0;
/// Weight of the newest answer in the center and in the spread.
const CENTER_GAIN: f32 = 0.25;
const SPREAD_GAIN: f32 = 0.125;
/// Maximum duration and minimum size of an answered train, and the weight of the newest train in the rate.
const MAX_TRAIN_NS: u64 = 50_000_000;
const TRAIN_BYTES: u32 = 11_000;
const TRAIN_GAIN: f32 = 0.25;
/// A late answer moves the center and the spread by at most this many spreads. An early answer counts in full,
/// because it proves that the path can be that fast.
const MAX_ERROR_SPREADS: f32 = 4.0;
/// Bounds of the spread: maximum share of the center, and minimum in µs (clock granularity and batching).
const MAX_SPREAD_SHARE: f32 = 0.25;
const MIN_SPREAD_SHARE: f32 = 0.01;
const MIN_SPREAD_US: f32 = 200.0;
/// Minimum length of a pause that updates the drift, and the weight of the newest one.
const PAUSE: Duration = Duration::from_millis(200);
const DRIFT_GAIN: f32 = 0.25;
/// A pause of this many seconds halves what the quantiles have learned.
const QUANTILE_MEMORY_S: f32 = 10.0;
/// Seconds of answers over which the usual center is averaged, and the longest pause, in seconds, that counts.
const USUAL_MEMORY_S: f32 = 10.0;
const USUAL_STEP_S: f32 = 0.5;
/// Time constant in seconds with which unusual values decay during a pause.
const UNUSUAL_DECAY_S: f32 = 1.0;
/// Seconds over which the rate of trouble is smoothed.
const TROUBLE_MEMORY_S: f32 = 10.0;

/// Rate, in episodes per second, to which a single episode of trouble decays within a minute.
const RECENT_TROUBLES: f32 = 0.1 / 25.0;

/// Learns the answer times of a subflow.
#[derive(Copy, Clone, Debug)]
pub struct Forecaster {
    center_us: f32,
    /// Mean of the center over time, and the number of seconds it covers.
    usual_us: f32,
    usual_seconds: f32,
    spread_us: f32,
    /// Multiples of the spread, by quantile.
    multiples: [f32; 3],
    /// Squared movement of the center per second, µs².
    drift: f32,
    /// Episodes of trouble per second at the last change. Trouble is an answer far beyond p90, or a loss.
    /// Trouble within one round trip counts once.
    troubles: f32,
    /// Time of the last trouble in ms; 0 if there was none.
    last_trouble_ms: u32,
    /// Time of the last answer; `None` before the first.
    sampled_at: Option<core::num::NonZeroU64>,
    train: Train,
    /// Time until which the sender's own bytes keep the path busy, ns.
    busy_until: u64,
}

/// Segments that are answered in sequence, and the rate at which the path delivers such trains.
///
/// The delivery rate of congestion control covers a round trip. A bursty sender is silent for the rest of the
/// round trip, so that rate shows the amount it sent and not the speed of the path.
#[derive(Copy, Clone, Debug, Default)]
struct Train {
    /// Times at which the train's first segment was answered and sent, in ns.
    answered_at: u64,
    sent_at: u64,
    /// Number of bytes answered since then.
    bytes: u32,
    /// Smoothed rate of trains in bytes per second; 0 before the first.
    bytes_per_s: f32,
}

impl Train {
    /// Records that `bytes` were answered, the newest of them sent at `sent_at`.
    fn on_answered(&mut self, now: Instant, sent_at: Instant, bytes: u64) {
        let (now, sent_at) = (now.as_nanos(), sent_at.as_nanos());
        let answered_ns = now.saturating_sub(self.answered_at);
        let sent_ns = sent_at.saturating_sub(self.sent_at);
        if answered_ns.max(sent_ns) > MAX_TRAIN_NS || sent_at < self.sent_at {
            (self.answered_at, self.sent_at, self.bytes) = (now, sent_at, 0);
            return;
        }
        self.bytes = self.bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if self.bytes < TRAIN_BYTES {
            return;
        }
        let rate = self.bytes as f32 * 1e9 / answered_ns.max(sent_ns).max(1) as f32;
        // Answers that arrive at the sending rate show only a lower bound of the path's rate.
        let held_up = answered_ns > sent_ns + sent_ns / 4;
        if held_up && self.bytes_per_s > 0.0 {
            self.bytes_per_s += (rate - self.bytes_per_s) * TRAIN_GAIN;
        } else if rate > self.bytes_per_s {
            self.bytes_per_s = rate;
        }
        (self.answered_at, self.sent_at, self.bytes) = (now, sent_at, 0);
    }
}

impl Default for Forecaster {
    fn default() -> Self {
        Forecaster {
            center_us: 0.0,
            usual_us: 0.0,
            usual_seconds: 0.0,
            spread_us: 0.0,
            multiples: INITIAL_MULTIPLES,
            drift: 0.0,
            troubles: 0.0,
            last_trouble_ms: 0,
            sampled_at: None,
            train: Train::default(),
            busy_until: 0,
        }
    }
}

impl Forecaster {
    /// Records that `bytes` were answered, the newest of them sent at `sent_at`.
    pub fn on_delivered(&mut self, now: Instant, sent_at: Instant, bytes: u64) {
        self.train.on_answered(now, sent_at, bytes);
    }

    /// Records that `bytes` were sent. Returns the forecast of their answer.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) -> Expected {
        let queued = self.queued(now);
        if self.train.bytes_per_s > 0.0 {
            let takes_ns = (bytes as f32 * 1e9 / self.train.bytes_per_s) as u64;
            self.busy_until = self.busy_until.max(now.as_nanos()).saturating_add(takes_ns);
        }
        let queued_us = u32::try_from(queued.as_micros()).unwrap_or(u32::MAX);
        let answers_us = self.answers_us(now).unwrap_or_default();
        Expected { queued_us, answers_us }
    }

    /// Quantiles of the answer time of a segment that leaves now with nothing ahead of it.
    fn answers_us(&self, now: Instant) -> Option<[u32; 3]> {
        let age = now.since(Instant::from_nanos(self.sampled_at?.get()));
        let (center, spread) = (self.center(age), self.spread_at(age));
        Some(self.multiples.map(|multiple| (center + multiple * spread).max(1.0) as u32))
    }

    /// Delay caused by the sender's own bytes: those that were ahead when `expected` was computed, and the first
    /// `bytes` sent at that time.
    #[must_use]
    pub fn own_delay(&self, expected: &Expected, bytes: u64) -> Duration {
        // Called on each ACK, so it avoids the 128-bit arithmetic of `Rate`.
        let passing_us = match self.train.bytes_per_s {
            rate if rate > 0.0 => (bytes as f32 * 1e6 / rate) as u32,
            _ => 0,
        };
        Duration::from_micros(u64::from(expected.queued_us) + u64::from(passing_us))
    }

    /// Time for which the sender's own bytes keep the path busy.
    fn queued(&self, now: Instant) -> Duration {
        Duration::from_nanos(self.busy_until.saturating_sub(now.as_nanos()))
    }

    /// The rate at which the path delivers trains of segments, if one was seen.
    fn rate(&self) -> Option<Rate> {
        let rate = self.train.bytes_per_s;
        (rate > 0.0).then(|| Rate::from_bytes_per_s(rate as u64))
    }

    /// Handles an answer after `rtt`, of which `own_delay` was due to the sender's own bytes. `expected` is the
    /// forecast made when the segment was sent.
    pub fn on_answer(
        &mut self,
        now: Instant,
        rtt: Duration,
        own_delay: Duration,
        expected: &Expected,
    ) {
        let answer_us = micros(rtt.saturating_sub(own_delay)).max(1.0);
        let Some(sampled_at) = self.sampled_at.replace(nonzero_time(now)) else {
            (self.center_us, self.usual_us) = (answer_us, answer_us);
            self.spread_us = answer_us / 8.0;
            return;
        };
        let age = now.since(Instant::from_nanos(sampled_at.get()));
        let spread = self.spread_at(age);
        self.center_us = self.center(age);
        let error = answer_us - self.center_us;
        // The quantiles are calibrated for the time of sending, a round trip before the path's current behavior
        // is known.
        if self.update_distribution(answer_us, spread, own_delay, expected)
            && error > self.center_us / 2.0
        {
            self.on_trouble(now);
        }
        // One answer after an outage does not prove that the path is slow; several do.
        let error = error.min(MAX_ERROR_SPREADS * spread);
        self.fade(age);
        let mut gain = CENTER_GAIN;
        if age >= PAUSE {
            let age_s = age.as_secs_f32();
            let moved = (error * error - self.spread_us * self.spread_us).max(0.0) / age_s;
            self.drift += (moved - self.drift) * DRIFT_GAIN;
            gain = 1.0 - (1.0 - CENTER_GAIN) / (1.0 + 4.0 * age_s);
            if error < -spread {
                // The path was slow and has recovered, so the center of the slow period is discarded.
                gain = 1.0;
            }
        }
        self.center_us += error * gain;
        self.update_usual_center(age);
        self.spread_us += (error.abs() - self.spread_us) * SPREAD_GAIN;
        // Larger values are left to the multiples. A spread that still includes an outage would hide that the
        // path has recovered.
        self.spread_us = self.spread_us.min(self.center_us * MAX_SPREAD_SHARE);
        self.drift = self.drift.min(self.center_us * self.center_us * MAX_SPREAD_SHARE);
    }

    /// Fades the learned quantiles, more after a longer pause.
    fn fade(&mut self, age: Duration) {
        if age < PAUSE {
            return;
        }
        let kept = 1.0 / (1.0 + age.as_secs_f32() / QUANTILE_MEMORY_S);
        for (multiple, start) in self.multiples.iter_mut().zip(INITIAL_MULTIPLES) {
            *multiple = start + (*multiple - start) * kept;
        }
    }

    /// Handles a lost segment or an unanswered probe.
    pub fn on_lost(&mut self, now: Instant) {
        if self.sampled_at.is_some() {
            self.on_trouble(now);
        }
    }

    /// Counts an episode of trouble (an answer that was far too late or did not arrive), unless it belongs to the
    /// previous one.
    fn on_trouble(&mut self, now: Instant) {
        let now_ms = millis(now);
        let since = now_ms.wrapping_sub(self.last_trouble_ms);
        let same = self.last_trouble_ms > 0 && (since as f32) * 1e3 < self.center_us;
        if !same {
            self.troubles = self.troubles(now) + 1.0 / TROUBLE_MEMORY_S;
        }
        self.last_trouble_ms = now_ms.max(1);
    }

    /// Episodes of trouble per second, decayed to `now`.
    fn troubles(&self, now: Instant) -> f32 {
        self.troubles / trouble_decay(millis(now).wrapping_sub(self.last_trouble_ms))
    }

    /// Updates the quantiles. Returns true if the answer is later than its forecast p90 by more than a spread.
    fn update_distribution(
        &mut self,
        answer_us: f32,
        spread: f32,
        own_delay: Duration,
        expected: &Expected,
    ) -> bool {
        let own_us = micros(own_delay);
        let mut p90_us = 0.0;
        for index in 0..QUANTILE_SHARES.len() {
            let answer_was_us = match expected.answers_us[index] {
                0 => self.center_us + self.multiples[index] * spread,
                us => us as f32,
            };
            let forecast_us = answer_was_us + own_us * own_delay_uncertainty(self.multiples[index]);
            if index == 1 {
                p90_us = forecast_us;
            }
            let late = if answer_us > forecast_us {
                QUANTILE_SHARES[index]
            } else {
                QUANTILE_SHARES[index] - 1.0
            };
            let multiple = self.multiples[index] + late * LEARNING_STEPS[index];
            self.multiples[index] = multiple.clamp(-2.0, MAX_MULTIPLE);
        }
        self.multiples[0] = self.multiples[0].clamp(-1.0, 1.0);
        for index in 1..self.multiples.len() {
            self.multiples[index] = self.multiples[index].max(self.multiples[index - 1]);
        }
        answer_us > p90_us + spread
    }

    /// Updates the mean of the center, weighted by the time since the previous answer.
    fn update_usual_center(&mut self, age: Duration) {
        let for_s = age.as_secs_f32().min(USUAL_STEP_S);
        self.usual_seconds = (self.usual_seconds + for_s).min(USUAL_MEMORY_S);
        if self.usual_seconds > 0.0 {
            self.usual_us += (self.center_us - self.usual_us) * (for_s / self.usual_seconds);
        }
    }

    /// The center, given the age of the last answer, because unusual values decay.
    fn center(&self, age: Duration) -> f32 {
        if age < PAUSE {
            return self.center_us;
        }
        let unusual_us = self.center_us - self.usual_us;
        self.usual_us + unusual_us * decay_factor(age.as_secs_f32() / UNUSUAL_DECAY_S)
    }

    /// The spread, given the age of the last answer.
    fn spread_at(&self, age: Duration) -> f32 {
        let least = (self.center_us * MIN_SPREAD_SHARE).max(MIN_SPREAD_US);
        let spread = self.spread_us.max(least);
        if age < PAUSE {
            return spread;
        }
        let spread = (spread * spread + self.drift * age.as_secs_f32()).sqrt();
        spread.min(self.center_us / 2.0).max(least)
    }

    /// The forecast for a segment sent now.
    #[must_use]
    pub fn forecast(&self, now: Instant) -> Forecast {
        let Some(answers_us) = self.answers_us(now) else { return Forecast::default() };
        Forecast {
            answers_us,
            troubles: self.troubles(now),
            since_trouble_ms: millis(now).wrapping_sub(self.last_trouble_ms),
            multiples: self.multiples,
            queued_us: self.queued(now).as_micros().min(u32::MAX.into()) as u32,
            idle_us: (now.as_nanos().saturating_sub(self.busy_until) / 1_000).min(u32::MAX.into())
                as u32,
            rate: self.rate(),
        }
    }
}

/// Relative increase of the sender's own delay at this multiple of the spread.
fn own_delay_uncertainty(multiple: f32) -> f32 {
    (OWN_SPREAD_SHARE * multiple).clamp(0.0, MAX_OWN_DELAY_UNCERTAINTY)
}

/// Falls from 1 toward 0 like exp(-x), with arithmetic that gives the same result on every machine.
fn decay_factor(x: f32) -> f32 {
    1.0 / (1.0 + x + x * x / 2.0 + x * x * x / 6.0)
}

/// Divisor that decays the rate of trouble `since_ms` after the last episode.
fn trouble_decay(since_ms: u32) -> f32 {
    let faded = since_ms as f32 / 1e3 / TROUBLE_MEMORY_S;
    1.0 + faded + faded * faded / 2.0
}

fn nonzero_time(now: Instant) -> core::num::NonZeroU64 {
    core::num::NonZeroU64::new(now.as_nanos().max(1)).unwrap_or(core::num::NonZeroU64::MIN)
}

fn millis(at: Instant) -> u32 {
    // Wraps after 49 days, which makes an old episode look new once.
    (at.as_nanos() / 1_000_000) as u32
}

fn micros(time: Duration) -> f32 {
    time.as_nanos() as f32 / 1e3
}

/// Forecast of the answer to a segment when it was sent.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Expected {
    /// Time for which the sender's own bytes ahead of the segment were expected to keep the path busy.
    queued_us: u32,
    /// Quantiles of the answer time excluding the delay of those bytes; 0 if nothing was known.
    answers_us: [u32; 3],
}

/// A quantile of a forecast.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Quantile {
    /// Half of the answers are later.
    P50,
    /// One in ten answers is later.
    P90,
    /// One in a hundred answers is later.
    P99,
}

/// Answer times of a segment that leaves a subflow now.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Quantiles with nothing ahead of it; zero if unknown.
    pub(crate) answers_us: [u32; 3],
    /// Distance of each quantile from the center, in spreads.
    pub(crate) multiples: [f32; 3],
    pub(crate) troubles: f32,
    /// Time since the last trouble; meaningless if there was none.
    pub(crate) since_trouble_ms: u32,
    /// Time for which the bytes already sent keep the path busy.
    pub(crate) queued_us: u32,
    /// Time since the path became idle.
    pub(crate) idle_us: u32,
    pub(crate) rate: Option<Rate>,
}

impl Forecast {
    /// A forecast with these quantiles on an idle path, for tests of policies.
    #[must_use]
    pub fn with_quantiles(answers: [Duration; 3], troubles: f32, rate: Option<Rate>) -> Forecast {
        let answers_us = answers.map(|time| micros(time) as u32);
        Forecast {
            answers_us,
            multiples: INITIAL_MULTIPLES,
            troubles,
            since_trouble_ms: 0,
            queued_us: 0,
            idle_us: u32::MAX,
            rate,
        }
    }

    /// This forecast for a path that stays busy for `time` with bytes already sent.
    #[must_use]
    pub fn delayed_by(self, time: Duration) -> Forecast {
        Forecast { queued_us: micros(time) as u32, ..self }
    }

    /// Returns true if anything was measured.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.answers_us[0] > 0
    }

    /// Time until the answer to a segment that leaves now with nothing ahead of it; `None` before the first
    /// sample.
    #[must_use]
    pub fn answer(&self, quantile: Quantile) -> Option<Duration> {
        let micros = self.answers_us[quantile as usize];
        self.is_known().then(|| Duration::from_micros(micros.into()))
    }

    /// Time until the answer to the last of `bytes` that leave now, behind the bytes already sent.
    #[must_use]
    pub fn answer_after(&self, bytes: u64, quantile: Quantile) -> Option<Duration> {
        self.time_to_answer_after(self.queued() + self.transit_time(bytes), quantile)
    }

    /// Time until the answer to a segment sent behind `own_delay` of the sender's own bytes. The uncertainty grows
    /// with that delay.
    #[must_use]
    pub fn time_to_answer_after(
        &self,
        own_delay: Duration,
        quantile: Quantile,
    ) -> Option<Duration> {
        let unsure = own_delay.mul_f32(own_delay_uncertainty(self.multiples[quantile as usize]));
        Some(self.answer(quantile)? + own_delay + unsure)
    }

    /// Probability that the answer to a segment with nothing ahead of it takes longer than `than`, or never
    /// arrives; 0 to 1, and 0.5 if nothing is known.
    ///
    /// Linear between the forecast quantiles; the first segment also extends below p50. Decays exponentially
    /// beyond p99.
    #[must_use]
    pub fn late_probability(&self, than: Duration) -> f32 {
        if !self.is_known() {
            return 0.5;
        }
        let than_us = micros(than);
        let [p50, p90, p99] = self.answers_us.map(|us| us as f32);
        let (body, tail) = ((p90 - p50).max(1.0), (p99 - p90).max(1.0));
        let late = if than_us < p90 {
            0.5 - 0.4 * ((than_us - p50) / body).max(-1.25)
        } else if than_us < p99 {
            0.1 - 0.09 * (than_us - p90) / tail
        } else {
            0.01 * decay_factor(2.3 * (than_us - p99) / tail)
        };
        let never = self.risk(Duration::from_micros(self.answers_us[0].into())).min(0.5);
        late + never * (1.0 - late)
    }

    /// Rate at which the path delivers trains of segments; `None` if it is not known.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.rate.filter(|rate| *rate != Rate::ZERO)
    }

    /// Time that the path needs for these bytes; zero if its rate is not known.
    #[must_use]
    pub fn transit_time(&self, bytes: u64) -> Duration {
        self.rate().map_or(Duration::ZERO, |rate| rate.time_for(bytes))
    }

    /// Time, from now, for which the bytes already sent keep the path busy.
    #[must_use]
    pub fn queued(&self) -> Duration {
        Duration::from_micros(self.queued_us.into())
    }

    /// Time since the path delivered the last of the bytes sent. Zero while it is busy, the maximum if its rate
    /// is not known.
    #[must_use]
    pub fn idle_time(&self) -> Duration {
        Duration::from_micros(self.idle_us.into())
    }

    /// Bytes that the path carries in this time; `u64::MAX` if its rate is not known.
    #[must_use]
    pub fn bytes_in(&self, time: Duration) -> u64 {
        self.rate().map_or(u64::MAX, |rate| rate.bytes_in(time))
    }

    /// Returns true if there was trouble within approximately the last minute.
    #[must_use]
    pub fn had_recent_trouble(&self) -> bool {
        self.troubles > RECENT_TROUBLES
    }

    /// Probability that trouble begins within this time: a loss, or an answer late by half a round trip or more.
    #[must_use]
    pub fn risk(&self, time: Duration) -> f32 {
        (self.troubles * time.as_secs_f32()).min(1.0)
    }

    /// Like [`risk`](Self::risk), but estimates the probability that a bad period continues. The longer the path has
    /// been free of trouble, relative to the usual distance between episodes, the more likely the period is over.
    /// [`risk`](Self::risk) averages over ten seconds; this covers the last few episodes.
    #[must_use]
    pub fn ongoing_trouble_risk(&self, time: Duration) -> f32 {
        let before = self.troubles * trouble_decay(self.since_trouble_ms);
        let goes_on = decay_factor(before * self.since_trouble_ms as f32 / 1e3);
        (before * goes_on * time.as_secs_f32()).min(1.0)
    }
}

#[cfg(test)]
mod tests;
