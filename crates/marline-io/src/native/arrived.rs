//! TCP segment as it arrived in an IP packet.

use core::net::{IpAddr, SocketAddr};

use marline_core::Ecn;
use marline_wire::PROTOCOL_TCP;

/// A TCP segment as it arrived, with what its IP header said.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Arrived<'a> {
    /// Where from; the port is not used.
    pub(crate) source: SocketAddr,
    /// Where to.
    pub(crate) destination: IpAddr,
    pub(crate) ecn: Ecn,
    pub(crate) segment: &'a [u8],
}

/// The TCP segment of an IP packet, as raw IPv4 sockets and TUN devices hand it over. Options and
/// extension headers are skipped; fragments are nothing to us.
pub(crate) fn tcp_of(packet: &[u8]) -> Option<Arrived<'_>> {
    let ip = marline_wire::IpPacket::parse(packet).ok()?;
    if ip.fragment.is_some() || ip.protocol != PROTOCOL_TCP {
        return None;
    }
    let source = SocketAddr::new(ip.src, 0);
    let ecn = ecn_of_bits(ip.ecn);
    Some(Arrived { source, destination: ip.dst, ecn, segment: ip.payload })
}

/// What a TOS or traffic class says of congestion: its two lowest bits.
pub(crate) const fn ecn_of_bits(class: u8) -> Ecn {
    match class & 3 {
        0 => Ecn::NotEct,
        1 => Ecn::Ect1,
        2 => Ecn::Ect0,
        _ => Ecn::Ce,
    }
}
