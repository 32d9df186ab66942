//! Addresses on both ends of the interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use marline_proxy::rules::is_public;
use marline_proxy::udp::DNS_PORT;

/// MTU of the interface, bytes: an IPv6 packet with the longest datagram that is carried. Paths take less; what they do
/// not take whole travels in pieces.
pub const MTU: u32 = 40 + 8 + marline_proxy::udp::LONGEST_DATAGRAM as u32;

/// Bits that the two ends of an IPv4 pair have in common.
pub const PREFIX_V4: u8 = 30;
/// Bits that the two ends of an IPv6 pair have in common.
pub const PREFIX_V6: u8 = 64;

/// The ends of the interface, of both families.
///
/// IPv4 is of the block for benchmarks (RFC 2544), which no network routes; IPv6 is a unique local address (RFC
/// 4193). With such a source, programs that follow RFC 6724 prefer IPv4 to IPv6 where a name has both, which is
/// right for servers without IPv6 and costs nothing elsewhere.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The programs' IPv4 address.
    pub host_v4: Ipv4Addr,
    /// The gateway's, which is that of the DNS service as well.
    pub gateway_v4: Ipv4Addr,
    /// The programs' IPv6 address.
    pub host_v6: Ipv6Addr,
    /// The gateway's.
    pub gateway_v6: Ipv6Addr,
}

/// Queries for names that the gateway answers itself.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum TakenQueries {
    /// Those to the gateway.
    #[default]
    Own,
    /// Those to any resolver of a private network as well.
    Private,
    /// All, whoever they are for: there are names with exceptions.
    All,
}

impl Default for Addresses {
    fn default() -> Self {
        Addresses {
            gateway_v4: Ipv4Addr::new(198, 18, 0, 1),
            host_v4: Ipv4Addr::new(198, 18, 0, 2),
            gateway_v6: Ipv6Addr::new(0xfd6d, 0x6172, 0x6c69, 0x6e65, 0, 0, 0, 1),
            host_v6: Ipv6Addr::new(0xfd6d, 0x6172, 0x6c69, 0x6e65, 0, 0, 0, 2),
        }
    }
}

impl Addresses {
    /// Whether this is the gateway itself.
    #[must_use]
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => v4 == self.gateway_v4,
            IpAddr::V6(v6) => v6 == self.gateway_v6,
        }
    }

    /// Whether this is the programs' own.
    #[must_use]
    pub fn is_program(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => v4 == self.host_v4,
            IpAddr::V6(v6) => v6 == self.host_v6,
        }
    }

    /// Whether this is on the interface's own network.
    #[must_use]
    pub fn is_near(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => {
                let shift = 32 - u32::from(PREFIX_V4);
                v4.to_bits() >> shift == self.host_v4.to_bits() >> shift
            }
            IpAddr::V6(v6) => {
                let shift = 128 - u32::from(PREFIX_V6);
                v6.to_bits() >> shift == self.host_v6.to_bits() >> shift
            }
        }
    }

    /// Whether queries to this place are the gateway's to answer.
    pub(crate) fn is_resolver(&self, place: SocketAddr, taken: TakenQueries) -> bool {
        let is_taken = match taken {
            TakenQueries::Own => self.is_gateway(place.ip()),
            TakenQueries::Private => self.is_gateway(place.ip()) || !is_public(place.ip()),
            TakenQueries::All => true,
        };
        is_taken && place.port() == DNS_PORT
    }

    /// The gateway's address of the same family.
    #[must_use]
    pub fn gateway_for(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(_) => self.gateway_v4.into(),
            IpAddr::V6(_) => self.gateway_v6.into(),
        }
    }
}
