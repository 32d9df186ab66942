//! UDP header (RFC 768; for IPv6, RFC 8200 section 8.1).

use core::net::IpAddr;

use crate::bytes::{Reader, Writer};
use crate::error::{ErrorKind, Layer};
use crate::{Checksum, EmitError, PROTOCOL_UDP, ParseError};

/// Length of the header in bytes.
pub const UDP_HEADER_LEN: usize = 8;

/// Offset of the checksum field.
const CHECKSUM_AT: usize = 6;

/// A parsed datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpDatagram<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// The bytes after the header, limited by the length field.
    pub payload: &'a [u8],
}

impl<'a> UdpDatagram<'a> {
    /// Parses a datagram. The checksum is not verified ([`verify_udp_checksum`] does that).
    ///
    /// # Errors
    /// Fails if it is truncated, or its length field is below eight.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let error = |field, kind| ParseError { layer: Layer::Udp, field, kind };
        let mut r = Reader::new(bytes);
        let (Some(src_port), Some(dst_port), Some(length), Some(_checksum)) =
            (r.u16(), r.u16(), r.u16(), r.u16())
        else {
            return Err(error("header", ErrorKind::Truncated));
        };
        let Some(payload_len) = usize::from(length).checked_sub(UDP_HEADER_LEN) else {
            return Err(error("length", ErrorKind::Length));
        };
        let payload = r.rest().get(..payload_len).ok_or(error("length", ErrorKind::Truncated))?;
        Ok(UdpDatagram { src_port, dst_port, payload })
    }
}

/// Writes the header for `payload_len` bytes of payload with a checksum of zero, and returns its length. The caller
/// appends the payload, and [`fill_udp_checksum`] completes the datagram.
///
/// # Errors
/// Fails if `out` is too short, or the datagram would exceed 65,535 bytes.
pub fn emit_udp(
    src_port: u16,
    dst_port: u16,
    payload_len: usize,
    out: &mut [u8],
) -> Result<usize, EmitError> {
    let Ok(length) = u16::try_from(UDP_HEADER_LEN.saturating_add(payload_len)) else {
        return Err(EmitError::PayloadTooLong { len: payload_len });
    };
    let mut w = Writer::new(out);
    for field in [src_port, dst_port, length, 0] {
        w.u16(field);
    }
    if out.len() < UDP_HEADER_LEN {
        return Err(EmitError::BufferTooShort { needed: UDP_HEADER_LEN, available: out.len() });
    }
    Ok(UDP_HEADER_LEN)
}

/// Writes the checksum into a finished datagram, regardless of the field's current value. A computed zero is sent as
/// all ones, because zero means that there is no checksum. Bytes too short for a header are left unchanged.
pub fn fill_udp_checksum(src: IpAddr, dst: IpAddr, datagram: &mut [u8]) {
    let Some(field) = datagram.get_mut(CHECKSUM_AT..UDP_HEADER_LEN) else { return };
    field.fill(0);
    let checksum = match udp_sum(src, dst, datagram).finish() {
        0 => 0xffff,
        checksum => checksum,
    };
    datagram[CHECKSUM_AT..UDP_HEADER_LEN].copy_from_slice(&u16::to_be_bytes(checksum));
}

/// Returns true if the checksum of a datagram is correct, or absent where that is allowed (IPv4). `datagram` must end
/// where its length field states.
#[must_use]
pub fn verify_udp_checksum(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> bool {
    match datagram.get(CHECKSUM_AT..UDP_HEADER_LEN) {
        Some([0, 0]) => src.is_ipv4(),
        Some(_) => udp_sum(src, dst, datagram).is_valid(),
        None => false,
    }
}

fn udp_sum(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> Checksum {
    let mut sum = Checksum::new();
    sum.add_pseudo_header(src, dst, PROTOCOL_UDP, datagram.len() as u32);
    sum.add_bytes(datagram);
    sum
}
