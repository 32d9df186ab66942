//! Delay stage: one-way delay of each packet.

use marline_time::{Duration, Instant, PcgRng, Rng, SeedTree, nanos};

use super::normal;
use crate::{DelayConfig, Jitter};

/// The delay of one link.
#[derive(Clone, Debug)]
pub(crate) struct DelayStage {
    pub(crate) config: DelayConfig,
    start: Instant,
    jitter: PcgRng,
}

impl DelayStage {
    pub(crate) fn new(config: DelayConfig, seeds: &SeedTree, start: Instant) -> Self {
        DelayStage { config, start, jitter: seeds.stream("delay/jitter") }
    }

    /// Arrival time of a packet that leaves the queue now, regardless of other packets.
    pub(crate) fn arrival(&mut self, now: Instant) -> Instant {
        let mut delay = self.config.base;
        if let Some(trace) = &self.config.trace {
            delay += trace.trace.rtt_at(now.since(self.start) + trace.start) / 2;
        }
        let (unit, scale) = match self.config.jitter {
            Jitter::None => return now + delay,
            Jitter::Uniform(most) => (2.0 * self.jitter.unit() - 1.0, most),
            Jitter::Normal(deviation) => (normal(&mut self.jitter), deviation),
        };
        let shift = Duration::from_nanos((unit.abs() * nanos(scale) as f64) as u64);
        let delay = if unit < 0.0 { delay.saturating_sub(shift) } else { delay + shift };
        now + delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(jitter: Jitter) -> Vec<Duration> {
        let config =
            DelayConfig { base: Duration::from_millis(20), jitter, ..DelayConfig::default() };
        let mut stage = DelayStage::new(config, &SeedTree::new(1), Instant::ZERO);
        (0..10_000)
            .map(|i| stage.arrival(Instant::from_millis(i)) - Instant::from_millis(i))
            .collect()
    }

    #[test]
    fn jitter_lies_around_the_base_delay() {
        assert!(delays(Jitter::None).iter().all(|d| *d == Duration::from_millis(20)));
        let uniform = delays(Jitter::Uniform(Duration::from_millis(5)));
        let (low, high) = (uniform.iter().min().unwrap(), uniform.iter().max().unwrap());
        assert!(*low >= Duration::from_millis(15) && *low < Duration::from_micros(15_100));
        assert!(*high <= Duration::from_millis(25) && *high > Duration::from_micros(24_900));
        let normal = delays(Jitter::Normal(Duration::from_millis(5)));
        let mean = normal.iter().sum::<Duration>() / 10_000;
        assert!(mean.abs_diff(Duration::from_millis(20)) < Duration::from_micros(300), "{mean:?}");
    }
}
