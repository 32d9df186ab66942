//! Addresses on both ends of the interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use marline_proxy::rules::is_public;
use marline_proxy::udp::DNS_PORT;

/// MTU of the interface, in bytes: an IPv6 packet with the longest supported datagram. The kernel fragments longer
/// datagrams.
pub const MTU: u32 = 40 + 8 + marline_proxy::udp::MAX_APPLICATION_DATAGRAM as u32;

/// Common prefix length of the two IPv4 ends.
pub const PREFIX_V4: u8 = 30;
/// Common prefix length of the two IPv6 ends.
pub const PREFIX_V6: u8 = 64;

/// IPv4 and IPv6 addresses of both ends of the interface.
///
/// The IPv4 addresses are from the block for benchmarks (RFC 2544), which is not routed anywhere. The IPv6 addresses
/// are unique local addresses (RFC 4193): with such a source, programs that follow RFC 6724 prefer IPv4 if a name
/// has both families. That is right for servers without IPv6 and has no drawback otherwise.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The programs' IPv4 address.
    pub host_v4: Ipv4Addr,
    /// The gateway's IPv4 address, at which the DNS service is reached as well.
    pub gateway_v4: Ipv4Addr,
    /// The programs' IPv6 address.
    pub host_v6: Ipv6Addr,
    /// The gateway's IPv6 address.
    pub gateway_v6: Ipv6Addr,
}

/// DNS queries that the gateway answers itself.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum GatewayQueries {
    /// Queries to the gateway.
    #[default]
    Own,
    /// Also queries to any resolver in a private network.
    Private,
    /// All queries, because there are exceptions for names.
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
    /// Returns true if this is an address of the gateway.
    #[must_use]
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => v4 == self.gateway_v4,
            IpAddr::V6(v6) => v6 == self.gateway_v6,
        }
    }

    /// Returns true if this is an address of the programs.
    #[must_use]
    pub fn is_program(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => v4 == self.host_v4,
            IpAddr::V6(v6) => v6 == self.host_v6,
        }
    }

    /// Returns true if this is on the interface's own network.
    #[must_use]
    pub fn is_on_link(&self, address: IpAddr) -> bool {
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

    /// Returns true if the gateway answers queries to this address.
    pub(crate) fn is_resolver(&self, place: SocketAddr, taken: GatewayQueries) -> bool {
        let is_taken = match taken {
            GatewayQueries::Own => self.is_gateway(place.ip()),
            GatewayQueries::Private => self.is_gateway(place.ip()) || !is_public(place.ip()),
            GatewayQueries::All => true,
        };
        is_taken && place.port() == DNS_PORT
    }

    /// Returns the gateway's address of the same family.
    #[must_use]
    pub fn gateway_for(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(_) => self.gateway_v4.into(),
            IpAddr::V6(_) => self.gateway_v6.into(),
        }
    }
}
