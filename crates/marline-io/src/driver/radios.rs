//! What the radios of a shard's paths draw, by the packets that the shard sends and receives.
//!
//! The machine is [`marline_link::radio`]'s; here it runs with the clock and delays nothing. It knows
//! of this process' packets only: a radio that others keep awake is counted as if they did not.

use core::net::IpAddr;

use marline_link::Direction;
use marline_link::radio::{Radio, RadioKind, RadioParameters, RadioReading};
use marline_time::Instant;

use super::observer::{PacketObserver, Passing};

/// Radios by the number of their path.
#[derive(Debug, Default)]
pub(super) struct Radios {
    paths: Vec<Option<Metered>>,
    /// Bytes between the IP header and the segment.
    carrier_header: usize,
}

#[derive(Debug)]
struct Metered {
    addresses: Vec<IpAddr>,
    radio: Radio,
}

impl Radios {
    /// No radios yet; so many bytes of the carrier stand before each segment.
    pub(super) const fn new(carrier_header: usize) -> Self {
        Radios { paths: Vec::new(), carrier_header }
    }

    /// What the radio of this path drew so far, and what it is doing.
    pub(super) fn reading(&self, path: usize, now: Instant) -> Option<RadioReading> {
        Some(self.paths.get(path)?.as_ref()?.radio.reading(now))
    }

    fn packet(&mut self, now: Instant, local: IpAddr, direction: Direction, bytes: u64) {
        let of = |path: &&mut Metered| path.addresses.contains(&local);
        if let Some(path) = self.paths.iter_mut().flatten().find(of) {
            path.radio.packet(now, direction, bytes);
        }
    }

    /// Says over which radio the path of this number goes, and which addresses it has; `None`: none.
    pub(super) fn set(
        &mut self,
        number: usize,
        kind: Option<RadioKind>,
        addresses: &[IpAddr],
        now: Instant,
    ) {
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
    fn observe(&mut self, passing: &Passing<'_>) {
        if self.paths.is_empty() {
            return;
        }
        let ip = if passing.path.local.is_ipv4() { 20 } else { 40 };
        let header = ip + self.carrier_header;
        let bytes: usize = passing.segments().map(|segment| segment.len() + header).sum();
        self.packet(passing.at, passing.local_ip(), passing.direction, bytes as u64);
    }
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
}
