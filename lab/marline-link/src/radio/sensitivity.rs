//! Sensitivity of the energy figures to uncertain parameters.
//!
//! The same packets are processed by machines that each have one parameter at 80 or 120 % of its value. Only the
//! energy is computed again. Packet times stay unchanged, although a longer promotion would have delayed packets.

use marline_time::Instant;

use super::{Radio, RadioParameters};
use crate::Direction;

/// Lower and higher value of a varied parameter in percent.
const VARIED_PERCENT: [u64; 2] = [80, 120];

/// Effect of a parameter on the energy caused by traffic.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ParameterSwing {
    /// The parameter.
    pub parameter: &'static str,
    /// Energy in joules with the parameter at 80 %.
    pub low_j: f64,
    /// Energy in joules with the parameter at 120 %.
    pub high_j: f64,
}

/// A radio and its variations, which process the same packets.
#[derive(Clone, Debug)]
pub struct Sensitivity {
    nominal: Radio,
    varied: Vec<(&'static str, [Radio; 2])>,
}

impl Sensitivity {
    /// Creates variations around these parameters, idle at `start`.
    #[must_use]
    pub fn new(parameters: RadioParameters, start: Instant) -> Self {
        let [low, high] = VARIED_PERCENT.map(|percent| parameters.variations(percent));
        let pair = |((name, low), (_, high)): ((&'static str, RadioParameters), (_, _))| {
            (name, [Radio::new(low, start), Radio::new(high, start)])
        };
        let varied = low.into_iter().zip(high).map(pair).collect();
        Sensitivity { nominal: Radio::new(parameters, start), varied }
    }

    /// Records a packet.
    pub fn packet(&mut self, now: Instant, direction: Direction, bytes: u64) {
        self.nominal.packet(now, direction, bytes);
        for radio in self.varied.iter_mut().flat_map(|(_, pair)| pair) {
            radio.packet(now, direction, bytes);
        }
    }

    /// The radio with unchanged parameters.
    #[must_use]
    pub const fn nominal(&self) -> &Radio {
        &self.nominal
    }

    /// Energy that traffic caused until `now`, for each parameter.
    #[must_use]
    pub fn parameter_swings(&self, now: Instant) -> Vec<ParameterSwing> {
        let swing = |(parameter, pair): &(&'static str, [Radio; 2])| {
            let [low_j, high_j] = pair.map(|radio| radio.energy(now).traffic_j());
            ParameterSwing { parameter, low_j, high_j }
        };
        self.varied.iter().map(swing).collect()
    }

    /// Minimum and maximum energy caused by traffic, over all variations.
    #[must_use]
    pub fn range_j(&self, now: Instant) -> (f64, f64) {
        let nominal = self.nominal.energy(now).traffic_j();
        let swings = self.parameter_swings(now);
        let all = swings.iter().flat_map(|swing| [swing.low_j, swing.high_j]);
        all.fold((nominal, nominal), |(low, high), joules| (low.min(joules), high.max(joules)))
    }
}
