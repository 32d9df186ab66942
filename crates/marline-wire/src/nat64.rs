//! NAT64 prefix of a network: converts IPv4 addresses to IPv6 and back (RFC 6052, 2.2).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::num::NonZeroU8;
use core::str::FromStr;

/// Valid prefix lengths.
const LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];
/// Index of the byte for bits 64 to 71, which is zero in every such address.
const RESERVED: usize = 8;
/// The addresses of `ipv4only.arpa` (RFC 7050, 2.2).
const WELL_KNOWN: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];

/// The prefix under which an IPv6-only network reaches IPv4 addresses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix64 {
    /// The octets of the prefix, followed by zeros. No prefix is longer than this array.
    octets: [u8; 12],
    len: NonZeroU8,
}

/// Error in the text of a prefix.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BadPrefix64;

impl fmt::Display for BadPrefix64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a NAT64 prefix (an IPv6 address, `/`, and 32, 40, 48, 56, 64 or 96, as in 64:ff9b::/96)")
    }
}

impl core::error::Error for BadPrefix64 {}

impl Prefix64 {
    /// The well-known prefix, which every network may use (RFC 6052, 2.1).
    pub const WELL_KNOWN: Prefix64 = Prefix64 {
        octets: [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0],
        len: NonZeroU8::new(96).unwrap(),
    };

    /// Creates a prefix from the first `len` bits of an address. `None` if this is not a valid length, or the reserved
    /// byte is not zero.
    #[must_use]
    pub fn new(address: Ipv6Addr, len: u8) -> Option<Prefix64> {
        if !LENGTHS.contains(&len) {
            return None;
        }
        let mask = u128::MAX << (128 - u32::from(len));
        let [octets @ .., _, _, _, _] = (address.to_bits() & mask).to_be_bytes();
        (octets[RESERVED] == 0).then_some(Prefix64 { octets, len: NonZeroU8::new(len)? })
    }

    /// The prefix of a network whose resolver returned this address for `ipv4only.arpa` (RFC 7050, 3).
    #[must_use]
    pub fn from_well_known_name(answer: Ipv6Addr) -> Option<Prefix64> {
        let prefixes = LENGTHS.iter().filter_map(|len| Prefix64::new(answer, *len));
        let fits = |prefix: &Prefix64| {
            prefix.extract(answer).is_some_and(|embedded| WELL_KNOWN.contains(&embedded))
        };
        prefixes.into_iter().find(fits)
    }

    /// Prefix length in bits: 32, 40, 48, 56, 64 or 96.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a prefix is never empty")]
    pub const fn len(self) -> u8 {
        self.len.get()
    }

    /// The first 96 bits: the prefix, padded with zeros.
    #[cfg(test)]
    pub(crate) const fn octets(&self) -> &[u8; 12] {
        &self.octets
    }

    /// The prefix as an address, padded with zeros.
    fn address(self) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets[..self.octets.len()].copy_from_slice(&self.octets);
        Ipv6Addr::from(octets)
    }

    /// Positions of the four IPv4 bytes: after the prefix, skipping the reserved byte.
    fn ipv4_positions(self) -> [usize; 4] {
        let first = usize::from(self.len()) / 8;
        core::array::from_fn(|nth| {
            let place = first + nth;
            if first <= RESERVED && place >= RESERVED { place + 1 } else { place }
        })
    }

    /// The IPv6 address of an IPv4 address in this network.
    #[must_use]
    pub fn embed(self, address: Ipv4Addr) -> Ipv6Addr {
        let mut octets = self.address().octets();
        for (place, byte) in self.ipv4_positions().into_iter().zip(address.octets()) {
            octets[place] = byte;
        }
        Ipv6Addr::from(octets)
    }

    /// The IPv4 address embedded in an address, if that address has this prefix.
    #[must_use]
    pub fn extract(self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let octets = address.octets();
        let embedded = Ipv4Addr::from(self.ipv4_positions().map(|place| octets[place]));
        (self.embed(embedded) == address).then_some(embedded)
    }

    /// The address to use from this network to reach `to`. IPv6 addresses are unchanged.
    #[must_use]
    pub fn translate(self, to: SocketAddr) -> SocketAddr {
        match to.ip() {
            IpAddr::V4(ip) => SocketAddr::new(self.embed(ip).into(), to.port()),
            IpAddr::V6(_) => to,
        }
    }

    /// The inverse of [`translate`](Self::translate): the public address that corresponds to an address used in this
    /// network.
    #[must_use]
    pub fn translate_back(self, to: SocketAddr) -> SocketAddr {
        match to.ip() {
            IpAddr::V6(ip) => {
                self.extract(ip).map_or(to, |ip| SocketAddr::new(ip.into(), to.port()))
            }
            IpAddr::V4(_) => to,
        }
    }
}

impl fmt::Display for Prefix64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.len())
    }
}

impl FromStr for Prefix64 {
    type Err = BadPrefix64;

    fn from_str(text: &str) -> Result<Prefix64, BadPrefix64> {
        let (address, len) = text.split_once('/').ok_or(BadPrefix64)?;
        let address: Ipv6Addr = address.parse().map_err(|_| BadPrefix64)?;
        let len = len.parse().map_err(|_| BadPrefix64)?;
        Prefix64::new(address, len).filter(|prefix| prefix.address() == address).ok_or(BadPrefix64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of RFC 6052, 2.4.
    const EXAMPLES: [(&str, &str); 7] = [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
    ];

    #[test]
    fn addresses_are_those_of_the_rfc_and_come_back() {
        let ipv4 = Ipv4Addr::new(192, 0, 2, 33);
        for (prefix, expected) in EXAMPLES {
            let prefix: Prefix64 = prefix.parse().unwrap();
            let expected: Ipv6Addr = expected.parse().unwrap();
            assert_eq!(prefix.embed(ipv4), expected, "{prefix}");
            assert_eq!(prefix.extract(expected), Some(ipv4), "{prefix}");
            let bits = expected.to_bits();
            assert_eq!(prefix.extract(Ipv6Addr::from_bits(bits ^ 1 << 127)), None, "{prefix}");
            if prefix.len() < 96 {
                assert_eq!(prefix.extract(Ipv6Addr::from_bits(bits ^ 1 << 60)), None, "{prefix}");
                assert_eq!(prefix.extract(Ipv6Addr::from_bits(bits | 1)), None, "{prefix}");
            }
        }
    }

    #[test]
    fn the_well_known_name_yields_a_prefix_of_any_length() {
        for (prefix, _) in EXAMPLES {
            let prefix: Prefix64 = prefix.parse().unwrap();
            for ipv4 in WELL_KNOWN {
                let answer = prefix.embed(ipv4);
                assert_eq!(Prefix64::from_well_known_name(answer), Some(prefix), "{answer}");
            }
        }
        let native = "2001:db8::1".parse().unwrap();
        assert_eq!(Prefix64::from_well_known_name(native), None);
    }

    #[test]
    fn socket_addresses_translate_in_both_directions() {
        let prefix = Prefix64::WELL_KNOWN;
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (server, there) = (at("192.0.2.33:443"), at("[64:ff9b::192.0.2.33]:443"));
        assert_eq!((prefix.translate(server), prefix.translate_back(there)), (there, server));
        let native = at("[2001:db8::1]:443");
        assert_eq!((prefix.translate(native), prefix.translate_back(native)), (native, native));
    }

    #[test]
    fn an_invalid_prefix_is_refused() {
        for text in ["", "64:ff9b::", "64:ff9b::/95", "64:ff9b::1/96", "1.2.3.4/32", "::/129"] {
            assert_eq!(text.parse::<Prefix64>(), Err(BadPrefix64), "{text}");
        }
        assert!("2001:db8:0:0:100::/96".parse::<Prefix64>().is_err_and(|_| true));
    }
}
