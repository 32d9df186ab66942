//! Loss stage: decides which packets that left the queue never arrive.
//!
//! Every cause draws for every packet, even if another cause already lost it. The result depends only on a packet's
//! number (or time), not on the fate of earlier packets.

use marline_time::{Instant, PcgRng, Rng, SeedTree};

use super::exponential;
use crate::{GilbertElliott, LossConfig};

/// State of the Gilbert-Elliott chain.
#[derive(Copy, Clone, Debug)]
struct GilbertElliottState {
    is_bad: bool,
    until: Instant,
}

/// The losses of one link.
#[derive(Clone, Debug)]
pub(crate) struct LossStage {
    config: LossConfig,
    start: Instant,
    packets: u64,
    chain: GilbertElliottState,
    random: PcgRng,
    state_durations: PcgRng,
    losses_within_state: PcgRng,
    stepped: PcgRng,
}

impl LossStage {
    pub(crate) fn new(config: LossConfig, seeds: &SeedTree, start: Instant) -> Self {
        let mut stage = LossStage {
            config,
            start,
            packets: 0,
            chain: GilbertElliottState { is_bad: true, until: start },
            random: seeds.stream("loss/random"),
            state_durations: seeds.stream("loss/gilbert-elliott/state"),
            losses_within_state: seeds.stream("loss/gilbert-elliott/packet"),
            stepped: seeds.stream("loss/steps"),
        };
        stage.walk_chain(start);
        stage
    }

    /// Sets new probabilities. Random streams, packet count and the chain's state continue.
    pub(crate) fn set_config(&mut self, config: LossConfig, now: Instant) {
        let restart = self.config.gilbert_elliott != config.gilbert_elliott;
        self.config = config;
        if restart {
            self.chain = GilbertElliottState { is_bad: true, until: now };
        }
    }

    /// Returns true if the packet that leaves the queue now is lost.
    pub(crate) fn is_lost(&mut self, now: Instant) -> bool {
        self.packets += 1;
        let elapsed = now.since(self.start);
        let mut lost = self.config.random > 0.0 && self.random.chance(self.config.random);
        if let Some(model) = self.config.gilbert_elliott {
            self.walk_chain(now);
            let GilbertElliott { loss_bad, loss_good, .. } = model;
            lost |= self.losses_within_state.chance(if self.chain.is_bad {
                loss_bad
            } else {
                loss_good
            });
        }
        if let Some(steps) = &self.config.steps {
            lost |= self.stepped.chance(steps.value_at(elapsed).0);
        }
        if let Some(trace) = &self.config.trace {
            lost |= trace.trace.lost_at(elapsed + trace.start);
        }
        lost || self.config.pattern.binary_search(&self.packets).is_ok()
    }

    /// Advances the chain to `now`. It starts in the good state.
    fn walk_chain(&mut self, now: Instant) {
        let Some(model) = self.config.gilbert_elliott else { return };
        while self.chain.until <= now {
            self.chain.is_bad = !self.chain.is_bad;
            let mean = if self.chain.is_bad { model.bad } else { model.good };
            self.chain.until += exponential(mean, &mut self.state_durations);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_time::Duration;

    fn stage(config: LossConfig) -> LossStage {
        LossStage::new(config, &SeedTree::new(3), Instant::ZERO)
    }

    fn fates(stage: &mut LossStage, step: Duration, packets: u64) -> Vec<bool> {
        (0..packets).map(|i| stage.is_lost(Instant::ZERO + step * i as u32)).collect()
    }

    #[test]
    fn random_loss_has_its_rate_and_depends_only_on_the_packet_number() {
        let config = LossConfig { random: 0.02, ..LossConfig::default() };
        let slow = fates(&mut stage(config.clone()), Duration::from_millis(9), 20_000);
        let fast = fates(&mut stage(config), Duration::from_micros(1), 20_000);
        assert_eq!(slow, fast);
        let lost = slow.iter().filter(|lost| **lost).count();
        assert!((320..480).contains(&lost), "{lost}");
    }

    #[test]
    fn gilbert_elliott_states_depend_on_time_not_packets() {
        let model = GilbertElliott {
            good: Duration::from_millis(900),
            bad: Duration::from_millis(100),
            loss_bad: 1.0,
            loss_good: 0.0,
        };
        let config = LossConfig { gilbert_elliott: Some(model), ..LossConfig::default() };
        let every_ms = fates(&mut stage(config.clone()), Duration::from_millis(1), 100_000);
        let every_10 = fates(&mut stage(config), Duration::from_millis(10), 10_000);
        let thinned: Vec<bool> = every_ms.iter().step_by(10).copied().collect();
        assert_eq!(thinned, every_10);
        let lost = every_ms.iter().filter(|lost| **lost).count();
        assert!((7_000..13_500).contains(&lost), "{lost}");
        let bursts = every_ms.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        assert!((60..140).contains(&bursts), "{bursts}");
    }

    #[test]
    fn a_pattern_drops_the_listed_packets() {
        let config = LossConfig { pattern: vec![2, 5], ..LossConfig::default() };
        let fates = fates(&mut stage(config), Duration::from_millis(1), 6);
        assert_eq!(fates, [false, true, false, false, true, false]);
    }
}
