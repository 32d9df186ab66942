//! Walk out of WiFi range and back, as rate and loss over time.
//!
//! A walker stays near the access point for a while, walks away at a steady pace until out of range, stays there, and
//! walks back. This is repeated with new random numbers for ten minutes. The radio has a log-distance path loss with
//! exponent 3: 3 dB less signal corresponds to 1.26 times the distance and about one step down the rates of one
//! 802.11n stream (65, 58.5, 52, 39, 26, 19.5, 13, 6.5 Mbit/s), so the steps are at 10, 12.6, 15.8, 20, 25, 32, 40 and
//! 50 m. Shadowing by walls and bodies is a factor on the distance, 1 + N(0, 0.2), correlated over about 4 s (5 m of
//! walking). In the lowest step, 5 % of the packets are lost after all link-layer retransmissions, in higher ones 0.1
//! %. Out of range all packets are lost without notification: stations keep a dead association for seconds.
//!
//! Chosen for plausibility from the standard's rate table and textbook path loss, not fitted to a measurement. Not
//! modeled: contention by other stations, roaming, and errors of rate control.

use std::sync::Arc;

use marline_time::{Duration, PcgRng, Rate, Rng, SeedTree};

use super::steps;
use crate::Steps;
use crate::stage::normal;

/// Distances in meters, and the share (per mille) of the peak rate that is reached up to each.
const RATE_STEPS: [(f64, u64); 8] = [
    (10.0, 1000),
    (12.6, 900),
    (15.8, 800),
    (20.0, 600),
    (25.0, 400),
    (32.0, 300),
    (40.0, 200),
    (50.0, 100),
];
const SAMPLE: Duration = Duration::from_millis(100);
const SAMPLES: u32 = 6_000;
const SHADOW_DEVIATION: f64 = 0.2;
/// Correlation of the shadowing between samples, and the factor that keeps its variance at 1.
const SHADOW_CORRELATION: f64 = 0.975;
const SHADOW_INNOVATION: f64 = 0.222_204_86;

/// Parameters of a cycle of walks out of range.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WalkCycle {
    /// Rate next to the access point.
    pub peak: Rate,
}

/// Drawn walks: rate and loss of both link directions, repeating after ten minutes.
#[derive(Clone, Debug, PartialEq)]
pub struct WalkCycleProfile {
    /// Rate in steps of 100 ms.
    pub rate: Arc<Steps<Rate>>,
    /// Loss probability in steps of 100 ms.
    pub loss: Arc<Steps<f64>>,
}

/// State of the walker.
struct Walker {
    distance_m: f64,
    target_m: f64,
    step_m: f64,
    stays: u64,
    rng: PcgRng,
}

impl Walker {
    const NEAR_M: f64 = 3.0;

    fn new(mut rng: PcgRng) -> Self {
        let stays = 40 + rng.below(60);
        Walker { distance_m: Self::NEAR_M, target_m: Self::NEAR_M, step_m: 0.0, stays, rng }
    }

    /// Advances by one sample. Returns the distance.
    fn step(&mut self) -> f64 {
        if self.stays > 0 {
            self.stays -= 1;
            if self.stays == 0 {
                self.start_walk();
            }
        } else if (self.target_m - self.distance_m).abs() <= self.step_m {
            self.distance_m = self.target_m;
            self.stays = 30 + self.rng.below(90);
        } else if self.target_m > self.distance_m {
            self.distance_m += self.step_m;
        } else {
            self.distance_m -= self.step_m;
        }
        self.distance_m
    }

    fn start_walk(&mut self) {
        let leaving = self.distance_m <= Self::NEAR_M;
        self.target_m = if leaving { 50.0 + 30.0 * self.rng.unit() } else { Self::NEAR_M };
        self.step_m = (1.0 + 0.6 * self.rng.unit()) / 10.0;
    }
}

impl WalkCycle {
    /// Draws the walks for this seed.
    #[must_use]
    pub fn draw(&self, seeds: &SeedTree) -> WalkCycleProfile {
        let mut walker = Walker::new(seeds.stream("walkout/way"));
        let mut shadowing = seeds.stream("walkout/shadow");
        let mut shadow = 0.0;
        let (mut rates, mut losses) = (Vec::new(), Vec::new());
        for sample in 0..SAMPLES {
            shadow = shadow * SHADOW_CORRELATION + normal(&mut shadowing) * SHADOW_INNOVATION;
            let felt_m = walker.step() * (1.0 + SHADOW_DEVIATION * shadow).max(0.3);
            let step = RATE_STEPS.iter().position(|(up_to_m, _)| felt_m <= *up_to_m);
            let share = step.map_or(RATE_STEPS[7].1, |step| RATE_STEPS[step].1);
            let loss = match step {
                Some(0..7) => 0.001,
                Some(_) => 0.05,
                None => 1.0,
            };
            let peak = self.peak.bits_per_s() / 1000;
            rates.push((SAMPLE * sample, Rate::from_bits_per_s(peak.saturating_mul(share))));
            losses.push((SAMPLE * sample, loss));
        }
        let period = Some(SAMPLE * SAMPLES);
        WalkCycleProfile { rate: steps(rates, period), loss: steps(losses, period) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_leaves_the_range_returns_and_depends_only_on_the_seed() {
        let model = WalkCycle { peak: Rate::from_mbit(30) };
        for seed in 0..20 {
            let walk = model.draw(&SeedTree::new(seed));
            assert_eq!(walk, model.draw(&SeedTree::new(seed)));
            let at = |ms| walk.loss.value_at(Duration::from_millis(ms)).0;
            let gone = (0..6_000).filter(|i| at(i * 100) == 1.0).count();
            let fine = (0..6_000).filter(|i| at(i * 100) <= 0.001).count();
            assert!((300..4_000).contains(&gone), "seed {seed}: {gone}");
            assert!(fine > 1_500, "seed {seed}: {fine}");
            assert_eq!(walk.rate.value_at(Duration::ZERO).0, Rate::from_mbit(30));
        }
        assert_ne!(model.draw(&SeedTree::new(1)), model.draw(&SeedTree::new(2)));
    }
}
