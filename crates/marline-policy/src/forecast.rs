//! Forecast of a path's near future: when what is sent on it now will be answered, as a distribution.
//!
//! *Problem.* Every rule that weighs one path against another asks when a segment would arrive.
//! A smoothed RTT answers for the middle, and for a time that may be long gone; SRTT + 4 RTTVAR
//! answers for "late", and is exceeded by nothing on a steady path and by one answer in ten on a
//! train. Neither knows of the bytes that the sender itself has put into the queue since.
//!
//! *How.* [`Forecaster`] takes each answer (an RTT sample with the bytes that were ahead of the
//! segment) and each loss, once, in the core:
//! - what the sender's own bytes ahead of the segment took is subtracted, so that what remains is the path
//!   without them: its *centre*, smoothed, and its *spread*, the smoothed distance from the centre. The
//!   rate for that is the one at which the path lets trains of segments through (packet dispersion);
//!   a delivery rate over a round trip tells of a sender of bursts how little it had to send;
//! - the quantiles are multiples of the spread that learn by their own errors: an answer later than
//!   the p99 that was forecast for it *when it was sent* raises that one by 99 parts, an earlier one lowers it by
//!   one part, so that one in a hundred is later whatever the distribution (the update of online quantile
//!   regression and of adaptive conformal inference). When it is answered is too late to ask: the answers
//!   before it have told by then what a sender did not know;
//! - what is unusual passes: beside the centre stands its mean over ten seconds of answers, and over a pause the
//!   forecast returns to that. A path that was bad when it was last used is not bad for ever;
//! - what is not sampled is not known: beside the spread stands the *drift*, how far the centre was
//!   found to have moved over pauses, and it grows with the root of the age of the last sample. What was learnt
//!   of the quantiles fades over pauses, and an answer after a pause that is earlier than expected makes
//!   the slow time before it void;
//! - losses, unanswered probes and answers that are half of a round trip late are *trouble*: not a matter of
//!   quantiles, but of how often it begins. Episodes a second are counted with a memory of ten
//!   seconds, and [`Forecast::risk`] is the chance that one begins while a message is under way.
//!
//! [`Forecast`] is what policies see: quantiles of the answer time of a segment that leaves now
//! with nothing ahead of it, and with the bytes ahead of it that the policy names.
//!
//! *Sources.* Adaptive conformal inference: Gibbs and Candès, NeurIPS 2021. The separation of own
//! queueing from the path's is that of delay-based congestion control; trains: packet dispersion (Keshav's packet
//! pairs, SIGCOMM 1991).
//!
//! *Limits.* Others' queues are part of the path. Quantiles of paths with few samples are those of
//! the start ([`START`]). The quantiles are of answers that come; whether one comes at all is the risk's.

use marline_time::{Duration, Instant, Rate};

/// Quantiles that are forecast.
const SHARES: [f32; 3] = [0.5, 0.9, 0.99];
/// Multiples of the spread that they begin with.
const START: [f32; 3] = [0.0, 2.0, 5.0];
/// Steps by which they learn, in spreads.
const STEPS: [f32; 3] = [0.025, 0.06, 0.3];
/// Largest multiples: beyond it is the retransmission timer's.
const MOST: f32 = 60.0;
/// What the sender's own bytes take is uncertain by this share of it, in spreads.
const OWN_SPREAD_SHARE: f32 = 0.25;
const MOST_UNSURENESS: f32 = 4.0;
/// Weight of the newest answer in the centre and in the spread.
const CENTRE_GAIN: f32 = 0.25;
const SPREAD_GAIN: f32 = 0.125;
/// A train that is answered: so long, of so many bytes; the weight of the newest.
const TRAIN_LASTS_NS: u64 = 50_000_000;
const TRAIN_BYTES: u32 = 11_000;
const TRAIN_GAIN: f32 = 0.25;
/// A late answer moves centre and spread as if it were at most so many spreads late. An early one counts in full: the
/// path can do it.
const MOST_ERROR: f32 = 4.0;
/// The spread is a share of the centre between these, and at least this long (µs): clocks and batches.
const MOST_SPREAD_SHARE: f32 = 0.25;
const LEAST_SPREAD_SHARE: f32 = 0.01;
const LEAST_SPREAD_US: f32 = 200.0;
/// Pauses from this length on tell of the drift; the weight of the newest.
const PAUSE: Duration = Duration::from_millis(200);
const DRIFT_GAIN: f32 = 0.25;
/// A pause of so many seconds takes half of what was learnt of the quantiles.
const QUANTILE_MEMORY_S: f32 = 10.0;
/// Seconds of answers over which the usual centre is averaged; a pause counts as this many at most.
const USUAL_MEMORY_S: f32 = 10.0;
const USUAL_STEP_S: f32 = 0.5;
/// Seconds of a pause in which most of what was unusual passes.
const UNUSUAL_LASTS_S: f32 = 1.0;
/// Seconds over which the rate of trouble is smoothed.
const TROUBLE_MEMORY_S: f32 = 10.0;

/// Learns a subflow's answer times.
#[derive(Copy, Clone, Debug)]
pub struct Forecaster {
    centre_us: f32,
    /// Mean of the centre over time, and of how many seconds.
    usual_us: f32,
    usual_of_s: f32,
    spread_us: f32,
    /// Multiples of the spread, by quantile.
    multiples: [f32; 3],
    /// Squared distance that the centre moves in a second, µs².
    drift: f32,
    /// Episodes of trouble a second, as of when it was last changed: answers far beyond p90, or losses, not
    /// counted twice within a round trip.
    troubles: f32,
    /// When trouble was seen last, ms; 0: never.
    troubled_at_ms: u32,
    /// The last answer; `None`: there was none.
    sampled_at: Option<core::num::NonZeroU64>,
    train: Train,
    /// Until when what was sent keeps the path busy, ns.
    busy_until: u64,
}

/// Segments that are answered one after the other, and the rate at which the path lets such trains through.
///
/// The delivery rate of congestion control is that of a round trip: a sender of bursts, who is silent for the rest
/// of it, learns by it how much it sent and not how fast the path is.
#[derive(Copy, Clone, Debug, Default)]
struct Train {
    /// When its first segment was answered and sent; ns.
    answered_at: u64,
    sent_at: u64,
    /// Answered since.
    bytes: u32,
    /// Smoothed rate of trains, bytes a second; 0: none was seen.
    bytes_per_s: f32,
}

impl Train {
    /// `bytes` were answered, the newest of which was sent at `sent_at`.
    fn on_answered(&mut self, now: Instant, sent_at: Instant, bytes: u64) {
        let (now, sent_at) = (now.as_nanos(), sent_at.as_nanos());
        let answered_ns = now.saturating_sub(self.answered_at);
        let sent_ns = sent_at.saturating_sub(self.sent_at);
        if answered_ns.max(sent_ns) > TRAIN_LASTS_NS || sent_at < self.sent_at {
            (self.answered_at, self.sent_at, self.bytes) = (now, sent_at, 0);
            return;
        }
        self.bytes = self.bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if self.bytes < TRAIN_BYTES {
            return;
        }
        let rate = self.bytes as f32 * 1e9 / answered_ns.max(sent_ns).max(1) as f32;
        // Answers that come as slowly as segments were sent tell what was sent, at least.
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
            centre_us: 0.0,
            usual_us: 0.0,
            usual_of_s: 0.0,
            spread_us: 0.0,
            multiples: START,
            drift: 0.0,
            troubles: 0.0,
            troubled_at_ms: 0,
            sampled_at: None,
            train: Train::default(),
            busy_until: 0,
        }
    }
}

impl Forecaster {
    /// `bytes` were answered, the newest of which was sent at `sent_at`.
    pub fn on_delivered(&mut self, now: Instant, sent_at: Instant, bytes: u64) {
        self.train.on_answered(now, sent_at, bytes);
    }

    /// So many bytes were sent. Returns what is to be expected of their answer.
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

    /// Quantiles of the answer to what leaves now with nothing ahead of it.
    fn answers_us(&self, now: Instant) -> Option<[u32; 3]> {
        let age = now.since(Instant::from_nanos(self.sampled_at?.get()));
        let (centre, spread) = (self.centre(age), self.spread(age));
        Some(self.multiples.map(|multiple| (centre + multiple * spread).max(1.0) as u32))
    }

    /// What the sender's own bytes take for which this was expected, the first so many of what was sent then.
    #[must_use]
    pub fn own_delay(&self, expected: &Expected, bytes: u64) -> Duration {
        // Asked with each ACK: without the 128 bits of a rate's arithmetic.
        let passing_us = match self.train.bytes_per_s {
            rate if rate > 0.0 => (bytes as f32 * 1e6 / rate) as u32,
            _ => 0,
        };
        Duration::from_micros(u64::from(expected.queued_us) + u64::from(passing_us))
    }

    /// How long what was sent keeps the path busy.
    fn queued(&self, now: Instant) -> Duration {
        Duration::from_nanos(self.busy_until.saturating_sub(now.as_nanos()))
    }

    /// The rate at which the path lets trains of segments through, if one was seen.
    fn rate(&self) -> Option<Rate> {
        let rate = self.train.bytes_per_s;
        (rate > 0.0).then(|| Rate::from_bytes_per_s(rate as u64))
    }

    /// A segment was answered after `rtt`, of which the sender's own bytes took `own_delay`; `expected` is what was
    /// when it was sent.
    pub fn on_answer(
        &mut self,
        now: Instant,
        rtt: Duration,
        own_delay: Duration,
        expected: &Expected,
    ) {
        let answer_us = micros(rtt.saturating_sub(own_delay)).max(1.0);
        let Some(sampled_at) = self.sampled_at.replace(stamp(now)) else {
            (self.centre_us, self.usual_us) = (answer_us, answer_us);
            self.spread_us = answer_us / 8.0;
            return;
        };
        let age = now.since(Instant::from_nanos(sampled_at.get()));
        let spread = self.spread(age);
        self.centre_us = self.centre(age);
        let error = answer_us - self.centre_us;
        // The quantiles are wanted as of sending, a round trip before what the path does now is known.
        if self.learn(answer_us, spread, own_delay, expected) && error > self.centre_us / 2.0 {
            self.on_trouble(now);
        }
        // One answer after an outage does not make the path slow; several do.
        let error = error.min(MOST_ERROR * spread);
        self.forget(age);
        let mut gain = CENTRE_GAIN;
        if age >= PAUSE {
            let age_s = age.as_secs_f32();
            let moved = (error * error - self.spread_us * self.spread_us).max(0.0) / age_s;
            self.drift += (moved - self.drift) * DRIFT_GAIN;
            gain = 1.0 - (1.0 - CENTRE_GAIN) / (1.0 + 4.0 * age_s);
            if error < -spread {
                // It was slow and is not: what was learnt of the slow time is void.
                gain = 1.0;
            }
        }
        self.centre_us += error * gain;
        self.note_usual(age);
        self.spread_us += (error.abs() - self.spread_us) * SPREAD_GAIN;
        // Beyond that it is the multiples' to say how late answers are: a spread that remembers an outage would
        // hide the path that is good again.
        self.spread_us = self.spread_us.min(self.centre_us * MOST_SPREAD_SHARE);
        self.drift = self.drift.min(self.centre_us * self.centre_us * MOST_SPREAD_SHARE);
    }

    /// What was learnt of the quantiles before a pause holds less the longer it was.
    fn forget(&mut self, age: Duration) {
        if age < PAUSE {
            return;
        }
        let kept = 1.0 / (1.0 + age.as_secs_f32() / QUANTILE_MEMORY_S);
        for (multiple, start) in self.multiples.iter_mut().zip(START) {
            *multiple = start + (*multiple - start) * kept;
        }
    }

    /// A segment was lost, or a probe went unanswered.
    pub fn on_lost(&mut self, now: Instant) {
        if self.sampled_at.is_some() {
            self.on_trouble(now);
        }
    }

    /// An answer was much later than most, or none came: an episode, unless it belongs to the last one.
    fn on_trouble(&mut self, now: Instant) {
        let now_ms = millis(now);
        let since = now_ms.wrapping_sub(self.troubled_at_ms);
        let same = self.troubled_at_ms > 0 && (since as f32) * 1e3 < self.centre_us;
        if !same {
            self.troubles = self.troubles(now) + 1.0 / TROUBLE_MEMORY_S;
        }
        self.troubled_at_ms = now_ms.max(1);
    }

    /// Episodes of trouble a second, by now.
    fn troubles(&self, now: Instant) -> f32 {
        self.troubles / forgetting(millis(now).wrapping_sub(self.troubled_at_ms))
    }

    /// An answer came: whether it is later than the p90 that was forecast for it by a spread or more.
    fn learn(
        &mut self,
        answer_us: f32,
        spread: f32,
        own_delay: Duration,
        expected: &Expected,
    ) -> bool {
        let own_us = micros(own_delay);
        let mut p90_us = 0.0;
        for index in 0..SHARES.len() {
            let answer_was_us = match expected.answers_us[index] {
                0 => self.centre_us + self.multiples[index] * spread,
                us => us as f32,
            };
            let forecast_us = answer_was_us + own_us * unsureness(self.multiples[index]);
            if index == 1 {
                p90_us = forecast_us;
            }
            let late = if answer_us > forecast_us { SHARES[index] } else { SHARES[index] - 1.0 };
            let multiple = self.multiples[index] + late * STEPS[index];
            self.multiples[index] = multiple.clamp(-2.0, MOST);
        }
        self.multiples[0] = self.multiples[0].clamp(-1.0, 1.0);
        for index in 1..self.multiples.len() {
            self.multiples[index] = self.multiples[index].max(self.multiples[index - 1]);
        }
        answer_us > p90_us + spread
    }

    /// The centre stood where it is for the time since the answer before.
    fn note_usual(&mut self, age: Duration) {
        let for_s = age.as_secs_f32().min(USUAL_STEP_S);
        self.usual_of_s = (self.usual_of_s + for_s).min(USUAL_MEMORY_S);
        if self.usual_of_s > 0.0 {
            self.usual_us += (self.centre_us - self.usual_us) * (for_s / self.usual_of_s);
        }
    }

    /// The centre when the last answer is of this age: what was unusual passes.
    fn centre(&self, age: Duration) -> f32 {
        if age < PAUSE {
            return self.centre_us;
        }
        let unusual_us = self.centre_us - self.usual_us;
        self.usual_us + unusual_us * fading(age.as_secs_f32() / UNUSUAL_LASTS_S)
    }

    /// The spread of an answer when the last one is of this age.
    fn spread(&self, age: Duration) -> f32 {
        let least = (self.centre_us * LEAST_SPREAD_SHARE).max(LEAST_SPREAD_US);
        let spread = self.spread_us.max(least);
        if age < PAUSE {
            return spread;
        }
        let spread = (spread * spread + self.drift * age.as_secs_f32()).sqrt();
        spread.min(self.centre_us / 2.0).max(least)
    }

    /// What is to be expected now.
    #[must_use]
    pub fn forecast(&self, now: Instant) -> Forecast {
        let Some(answers_us) = self.answers_us(now) else { return Forecast::default() };
        Forecast {
            answers_us,
            troubles: self.troubles(now),
            untroubled_ms: millis(now).wrapping_sub(self.troubled_at_ms),
            multiples: self.multiples,
            queued_us: self.queued(now).as_micros().min(u32::MAX.into()) as u32,
            idle_us: (now.as_nanos().saturating_sub(self.busy_until) / 1_000).min(u32::MAX.into())
                as u32,
            rate: self.rate(),
        }
    }
}

/// By which share of itself the sender's own delay is longer at this multiple of the spread.
fn unsureness(multiple: f32) -> f32 {
    (OWN_SPREAD_SHARE * multiple).clamp(0.0, MOST_UNSURENESS)
}

/// Falls from 1 towards 0 like exp(-x), by arithmetic that is the same on every machine.
fn fading(x: f32) -> f32 {
    1.0 / (1.0 + x + x * x / 2.0 + x * x * x / 6.0)
}

/// By how much fewer episodes a second are remembered so many ms after the last.
fn forgetting(since_ms: u32) -> f32 {
    let faded = since_ms as f32 / 1e3 / TROUBLE_MEMORY_S;
    1.0 + faded + faded * faded / 2.0
}

fn stamp(now: Instant) -> core::num::NonZeroU64 {
    core::num::NonZeroU64::new(now.as_nanos().max(1)).unwrap_or(core::num::NonZeroU64::MIN)
}

fn millis(at: Instant) -> u32 {
    // Wraps after 49 days, which makes an old trouble a new one, once.
    (at.as_nanos() / 1_000_000) as u32
}

fn micros(time: Duration) -> f32 {
    time.as_nanos() as f32 / 1e3
}

/// What was to be expected of the answer to a segment when it was sent.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Expected {
    /// How long the sender's own bytes ahead of it were to keep the path busy.
    queued_us: u32,
    /// Quantiles of the answer without them; 0: nothing was known.
    answers_us: [u32; 3],
}

/// A quantile of a forecast.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Quantile {
    /// As often earlier as later.
    P50,
    /// One in ten is later.
    P90,
    /// One in a hundred is later.
    P99,
}

/// Answer times of a segment that leaves a subflow now.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Forecast {
    /// With nothing ahead of it, by quantile; zero: unknown.
    pub(crate) answers_us: [u32; 3],
    /// Spreads that each of them is away from the centre.
    pub(crate) multiples: [f32; 3],
    pub(crate) troubles: f32,
    /// How long ago trouble was seen last; of no meaning while there is none.
    pub(crate) untroubled_ms: u32,
    /// How long what was sent before keeps the path busy.
    pub(crate) queued_us: u32,
    /// How long ago that was over.
    pub(crate) idle_us: u32,
    pub(crate) rate: Option<Rate>,
}

impl Forecast {
    /// A forecast of these answer times on a path that is not busy, for tests of policies.
    #[must_use]
    pub fn of(answers: [Duration; 3], troubles: f32, rate: Option<Rate>) -> Forecast {
        let answers_us = answers.map(|time| micros(time) as u32);
        Forecast {
            answers_us,
            multiples: START,
            troubles,
            untroubled_ms: 0,
            queued_us: 0,
            idle_us: u32::MAX,
            rate,
        }
    }

    /// The same so long after the last trouble.
    #[must_use]
    pub fn untroubled_for(self, time: Duration) -> Forecast {
        let untroubled_ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        Forecast { troubles: self.troubles / forgetting(untroubled_ms), untroubled_ms, ..self }
    }

    /// The same on a path that what was sent before keeps busy for so long.
    #[must_use]
    pub fn busy_for(self, time: Duration) -> Forecast {
        Forecast { queued_us: micros(time) as u32, ..self }
    }

    /// Whether anything was measured.
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

    /// The same for the last of so many bytes that leave now, behind what was sent before.
    #[must_use]
    pub fn answer_after(&self, bytes: u64, quantile: Quantile) -> Option<Duration> {
        self.answer_behind(self.queued() + self.passing(bytes), quantile)
    }

    /// The same behind bytes of the sender's own that are to take so long, which is the less certain the longer it is.
    #[must_use]
    pub fn answer_behind(&self, own_delay: Duration, quantile: Quantile) -> Option<Duration> {
        let unsure = own_delay.mul_f32(unsureness(self.multiples[quantile as usize]));
        Some(self.answer(quantile)? + own_delay + unsure)
    }

    /// How likely it is that the answer to what leaves with nothing ahead of it takes longer than this, or never comes;
    /// 0 to 1, half where nothing is known.
    ///
    /// Straight between the quantiles that are forecast; beyond them as steep as before.
    #[must_use]
    pub fn chance_later(&self, than: Duration) -> f32 {
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
            0.01 * fading(2.3 * (than_us - p99) / tail)
        };
        let never = self.risk(Duration::from_micros(self.answers_us[0].into())).min(0.5);
        late + never * (1.0 - late)
    }

    /// Time that the path takes for these bytes; zero if its rate is not known.
    #[must_use]
    pub fn passing(&self, bytes: u64) -> Duration {
        self.rate.filter(|rate| *rate != Rate::ZERO).map_or(Duration::ZERO, |r| r.time_for(bytes))
    }

    /// How long what was sent keeps the path busy from now on.
    #[must_use]
    pub fn queued(&self) -> Duration {
        Duration::from_micros(self.queued_us.into())
    }

    /// How long ago the path was through with what was sent; zero while it is not, as long as can be where its rate is
    /// not known.
    #[must_use]
    pub fn idle_for(&self) -> Duration {
        Duration::from_micros(self.idle_us.into())
    }

    /// Bytes that the path takes in this time; as many as can be if its rate is not known.
    #[must_use]
    pub fn bytes_in(&self, time: Duration) -> u64 {
        self.rate.filter(|rate| *rate != Rate::ZERO).map_or(u64::MAX, |rate| rate.bytes_in(time))
    }

    /// How likely it is that trouble begins within this time: a loss, or answers that are late by half of a round
    /// trip or more; 0 to 1.
    #[must_use]
    pub fn risk(&self, time: Duration) -> f32 {
        (self.troubles * time.as_secs_f32()).min(1.0)
    }

    /// The same for who asks whether a bad time goes on: the longer no trouble was seen, measured by how often it came
    /// before, the more likely it is that the time is over. [`risk`](Self::risk) tells of ten seconds, this of the last
    /// few times that episodes were apart.
    #[must_use]
    pub fn risk_while_it_lasts(&self, time: Duration) -> f32 {
        let before = self.troubles * forgetting(self.untroubled_ms);
        let goes_on = fading(before * self.untroubled_ms as f32 / 1e3);
        (before * goes_on * time.as_secs_f32()).min(1.0)
    }
}

#[cfg(test)]
mod tests;
