//! IPv6 header (RFC 8200), and the extension headers before TCP or UDP.

use core::net::Ipv6Addr;

use crate::bytes::{Reader, Writer};
use crate::error::{ErrorKind, Layer};
use crate::ipv4::Fragment;
use crate::{EmitError, ParseError};

/// Length of the fixed header in bytes.
pub const IPV6_HEADER_LEN: usize = 40;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// The fields of an IPv6 header that are not lengths.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Differentiated services: the high six bits of the traffic class.
    pub dscp: u8,
    /// ECN: the low two bits of the traffic class.
    pub ecn: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Protocol number of the next header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
}

impl Ipv6Header {
    /// Creates a header for a packet with this protocol between these addresses.
    #[must_use]
    pub const fn new(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8) -> Self {
        let next_header = protocol;
        Ipv6Header { dscp: 0, ecn: 0, flow_label: 0, next_header, hop_limit: 64, src, dst }
    }

    /// Writes the header for `payload_len` bytes after it. Returns its length.
    ///
    /// # Errors
    /// Fails if `out` is too short, or the payload exceeds 65,535 bytes.
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> Result<usize, EmitError> {
        let Ok(length) = u16::try_from(payload_len) else {
            return Err(EmitError::PayloadTooLong { len: payload_len });
        };
        let available = out.len();
        let Some(out) = out.get_mut(..IPV6_HEADER_LEN) else {
            return Err(EmitError::BufferTooShort { needed: IPV6_HEADER_LEN, available });
        };
        let class = u32::from(self.dscp << 2 | self.ecn & 3);
        let mut w = Writer::new(out);
        w.u32(6 << 28 | class << 20 | self.flow_label & 0x000f_ffff);
        w.u16(length);
        w.array([self.next_header, self.hop_limit]);
        w.array(self.src.octets());
        w.array(self.dst.octets());
        Ok(IPV6_HEADER_LEN)
    }
}

/// A parsed IPv6 packet without its extension headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6Packet<'a> {
    /// The fixed header.
    pub header: Ipv6Header,
    /// Protocol of `payload`: the next header value after all known extension headers.
    pub protocol: u8,
    /// Position in the original packet, if this is a fragment. `payload` is then incomplete.
    pub fragment: Option<Fragment>,
    /// Payload after the extension headers.
    pub payload: &'a [u8],
}

impl<'a> Ipv6Packet<'a> {
    /// Parses a packet. Hop-by-hop options, destination options, routing, authentication and fragment headers are
    /// skipped. Any other next header is the payload's protocol. After a fragment header with a nonzero offset there
    /// are no further headers, so that header names the protocol.
    ///
    /// # Errors
    /// Fails if it is not IPv6, is truncated, or has an extension header that does not fit.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let error = |field, kind| ParseError { layer: Layer::Ipv6, field, kind };
        let (fixed, rest) = bytes
            .split_first_chunk::<IPV6_HEADER_LEN>()
            .ok_or(error("header", ErrorKind::Truncated))?;
        if fixed[0] >> 4 != 6 {
            return Err(error("version", ErrorKind::Version));
        }
        let (header, length) = fields(fixed).ok_or(error("header", ErrorKind::Truncated))?;
        let mut payload =
            rest.get(..usize::from(length)).ok_or(error("payload length", ErrorKind::Truncated))?;
        let (mut protocol, mut fragment) = (header.next_header, None);
        // Every extension header has at least eight bytes, so the loop terminates.
        while let HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | AUTHENTICATION | FRAGMENT = protocol
        {
            let &[next, len, high, low, ref rest @ ..] = payload else {
                return Err(error("extension header", ErrorKind::Truncated));
            };
            let len = match protocol {
                FRAGMENT => 8,
                AUTHENTICATION => (usize::from(len) + 2) * 4,
                _ => (usize::from(len) + 1) * 8,
            };
            let identification = rest.first_chunk().map_or(0, |id| u32::from_be_bytes(*id));
            payload =
                payload.get(len.max(8)..).ok_or(error("extension header", ErrorKind::Truncated))?;
            let offset = u16::from_be_bytes([high, low]) >> 3;
            let more_fragments = low & 1 != 0;
            let is_fragment = protocol == FRAGMENT && (more_fragments || offset != 0);
            if is_fragment {
                fragment = Some(Fragment {
                    identification,
                    offset: usize::from(offset) * 8,
                    more_fragments,
                });
            }
            protocol = next;
            if is_fragment && offset != 0 {
                break;
            }
        }
        Ok(Ipv6Packet { header, protocol, fragment, payload })
    }
}

/// Reads the header and the payload length in it.
fn fields(fixed: &[u8; IPV6_HEADER_LEN]) -> Option<(Ipv6Header, u16)> {
    let mut r = Reader::new(fixed);
    let first = r.u32()?;
    let length = r.u16()?;
    let [next_header, hop_limit] = r.array()?;
    let header = Ipv6Header {
        dscp: (first >> 22) as u8 & 0x3f,
        ecn: (first >> 20) as u8 & 3,
        flow_label: first & 0x000f_ffff,
        next_header,
        hop_limit,
        src: r.array::<16>()?.into(),
        dst: r.array::<16>()?.into(),
    };
    Some((header, length))
}
