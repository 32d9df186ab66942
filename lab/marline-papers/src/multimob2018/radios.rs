//! Energy of the cellular radio under several sets of constants: the model's, each of the model's lowered and raised
//! by a fifth, and those of a public tool.

use marline_link::Direction;
use marline_link::radio::{Radio, RadioKind, RadioParameters, Sensitivity, TimedState};
use marline_sim::{LinkId, ObservationPoint, Observer, Packet, Paths};
use marline_time::{Duration, Instant};
use marline_wire::TcpSegment;
use serde::{Deserialize, Serialize};

use super::systems;
use crate::estimate::{Estimate, Samples};
use crate::judge::Row;
use crate::table::Grid;
use crate::value::Value;

/// Note shown with energies.
pub(super) const CONSTANTS: &str = "constants of Huang et al. 2012, from memory";

/// Energy of the traffic on the cellular radio in one run, J, and its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Metered {
    /// Energy with the model's constants.
    pub(super) model: f64,
    /// Energy with the constants of ARO.
    pub(super) aro: f64,
    /// Energy with each of the model's constants at 80 %, in the order of [`parameters`].
    low: Vec<f64>,
    /// Energy with each of the model's constants at 120 %.
    high: Vec<f64>,
    /// Payload in both directions, including repeats.
    pub(super) payload_bytes: u64,
}

/// Names of the varied constants.
fn parameters() -> Vec<&'static str> {
    let varied = RadioParameters::published(RadioKind::Lte).variations(100);
    varied.into_iter().map(|(name, _)| name).collect()
}

/// LTE constants of `lte.conf` in AT&T's Application Resource Optimizer, the tool of the laboratory that published
/// the power model: 0.26 s of promotion at 1.21 W, 0.1 s of reception, then 10.02 s of tail at 1.06 W with 2 ms at
/// 1.68 W in every 40 ms.
fn aro() -> RadioParameters {
    let awake = 2.0 / 40.0;
    let tail_w = 1.06f64.mul_add(1.0 - awake, 1.68 * awake);
    RadioParameters {
        promotion: TimedState { lasts: Duration::from_millis(260), power_uw: 1_210_000 },
        transfer_power_uw: 1_200_000,
        tails: [
            TimedState { lasts: Duration::from_millis(10_120), power_uw: (tail_w * 1e6) as u64 },
            TimedState::default(),
        ],
        ..RadioParameters::published(RadioKind::Lte)
    }
}

/// Feeds LTE's packets to radios with other constants.
#[derive(Debug)]
pub(super) struct Meter {
    up: LinkId,
    down: LinkId,
    model: Sensitivity,
    aro: Radio,
    payload_bytes: u64,
}

impl Meter {
    /// Meter of the links of the path with this index. `None` if it has no links.
    pub(super) fn for_path(paths: &Paths, cellular: usize) -> Option<Meter> {
        Some(Meter {
            up: *paths.up.get(cellular)?,
            down: *paths.down.get(cellular)?,
            model: Sensitivity::new(RadioParameters::published(RadioKind::Lte), Instant::ZERO),
            aro: Radio::new(aro(), Instant::ZERO),
            payload_bytes: 0,
        })
    }

    pub(super) fn read(&self, now: Instant) -> Metered {
        let swings = self.model.parameter_swings(now);
        Metered {
            model: self.model.nominal().energy(now).traffic_j(),
            aro: self.aro.energy(now).traffic_j(),
            low: swings.iter().map(|swing| swing.low_j).collect(),
            high: swings.iter().map(|swing| swing.high_j).collect(),
            payload_bytes: self.payload_bytes,
        }
    }

    fn packet(&mut self, now: Instant, direction: Direction, packet: &Packet) {
        let bytes = packet.segment.len() as u64 + u64::from(packet.overhead);
        self.model.packet(now, direction, bytes);
        self.aro.packet(now, direction, bytes);
        let payload = TcpSegment::parse(&packet.segment).map_or(0, |tcp| tcp.payload.len());
        self.payload_bytes += payload as u64;
    }
}

impl Observer for Meter {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        match sighting {
            ObservationPoint::Sent { link: Some(link), .. } if link == self.up => {
                self.packet(now, Direction::Up, packet);
            }
            ObservationPoint::Delivered { link, .. } if link == self.down => {
                self.packet(now, Direction::Down, packet);
            }
            _ => {}
        }
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}

/// Selection of the cellular energy of one system, by its index in [`systems::all`].
pub(super) type EnergySelector<T> = fn(&T, usize) -> Option<&Metered>;

/// Cellular energy of a system relative to full mesh, with one set of constants.
pub(super) fn ratio_to_mesh<T>(
    samples: &Samples<T>,
    drawn: EnergySelector<T>,
    system: usize,
    of: impl Fn(&Metered) -> f64,
) -> Estimate {
    let mesh = systems::index_of(&systems::vanilla_full_mesh());
    let joules = |root: &T, place| drawn(root, place).map_or(f64::NAN, &of);
    samples.ratio(|root| (joules(root, system), joules(root, mesh)))
}

/// Row of a system's cellular energy relative to full mesh, without a requirement.
pub(super) fn row<T>(
    samples: &Samples<T>,
    drawn: EnergySelector<T>,
    system: usize,
    what: impl Into<String>,
) -> Row {
    let mean = |place| samples.mean(|root| drawn(root, place).map_or(f64::NAN, |m| m.model)).value;
    let mut range = (f64::INFINITY, 0.0_f64);
    for index in 0..parameters().len() {
        let turned: [&dyn Fn(&Metered) -> f64; 2] = [&|m| m.low[index], &|m| m.high[index]];
        for of in turned {
            let ratio = ratio_to_mesh(samples, drawn, system, of).value;
            range = (range.0.min(ratio), range.1.max(ratio));
        }
    }
    let ratio = ratio_to_mesh(samples, drawn, system, |m| m.model);
    Row::new(what).estimate(&ratio.percent(), "%").with_remark(format!(
        "{CONSTANTS}; {:.2} and {:.1} J per run; with each constant at 80 and at 120 % the ratio lies between {:.1} \
         and {:.1} %",
        mean(system),
        mean(systems::index_of(&systems::vanilla_full_mesh())),
        100.0 * range.0,
        100.0 * range.1
    ))
}

/// A cell of a grid.
pub(super) fn cell(of: Estimate) -> Value {
    Value::from_estimate(&of, "")
}

/// Energy of full mesh and MultiMob's share of it, with each constant lowered, unchanged and raised.
pub(super) fn sensitivity<T>(
    name: &str,
    title: &str,
    samples: &Samples<T>,
    drawn: EnergySelector<T>,
) -> Grid {
    let columns = [
        ("constant", ""),
        ("full mesh", "J"),
        ("tuned, ratio to full mesh", "%"),
        ("authors', ratio to full mesh", "%"),
    ];
    let mut grid = Grid::new(name, title, &columns);
    let mesh = systems::index_of(&systems::vanilla_full_mesh());
    let mut push = |what: String, of: &dyn Fn(&Metered) -> f64| {
        let joules = samples.mean(|root| drawn(root, mesh).map_or(f64::NAN, of));
        let mut cells = vec![Value::Text(what), cell(joules)];
        for system in [systems::tuned(), systems::authors()] {
            let ratio = ratio_to_mesh(samples, drawn, systems::index_of(&system), of);
            cells.push(cell(ratio.percent()));
        }
        grid.rows.push(cells);
    };
    push("unchanged".into(), &|m| m.model);
    push("ARO's constants".into(), &|m| m.aro);
    for (index, parameter) in parameters().into_iter().enumerate() {
        push(format!("{parameter} at 80 %"), &|m| m.low[index]);
        push(format!("{parameter} at 120 %"), &|m| m.high[index]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_both_sources_are_close() {
        let lone = |parameters: RadioParameters| {
            let mut radio = Radio::new(parameters, Instant::ZERO);
            radio.packet(Instant::from_secs(1), Direction::Up, 100);
            radio.energy(Instant::from_secs(30)).traffic_j()
        };
        let (model, aro) = (lone(RadioParameters::published(RadioKind::Lte)), lone(aro()));
        assert!((0.8..1.0).contains(&(aro / model)), "{aro} {model}");
    }
}
