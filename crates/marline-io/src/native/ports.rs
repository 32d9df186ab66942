//! Local addresses and ports owned by Marline.

use core::net::{IpAddr, SocketAddr};

/// Number of words in a set of all ports.
const WORDS: usize = 1 << 10;

/// Set of local addresses and ports: ports on all addresses of a family, ports on single addresses, and whole
/// addresses.
#[derive(Debug, Default)]
pub(super) struct PortSet {
    /// Ports on all addresses: IPv4, IPv6.
    on_all_addresses: [Bits; 2],
    exact: Vec<SocketAddr>,
    addresses: Vec<IpAddr>,
    everything: bool,
}

#[derive(Debug)]
struct Bits(Box<[u64; WORDS]>);

impl Default for Bits {
    fn default() -> Self {
        Bits(Box::new([0; WORDS]))
    }
}

impl Bits {
    const fn has(&self, port: u16) -> bool {
        self.0[port as usize / 64] & (1 << (port % 64)) != 0
    }
}

impl PortSet {
    /// Adds a port on one address, or on all addresses of the family.
    pub(super) fn add(&mut self, local: SocketAddr) {
        if !local.ip().is_unspecified() {
            self.exact.push(local);
            return;
        }
        let port = usize::from(local.port());
        self.on_all_addresses[usize::from(local.is_ipv6())].0[port / 64] |= 1 << (port % 64);
    }

    /// Adds all ports of an address.
    pub(super) fn add_address(&mut self, address: IpAddr) {
        if !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }

    /// Adds all ports of all addresses.
    pub(super) const fn add_everything(&mut self) {
        self.everything = true;
    }

    /// Returns true if the set contains this address and port.
    pub(super) fn has(&self, local: SocketAddr) -> bool {
        self.everything
            || self.on_all_addresses[usize::from(local.is_ipv6())].has(local.port())
            || self.exact.contains(&local)
            || self.addresses.contains(&local.ip())
    }

    /// Returns ports in the set on any address of a family.
    pub(super) fn ports_of_family(&self, ipv6: bool) -> impl Iterator<Item = u16> {
        let bits = &self.on_all_addresses[usize::from(ipv6)];
        let exact = self.exact.iter().filter(move |local| local.is_ipv6() == ipv6);
        (0..=u16::MAX).filter(|port| bits.has(*port)).chain(exact.map(SocketAddr::port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_ours_where_it_was_added() {
        let mut ports = PortSet::default();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        ports.add(at("0.0.0.0:80"));
        ports.add(at("[2001:db8::1]:443"));
        ports.add_address("192.0.2.9".parse().unwrap());
        for ours in ["192.0.2.1:80", "[2001:db8::1]:443", "192.0.2.9:5000"] {
            assert!(ports.has(at(ours)), "{ours}");
        }
        for strange in ["192.0.2.1:81", "[2001:db8::1]:80", "[2001:db8::2]:443", "192.0.2.8:9"] {
            assert!(!ports.has(at(strange)), "{strange}");
        }
        assert_eq!(ports.ports_of_family(false).collect::<Vec<_>>(), [80]);
        assert_eq!(ports.ports_of_family(true).collect::<Vec<_>>(), [443]);
    }
}
