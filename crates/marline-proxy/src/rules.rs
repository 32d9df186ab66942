//! Access rules for the destinations that the server connects to.
//!
//! Through an unrestricted proxy, its clients and any program behind them could reach destinations that only the
//! server should: its loopback services, its cloud's metadata address, the machines of its private network.
//! Therefore every address that is not public unicast is refused unless `--allow` names it. The rule is applied to
//! the address passed to `connect`, after resolution, and nothing is resolved again in between (a name that
//! resolves differently the second time gains nothing). IPv6 addresses that embed an IPv4 address (IPv4-mapped,
//! NAT64, 6to4) are refused, because they lead to another address than they show. The server's own public addresses
//! are refused too, since connections from inside bypass its firewall. They are determined from the kernel's
//! routing, and an address is refused if the kernel cannot be queried.
//!
//! Sources: the IANA special-purpose registries for IPv4 and IPv6 (RFC 6890 and its updates), not
//! compared entry by entry.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use marline_io::is_local_address;

use crate::message::ErrorCode;

/// An address block such as `10.0.0.0/8`. A plain address is a block of one.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix_len: u8,
}

/// Error in the text of a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCidr {
    /// Not an address.
    #[error("{0:?} is not an IP address (expected ADDRESS or ADDRESS/BITS)")]
    Address(String),
    /// Not a number, or more bits than the address has.
    #[error("{0:?} is not a valid prefix length for this address family")]
    Prefix(String),
    /// Bits are set after the prefix.
    #[error("bits are set beyond the prefix: did you mean {0}?")]
    HostBits(Cidr),
}

impl Cidr {
    /// Returns the block of `prefix_len` bits around `address`. Bits after the prefix are cleared.
    #[must_use]
    pub fn containing(address: IpAddr, prefix_len: u8) -> Cidr {
        match address {
            IpAddr::V4(v4) => {
                let prefix_len = prefix_len.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0);
                let address = Ipv4Addr::from(u32::from(v4) & mask);
                Cidr { address: address.into(), prefix_len }
            }
            IpAddr::V6(v6) => {
                let prefix_len = prefix_len.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len)).unwrap_or(0);
                let address = Ipv6Addr::from(u128::from(v6) & mask);
                Cidr { address: address.into(), prefix_len }
            }
        }
    }

    /// Returns the first address of the block.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the number of leading bits that all addresses of the block share.
    #[must_use]
    pub const fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Returns true if the block contains `address` (of the same family).
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && Cidr::containing(address, self.prefix_len).address == self.address
    }
}

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Cidr, BadCidr> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
        let parsed: IpAddr = address.parse().map_err(|_| BadCidr::Address(address.to_owned()))?;
        let most = if parsed.is_ipv4() { 32 } else { 128 };
        let bad_prefix = || BadCidr::Prefix(prefix.to_owned());
        let prefix_len = match text.contains('/') {
            false => most,
            true => prefix.parse().map_err(|_| bad_prefix())?,
        };
        if prefix_len > most {
            return Err(bad_prefix());
        }
        let cidr = Cidr::containing(parsed, prefix_len);
        if cidr.address != parsed {
            return Err(BadCidr::HostBits(cidr));
        }
        Ok(cidr)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A refusal of an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The address is not public unicast.
    #[error("{address} is {class}: not allowed (the server's flag --allow {address} permits it)")]
    Class {
        /// Refused address.
        address: IpAddr,
        /// Class of the address.
        class: &'static str,
    },
    /// An address of the server itself.
    #[error(
        "{address} is an address of the server itself: not allowed (the server's flag --allow {address} permits it)"
    )]
    Own {
        /// Refused address.
        address: IpAddr,
    },
    /// The address is in a block of `--deny`.
    #[error("{address} is not allowed (the server's flag --deny {block} forbids it)")]
    Denied {
        /// Refused address.
        address: IpAddr,
        /// Block that contains the address.
        block: Cidr,
    },
    /// The address may be the server's own.
    #[error("{address} is not allowed, as the server cannot list its own addresses: {why}")]
    Unknown {
        /// Refused address.
        address: IpAddr,
        /// Error of the system that prevented the check.
        why: String,
    },
}

impl Refused {
    /// Returns the RFC 8803 code of the refusal.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Refused::Class { .. } | Refused::Own { .. } | Refused::Denied { .. } => {
                ErrorCode::NotAuthorized
            }
            Refused::Unknown { .. } => ErrorCode::ResourceExceeded,
        }
    }
}

/// Additional allow and deny rules.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Blocks that are allowed although the defaults refuse them.
    pub allow: Vec<Cidr>,
    /// Blocks that are refused in any case.
    pub deny: Vec<Cidr>,
}

impl Rules {
    /// Checks that the server may connect to `address`.
    ///
    /// # Errors
    /// The rules refuse the address. The error names the flag that would allow it.
    pub fn check(&self, address: IpAddr) -> Result<(), Refused> {
        self.check_by(address, is_local_address)
    }

    /// Like [`check`](Self::check). `is_local` determines the server's own addresses.
    fn check_by(
        &self,
        given: IpAddr,
        is_local: impl FnOnce(IpAddr) -> io::Result<bool>,
    ) -> Result<(), Refused> {
        self.check_denied(given)?;
        let address = given.to_canonical();
        if self.allow.iter().any(|block| block.contains(address)) {
            return Ok(());
        }
        let class = class_of(address).or_else(|| (address != given).then_some(MAPPED));
        if let Some(class) = class {
            return Err(Refused::Class { address, class });
        }
        match is_local(address) {
            Ok(false) => Ok(()),
            Ok(true) => Err(Refused::Own { address }),
            Err(error) => Err(Refused::Unknown { address, why: error.to_string() }),
        }
    }

    /// Checks that no denied block contains `address`.
    ///
    /// # Errors
    /// A denied block contains the address.
    pub fn check_denied(&self, address: IpAddr) -> Result<(), Refused> {
        let address = address.to_canonical();
        let inner = embedded_ipv4(address).map(IpAddr::V4);
        for candidate in [Some(address), inner].into_iter().flatten() {
            if let Some(&block) = self.deny.iter().find(|block| block.contains(candidate)) {
                return Err(Refused::Denied { address, block });
            }
        }
        Ok(())
    }
}

/// Returns true if an address is public unicast according to the registries.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    class_of(address.to_canonical()).is_none()
}

/// Class of IPv6 addresses that represent IPv4 addresses.
const MAPPED: &str = "an IPv4 address in IPv6 form";

/// Special-purpose IPv4 blocks.
const V4: &[(&str, [u8; 4], u8)] = &[
    ("unspecified", [0, 0, 0, 0], 8),
    ("private", [10, 0, 0, 0], 8),
    ("carrier-grade NAT space", [100, 64, 0, 0], 10),
    ("loopback", [127, 0, 0, 0], 8),
    // A service on the host of Azure virtual machines, which trusts every client.
    ("the cloud's WireServer", [168, 63, 129, 16], 32),
    ("link-local", [169, 254, 0, 0], 16),
    ("private", [172, 16, 0, 0], 12),
    ("reserved", [192, 0, 0, 0], 24),
    ("reserved for documentation", [192, 0, 2, 0], 24),
    ("reserved", [192, 88, 99, 0], 24),
    ("private", [192, 168, 0, 0], 16),
    ("reserved for benchmarks", [198, 18, 0, 0], 15),
    ("reserved for documentation", [198, 51, 100, 0], 24),
    ("reserved for documentation", [203, 0, 113, 0], 24),
    ("multicast", [224, 0, 0, 0], 4),
    ("broadcast", [255, 255, 255, 255], 32),
    ("reserved", [240, 0, 0, 0], 4),
];

/// Special-purpose IPv6 blocks, as the first 32 bits. An address outside these blocks and outside 2000::/3 is
/// reserved.
const V6: &[(&str, [u16; 2], u8)] = &[
    ("reserved (NAT64)", [0x64, 0xff9b], 32),
    ("reserved (Teredo and others)", [0x2001, 0], 23),
    ("reserved for documentation", [0x2001, 0xdb8], 32),
    ("reserved (6to4)", [0x2002, 0], 16),
    ("reserved for documentation", [0x3fff, 0], 20),
    ("private (unique local)", [0xfc00, 0], 7),
    ("link-local", [0xfe80, 0], 10),
    ("site-local", [0xfec0, 0], 10),
    ("multicast", [0xff00, 0], 8),
];

/// Returns the class of an address that is not public unicast.
fn class_of(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => V4.iter().find_map(|&(class, octets, prefix_len)| {
            Cidr::containing(octets.into(), prefix_len).contains(v4.into()).then_some(class)
        }),
        IpAddr::V6(v6) if v6.is_unspecified() => Some("unspecified"),
        IpAddr::V6(v6) if v6.is_loopback() => Some("loopback"),
        IpAddr::V6(v6) => {
            let special = V6.iter().find_map(|&(class, [a, b], prefix_len)| {
                let block = Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0);
                Cidr::containing(block.into(), prefix_len).contains(v6.into()).then_some(class)
            });
            let is_global = v6.segments()[0] >> 13 == 0b001;
            special.or((!is_global).then_some("reserved"))
        }
    }
}

/// Returns the IPv4 address to which a translator on the path maps an IPv6 address.
fn embedded_ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = address else { return None };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let from = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match [a, b, c, d, e, f] {
        [0x64, 0xff9b, 0, 0, 0, 0] => Some(from(g, h)),
        [0x2002, high, low, ..] => Some(from(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
