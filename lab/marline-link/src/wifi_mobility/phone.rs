//! WiFi mobility model: eighty seconds of a phone whose owner either leaves the access point's range, and may return,
//! or stays.
//!
//! *Problem.* A link that is cut at once is the easy case. Leaving WiFi range is gradual. The rate falls step by step.
//! Frames are retransmitted, which delays those behind them and reduces the rate. Some are lost after all
//! retransmissions. The station leaves the channel to scan for another access point. Only then does it fall silent,
//! for seconds and without a signal. Waiting for a clear signal takes too long. Leaving at the first loss wakes the
//! cellular radio unnecessarily.
//!
//! From distance to packets, every 100 ms:
//!
//! 1. The owner starts within 5 s at a distance of 4 to 14 m and walks at 1.0 to 1.6 m/s to 60 to 95 m. In two of five
//!    walks the owner walks only to 50 to 65 m, and turns around there within 8 s. The door is between 20 and 40 m,
//!    and its wall costs 8 dB.
//! 2. The signal-to-noise ratio is 5 dB at 50 m, with path loss exponent 3, minus 3 dB from the phone, which sends
//!    with less power. Shadowing: 4 dB, correlated over 5 m (sitting: 1.5 dB over 20 s, and never where WiFi is bad).
//!    Fading: 1.5 dB, independent for each sample and direction.
//! 3. Rate control lags by half a second and stays 3 dB below what the signal would allow, but at least at the lowest
//!    step of one 802.11n stream. That step needs 5 dB, and each further step about 3 dB more.
//! 4. A frame fails with a probability of 10 % where the step's requirement is just met, 50 % at 1.8 dB below and 90 %
//!    at 3.7 dB below. It is tried four times at its step and three times two steps lower, if possible. The failed
//!    share reduces the rate, and a frame that fails seven times is lost. One packet in a thousand is lost in any case.
//! 5. Below 9 dB, the station scans for others: every 5 s on average it is absent for 200 to 500 ms, and packets wait.
//! 6. After 4 s below 1 dB, it disassociates: the interface loses its address. Above 8 dB, it returns after another 1.5
//!    to 4 s.
//!
//! `papers/walks.toml` lists what is fitted to which data. The rest is from the standard's tables and textbook orders
//! of magnitude. Not modeled: other stations on the channel, and roaming to another access point.

use std::sync::Arc;

use marline_time::{Duration, PcgRng, Rate, Rng, SeedTree};

use super::steps;
use crate::stage::normal;
use crate::{Direction, Steps};

const SAMPLE: Duration = Duration::from_millis(100);
const SAMPLE_S: f64 = 0.1;
/// Number of samples in ninety seconds: a run of eighty seconds and the wait at its end. After that, the last sample
/// applies.
const SAMPLES: u32 = 900;

/// Signal-to-noise ratio in dB that a step of the rate table needs, and its share of the peak rate in per mille.
const RATE_STEPS: [(f64, u64); 8] = [
    (26.0, 1_000),
    (24.0, 900),
    (22.0, 800),
    (18.0, 600),
    (14.0, 400),
    (11.0, 300),
    (8.0, 200),
    (5.0, 100),
];
const EDGE_M: f64 = 50.0;
const EDGE_DB: f64 = 5.0;
/// Ten times the path loss exponent.
const LOSS_PER_DECADE_DB: f64 = 30.0;
const PHONE_WEAKER_DB: f64 = 3.0;
const SHADOWING_DB: f64 = 4.0;
const SHADOWING_DISTANCE_M: f64 = 5.0;
const STATIONARY_SHADOWING_DB: f64 = 1.5;
const STATIONARY_SHADOWING_PERIOD_S: f64 = 20.0;
const FADING_DB: f64 = 1.5;
/// Weight of the current signal in rate control's average, for a memory of half a second.
const RATE_CONTROL_WEIGHT: f64 = 0.2;
const CONTROL_MARGIN_DB: f64 = 3.0;
/// Ends and steepness of the frame error curve: `1 / (1 + exp(slope * (margin + offset)))`.
const ERROR_OFFSET_DB: f64 = 1.83;
const ERROR_SLOPE: f64 = 1.2;
/// Difference in required signal between two adjacent lower steps in dB.
const FALLBACK_DB: f64 = 6.0;
const WALL_DB: f64 = 8.0;
const MIN_LOSS: f64 = 0.001;
/// Minimum share, per mille, of a step's rate on a link with many retransmissions.
const MIN_RATE_PER_MILLE: u64 = 20;
const SCAN_BELOW_DB: f64 = 9.0;
const SCAN_INTERVAL_S: f64 = 5.0;
const LEAVE_BELOW_DB: f64 = 1.0;
const MAX_FAILED_SAMPLES: u32 = 40;
const REJOIN_ABOVE_DB: f64 = 8.0;

/// Parameters of the WiFi mobility model.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PhoneMobility {
    /// Rate next to the access point.
    pub peak: Rate,
    /// True if the owner walks out of range and false if the owner stays.
    pub leaves: bool,
}

/// One run of the WiFi mobility model.
#[derive(Clone, Debug, PartialEq)]
pub struct PhoneMobilityProfile {
    /// Rate from the phone.
    pub up_rate: Arc<Steps<Rate>>,
    /// Rate to the phone.
    pub down_rate: Arc<Steps<Rate>>,
    /// Loss from the phone.
    pub up_loss: Arc<Steps<f64>>,
    /// Loss to the phone.
    pub down_loss: Arc<Steps<f64>>,
    /// Signal-to-noise ratio at the phone in dB, as reported by its interface.
    pub signal_db: Arc<Steps<f64>>,
    /// Periods, counted from the start, in which the interface had no address. Without an end, the address did not
    /// return.
    pub away_periods: Vec<(Duration, Option<Duration>)>,
}

impl PhoneMobilityProfile {
    /// Rate and loss of one direction.
    #[must_use]
    pub const fn steps_of(&self, direction: Direction) -> (&Arc<Steps<Rate>>, &Arc<Steps<f64>>) {
        match direction {
            Direction::Up => (&self.up_rate, &self.up_loss),
            Direction::Down => (&self.down_rate, &self.down_loss),
        }
    }
}

/// Position of the owner.
struct Owner {
    distance_m: f64,
    /// Remaining plan: time for which the owner stays here, and the next destination.
    stays: f64,
    legs: Vec<(f64, f64)>,
    step_m: f64,
    door_m: f64,
}

impl Owner {
    fn new(leaves: bool, mut rng: PcgRng) -> Self {
        let between = |rng: &mut PcgRng, least: f64, most: f64| least + (most - least) * rng.unit();
        let distance_m = between(&mut rng, 4.0, 14.0);
        let stays = between(&mut rng, 0.0, 5.0);
        let step_m = between(&mut rng, 1.0, 1.6) * SAMPLE_S;
        let door_m = between(&mut rng, 20.0, 40.0);
        let (far, turns_at) = (between(&mut rng, 60.0, 95.0), between(&mut rng, 50.0, 65.0));
        let (returns, pause) = (rng.chance(0.4), between(&mut rng, 0.0, 8.0));
        // Legs are taken from the end of the list.
        let mut legs = vec![(far, f64::INFINITY)];
        if returns {
            legs = vec![(distance_m, f64::INFINITY), (turns_at, pause)];
        }
        if !leaves {
            legs.clear();
        }
        Owner { distance_m, stays, legs, step_m, door_m }
    }

    /// Signal-to-noise ratio here without shadowing, in dB.
    fn signal_db(&self) -> f64 {
        let wall = if self.distance_m > self.door_m { WALL_DB } else { 0.0 };
        EDGE_DB + LOSS_PER_DECADE_DB * log10(EDGE_M / self.distance_m) - wall
    }

    /// Advances by one sample. Returns the distance moved.
    fn step(&mut self) -> f64 {
        if self.stays > 0.0 {
            self.stays -= SAMPLE_S;
            return 0.0;
        }
        let Some((target, pause)) = self.legs.last().copied() else { return 0.0 };
        let left = target - self.distance_m;
        let went = left.abs().min(self.step_m);
        self.distance_m += went.copysign(left);
        if left.abs() <= self.step_m {
            self.stays = pause;
            self.legs.pop();
        }
        went
    }
}

/// Association of the station with its access point.
struct Association {
    bad_samples: u32,
    /// Number of samples until it is associated again, after it has detected the access point.
    samples_until_association: Option<u64>,
    away_periods: Vec<(Duration, Option<Duration>)>,
    rng: PcgRng,
}

impl Association {
    fn is_away(&self) -> bool {
        self.away_periods.last().is_some_and(|(_, back)| back.is_none())
    }

    fn step(&mut self, at: Duration, signal_db: f64) {
        if !self.is_away() {
            let bad = signal_db < LEAVE_BELOW_DB;
            self.bad_samples = if bad { self.bad_samples + 1 } else { 0 };
            if self.bad_samples >= MAX_FAILED_SAMPLES {
                self.away_periods.push((at, None));
                self.samples_until_association = None;
            }
        } else if let Some(left) = self.samples_until_association {
            self.samples_until_association = Some(left.saturating_sub(1));
            if left == 0 {
                self.bad_samples = 0;
                self.away_periods.iter_mut().last().into_iter().for_each(|last| last.1 = Some(at));
            }
        } else if signal_db > REJOIN_ABOVE_DB {
            self.samples_until_association = Some(15 + self.rng.below(25));
        }
    }
}

/// The step that rate control selects.
fn select_step(signal_db: f64) -> usize {
    let fits = |step: &(f64, u64)| step.0 + CONTROL_MARGIN_DB <= signal_db;
    RATE_STEPS.iter().position(fits).unwrap_or(RATE_STEPS.len() - 1)
}

/// Share of the step's rate that passes, per mille, and share of packets lost.
fn rate_and_loss(step: usize, signal_db: f64) -> (u64, f64) {
    let margin_db = signal_db - RATE_STEPS[step].0;
    let error = frame_error_rate(margin_db);
    let lower = if step + 2 < RATE_STEPS.len() { FALLBACK_DB } else { 0.0 };
    let (square, fallback) = (error * error, frame_error_rate(margin_db + lower));
    let passes = ((1.0 - error) * 1_000.0) as u64;
    (passes.max(MIN_RATE_PER_MILLE), square * square * fallback * fallback * fallback)
}

fn frame_error_rate(margin_db: f64) -> f64 {
    1.0 / (1.0 + exp(ERROR_SLOPE * (margin_db + ERROR_OFFSET_DB)))
}

/// The exponential function, computed only with basic operations, which every machine rounds in the same way. Math
/// libraries may differ in the last bit, but walks must be identical.
fn exp(x: f64) -> f64 {
    let halved = x.clamp(-60.0, 60.0) / 1_024.0;
    let mut power =
        1.0 + halved * (1.0 + halved / 2.0 * (1.0 + halved / 3.0 * (1.0 + halved / 4.0)));
    for _ in 0..10 {
        power *= power;
    }
    power
}

/// The decimal logarithm of a number between 1/16 and 16, computed only with basic operations.
fn log10(x: f64) -> f64 {
    let mut root = x;
    for _ in 0..12 {
        root = root.sqrt();
    }
    // ln(r) = 2 atanh((r - 1) / (r + 1)), for a number close to 1.
    let ratio = (root - 1.0) / (root + 1.0);
    let natural = 4_096.0 * 2.0 * ratio * (1.0 + ratio * ratio / 3.0);
    natural / core::f64::consts::LN_10
}

impl PhoneMobility {
    /// Draws the run for this seed.
    #[must_use]
    pub fn draw(&self, seeds: &SeedTree) -> PhoneMobilityProfile {
        let mut owner = Owner::new(self.leaves, seeds.stream("outing/way"));
        let (mut shadowing, mut fading) =
            (seeds.stream("outing/shadow"), seeds.stream("outing/fading"));
        let mut looks = seeds.stream("outing/looks");
        let mut association = Association {
            bad_samples: 0,
            samples_until_association: None,
            away_periods: Vec::new(),
            rng: seeds.stream("outing/association"),
        };
        let deviation = if self.leaves { SHADOWING_DB } else { STATIONARY_SHADOWING_DB };
        let mut shadow = normal(&mut shadowing);
        let (mut control_db, mut looks_for) = (f64::NAN, 0);
        let mut rates: [Vec<(Duration, Rate)>; 2] = Default::default();
        let mut losses: [Vec<(Duration, f64)>; 2] = Default::default();
        let mut signals: Vec<(Duration, f64)> = Vec::new();
        for sample in 0..SAMPLES {
            let at = SAMPLE * sample;
            let went = owner.step();
            let kept = exp(-went / SHADOWING_DISTANCE_M - SAMPLE_S / STATIONARY_SHADOWING_PERIOD_S);
            shadow = shadow * kept + normal(&mut shadowing) * (1.0 - kept * kept).sqrt();
            let signal_db = owner.signal_db() + shadow * deviation;
            control_db = if control_db.is_nan() { signal_db } else { control_db };
            control_db += RATE_CONTROL_WEIGHT * (signal_db - control_db);
            association.step(at, signal_db);
            signals.push((at, signal_db));
            let starts = looks.chance(SAMPLE_S / SCAN_INTERVAL_S) && signal_db < SCAN_BELOW_DB;
            let lasts = 2 + looks.below(4);
            looks_for = if starts { lasts } else { looks_for.saturating_sub(1) };
            for (way, weaker_db) in [(0, PHONE_WEAKER_DB), (1, 0.0)] {
                let step = select_step(control_db - weaker_db);
                let felt_db = signal_db + FADING_DB * normal(&mut fading) - weaker_db;
                let (passes, lost) = rate_and_loss(step, felt_db);
                let share = if looks_for > 0 { 0 } else { RATE_STEPS[step].1 * passes };
                let rate = self.peak.bits_per_s() / 1_000_000;
                rates[way].push((at, Rate::from_bits_per_s(rate.saturating_mul(share))));
                let lost = if association.is_away() { 1.0 } else { lost };
                losses[way].push((at, lost.max(MIN_LOSS)));
            }
        }
        let ([up_rate, down_rate], [up_loss, down_loss]) =
            (rates.map(|rate| steps(rate, None)), losses.map(|loss| steps(loss, None)));
        let (signal_db, away_periods) = (steps(signals, None), association.away_periods);
        PhoneMobilityProfile { up_rate, down_rate, up_loss, down_loss, signal_db, away_periods }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEAK: Rate = Rate::from_mbit(40);

    fn profiles(leaves: bool) -> Vec<PhoneMobilityProfile> {
        let draw = |seed| PhoneMobility { peak: PEAK, leaves }.draw(&SeedTree::new(seed));
        (0..100).map(draw).collect()
    }

    #[test]
    fn a_walker_leaves_the_range_and_sometimes_returns() {
        let all = profiles(true);
        assert_eq!(all, profiles(true));
        let (mut returned, mut left_all) = (0, 0);
        for (seed, profile) in all.iter().enumerate() {
            assert_eq!(profile.down_loss.value_at(Duration::ZERO).0, MIN_LOSS, "seed {seed}");
            let gone = profile.down_loss.points().iter().find(|(_, loss)| *loss > 0.9);
            let gone_at = gone.expect("the phone falls silent").0.as_secs();
            assert!((8..75).contains(&gone_at), "seed {seed}: gone at {gone_at} s");
            // The phone of a person who turns back immediately may keep the address through a few bad seconds.
            let Some(&(left, back)) = profile.away_periods.first() else { continue };
            left_all += 1;
            assert!(left.as_secs() >= 10, "seed {seed}: {left:?}");
            assert_eq!(profile.up_loss.value_at(left).0, 1.0);
            if let Some(back) = back {
                returned += usize::from(back < Duration::from_secs(80));
                assert!(profile.down_loss.value_at(back).0 < 1.0, "seed {seed}");
            }
        }
        assert!(left_all > 90, "{left_all}");
        assert!((15..45).contains(&returned), "{returned} of 100 returned");
    }

    #[test]
    fn leaving_starts_with_slow_moments_losses_and_pauses() {
        let all = profiles(true);
        let before = |profile: &PhoneMobilityProfile, least: f64, most: f64| {
            let end = profile
                .away_periods
                .first()
                .map_or(SAMPLE * SAMPLES, |away_periods| away_periods.0);
            let points = profile.down_loss.points().iter().take_while(|(at, _)| *at < end);
            points.filter(|(_, loss)| (least..most).contains(loss)).count()
        };
        // Steps in which some but not all packets are lost, and steps in which the link stalls.
        let lossy = all.iter().filter(|profile| before(profile, 0.02, 0.9) > 5).count();
        let stands = |profile: &&PhoneMobilityProfile| {
            profile.down_rate.points().iter().any(|p| p.1 == Rate::ZERO)
        };
        assert!(lossy > 90, "{lossy}");
        assert!(all.iter().filter(stands).count() > 90);
        // The phone's transmissions arrive weaker than the access point's.
        let lost = |steps: &Steps<f64>| steps.points().iter().filter(|p| p.1 > 0.05).count();
        let worse = all.iter().filter(|c| lost(&c.up_loss) >= lost(&c.down_loss)).count();
        assert!(worse > 80, "{worse}");
    }

    #[test]
    fn our_functions_match_the_library() {
        for i in -300..300 {
            let x = f64::from(i) / 10.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-6, "exp {x}");
        }
        for i in 1..160 {
            let x = f64::from(i) / 10.0;
            assert!((log10(x) - x.log10()).abs() < 1e-9, "log {x}");
        }
    }

    #[test]
    fn a_walker_in_range_never_loses_the_network() {
        for (seed, profile) in profiles(false).iter().enumerate() {
            assert_eq!(profile.away_periods, [], "seed {seed}");
            for steps in [&profile.up_loss, &profile.down_loss] {
                assert!(steps.points().iter().all(|(_, loss)| *loss < 0.05), "seed {seed}");
            }
            let slow = Rate::from_mbit(8);
            for steps in [&profile.up_rate, &profile.down_rate] {
                assert!(steps.points().iter().all(|(_, rate)| *rate > slow), "seed {seed}");
            }
        }
    }
}
