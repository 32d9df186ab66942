//! Internet checksum (RFC 1071), and the TCP and Multipath TCP checksums based on it.
//!
//! The sum is the hot loop of every segment sent or received, so it uses 64-bit words. One's-complement addition is the
//! same in any word size and, except for a swap at the end, in any byte order (RFC 1071 section 2). A [`Checksum`]
//! keeps the sum modulo 2^64 - 1 in the byte order of the machine and folds it to 16 bits only at the end. Parts can be
//! summed separately and combined later. A payload is summed while it is copied into the segment, and that sum serves
//! both the TCP checksum and the DSS checksum (RFC 8684 section 3.3.1).
//!
//! A part that starts at an odd offset is added with its bytes swapped. Swapping the bytes of a folded sum is a
//! multiplication by 2^8 modulo 2^16 - 1. The same multiplication modulo 2^64 - 1 is a rotation by eight bits.

use core::net::IpAddr;

use crate::PROTOCOL_TCP;

/// Number of bytes summed per iteration of the inner loop.
const BLOCK: usize = 64;

/// Offset of the checksum field in the TCP header.
const TCP_CHECKSUM_AT: usize = 16;

/// A running one's-complement sum.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    sum: u64,
    /// True if the number of bytes so far is odd: the next byte is the low half of a 16-bit word.
    is_odd: bool,
}

impl Checksum {
    /// The sum of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Checksum { sum: 0, is_odd: false }
    }

    /// The sum of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Checksum { sum: sum_bytes(bytes), is_odd: bytes.len() % 2 == 1 }
    }

    /// Adds bytes that follow those already added.
    #[inline]
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.append(Checksum::of(bytes));
    }

    /// Adds a 16-bit field in network byte order.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        self.append(Checksum { sum: u64::from(value.to_be()), is_odd: false });
    }

    /// Adds a 32-bit field in network byte order.
    #[inline]
    pub fn add_u32(&mut self, value: u32) {
        self.append(Checksum { sum: u64::from(value.to_be()), is_odd: false });
    }

    /// Adds a 64-bit field in network byte order.
    #[inline]
    pub fn add_u64(&mut self, value: u64) {
        self.append(Checksum { sum: value.to_be(), is_odd: false });
    }

    /// Adds a sum of bytes that follow those already added.
    #[inline]
    pub fn append(&mut self, later: Checksum) {
        let sum = if self.is_odd { later.sum.rotate_left(8) } else { later.sum };
        self.sum = add_wrapping_carry(self.sum, sum);
        self.is_odd ^= later.is_odd;
    }

    /// Copies `src` to the front of `dst` and adds it in one pass, up to the length of `dst`. Returns the number of
    /// bytes copied.
    pub fn copy_and_add(&mut self, dst: &mut [u8], src: &[u8]) -> usize {
        let len = src.len().min(dst.len());
        let sum = copy_and_sum_bytes(&mut dst[..len], &src[..len]);
        self.append(Checksum { sum, is_odd: len % 2 == 1 });
        len
    }

    /// Adds the pseudo-header of RFC 9293 section 3.1 (IPv4) or RFC 8200 section 8.1 (IPv6). `length` is the total
    /// length of the upper-layer header and the payload. With addresses of different families, the result is
    /// meaningless.
    pub fn add_pseudo_header(&mut self, src: IpAddr, dst: IpAddr, protocol: u8, length: u32) {
        for address in [src, dst] {
            match address {
                IpAddr::V4(a) => self.add_u32(a.to_bits()),
                IpAddr::V6(a) => {
                    self.add_u64((a.to_bits() >> 64) as u64);
                    self.add_u64(a.to_bits() as u64);
                }
            }
        }
        self.add_u32(u32::from(protocol));
        self.add_u32(length);
    }

    /// The 16-bit sum, not complemented, as a number (high byte first on the wire).
    #[must_use]
    pub const fn sum16(self) -> u16 {
        let s = (self.sum >> 32) + (self.sum & 0xffff_ffff);
        let s = (s >> 32) + (s & 0xffff_ffff);
        let s = (s >> 16) + (s & 0xffff);
        let s = (s >> 16) + (s & 0xffff);
        u16::from_be(((s >> 16) + (s & 0xffff)) as u16)
    }

    /// The complement of the sum, for the checksum field.
    #[must_use]
    pub const fn finish(self) -> u16 {
        !self.sum16()
    }

    /// Returns true if the sum of bytes that include their checksum field is valid.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.finish() == 0
    }
}

#[inline]
const fn add_wrapping_carry(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u64
}

const fn fold_u128(sum: u128) -> u64 {
    add_wrapping_carry(sum as u64, (sum >> 64) as u64)
}

/// Keeps four sums in parallel, so that no addition waits for the previous one.
#[inline(always)]
fn add_block(sums: &mut [u128; 4], block: &[u8; BLOCK]) {
    let (words, _) = block.as_chunks::<8>();
    for lane in 0..4 {
        sums[lane] += u128::from(u64::from_ne_bytes(words[lane]));
        sums[lane] += u128::from(u64::from_ne_bytes(words[lane + 4]));
    }
}

/// Sums the last, short block. Missing bytes count as zero, as RFC 1071 pads an odd byte.
fn sum_tail(tail: &[u8]) -> u64 {
    let mut sum = 0u128;
    let (words, rest) = tail.as_chunks::<8>();
    for w in words {
        sum += u128::from(u64::from_ne_bytes(*w));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold_u128(sum + u128::from(u64::from_ne_bytes(last)))
}

fn finish_blocks(sums: [u128; 4], tail: &[u8]) -> u64 {
    // Each sum is below 2^64 x blocks, so the total cannot overflow for any possible slice.
    add_wrapping_carry(fold_u128(sums.iter().sum()), sum_tail(tail))
}

#[inline(never)]
fn sum_bytes(bytes: &[u8]) -> u64 {
    let (blocks, tail) = bytes.as_chunks::<BLOCK>();
    let mut sums = [0u128; 4];
    for block in blocks {
        add_block(&mut sums, block);
    }
    finish_blocks(sums, tail)
}

/// Copies and sums bytes. `dst` and `src` must have equal length.
#[inline(never)]
fn copy_and_sum_bytes(dst: &mut [u8], src: &[u8]) -> u64 {
    let (from, from_tail) = src.as_chunks::<BLOCK>();
    let (to, to_tail) = dst.as_chunks_mut::<BLOCK>();
    let mut sums = [0u128; 4];
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
        add_block(&mut sums, from);
    }
    to_tail.copy_from_slice(from_tail);
    finish_blocks(sums, from_tail)
}

/// The start of a TCP checksum: the pseudo-header for a segment of `length` bytes, or nothing if the checksum does not
/// cover addresses.
#[must_use]
pub fn tcp_pseudo_header(addresses: Option<(IpAddr, IpAddr)>, length: usize) -> Checksum {
    let mut sum = Checksum::new();
    if let Some((src, dst)) = addresses {
        sum.add_pseudo_header(src, dst, PROTOCOL_TCP, length as u32);
    }
    sum
}

/// The correct value of `segment`'s checksum field, regardless of its current value. `addresses` are source and
/// destination. Without them only header and payload are summed.
#[must_use]
pub fn tcp_checksum(addresses: Option<(IpAddr, IpAddr)>, segment: &[u8]) -> u16 {
    let mut sum = tcp_pseudo_header(addresses, segment.len());
    sum.add_bytes(segment);
    let mut sum = Checksum { is_odd: false, ..sum };
    if let Some(&[high, low]) = segment.get(TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2) {
        // In one's complement, adding the complement removes the field from the sum.
        sum.add_u16(!u16::from_be_bytes([high, low]));
    }
    sum.finish()
}

/// Returns true if the checksum field of `segment` is correct.
#[must_use]
pub fn verify_tcp_checksum(addresses: Option<(IpAddr, IpAddr)>, segment: &[u8]) -> bool {
    let mut sum = tcp_pseudo_header(addresses, segment.len());
    sum.add_bytes(segment);
    sum.is_valid()
}

/// Writes the checksum into a finished segment. A segment too short to have the field is left unchanged.
pub fn fill_tcp_checksum(addresses: Option<(IpAddr, IpAddr)>, segment: &mut [u8]) {
    let checksum = tcp_checksum(addresses, segment);
    store_tcp_checksum(segment, checksum);
}

/// Writes a checksum that the caller computed into a segment.
pub fn store_tcp_checksum(segment: &mut [u8], checksum: u16) {
    if let Some(field) = segment.get_mut(TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The DSS checksum (RFC 8684 section 3.3.1): the pseudo-header of all 64 bits of the first data
/// sequence number, the relative subflow sequence number and the mapping's length (DATA_FIN
/// included), then the payload of the whole mapping.
#[must_use]
pub fn dss_checksum(dsn: u64, ssn: u32, length: u16, payload: Checksum) -> u16 {
    let mut sum = Checksum::new();
    sum.add_u64(dsn);
    sum.add_u32(ssn);
    sum.add_u16(length);
    // The checksum field itself counts as zero.
    sum.append(payload);
    sum.finish()
}

#[cfg(test)]
#[path = "checksum/tests.rs"]
mod tests;
