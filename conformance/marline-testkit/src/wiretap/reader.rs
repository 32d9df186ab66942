//! Reader of packets from pcap and pcapng files.

use core::fmt;

/// Error for a file that is not a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// Index of the file, from 0.
    pub file: usize,
    /// Description of the problem.
    pub problem: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "capture {}: {}", self.file + 1, self.problem)
    }
}

impl core::error::Error for ReadError {}

/// An IP packet of a capture.
#[derive(Copy, Clone, Debug)]
pub(super) struct Packet<'a> {
    pub(super) time_ns: u64,
    pub(super) file: usize,
    /// Frame number, counted from 1 as in Wireshark.
    pub(super) frame: usize,
    pub(super) bytes: &'a [u8],
}

/// Byte order of a file's numbers.
#[derive(Copy, Clone)]
struct ByteOrder {
    little_endian: bool,
}

impl ByteOrder {
    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let field = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(if self.little_endian { u16::from_le_bytes(field) } else { u16::from_be_bytes(field) })
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let field = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if self.little_endian { u32::from_le_bytes(field) } else { u32::from_be_bytes(field) })
    }
}

/// Reads the packets of a file in their order.
pub(super) fn read(file: usize, bytes: &[u8]) -> Result<Vec<Packet<'_>>, ReadError> {
    let fail = |why: String| ReadError { file, problem: why };
    let magic =
        bytes.get(..4).ok_or_else(|| fail("shorter than a capture file header".to_owned()))?;
    let packets = match magic {
        [0x0a, 0x0d, 0x0d, 0x0a] => pcapng(file, bytes),
        [0xd4, 0xc3, 0xb2, 0xa1] => pcap(file, bytes, ByteOrder { little_endian: true }, 1_000),
        [0xa1, 0xb2, 0xc3, 0xd4] => pcap(file, bytes, ByteOrder { little_endian: false }, 1_000),
        [0x4d, 0x3c, 0xb2, 0xa1] => pcap(file, bytes, ByteOrder { little_endian: true }, 1),
        [0xa1, 0xb2, 0x3c, 0x4d] => pcap(file, bytes, ByteOrder { little_endian: false }, 1),
        _ => return Err(fail("neither pcap nor pcapng".to_owned())),
    };
    packets.map_err(fail)
}

fn pcap(
    file: usize,
    bytes: &[u8],
    order: ByteOrder,
    tick_ns: u64,
) -> Result<Vec<Packet<'_>>, String> {
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    let link = order.u32(bytes, 20).ok_or("the file header does not contain a link type")? & 0xffff;
    let mut packets = Vec::new();
    let (mut at, mut frame) = (HEADER, 0);
    // A file that ends in the middle of a record was truncated.
    while let (Some(seconds), Some(ticks), Some(len)) =
        (order.u32(bytes, at), order.u32(bytes, at + 4), order.u32(bytes, at + 8))
    {
        let start = at + RECORD;
        let Some(whole) = bytes.get(start..).and_then(|rest| rest.get(..len as usize)) else {
            break;
        };
        frame += 1;
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(ticks) * tick_ns;
        if let Some(bytes) = ip(link as u16, whole)? {
            packets.push(Packet { time_ns, file, frame, bytes });
        }
        at = start + len as usize;
    }
    Ok(packets)
}

fn pcapng(file: usize, bytes: &[u8]) -> Result<Vec<Packet<'_>>, String> {
    const SECTION: u32 = 0x0a0d_0d0a;
    const INTERFACE: u32 = 1;
    const PACKET: u32 = 6;
    let mut order = ByteOrder { little_endian: true };
    let mut interfaces: Vec<(u16, u64)> = Vec::new();
    let mut packets = Vec::new();
    let (mut at, mut frame) = (0, 0);
    while let Some(kind) = order.u32(bytes, at) {
        if kind == SECTION {
            order = match bytes.get(at + 8..at + 12) {
                Some([0x4d, 0x3c, 0x2b, 0x1a]) => ByteOrder { little_endian: true },
                Some(_) => ByteOrder { little_endian: false },
                None => break,
            };
            interfaces.clear();
        }
        let Some(len) = order.u32(bytes, at + 4).map(|len| len as usize) else { break };
        if len < 12 || len % 4 != 0 {
            return Err(format!("invalid block length {len} at offset {at}"));
        }
        let Some(block) = bytes.get(at..).and_then(|rest| rest.get(..len)) else { break };
        if kind == INTERFACE {
            let link = order.u16(block, 8).unwrap_or(0);
            interfaces.push((link, tick_ns(order, block)));
        } else if kind == PACKET {
            frame += 1;
            if let Some((link, time_ns, whole)) = parse_enhanced(order, block, &interfaces)
                && let Some(bytes) = ip(link, whole)?
            {
                packets.push(Packet { time_ns, file, frame, bytes });
            }
        }
        at += len;
    }
    Ok(packets)
}

/// Link layer, time and bytes of an enhanced packet block.
fn parse_enhanced<'a>(
    order: ByteOrder,
    block: &'a [u8],
    interfaces: &[(u16, u64)],
) -> Option<(u16, u64, &'a [u8])> {
    let (link, tick) = *interfaces.get(order.u32(block, 8)? as usize)?;
    let time = u64::from(order.u32(block, 12)?) << 32 | u64::from(order.u32(block, 16)?);
    let len = order.u32(block, 20)? as usize;
    Some((link, time.saturating_mul(tick), block.get(28..)?.get(..len)?))
}

/// Nanoseconds per tick of an interface's clock, from the option if_tsresol (default 10^-6 s). Supports powers of ten
/// down to a nanosecond; other values count as microseconds.
fn tick_ns(order: ByteOrder, block: &[u8]) -> u64 {
    const TSRESOL: u16 = 9;
    let mut at = 16;
    while let (Some(code), Some(len)) = (order.u16(block, at), order.u16(block, at + 2)) {
        if code == TSRESOL {
            let power = u32::from(block.get(at + 4).copied().unwrap_or(6));
            return if power <= 9 { 10u64.pow(9 - power) } else { 1_000 };
        }
        if code == 0 {
            break;
        }
        at += 4 + usize::from(len).next_multiple_of(4);
    }
    1_000
}

/// Finds the IP packet in a frame. `None` if the frame contains something else.
fn ip(link: u16, frame: &[u8]) -> Result<Option<&[u8]>, String> {
    const IPV4: u16 = 0x0800;
    const IPV6: u16 = 0x86dd;
    let after = |type_at: usize, header: usize| {
        let kind = ByteOrder { little_endian: false }.u16(frame, type_at);
        kind.filter(|kind| matches!(*kind, IPV4 | IPV6)).and_then(|_| frame.get(header..))
    };
    Ok(match link {
        // LINKTYPE_RAW and its older number, LINKTYPE_IPV4, LINKTYPE_IPV6.
        101 | 12 | 228 | 229 => Some(frame),
        // Ethernet.
        1 => after(12, 14),
        // Linux cooked, versions 1 and 2.
        113 => after(14, 16),
        276 => after(0, 20),
        other => return Err(format!("unsupported link layer {other}")),
    })
}
