//! REPAIR, message 10 of MP_EXPERIMENTAL. It maps payload of a subflow as DSS does, but onto a sum
//! of bytes that other segments carry (`docs/spec/experimental.md`).
//!
//! It replaces DSS and is no longer than a DSS with mapping and DATA_ACK, so that the sum of full segments fits into a
//! full segment. For that, the position on the subflow has 16 bits (enough, because it is always that close to the
//! segment's own position), and the DATA_ACK always has 32 bits.

use crate::Checksum;
use crate::bytes::{Reader, Writer};

/// A mapping of payload onto a repair, and a DATA_ACK.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpRepair {
    /// Low 16 bits of the relative subflow sequence number of the repair's first byte.
    pub ssn: u16,
    /// Length in bytes of the repair's payload, and of each cell in its sum.
    pub length: u16,
    /// Low 32 bits of the first data sequence number that the sum covers.
    pub dsn: u32,
    /// Number of stream bytes that the sum covers.
    pub span: u16,
    /// Row of coefficients.
    pub row: u8,
    /// Low 32 bits of the next data sequence number expected.
    pub data_ack: u32,
    /// Checksum of the repair, if checksums were negotiated.
    pub checksum: Option<u16>,
}

impl MpRepair {
    /// Parses the bytes after kind, length and subtype.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if !matches!(bytes.len(), 15 | 17) {
            return None;
        }
        let mut r = Reader::new(bytes);
        Some(MpRepair {
            ssn: r.u16()?,
            length: r.u16()?,
            dsn: r.u32()?,
            span: r.u16()?,
            row: r.u8()?,
            data_ack: r.u32()?,
            checksum: r.u16(),
        })
    }

    pub(super) fn emit(&self, w: &mut Writer<'_>) {
        w.u16(self.ssn);
        w.u16(self.length);
        w.u32(self.dsn);
        w.u16(self.span);
        w.u8(self.row);
        w.u32(self.data_ack);
        if let Some(checksum) = self.checksum {
            w.u16(checksum);
        }
    }
}

/// Computes the checksum of a repair: the DSS checksum, over all 64 bits of the DSN and all 32 bits of the position,
/// followed by the span and the row.
#[must_use]
pub fn repair_checksum(repair: &MpRepair, dsn: u64, ssn: u32, payload: Checksum) -> u16 {
    let mut sum = Checksum::new();
    sum.add_u64(dsn);
    sum.add_u32(ssn);
    sum.add_u16(repair.length);
    sum.add_u16(repair.span);
    sum.add_u16(u16::from(repair.row));
    sum.append(payload);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mptcp::{ExperimentalMessage, MpExperimental, MptcpOption};
    use crate::{TcpOptions, Timestamps};

    const REPAIR: MpRepair = MpRepair {
        ssn: 0x0102,
        length: 0x0304,
        dsn: 0x0506_0708,
        span: 0x090a,
        row: 0x0b,
        data_ack: 0x0c0d_0e0f,
        checksum: Some(0x1011),
    };

    #[test]
    fn fields_round_trip_in_wire_order() {
        let option = ExperimentalMessage::Repair(REPAIR).option();
        let expected: Vec<u8> = (1..=0x11).collect();
        assert_eq!((option.flags, option.as_slice()), (10, &expected[..]));
        let plain = MpRepair { checksum: None, ..REPAIR };
        for (repair, len) in [(REPAIR, 20), (plain, 18)] {
            let message = ExperimentalMessage::Repair(repair);
            assert_eq!(message.option().encoded_len(), len);
            assert_eq!(ExperimentalMessage::parse(&message.option()), Some(message));
        }
    }

    #[test]
    fn repair_options_of_other_lengths_are_refused() {
        for len in 0..=30 {
            let option = MpExperimental::new(10, &vec![1; len]).unwrap();
            let expected = matches!(len, 15 | 17);
            assert_eq!(ExperimentalMessage::parse(&option).is_some(), expected, "{len} bytes");
        }
    }

    #[test]
    fn with_timestamps_a_repair_takes_as_much_as_a_mapping() {
        for checksum in [None, Some(1)] {
            let timestamps = Some(Timestamps::default());
            let mut options = TcpOptions { timestamps, ..TcpOptions::default() };
            let message = ExperimentalMessage::Repair(MpRepair { checksum, ..REPAIR });
            assert!(options.mptcp.push(MptcpOption::Experimental(message.option())));
            assert_eq!(options.encoded_len(), 32);
        }
    }

    #[test]
    fn the_checksum_covers_every_field_but_those_of_the_segment() {
        let sum = |repair: &MpRepair, dsn, ssn, payload: &[u8]| {
            repair_checksum(repair, dsn, ssn, Checksum::of(payload))
        };
        let base = sum(&REPAIR, 1, 2, b"abc");
        assert_ne!(base, sum(&MpRepair { length: 5, ..REPAIR }, 1, 2, b"abc"));
        assert_ne!(base, sum(&MpRepair { span: 5, ..REPAIR }, 1, 2, b"abc"));
        assert_ne!(base, sum(&MpRepair { row: 5, ..REPAIR }, 1, 2, b"abc"));
        assert_ne!(base, sum(&REPAIR, 1 << 40, 2, b"abc"));
        assert_ne!(base, sum(&REPAIR, 1, 3, b"abc"));
        assert_ne!(base, sum(&REPAIR, 1, 2, b"abd"));
    }
}
