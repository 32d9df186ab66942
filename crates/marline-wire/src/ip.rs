//! IP packet of either version, as from a raw socket, a TUN device or a capture.

use core::net::IpAddr;

use crate::error::{ErrorKind, Layer};
use crate::{
    EmitError, Fragment, IPV4_HEADER_LEN, IPV6_HEADER_LEN, Ipv4Header, Ipv4Packet, Ipv6Header,
    Ipv6Packet, ParseError,
};

/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;

/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// The fields of a packet that the layer above needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpPacket<'a> {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// The ECN field, two bits.
    pub ecn: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Position in the original packet, if this is a fragment.
    pub fragment: Option<Fragment>,
    /// Payload.
    pub payload: &'a [u8],
}

impl<'a> IpPacket<'a> {
    /// Parses a packet of the IP version in its first four bits.
    ///
    /// # Errors
    /// Fails like [`Ipv4Packet::parse`] or [`Ipv6Packet::parse`], or if the version is unknown.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        if ip_version(bytes)? == 6 {
            let p = Ipv6Packet::parse(bytes)?;
            return Ok(IpPacket {
                src: IpAddr::V6(p.header.src),
                dst: IpAddr::V6(p.header.dst),
                ecn: p.header.ecn,
                protocol: p.protocol,
                fragment: p.fragment,
                payload: p.payload,
            });
        }
        let p = Ipv4Packet::parse(bytes)?;
        Ok(IpPacket {
            src: IpAddr::V4(p.header.src),
            dst: IpAddr::V4(p.header.dst),
            ecn: p.header.ecn,
            protocol: p.header.protocol,
            fragment: p.header.fragment(),
            payload: p.payload,
        })
    }
}

/// Length of the IP header that [`emit_ip`] writes for this source address.
#[must_use]
pub const fn ip_header_len(src: IpAddr) -> usize {
    if src.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN }
}

/// Writes the IP header for `payload_len` bytes of `protocol` from `src` to `dst`, which have the same family.
/// Returns the header's length. `ecn` holds the two bits of the ECN field.
///
/// # Errors
/// Fails if the families differ, `out` is too short, or the packet would be too long.
pub fn emit_ip(
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    ecn: u8,
    payload_len: usize,
    out: &mut [u8],
) -> Result<usize, EmitError> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Ipv4Header { ecn, ..Ipv4Header::new(src, dst, protocol) }.emit(payload_len, out)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Ipv6Header { ecn, ..Ipv6Header::new(src, dst, protocol) }.emit(payload_len, out)
        }
        _ => Err(EmitError::FamilyMismatch),
    }
}

/// The IP version of a packet, from its first four bits.
///
/// # Errors
/// Fails if there is no byte, or the version is neither 4 nor 6.
pub fn ip_version(bytes: &[u8]) -> Result<u8, ParseError> {
    match bytes.first().map(|first| first >> 4) {
        Some(version @ (4 | 6)) => Ok(version),
        Some(_) => {
            Err(ParseError { layer: Layer::Ipv4, field: "version", kind: ErrorKind::Version })
        }
        None => Err(ParseError { layer: Layer::Ipv4, field: "header", kind: ErrorKind::Truncated }),
    }
}
