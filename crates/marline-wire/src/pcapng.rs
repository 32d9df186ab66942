//! Captures in pcapng format (draft-ietf-opsawg-pcapng), which Wireshark shows as native TCP.
//!
//! Marline's segments may have been sent inside UDP, and those of the simulator were never sent at all. A [`Capture`]
//! prepends an IP header to each segment and adapts its checksum to that packet, so that tools see plain Multipath TCP.
//! A segment with a wrong checksum keeps a wrong checksum.
//!
//! MPTCP keys authenticate joins and connection closes, and captures are often shared. So by default, keys in
//! MP_CAPABLE and MP_FASTCLOSE are written as zeros.
//!
//! This is the only module that allocates: blocks are appended to the caller's vector. The caller writes it out and
//! clears it.

use core::net::IpAddr;

use crate::mptcp::{self, subtype};
use crate::tcp_options::kind;
use crate::{
    EmitError, IpPacket, PROTOCOL_TCP, TCP_HEADER_LEN, emit_ip, fill_tcp_checksum, ip_header_len,
    verify_tcp_checksum,
};

/// Link type of packets that begin with an IPv4 or IPv6 header.
pub const LINKTYPE_RAW: u16 = 101;

const SECTION_HEADER_BLOCK: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION_BLOCK: u32 = 1;
const ENHANCED_PACKET_BLOCK: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMP_V6: u8 = 58;

/// Resolution of timestamps: 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// Appends a section header with the name of the program that writes it.
pub fn write_section_header(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION_HEADER_BLOCK, |out| {
        put_u32(out, BYTE_ORDER_MAGIC);
        put_u16(out, 1);
        put_u16(out, 0);
        // The length of the section is not known while it is being written.
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        option(out, SHB_USERAPPL, application.as_bytes());
        option(out, OPT_END, &[]);
    });
}

/// Appends the description of an interface with packets of [`LINKTYPE_RAW`] and timestamps in nanoseconds. Packets
/// refer to interfaces by their order, from 0.
pub fn interface(out: &mut Vec<u8>, name: &str) {
    block(out, INTERFACE_DESCRIPTION_BLOCK, |out| {
        put_u16(out, LINKTYPE_RAW);
        put_u16(out, 0);
        put_u32(out, 0);
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_TSRESOL, &[NANOSECONDS]);
        option(out, OPT_END, &[]);
    });
}

/// Direction of a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
}

/// Metadata of a captured packet.
#[derive(Copy, Clone, Debug)]
pub struct PacketInfo<'a> {
    /// Index of the interface.
    pub interface: u32,
    /// Nanoseconds since 1970, or since the start of a simulation.
    pub time_ns: u64,
    /// Direction of the packet.
    pub direction: Direction,
    /// Comment of up to 65,535 bytes; the rest is truncated.
    pub comment: Option<&'a str>,
}

/// Appends a packet. `original_len` is its full length, if `packet` was truncated.
pub fn packet(out: &mut Vec<u8>, info: &PacketInfo<'_>, packet: &[u8], original_len: usize) {
    block(out, ENHANCED_PACKET_BLOCK, |out| {
        put_u32(out, info.interface);
        put_u32(out, (info.time_ns >> 32) as u32);
        put_u32(out, info.time_ns as u32);
        put_u32(out, packet.len() as u32);
        put_u32(out, original_len.max(packet.len()) as u32);
        out.extend_from_slice(packet);
        pad(out, packet.len());
        if let Some(comment) = info.comment {
            let end = comment.floor_char_boundary(usize::from(u16::MAX));
            option(out, OPT_COMMENT, &comment.as_bytes()[..end]);
        }
        let flags: u32 = match info.direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        option(out, EPB_FLAGS, &flags.to_le_bytes());
        option(out, OPT_END, &[]);
    });
}

/// Scope of a captured segment's checksum.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SegmentChecksum {
    /// Header, payload and the pseudo-header of the addresses.
    WithAddresses,
    /// Header and payload only.
    WithoutAddresses,
    /// The field is not filled in, or another layer has verified the segment.
    Unknown,
}

/// A segment with its metadata.
#[derive(Copy, Clone, Debug)]
pub struct CapturedSegment<'a> {
    /// Sender's address.
    pub src: IpAddr,
    /// Receiver's address, of the same family.
    pub dst: IpAddr,
    /// The ECN field, two bits.
    pub ecn: u8,
    /// Scope of the checksum.
    pub checksum: SegmentChecksum,
    /// TCP header, options and payload.
    pub bytes: &'a [u8],
}

/// Writes segments as IP packets into a capture.
#[derive(Clone, Debug)]
pub struct Capture {
    reveal_keys: bool,
    packet: Vec<u8>,
}

impl Capture {
    /// Starts a capture in `out`: a section and its interfaces. With `reveal_keys`, MPTCP keys are written unchanged.
    /// Wireshark and anyone else who has the file can then match subflows to connections.
    #[must_use]
    pub fn begin(
        out: &mut Vec<u8>,
        application: &str,
        interfaces: &[&str],
        reveal_keys: bool,
    ) -> Self {
        write_section_header(out, application);
        for name in interfaces {
            interface(out, name);
        }
        Capture { reveal_keys, packet: Vec::new() }
    }

    /// Appends a segment to `out`. Its checksum is adapted to the written packet, unless it was wrong before.
    ///
    /// # Errors
    /// Fails if the addresses are of different families or the segment is too long for an IP packet. Then nothing is
    /// written.
    pub fn segment(
        &mut self,
        out: &mut Vec<u8>,
        info: &PacketInfo<'_>,
        segment: &CapturedSegment<'_>,
    ) -> Result<(), EmitError> {
        let ends = (segment.src, segment.dst);
        let header_len = ip_header_len(segment.src);
        self.packet.clear();
        self.packet.resize(header_len, 0);
        emit_ip(ends.0, ends.1, PROTOCOL_TCP, segment.ecn, segment.bytes.len(), &mut self.packet)?;
        self.packet.extend_from_slice(segment.bytes);
        let original_len = self.packet.len();

        let hidden =
            if self.reveal_keys { Some(0) } else { hide_keys(&mut self.packet[header_len..]) };
        let Some(hidden) = hidden else {
            // Options cannot be distinguished from payload, so neither is written.
            self.packet.truncate(header_len + TCP_HEADER_LEN);
            packet(out, info, &self.packet, original_len);
            return Ok(());
        };
        let was_right = match segment.checksum {
            SegmentChecksum::WithAddresses if hidden == 0 => false,
            SegmentChecksum::WithAddresses => verify_tcp_checksum(Some(ends), segment.bytes),
            SegmentChecksum::WithoutAddresses => verify_tcp_checksum(None, segment.bytes),
            SegmentChecksum::Unknown => true,
        };
        if was_right {
            fill_tcp_checksum(Some(ends), &mut self.packet[header_len..]);
        }
        packet(out, info, &self.packet, original_len);
        Ok(())
    }

    /// Appends a whole IP packet to `out`, as read from a TUN interface. If keys are hidden, those in its TCP segment
    /// are overwritten, and a correct checksum stays correct. An ICMP message is cut off before it could contain
    /// keys. An invalid packet is not written.
    pub fn write_ip_packet(&mut self, out: &mut Vec<u8>, info: &PacketInfo<'_>, bytes: &[u8]) {
        self.packet.clear();
        self.packet.extend_from_slice(bytes);
        if !self.reveal_keys {
            let shown = hide_keys_of_packet(&mut self.packet);
            self.packet.truncate(shown);
        }
        packet(out, info, &self.packet, bytes.len());
    }
}

/// Overwrites the keys in a TCP segment. Returns the number of bytes of the IP packet that may be written.
fn hide_keys_of_packet(bytes: &mut [u8]) -> usize {
    let Ok(ip) = IpPacket::parse(bytes) else { return 0 };
    let ends = (ip.src, ip.dst);
    let at = ip.payload.as_ptr().addr() - bytes.as_ptr().addr();
    let end = at + ip.payload.len();
    match ip.protocol {
        // In a fragment, the options may be anywhere.
        PROTOCOL_TCP if ip.fragment.is_some() => at,
        PROTOCOL_TCP => {
            let was_right = verify_tcp_checksum(Some(ends), &bytes[at..end]);
            match hide_keys(&mut bytes[at..end]) {
                Some(0) => {}
                Some(_) if was_right => {
                    fill_tcp_checksum(Some(ends), &mut bytes[at..end]);
                }
                Some(_) => {}
                None => return end.min(at + TCP_HEADER_LEN),
            }
            bytes.len()
        }
        // An ICMP error quotes the packet that it refers to.
        PROTOCOL_ICMP | PROTOCOL_ICMP_V6 => {
            const ICMP_HEADER_LEN: usize = 8;
            bytes.len().min(at + ICMP_HEADER_LEN + ip_header_len(ends.0) + TCP_HEADER_LEN)
        }
        _ => bytes.len(),
    }
}

/// Overwrites the keys in a segment's MPTCP options with zeros. Returns the number of options with keys, or `None` if
/// the header is malformed, so that its options cannot be found.
fn hide_keys(segment: &mut [u8]) -> Option<usize> {
    let header_len = usize::from(*segment.get(12)? >> 4) * 4;
    let mut rest = segment.get_mut(TCP_HEADER_LEN..header_len)?;
    let mut hidden = 0;
    loop {
        match rest {
            [] | [kind::END, ..] => return Some(hidden),
            [kind::NOP, ..] => rest = &mut rest[1..],
            [_, len, ..] if *len >= 2 => {
                // An option longer than the available bytes may still begin with a key.
                let len = usize::from(*len).min(rest.len());
                let (option, after) = rest.split_at_mut(len);
                let subtype = option.get(2).map(|first| first >> 4);
                if option[0] == mptcp::KIND
                    && matches!(subtype, Some(subtype::CAPABLE | subtype::FASTCLOSE))
                    && option.len() > 4
                {
                    let end = option.len().min(20);
                    option[4..end].fill(0);
                    hidden += 1;
                }
                rest = after;
            }
            _ => return Some(hidden),
        }
    }
}

/// Appends a block: its type, its length before and after the body, and the body.
fn block(out: &mut Vec<u8>, block_type: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put_u32(out, block_type);
    put_u32(out, 0);
    body(out);
    let len = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    put_u32(out, len);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    put_u16(out, code);
    put_u16(out, value.len() as u16);
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + len.next_multiple_of(4) - len, 0);
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
#[path = "pcapng/tests.rs"]
mod tests;
