//! DSS, the data sequence signal (RFC 8684 section 3.3): position of the payload in the connection's data stream, and
//! acknowledgment of received data.
//!
//! The flags determine its length, except for the checksum, whose presence follows only from the length. A checksum
//! without a mapping, or any other length, makes the option malformed.

use crate::bytes::{Reader, Writer};
use crate::mptcp::{KIND, subtype};

const DATA_FIN: u8 = 0x10;
const DSN_LONG: u8 = 0x08;
const MAPPING: u8 = 0x04;
const ACK_LONG: u8 = 0x02;
const ACK: u8 = 0x01;

/// A DATA_ACK in its wire format.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DataAck {
    /// Flag a clear: low 32 bits.
    Short(u32),
    /// Flag a set: all 64 bits.
    Long(u64),
}

/// A data sequence number in its wire format.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WireDsn {
    /// Flag m clear: low 32 bits.
    Short(u32),
    /// Flag m set: all 64 bits.
    Long(u64),
}

impl DataAck {
    /// The full number with these low bits that is nearest to `near`. `None` if that is below zero.
    #[must_use]
    pub const fn unwrap_near(self, near: u64) -> Option<u64> {
        match self {
            DataAck::Short(low) => crate::unwrap32(low, near),
            DataAck::Long(full) => Some(full),
        }
    }
}

impl WireDsn {
    /// The full number with these low bits that is nearest to `near`. `None` if that is below zero.
    #[must_use]
    pub const fn unwrap_near(self, near: u64) -> Option<u64> {
        match self {
            WireDsn::Short(low) => crate::unwrap32(low, near),
            WireDsn::Long(full) => Some(full),
        }
    }
}

/// A data sequence mapping (RFC 8684 section 3.3.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WireMapping {
    /// First data sequence number.
    pub dsn: WireDsn,
    /// Relative subflow sequence number of the first byte (1 is the first byte after the SYN); 0 if the mapping holds
    /// only a DATA_FIN.
    pub ssn: u32,
    /// Data-level length, including the DATA_FIN; 0 for the infinite mapping.
    pub length: u16,
    /// Checksum, if negotiated.
    pub checksum: Option<u16>,
}

/// DSS (RFC 8684 section 3.3): mapping, DATA_ACK and DATA_FIN.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Dss {
    /// DATA_ACK, flag A.
    pub data_ack: Option<DataAck>,
    /// Mapping, flag M.
    pub mapping: Option<WireMapping>,
    /// Flag F: the mapping's last octet is a DATA_FIN.
    pub data_fin: bool,
}

impl Dss {
    /// Length on the wire in bytes: 4 to 28.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        let ack = match self.data_ack {
            None => 0,
            Some(DataAck::Short(_)) => 4,
            Some(DataAck::Long(_)) => 8,
        };
        let mapping = match self.mapping {
            None => 0,
            Some(m) => {
                let dsn = if matches!(m.dsn, WireDsn::Long(_)) { 8 } else { 4 };
                let checksum = if m.checksum.is_some() { 2 } else { 0 };
                dsn + 4 + 2 + checksum
            }
        };
        4 + ack + mapping
    }

    /// Parses `option`, the whole option including kind and length.
    #[inline(always)]
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        let mut r = Reader::new(option);
        let [_, _, _, flags] = r.array()?;
        let data_ack = match flags & (ACK | ACK_LONG) {
            ACK => Some(DataAck::Short(r.u32()?)),
            0x03 => Some(DataAck::Long(r.u64()?)),
            // Flag a gives the length of a DATA_ACK. Without flag A there is none.
            _ => None,
        };
        let mapping = if flags & MAPPING == 0 {
            None
        } else {
            let dsn = if flags & DSN_LONG == 0 {
                WireDsn::Short(r.u32()?)
            } else {
                WireDsn::Long(r.u64()?)
            };
            let (ssn, length) = (r.u32()?, r.u16()?);
            let checksum = if r.rest().is_empty() { None } else { Some(r.u16()?) };
            Some(WireMapping { dsn, ssn, length, checksum })
        };
        if !r.rest().is_empty() {
            return None;
        }
        Some(Dss { data_ack, mapping, data_fin: flags & DATA_FIN != 0 })
    }

    #[inline]
    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        let mut flags = if self.data_fin { DATA_FIN } else { 0 };
        flags |= match self.data_ack {
            None => 0,
            Some(DataAck::Short(_)) => ACK,
            Some(DataAck::Long(_)) => ACK | ACK_LONG,
        };
        flags |= match self.mapping {
            None => 0,
            Some(WireMapping { dsn: WireDsn::Short(_), .. }) => MAPPING,
            Some(WireMapping { dsn: WireDsn::Long(_), .. }) => MAPPING | DSN_LONG,
        };
        w.array([KIND, self.encoded_len() as u8, subtype::DSS << 4, flags]);
        match self.data_ack {
            None => {}
            Some(DataAck::Short(low)) => w.u32(low),
            Some(DataAck::Long(full)) => w.u64(full),
        }
        let Some(mapping) = self.mapping else { return };
        match mapping.dsn {
            WireDsn::Short(low) => w.u32(low),
            WireDsn::Long(full) => w.u64(full),
        }
        w.u32(mapping.ssn);
        w.u16(mapping.length);
        if let Some(checksum) = mapping.checksum {
            w.u16(checksum);
        }
    }
}
