//! Header template: the header and options of a run of segments, written once.
//!
//! The segments of a run differ only in sequence number, PSH, payload and checksum. Everything else is encoded and
//! summed once for all of them.

use core::net::IpAddr;

use crate::tcp_options::MAX_OPTIONS;
use crate::{
    Checksum, EmitError, SeqNum, TCP_HEADER_LEN, TcpHeader, TcpOptions, store_tcp_checksum,
    tcp_pseudo_header,
};

/// Range of header bytes that hold the sequence number.
const SEQ_AT: core::ops::Range<usize> = 4..8;

/// An encoded header without its sequence number, for segments of the same length.
#[derive(Copy, Clone, Debug)]
pub struct HeaderTemplate {
    bytes: [u8; TCP_HEADER_LEN + MAX_OPTIONS],
    len: usize,
    /// Sum of the pseudo-header and of these bytes.
    sum: Checksum,
}

impl HeaderTemplate {
    /// Creates a template of this header (whose `seq` is ignored) and these options for segments of `segment_len`
    /// bytes, counted from the TCP header. `addresses` are source and destination; `None` if the checksum does not
    /// cover them.
    ///
    /// # Errors
    /// Fails if the options take more than 40 bytes.
    pub fn new(
        header: &TcpHeader,
        options: &TcpOptions,
        addresses: Option<(IpAddr, IpAddr)>,
        segment_len: usize,
    ) -> Result<Self, EmitError> {
        let mut bytes = [0; TCP_HEADER_LEN + MAX_OPTIONS];
        let len = TcpHeader { seq: SeqNum(0), ..*header }.emit(options, &mut bytes)?;
        let mut sum = tcp_pseudo_header(addresses, segment_len);
        sum.add_bytes(&bytes[..len]);
        Ok(HeaderTemplate { bytes, len, sum })
    }

    /// Length of the header and its options, in bytes.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.len
    }

    /// Writes the header of the segment at `seq` before a payload that is already in place and whose sum is `payload`,
    /// and completes its checksum. A `segment` too short for the header is left unchanged.
    #[inline]
    pub fn write(&self, seq: SeqNum, payload: Checksum, segment: &mut [u8]) {
        let Some(head) = segment.get_mut(..self.len) else { return };
        head.copy_from_slice(&self.bytes[..self.len]);
        head[SEQ_AT].copy_from_slice(&seq.0.to_be_bytes());
        let mut sum = self.sum;
        sum.add_u32(seq.0);
        sum.append(payload);
        store_tcp_checksum(segment, sum.finish());
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::{TcpFlags, TcpSegment, Timestamps, verify_tcp_checksum};

    #[test]
    fn segments_by_a_template_are_those_written_one_by_one() {
        let host = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
        let addresses = Some((host(1), host(2)));
        let header =
            TcpHeader { src_port: 7, flags: TcpFlags::ACK, window: 9, ..TcpHeader::default() };
        let timestamps = Some(Timestamps { value: 1, echo: 2 });
        let options = TcpOptions { timestamps, ..TcpOptions::default() };
        let payload: Vec<u8> = (0..=254).collect();
        let len = TCP_HEADER_LEN + 12 + payload.len();
        let template =
            HeaderTemplate::new(&header, &options, addresses, len).expect("the packet fits");
        for seq in [0, 1, 0xffff_fff0] {
            let mut segment = vec![0xaa; len];
            segment[template.header_len()..].copy_from_slice(&payload);
            template.write(SeqNum(seq), Checksum::of(&payload), &mut segment);
            assert!(verify_tcp_checksum(addresses, &segment));
            let parsed = TcpSegment::parse(&segment).expect("a well-formed packet");
            assert_eq!(parsed.header, TcpHeader { seq: SeqNum(seq), ..header });
            assert_eq!((parsed.options, parsed.payload), (options.clone(), &payload[..]));
        }
    }
}
