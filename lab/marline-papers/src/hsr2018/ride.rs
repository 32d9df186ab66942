//! Train ride: three carriers that change cells. Their handoffs never overlap.

use std::sync::Arc;

use marline_link::trace::{PingTrace, Probe};
use marline_link::{DuplexConfig, RateConfig, Steps, TraceStart};
use marline_time::{Duration, PcgRng, Rate, Rng, SeedTree};

use crate::download::{Download, link};

/// Length of a run.
pub(super) const LENGTH: Duration = Duration::from_secs(30);
/// China Mobile, China Unicom, China Telecom. Runs with two carriers use the first two. The third does not
/// influence them.
pub(super) const PATHS: [&str; 3] = ["mobile", "unicom", "telecom"];

/// Quantiles of a distribution at 0, 10, 50, 90 and 100 %, interpolated linearly.
struct Quantiles([f64; 5]);

impl Quantiles {
    const AT: [f64; 5] = [0.0, 0.1, 0.5, 0.9, 1.0];

    fn at(&self, share: f64) -> f64 {
        let upper = Self::AT.iter().position(|at| share <= *at).unwrap_or(4).max(1);
        let (from, to) = (Self::AT[upper - 1], Self::AT[upper]);
        let (low, high) = (self.0[upper - 1], self.0[upper]);
        (high - low).mul_add((share - from) / (to - from), low)
    }
}

const RATE_MBIT: Quantiles = Quantiles([2.0, 4.0, 10.0, 25.0, 35.0]);
const RTT_MS: [Quantiles; 3] = [
    Quantiles([90.0, 144.0, 364.0, 446.0, 700.0]),
    Quantiles([40.0, 57.0, 195.0, 359.0, 500.0]),
    // Not published. Assumed equal to China Unicom's, whose LTE is also FDD.
    Quantiles([40.0, 57.0, 195.0, 359.0, 500.0]),
];
const HANDOFF_S: Quantiles = Quantiles([0.5, 0.6, 1.0, 2.2, 3.0]);
/// Link properties during a handoff.
const HANDOFF_LOSS: f64 = 0.7;
const HANDOFF_RATE: f64 = 0.1;
const HANDOFF_RTT_MS: f64 = 700.0;

/// A class of speed.
pub(super) struct Class {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
    /// Handoffs of each carrier per minute.
    handoffs: f64,
    /// Loss between handoffs.
    loss: f64,
    /// Lower part of the round-trip distribution from which values are drawn.
    rtts: f64,
}

pub(super) const CLASSES: [Class; 3] = [
    Class { name: "static", key: "static", handoffs: 0.0, loss: 1e-4, rtts: 0.3 },
    Class { name: "below 150 km/h", key: "below-150", handoffs: 3.0, loss: 5e-4, rtts: 1.0 },
    Class { name: "150 to 310 km/h", key: "150-to-310", handoffs: 7.0, loss: 1e-3, rtts: 1.0 },
];

/// Link properties, and the time from which they apply.
#[derive(Copy, Clone, Debug)]
struct Moment {
    at: Duration,
    mbit: f64,
    rtt_ms: f64,
    loss: f64,
}

impl Class {
    /// Download on the ride for a seed.
    pub(super) fn ride(&self, seed: u64) -> anyhow::Result<Download> {
        let seeds = SeedTree::new(seed).branch(self.key);
        let mut taken = Vec::new();
        let mut paths = Vec::new();
        for (name, rtts) in PATHS.iter().zip(&RTT_MS) {
            let mut rng = seeds.branch(name).stream("paper/ride");
            let course = self.rate_course(&mut rng, rtts, &mut taken);
            paths.push((*name, carrier(&course)?));
        }
        Ok(Download { paths, length: LENGTH })
    }

    fn cell(&self, rng: &mut PcgRng, rtts: &Quantiles, at: Duration) -> Moment {
        let (mbit, rtt_ms) = (RATE_MBIT.at(rng.unit()), rtts.at(self.rtts * rng.unit()));
        Moment { at, mbit, rtt_ms, loss: self.loss }
    }

    /// Cells and handoffs of a carrier. `taken` holds the handoff times of the other carriers, and those of this
    /// carrier are added to it.
    fn rate_course(
        &self,
        rng: &mut PcgRng,
        rtts: &Quantiles,
        taken: &mut Vec<(Duration, Duration)>,
    ) -> Vec<Moment> {
        let mut course = vec![self.cell(rng, rtts, Duration::ZERO)];
        if self.handoffs == 0.0 {
            return course;
        }
        let mut own = Vec::new();
        let mut at = Duration::ZERO;
        loop {
            at += seconds(60.0 / self.handoffs * (0.5 + rng.unit()));
            let lasts = seconds(HANDOFF_S.at(rng.unit()));
            while let Some((_, end)) =
                taken.iter().find(|(from, end)| at < *end && *from < at + lasts)
            {
                at = *end;
            }
            if at >= LENGTH {
                break;
            }
            let before = course[course.len() - 1];
            course.push(Moment {
                at,
                mbit: before.mbit * HANDOFF_RATE,
                rtt_ms: before.rtt_ms + HANDOFF_RTT_MS,
                loss: HANDOFF_LOSS,
            });
            own.push((at, at + lasts));
            at += lasts;
            course.push(self.cell(rng, rtts, at));
        }
        taken.extend(own);
        course
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_nanos((seconds * 1e9) as u64)
}

fn carrier(course: &[Moment]) -> anyhow::Result<DuplexConfig> {
    let mut both = link("queue=1s")?;
    let probe = |m: &Moment| Probe { at: m.at, rtt: Some(seconds(m.rtt_ms / 1e3)) };
    let mut probes: Vec<Probe> = course.iter().map(probe).collect();
    // Extends the course beyond the run, so that it does not repeat within it.
    let last = probes[probes.len() - 1];
    probes.push(Probe { at: LENGTH + Duration::from_secs(60), ..last });
    let rtts = Arc::new(PingTrace::from_probes(probes).map_err(anyhow::Error::msg)?);
    for (way, share) in [(&mut both.down, 1.0), (&mut both.up, 1.0 / 3.0)] {
        let rate = |m: &Moment| Rate::from_bits_per_s((m.mbit * share * 1e6) as u64);
        let rates = course.iter().map(|m| (m.at, rate(m))).collect();
        let losses = course.iter().map(|m| (m.at, m.loss)).collect();
        let words = anyhow::Error::msg;
        way.rate = RateConfig::Steps(Arc::new(Steps::new(rates, None).map_err(words)?));
        way.loss.steps = Some(Arc::new(Steps::new(losses, None).map_err(words)?));
        let start = Duration::ZERO;
        way.delay.trace = Some(TraceStart { trace: Arc::clone(&rtts), start });
    }
    Ok(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_met_and_joined_by_lines() {
        let quantiles = Quantiles([0.0, 10.0, 50.0, 90.0, 190.0]);
        let values = [0.0, 0.1, 0.3, 0.5, 0.95, 1.0].map(|share| quantiles.at(share));
        for (value, wanted) in values.iter().zip([0.0, 10.0, 30.0, 50.0, 140.0, 190.0]) {
            assert!((value - wanted).abs() < 1e-9, "{values:?}");
        }
    }

    #[test]
    fn handoffs_of_the_carriers_never_meet() {
        let class = &CLASSES[2];
        for seed in 0..200 {
            let seeds = SeedTree::new(seed);
            let mut taken = Vec::new();
            for (name, rtts) in PATHS.iter().zip(&RTT_MS) {
                let mut rng = seeds.branch(name).stream("paper/ride");
                let course = class.rate_course(&mut rng, rtts, &mut taken);
                assert!(course.windows(2).all(|pair| pair[0].at < pair[1].at), "seed {seed}");
            }
            taken.sort();
            assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "seed {seed}: {taken:?}");
            assert!((3..=18).contains(&taken.len()), "seed {seed}: {} handoffs", taken.len());
        }
    }
}
