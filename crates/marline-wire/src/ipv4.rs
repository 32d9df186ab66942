//! IPv4 header (RFC 791), with the ECN field of RFC 3168.

use core::net::Ipv4Addr;

use crate::bytes::{Reader, Writer};
use crate::error::{ErrorKind, Layer};
use crate::{Checksum, EmitError, ParseError};

/// Length of the header without options, in bytes.
pub const IPV4_HEADER_LEN: usize = 20;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

/// Position of a fragment in the original packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identifies the packet among those with the same addresses and protocol.
    pub identification: u32,
    /// Offset of the fragment in the packet's payload, in bytes.
    pub offset: usize,
    /// More fragments follow.
    pub more_fragments: bool,
}

/// The fields of an IPv4 header that are not lengths or checksums.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Differentiated services: the high six bits of the second byte.
    pub dscp: u8,
    /// ECN: the low two bits of the second byte.
    pub ecn: u8,
    /// Identification, for reassembly.
    pub identification: u16,
    /// Flag DF.
    pub dont_fragment: bool,
    /// Flag MF.
    pub more_fragments: bool,
    /// Fragment offset in units of eight bytes.
    pub fragment_offset: u16,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Protocol of the payload (6 is TCP, 17 UDP).
    pub protocol: u8,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
}

impl Ipv4Header {
    /// Creates a header with DF set for this protocol between these addresses.
    #[must_use]
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8) -> Self {
        Ipv4Header {
            dscp: 0,
            ecn: 0,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol,
            src,
            dst,
        }
    }

    /// Position in the original packet, if this is a fragment.
    #[must_use]
    pub fn fragment(&self) -> Option<Fragment> {
        self.is_fragment().then(|| Fragment {
            identification: self.identification.into(),
            offset: usize::from(self.fragment_offset) * 8,
            more_fragments: self.more_fragments,
        })
    }

    /// Returns true if the packet is a fragment.
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Writes a header without options, including the checksum, for `payload_len` bytes of payload. Returns its length.
    ///
    /// # Errors
    /// Fails if `out` is too short, or header and payload exceed 65,535 bytes.
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> Result<usize, EmitError> {
        let Ok(total) = u16::try_from(IPV4_HEADER_LEN.saturating_add(payload_len)) else {
            return Err(EmitError::PayloadTooLong { len: payload_len });
        };
        let available = out.len();
        let Some(out) = out.get_mut(..IPV4_HEADER_LEN) else {
            return Err(EmitError::BufferTooShort { needed: IPV4_HEADER_LEN, available });
        };
        let mut fragment = self.fragment_offset & 0x1fff;
        fragment |= if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        fragment |= if self.more_fragments { MORE_FRAGMENTS } else { 0 };
        let mut w = Writer::new(out);
        w.array([0x45, self.dscp << 2 | self.ecn & 3]);
        w.u16(total);
        w.u16(self.identification);
        w.u16(fragment);
        w.array([self.ttl, self.protocol]);
        w.u16(0);
        w.array(self.src.octets());
        w.array(self.dst.octets());
        let checksum = Checksum::of(out).finish();
        out[10..12].copy_from_slice(&checksum.to_be_bytes());
        Ok(IPV4_HEADER_LEN)
    }
}

/// A parsed IPv4 packet. Bytes beyond its total length (link-layer padding) are excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv4Packet<'a> {
    /// The fixed header.
    pub header: Ipv4Header,
    /// The header's options, uninterpreted.
    pub options: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
}

impl<'a> Ipv4Packet<'a> {
    /// Parses a packet and verifies the header's checksum.
    ///
    /// # Errors
    /// Fails if it is not IPv4, is truncated, or has wrong header lengths or a wrong header checksum.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let error = |field, kind| ParseError { layer: Layer::Ipv4, field, kind };
        let (fixed, _) = bytes
            .split_first_chunk::<IPV4_HEADER_LEN>()
            .ok_or(error("header", ErrorKind::Truncated))?;
        if fixed[0] >> 4 != 4 {
            return Err(error("version", ErrorKind::Version));
        }
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if header_len < IPV4_HEADER_LEN {
            return Err(error("header length", ErrorKind::Value));
        }
        if total < header_len {
            return Err(error("total length", ErrorKind::Length));
        }
        let packet = bytes.get(..total).ok_or(error("total length", ErrorKind::Truncated))?;
        let (head, payload) = packet.split_at(header_len);
        if !Checksum::of(head).is_valid() {
            return Err(error("header checksum", ErrorKind::Checksum));
        }
        let header = fields(fixed).ok_or(error("header", ErrorKind::Truncated))?;
        Ok(Ipv4Packet { header, options: &head[IPV4_HEADER_LEN..], payload })
    }
}

fn fields(fixed: &[u8; IPV4_HEADER_LEN]) -> Option<Ipv4Header> {
    let mut r = Reader::new(fixed);
    let [_, service, _, _] = r.array()?;
    let (identification, fragment) = (r.u16()?, r.u16()?);
    let [ttl, protocol, _, _] = r.array()?;
    Some(Ipv4Header {
        dscp: service >> 2,
        ecn: service & 3,
        identification,
        dont_fragment: fragment & DONT_FRAGMENT != 0,
        more_fragments: fragment & MORE_FRAGMENTS != 0,
        fragment_offset: fragment & 0x1fff,
        ttl,
        protocol,
        src: r.array::<4>()?.into(),
        dst: r.array::<4>()?.into(),
    })
}
