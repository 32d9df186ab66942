//! Figures from samples.

use marline_time::{Duration, Rate};

/// Durations, kept exactly; sorted when asked.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    values: Vec<Duration>,
}

impl Samples {
    /// Samples of these values.
    #[must_use]
    pub fn new(mut values: Vec<Duration>) -> Self {
        values.sort_unstable();
        Samples { values }
    }

    /// The value below or at which the share `quantile` (0 to 1) of the samples lies (nearest rank);
    /// zero without samples.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        let rank = (quantile * self.values.len() as f64).ceil() as usize;
        let index = rank.clamp(1, self.values.len().max(1)) - 1;
        self.values.get(index).copied().unwrap_or_default()
    }

    /// The largest.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.values.last().copied().unwrap_or_default()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// Goodput of a link: rate x payload / packet, for full segments of `payload` bytes of application
/// data in packets of `packet` bytes on the link.
#[must_use]
pub fn link_goodput(rate: Rate, payload: u64, packet: u64) -> Rate {
    let bits = u128::from(rate.bits_per_s()) * u128::from(payload) / u128::from(packet.max(1));
    Rate::from_bits_per_s(u64::try_from(bits).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let samples = Samples::new((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!(samples.quantile(0.5), Duration::from_millis(50));
        assert_eq!(samples.quantile(0.99), Duration::from_millis(99));
        assert_eq!(samples.quantile(1.0), Duration::from_millis(100));
        assert_eq!(samples.quantile(0.0), Duration::from_millis(1));
        assert_eq!(Samples::default().quantile(0.5), Duration::ZERO);
        assert_eq!(link_goodput(Rate::from_mbit(15), 1_000, 1_500), Rate::from_mbit(10));
    }
}
