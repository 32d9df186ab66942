//! Segments that can be written in one line.

use marline_wire::mptcp::{DataAck, Dss, MptcpOption, WireDsn, WireMapping};
use marline_wire::{
    FastOpenOption, ParseError, SackBlock, SeqNum, TcpFlags, TcpHeader, TcpOptions, TcpSegment,
    Timestamps, fill_tcp_checksum,
};
use std::net::IpAddr;

/// A segment that owns its payload: built for injection, or parsed from a sent segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seg {
    /// The fixed header.
    pub header: TcpHeader,
    /// Options.
    pub options: TcpOptions,
    /// The Fast Open option.
    pub fast_open: Option<FastOpenOption>,
    /// Payload.
    pub payload: Vec<u8>,
}

impl Seg {
    /// A segment with these flags and a window of 65,535.
    #[must_use]
    pub fn new(flags: TcpFlags) -> Self {
        let header = TcpHeader { flags, window: u16::MAX, ..TcpHeader::default() };
        Seg { header, ..Seg::default() }
    }

    /// A SYN.
    #[must_use]
    pub fn syn() -> Self {
        Seg::new(TcpFlags::SYN)
    }

    /// A SYN/ACK without an acknowledgment number.
    #[must_use]
    pub fn syn_ack() -> Self {
        Seg::new(TcpFlags::SYN.with(TcpFlags::ACK))
    }

    /// A pure ACK, or the base of a data segment.
    #[must_use]
    pub fn ack() -> Self {
        Seg::new(TcpFlags::ACK)
    }

    /// A FIN with ACK.
    #[must_use]
    pub fn fin() -> Self {
        Seg::new(TcpFlags::FIN.with(TcpFlags::ACK))
    }

    /// A RST without ACK.
    #[must_use]
    pub fn rst() -> Self {
        Seg::new(TcpFlags::RST)
    }

    /// Sets the ports.
    #[must_use]
    pub fn ports(mut self, src: u16, dst: u16) -> Self {
        (self.header.src_port, self.header.dst_port) = (src, dst);
        self
    }

    /// Sets the sequence number.
    #[must_use]
    pub fn at(mut self, seq: SeqNum) -> Self {
        self.header.seq = seq;
        self
    }

    /// Sets the acknowledgment number and its flag.
    #[must_use]
    pub fn acking(mut self, ack: SeqNum) -> Self {
        self.header.ack = ack;
        self.flag(TcpFlags::ACK)
    }

    /// Adds flags.
    #[must_use]
    pub fn flag(mut self, flags: TcpFlags) -> Self {
        self.header.flags = self.header.flags.with(flags);
        self
    }

    /// Sets the window field, unscaled.
    #[must_use]
    pub fn window(mut self, window: u16) -> Self {
        self.header.window = window;
        self
    }

    /// Sets the payload.
    #[must_use]
    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    /// Sets the MSS option.
    #[must_use]
    pub fn mss(mut self, mss: u16) -> Self {
        self.options.mss = Some(mss);
        self
    }

    /// Sets the window scale option.
    #[must_use]
    pub fn window_scale(mut self, shift: u8) -> Self {
        self.options.window_scale = Some(shift);
        self
    }

    /// Sets the SACK-permitted option.
    #[must_use]
    pub fn sack_permitted(mut self) -> Self {
        self.options.sack_permitted = true;
        self
    }

    /// Sets the timestamps option.
    #[must_use]
    pub fn timestamps(mut self, value: u32, echo: u32) -> Self {
        self.options.timestamps = Some(Timestamps { value, echo });
        self
    }

    /// Adds a SACK block.
    ///
    /// # Panics
    /// At the fifth block.
    #[must_use]
    pub fn sack(mut self, left: SeqNum, right: SeqNum) -> Self {
        assert!(self.options.sack.push(SackBlock { left, right }), "at most four SACK blocks");
        self
    }

    /// Adds an MPTCP option.
    ///
    /// # Panics
    /// If it does not fit the 40 bytes together with the other options.
    #[must_use]
    pub fn mptcp(mut self, option: MptcpOption) -> Self {
        assert!(self.options.mptcp.push(option), "MPTCP options exceed 40 bytes: {option:?}");
        self
    }

    /// Sets the Fast Open option.
    #[must_use]
    pub fn fast_open(mut self, option: FastOpenOption) -> Self {
        self.fast_open = Some(option);
        self
    }

    /// Sets a 64-bit DATA_ACK in the DSS option. An existing mapping is kept.
    #[must_use]
    pub fn data_ack(mut self, ack: u64) -> Self {
        self.options.dss.get_or_insert_default().data_ack = Some(DataAck::Long(ack));
        self
    }

    /// Sets a DSS mapping with a 64-bit data sequence number and no checksum.
    #[must_use]
    pub fn mapping(mut self, dsn: u64, ssn: u32, length: u16) -> Self {
        let dsn = WireDsn::Long(dsn);
        let mapping = WireMapping { dsn, ssn, length, checksum: None };
        self.options.dss.get_or_insert_default().mapping = Some(mapping);
        self
    }

    /// Sets flag F of DSS.
    #[must_use]
    pub fn data_fin(mut self) -> Self {
        self.options.dss.get_or_insert_default().data_fin = true;
        self
    }

    /// The DSS option, or an empty one if there is none.
    #[must_use]
    pub fn dss(&self) -> Dss {
        self.options.dss.unwrap_or_default()
    }

    /// Length in sequence space: payload, SYN and FIN.
    #[must_use]
    pub fn len(&self) -> u32 {
        let flag = |f| u32::from(self.header.flags.contains(f));
        self.payload.len() as u32 + flag(TcpFlags::SYN) + flag(TcpFlags::FIN)
    }

    /// True if the segment occupies no sequence space.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sequence number after the segment.
    #[must_use]
    pub fn end(&self) -> SeqNum {
        self.header.seq.add(self.len())
    }

    /// The encoded segment. Its checksum covers these addresses, or none.
    ///
    /// # Panics
    /// If the options do not fit a header.
    #[must_use]
    pub fn bytes(&self, addresses: Option<(IpAddr, IpAddr)>) -> Vec<u8> {
        let mut bytes = vec![0; 60];
        let emitted = match &self.fast_open {
            Some(fast_open) => self.header.emit_with(&self.options, fast_open, &mut bytes),
            None => self.header.emit(&self.options, &mut bytes),
        };
        let len = match emitted {
            Ok(len) => len,
            Err(error) => panic!("cannot encode segment: {error}: {self:?}"),
        };
        bytes.truncate(len);
        bytes.extend_from_slice(&self.payload);
        fill_tcp_checksum(addresses, &mut bytes);
        bytes
    }

    /// Parses a segment.
    ///
    /// # Errors
    /// Fails like [`TcpSegment::parse`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let segment = TcpSegment::parse(bytes)?;
        let fast_open = segment.fast_open();
        let TcpSegment { header, options, payload, .. } = segment;
        Ok(Seg { header, options, fast_open, payload: payload.to_vec() })
    }
}
