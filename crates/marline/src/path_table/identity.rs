//! Aliases for local addresses that exist on several interfaces.
//!
//! Two tethered phones often assign identical addresses in identical networks. The driver and the core identify a path
//! by its local address, so the second interface gets an alias: an address that no network assigns. Its sockets are
//! bound to the real address and the interface; only they know the real address.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use marline_io::LocalEnd;

/// Local end of a path.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PathEnd {
    bound: IpAddr,
    /// Index of the interface.
    interface: u32,
}

/// Addresses that identify the paths.
#[derive(Debug, Default)]
pub(super) struct Identities {
    by_end: BTreeMap<PathEnd, IpAddr>,
}

impl Identities {
    /// Assigns each end its own address or an alias. An end keeps its assignment while it exists.
    pub(super) fn assign<'a>(&mut self, ends: impl Iterator<Item = &'a mut LocalEnd>) {
        let ends: Vec<&mut LocalEnd> = ends.filter(|end| !end.behind_tun).collect();
        let place = |end: &LocalEnd| PathEnd { bound: end.bound, interface: end.interface.1 };
        self.by_end.retain(|known, _| ends.iter().any(|end| place(end) == *known));
        for end in ends {
            let place = place(end);
            if !self.by_end.contains_key(&place) {
                let free = |address: &IpAddr| !self.by_end.values().any(|taken| taken == address);
                let aliases = (0..=u8::MAX).map(|nth| place.alias(nth));
                let chosen = core::iter::once(end.bound).chain(aliases).find(free);
                self.by_end.insert(place, chosen.unwrap_or(end.bound));
            }
            end.address = self.by_end.get(&place).copied().unwrap_or(end.bound);
        }
    }
}

impl PathEnd {
    /// Returns an address of "this network" (RFC 791), or of the discard prefix (RFC 6666).
    fn alias(self, nth: u8) -> IpAddr {
        let [_, high, middle, low] = self.interface.to_be_bytes();
        match self.bound {
            IpAddr::V4(_) if nth == 0 => Ipv4Addr::new(0, high, middle, low).into(),
            IpAddr::V4(_) => Ipv4Addr::new(0, 255 - nth, middle, low).into(),
            IpAddr::V6(_) => {
                let low = u16::from_be_bytes([middle, low]);
                Ipv6Addr::new(0x100, 0, 0, 0, 0, u16::from(nth), u16::from(high), low).into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(address: &str, index: u32) -> LocalEnd {
        let interface = (format!("usb{index}"), index);
        let behind_tun = false;
        LocalEnd { interface, behind_tun, ..LocalEnd::from_tun("", address.parse().unwrap()) }
    }

    fn addresses(identities: &mut Identities, ends: &[LocalEnd]) -> Vec<String> {
        let mut ends = ends.to_vec();
        identities.assign(ends.iter_mut());
        ends.iter().map(|end| end.address.to_string()).collect()
    }

    #[test]
    fn the_same_address_on_two_interfaces_is_two_paths_for_as_long_as_they_are_there() {
        let mut identities = Identities::default();
        let [first, second] = [5, 6].map(|index| end("172.20.10.2", index));
        let other = end("192.0.2.7", 7);
        let all = [first.clone(), second.clone(), other.clone()];
        let expected = ["172.20.10.2", "0.0.0.6", "192.0.2.7"];
        assert_eq!(addresses(&mut identities, &all), expected);
        assert_eq!(addresses(&mut identities, &[second.clone(), other]), expected[1..]);
        assert_eq!(
            addresses(&mut identities, &[second, end("172.20.10.2", 9)]),
            ["0.0.0.6", "172.20.10.2"],
            "the address is free again"
        );
        let v6 = [end("fd00::2", 5), end("fd00::2", 70_000)];
        assert_eq!(addresses(&mut identities, &v6), ["fd00::2", "100::1:1170"]);
    }

    #[test]
    fn two_paths_from_one_address_have_one_identity() {
        let mut identities = Identities::default();
        let both = [end("192.0.2.7", 5), end("192.0.2.7", 5)];
        assert_eq!(addresses(&mut identities, &both), ["192.0.2.7", "192.0.2.7"]);
    }
}
