//! TCP segment received in an IP packet.

use core::net::{IpAddr, SocketAddr};

use marline_core::Ecn;
use marline_wire::PROTOCOL_TCP;

/// Received TCP segment with data of its IP header.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ReceivedSegment<'a> {
    /// Source address; the port is not used.
    pub(crate) source: SocketAddr,
    /// Destination address.
    pub(crate) destination: IpAddr,
    pub(crate) ecn: Ecn,
    pub(crate) segment: &'a [u8],
}

/// Extracts the TCP segment of an IP packet from a raw IPv4 socket or a TUN device. Options and extension headers
/// are skipped; fragments are ignored.
pub(crate) fn parse_tcp(packet: &[u8]) -> Option<ReceivedSegment<'_>> {
    let ip = marline_wire::IpPacket::parse(packet).ok()?;
    if ip.fragment.is_some() || ip.protocol != PROTOCOL_TCP {
        return None;
    }
    let source = SocketAddr::new(ip.src, 0);
    let ecn = ecn_of_bits(ip.ecn);
    Some(ReceivedSegment { source, destination: ip.dst, ecn, segment: ip.payload })
}

/// Reads the ECN field: the two lowest bits of TOS or traffic class.
pub(crate) const fn ecn_of_bits(class: u8) -> Ecn {
    match class & 3 {
        0 => Ecn::NotEct,
        1 => Ecn::Ect1,
        2 => Ecn::Ect0,
        _ => Ecn::Ce,
    }
}
