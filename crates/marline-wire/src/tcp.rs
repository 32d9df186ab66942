//! TCP header (RFC 9293 section 3.1).

use crate::bytes::{Reader, Writer};
use crate::error::{ErrorKind, Layer};
use crate::{EmitError, FastOpenOption, MAX_OPTIONS, ParseError, SeqNum, TcpOptions, tcp_options};

/// Length of the header without options, in bytes.
pub const TCP_HEADER_LEN: usize = 20;

/// Control bits: the low twelve bits of the 16-bit field after the acknowledgment number.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(pub u16);

impl TcpFlags {
    /// The sender has no more data.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Push.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgment number is significant.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer is significant.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: TcpFlags = TcpFlags(0x80);

    /// Returns true if all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: TcpFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if any bit of `other` is set.
    #[must_use]
    pub const fn intersects(self, other: TcpFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// This set without the bits of `other`.
    #[must_use]
    pub const fn without(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 & !other.0)
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }
}

/// The fixed part of a TCP header.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first payload byte, or of the SYN if that is set.
    pub seq: SeqNum,
    /// Next sequence number expected from the other side, if ACK is set.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window as on the wire, unscaled.
    pub window: u16,
    /// Urgent pointer; Marline neither sends nor acts on urgent data.
    pub urgent: u16,
}

/// A parsed segment: header and options by value, payload by reference.
#[derive(Clone, Debug)]
pub struct TcpSegment<'a> {
    /// The fixed header.
    pub header: TcpHeader,
    /// The options that Marline supports; others are skipped.
    pub options: TcpOptions,
    /// The bytes after the header.
    pub payload: &'a [u8],
    /// The bytes of all received options; empty if the segment was not parsed.
    pub raw_options: &'a [u8],
}

impl TcpHeader {
    /// Writes header and options to the front of `out`, with a checksum of zero, and returns their length. The caller
    /// appends the payload, and [`fill_tcp_checksum`](crate::fill_tcp_checksum) completes the segment.
    ///
    /// # Errors
    /// Fails if the options take more than 40 bytes, or `out` is too short. The contents of `out` are then undefined.
    pub fn emit(&self, options: &TcpOptions, out: &mut [u8]) -> Result<usize, EmitError> {
        let available = out.len();
        let Some((fixed, rest)) = out.split_first_chunk_mut::<TCP_HEADER_LEN>() else {
            let needed = TCP_HEADER_LEN + options.encoded_len();
            return Err(EmitError::BufferTooShort { needed, available });
        };
        let len = TCP_HEADER_LEN + options.emit(rest)?;
        let mut w = Writer::new(fixed);
        w.u16(self.src_port);
        w.u16(self.dst_port);
        w.u32(self.seq.0);
        w.u32(self.ack.0);
        w.u16((len as u16 / 4) << 12 | self.flags.0 & 0x0fff);
        w.u16(self.window);
        w.u16(0);
        w.u16(self.urgent);
        Ok(len)
    }

    /// Like [`emit`](Self::emit), with a Fast Open option, for SYN and SYN/ACK. The option precedes the Multipath TCP
    /// options.
    ///
    /// # Errors
    /// Like [`emit`](Self::emit).
    pub fn emit_with(
        &self,
        options: &TcpOptions,
        fast_open: &FastOpenOption,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        let beside = fast_open.encoded_len();
        let options_len = options.encoded_len() + beside;
        if options_len > MAX_OPTIONS {
            return Err(EmitError::OptionsTooLong { len: options_len });
        }
        let (needed, available) = (TCP_HEADER_LEN + options_len, out.len());
        let Some(out) = out.get_mut(..needed) else {
            return Err(EmitError::BufferTooShort { needed, available });
        };
        // The option is inserted afterwards. If both functions shared code, it would no longer be inlined into the
        // function used for every segment, which would then take a third longer.
        let len = self.emit(options, out)?;
        let at = TCP_HEADER_LEN + options.unpadded_len() - options.multipath_len();
        out.copy_within(at..len, at + beside);
        fast_open.emit(&mut Writer::new(&mut out[at..at + beside]));
        let [high, _] = ((needed as u16 / 4) << 12).to_be_bytes();
        out[12] = high | out[12] & 0x0f;
        Ok(needed)
    }
}

impl<'a> TcpSegment<'a> {
    /// The Fast Open option, if the segment may have one (SYN or SYN/ACK).
    #[must_use]
    pub fn fast_open(&self) -> Option<FastOpenOption> {
        let syn = self.header.flags.contains(TcpFlags::SYN);
        if syn { FastOpenOption::find(self.raw_options) } else { None }
    }

    /// Parses a segment: header, options, payload. It does not verify the checksum
    /// ([`verify_tcp_checksum`](crate::verify_tcp_checksum) does that), and malformed options do not make it fail (see
    /// [`TcpOptions::parse`]).
    ///
    /// # Errors
    /// Fails if the bytes are shorter than the stated header length, or the data offset is below five.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let error = |field, kind| Err(ParseError { layer: Layer::Tcp, field, kind });
        let Some((fixed, _)) = bytes.split_first_chunk::<TCP_HEADER_LEN>() else {
            return error("header", ErrorKind::Truncated);
        };
        let (header, header_len) = parse_fixed(fixed);
        if header_len < TCP_HEADER_LEN {
            return error("data offset", ErrorKind::Value);
        }
        let Some((head, payload)) = bytes.split_at_checked(header_len) else {
            return error("data offset", ErrorKind::Truncated);
        };
        let raw_options = &head[TCP_HEADER_LEN..];
        // Fast path with the same result: the usual options are written directly to the result, without a large
        // intermediate value that costs more to move than to parse.
        if let Some((timestamps, dss)) = tcp_options::parse_common_options(raw_options) {
            let options = TcpOptions { timestamps: Some(timestamps), dss, ..TcpOptions::EMPTY };
            return Ok(TcpSegment { header, options, payload, raw_options });
        }
        Ok(TcpSegment { header, options: TcpOptions::parse(raw_options), payload, raw_options })
    }
}

/// The fields of the header, and its length in bytes according to the data offset.
#[inline]
fn parse_fixed(fixed: &[u8; TCP_HEADER_LEN]) -> (TcpHeader, usize) {
    let mut r = Reader::new(fixed);
    // The array is long enough for every field, so no field defaults to zero.
    let mut u16 = || r.u16().unwrap_or_default();
    let (src_port, dst_port) = (u16(), u16());
    let seq = u32::from(u16()) << 16 | u32::from(u16());
    let ack = u32::from(u16()) << 16 | u32::from(u16());
    let (offset_and_flags, window, _checksum, urgent) = (u16(), u16(), u16(), u16());
    let header = TcpHeader {
        src_port,
        dst_port,
        seq: SeqNum(seq),
        ack: SeqNum(ack),
        flags: TcpFlags(offset_and_flags & 0x0fff),
        window,
        urgent,
    };
    (header, usize::from(offset_and_flags >> 12) * 4)
}

#[cfg(test)]
#[path = "tcp/tests.rs"]
mod tests;
