//! Radio energy meter: estimated consumption of the radios of a client's paths, from the packets
//! that the client sends and receives.
//!
//! The state machine is [`marline_link::radio`]'s; here it runs in real time and delays nothing. It
//! sees only this process' packets: other traffic that keeps a radio awake is ignored.

use core::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use marline::advanced::{ObservedPath, ObservedSegments, PacketObserver, SharedObserver};
use marline::{LocalSpec, PathSpec};
use marline_io::Clock;
use marline_link::Direction;
use marline_link::radio::{Radio, RadioKind, RadioParameters, RadioReading};
use marline_time::Instant;

/// The meter of a client's radios. Clones are one meter.
#[derive(Clone, Debug)]
pub struct RadioMeter {
    radios: Arc<Mutex<Radios>>,
    clock: Clock,
}

impl RadioMeter {
    /// A meter that knows no path yet.
    #[must_use]
    pub fn new() -> Self {
        RadioMeter { radios: Arc::default(), clock: Clock::start() }
    }

    /// What the client is to show its packets to.
    #[must_use]
    pub fn observer(&self) -> SharedObserver {
        Arc::clone(&self.radios) as _
    }

    /// What the radio of the path of this number drew so far, and what it is doing; `None`: it goes
    /// over none that is known.
    #[must_use]
    pub fn reading(&self, path: usize) -> Option<RadioReading> {
        let now = self.clock.now();
        self.radios.lock().unwrap_or_else(PoisonError::into_inner).reading(path, now)
    }
}

impl Default for RadioMeter {
    fn default() -> Self {
        RadioMeter::new()
    }
}

/// Radios by the number of their path.
#[derive(Debug, Default)]
struct Radios {
    paths: Vec<Option<Metered>>,
}

#[derive(Debug)]
struct Metered {
    addresses: Vec<IpAddr>,
    radio: Radio,
}

impl Radios {
    /// What the radio of this path drew so far, and what it is doing.
    fn reading(&self, path: usize, now: Instant) -> Option<RadioReading> {
        Some(self.paths.get(path)?.as_ref()?.radio.reading(now))
    }

    fn packet(&mut self, now: Instant, local: IpAddr, direction: Direction, bytes: u64) {
        let of = |path: &&mut Metered| path.addresses.contains(&local);
        if let Some(path) = self.paths.iter_mut().flatten().find(of) {
            path.radio.packet(now, direction, bytes);
        }
    }

    /// Says over which radio the path of this number goes, and which addresses it has; `None`: none.
    fn set(&mut self, number: usize, kind: Option<RadioKind>, addresses: &[IpAddr], now: Instant) {
        if self.paths.len() <= number {
            self.paths.resize_with(number + 1, || None);
        }
        let path = &mut self.paths[number];
        match (kind, path.as_mut()) {
            (None, _) => *path = None,
            // Other addresses, the same radio.
            (Some(kind), Some(metered)) if metered.radio.parameters().kind == kind => {
                metered.addresses = addresses.to_vec();
            }
            (Some(kind), _) => {
                let radio = Radio::new(RadioParameters::of(kind), now);
                *path = Some(Metered { addresses: addresses.to_vec(), radio });
            }
        }
    }
}

impl PacketObserver for Radios {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        let direction = match observed.direction {
            marline::advanced::Direction::Out => Direction::Up,
            marline::advanced::Direction::In => Direction::Down,
        };
        self.packet(observed.at, observed.local_ip(), direction, observed.packet_bytes());
    }

    fn path(&mut self, at: Instant, path: &ObservedPath<'_>) {
        self.set(path.number, kind(path.spec, path.interface), path.addresses, at);
    }
}

/// The radio as configured, or as the interface's name lets one suppose.
fn kind(spec: &PathSpec, interface: Option<&str>) -> Option<RadioKind> {
    let named = match &spec.local {
        LocalSpec::Interface(name) => Some(name.as_str()),
        LocalSpec::Address(_) => interface,
    };
    let configured = spec.radio.map(|radio| match radio {
        marline::RadioKind::Lte => RadioKind::Lte,
        marline::RadioKind::Umts => RadioKind::Umts,
        marline::RadioKind::Wifi => RadioKind::Wifi,
    });
    configured.or_else(|| RadioKind::guess(named?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_at_the_path_that_has_their_address() {
        let (wifi, lte) = (IpAddr::from([10, 0, 1, 2]), IpAddr::from([10, 0, 2, 2]));
        let mut radios = Radios::default();
        radios.set(1, Some(RadioKind::Lte), &[lte], Instant::ZERO);
        radios.set(0, Some(RadioKind::Wifi), &[wifi], Instant::ZERO);
        radios.packet(Instant::from_secs(1), lte, Direction::Up, 100);
        radios.packet(Instant::from_secs(1), IpAddr::from([10, 0, 3, 2]), Direction::Up, 100);
        let packets = |radios: &Radios, path: usize| {
            let metered = radios.paths[path].as_ref()?;
            Some(metered.radio.energy(Instant::from_secs(2)).packets)
        };
        assert_eq!((packets(&radios, 0), packets(&radios, 1)), (Some(0), Some(1)));
        // Another address goes on where the first was; another radio begins anew.
        let moved = IpAddr::from([10, 0, 2, 9]);
        radios.set(1, Some(RadioKind::Lte), &[moved], Instant::from_secs(2));
        radios.packet(Instant::from_secs(2), moved, Direction::Down, 100);
        assert_eq!(packets(&radios, 1), Some(2));
        radios.set(1, Some(RadioKind::Umts), &[moved], Instant::from_secs(3));
        assert_eq!(packets(&radios, 1), Some(0));
        radios.set(1, None, &[], Instant::from_secs(3));
        assert_eq!(packets(&radios, 1), None);
    }

    #[test]
    fn the_radio_is_the_configured_one_or_what_the_interface_is_called_after() {
        let of = |path: &str, interface| kind(&path.parse().expect("a path"), interface);
        assert_eq!(of("eth0,radio=3g", None), Some(RadioKind::Umts));
        assert_eq!(of("wlan0,radio=lte", Some("wlan0")), Some(RadioKind::Lte));
        assert_eq!(of("wlan0", None), Some(RadioKind::Wifi));
        assert_eq!(of("192.0.2.7", Some("wwan0")), Some(RadioKind::Lte));
        assert_eq!(of("192.0.2.7", None), None);
        assert_eq!(of("eth0", Some("eth0")), None);
    }
}
