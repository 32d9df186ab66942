//! Data sequence mappings as the peer announced them on one subflow (RFC 8684 section 3.3.1).
//!
//! Subflow bytes arrive here in order and leave with their DSN. A mapping may cover many segments,
//! may be announced again with each of them, and never changes. With checksums on, bytes wait until
//! their whole mapping is here and verified; a mapping that is one segment (as Marline sends them)
//! is verified in place.

use std::collections::VecDeque;

use marline_policy::{Dsn, Ssn};
use marline_wire::{Checksum, dss_checksum};

/// A mapping in unwrapped positions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RxMapping {
    pub(crate) ssn: Ssn,
    pub(crate) len: u64,
    pub(crate) dsn: Dsn,
    /// DSN as the checksum covers it: all 64 bits of the wire.
    pub(crate) wire_dsn: u64,
    /// Length as the checksum covers it: with the DATA_FIN, if it has one.
    pub(crate) wire_len: u16,
    pub(crate) checksum: Option<u16>,
}

impl RxMapping {
    const fn end(&self) -> Ssn {
        self.ssn.plus(self.len)
    }

    fn verify(&self, payload: &[u8]) -> bool {
        let Some(sum) = self.checksum else { return true };
        let ssn = self.ssn.0 as u32;
        dss_checksum(self.wire_dsn, ssn, self.wire_len, Checksum::of(payload)) == sum
    }
}

/// Why a mapping or bytes cannot be accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum MappingError {
    /// It contradicts one announced before.
    Contradiction,
    /// More mappings announced than the limits allow.
    TooMany,
    /// Bytes in order that no mapping covers.
    Unmapped,
    /// The DSS checksum of the mapping that starts here does not match.
    BadChecksum(Dsn),
}

/// The mappings of one subflow's receiving side.
#[derive(Debug)]
pub(crate) struct MappingRx {
    /// Sorted by subflow position, disjoint.
    announced: VecDeque<RxMapping>,
    limit: usize,
    /// Bytes of the front mapping that wait for its checksum.
    waiting: Vec<u8>,
    /// From here on everything is mapped (infinite mapping, or plain TCP).
    infinite: Option<(Ssn, Dsn)>,
}

impl MappingRx {
    pub(crate) const fn new(limit: usize) -> Self {
        MappingRx { announced: VecDeque::new(), limit, waiting: Vec::new(), infinite: None }
    }

    /// From `ssn` on, positions map one to one; mappings before it stay.
    pub(crate) fn set_infinite(&mut self, ssn: Ssn, dsn: Dsn) {
        self.infinite = Some((ssn, dsn));
        self.announced.retain(|m| m.end() <= ssn);
        self.waiting.clear();
    }

    pub(crate) const fn is_infinite(&self) -> bool {
        self.infinite.is_some()
    }

    /// Takes note of a mapping. `delivered` is the first subflow position not delivered yet.
    pub(crate) fn announce(&mut self, new: RxMapping, delivered: Ssn) -> Result<(), MappingError> {
        if new.len == 0 || self.infinite.is_some() {
            return Ok(());
        }
        if new.end() <= delivered {
            return Ok(());
        }
        let index = self.announced.partition_point(|m| m.end() <= new.ssn);
        match self.announced.get(index) {
            Some(known) if known.ssn < new.end() => {
                let same = known.ssn == new.ssn && known.len == new.len && known.dsn == new.dsn;
                // A retransmission may be cut anew inside the mapping it belongs to.
                let inside = new.ssn >= known.ssn
                    && new.end() <= known.end()
                    && new.dsn.0.wrapping_sub(known.dsn.0) == new.ssn.0 - known.ssn.0;
                if same || inside { Ok(()) } else { Err(MappingError::Contradiction) }
            }
            _ if new.ssn < delivered => Err(MappingError::Contradiction),
            _ if self.announced.len() >= self.limit => Err(MappingError::TooMany),
            _ => {
                self.announced.insert(index, new);
                Ok(())
            }
        }
    }

    /// Translates in-order bytes. `deliver` gets each run of bytes with its DSN.
    pub(crate) fn translate(
        &mut self,
        ssn: Ssn,
        bytes: &[u8],
        deliver: &mut dyn FnMut(Dsn, &[u8]),
    ) -> Result<(), MappingError> {
        let (mut ssn, mut bytes) = (ssn, bytes);
        while !bytes.is_empty() {
            let front = self.announced.front().copied();
            let Some(mapping) = front.filter(|m| m.ssn <= ssn) else {
                return self.translate_unmapped(ssn, bytes, deliver);
            };
            let offset = ssn.since(mapping.ssn);
            let left = mapping.len.saturating_sub(offset);
            let n = left.min(bytes.len() as u64) as usize;
            self.take(&mapping, offset, &bytes[..n], deliver)?;
            if n as u64 == left {
                self.announced.pop_front();
            }
            bytes = &bytes[n..];
            ssn = ssn.plus(n as u64);
        }
        Ok(())
    }

    fn translate_unmapped(
        &mut self,
        ssn: Ssn,
        bytes: &[u8],
        deliver: &mut dyn FnMut(Dsn, &[u8]),
    ) -> Result<(), MappingError> {
        let Some((from, dsn)) = self.infinite else { return Err(MappingError::Unmapped) };
        // Bytes before the infinite mapping were sent under mappings that failed: the peer sends
        // their data again behind it.
        let skip = from.since(ssn).min(bytes.len() as u64);
        let rest = &bytes[skip as usize..];
        if !rest.is_empty() {
            deliver(dsn.plus(ssn.plus(skip).since(from)), rest);
        }
        Ok(())
    }

    fn take(
        &mut self,
        mapping: &RxMapping,
        offset: u64,
        bytes: &[u8],
        deliver: &mut dyn FnMut(Dsn, &[u8]),
    ) -> Result<(), MappingError> {
        if mapping.checksum.is_none() {
            deliver(mapping.dsn.plus(offset), bytes);
            return Ok(());
        }
        let bad = MappingError::BadChecksum(mapping.dsn);
        if offset == 0 && bytes.len() as u64 == mapping.len {
            if !mapping.verify(bytes) {
                return Err(bad);
            }
            deliver(mapping.dsn, bytes);
            return Ok(());
        }
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() as u64 == mapping.len {
            let whole = core::mem::take(&mut self.waiting);
            if !mapping.verify(&whole) {
                return Err(bad);
            }
            deliver(mapping.dsn, &whole);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(ssn: u64, len: u64, dsn: u64) -> RxMapping {
        RxMapping {
            ssn: Ssn(ssn),
            len,
            dsn: Dsn(dsn),
            wire_dsn: dsn,
            wire_len: len as u16,
            checksum: None,
        }
    }

    fn translate(
        rx: &mut MappingRx,
        ssn: u64,
        bytes: &[u8],
    ) -> Result<Vec<(u64, Vec<u8>)>, MappingError> {
        let mut out = Vec::new();
        rx.translate(Ssn(ssn), bytes, &mut |dsn, b| out.push((dsn.0, b.to_vec())))?;
        Ok(out)
    }

    #[test]
    fn one_mapping_may_cover_many_segments_and_one_segment_many_mappings() {
        let mut rx = MappingRx::new(8);
        rx.announce(mapping(1, 4, 100), Ssn(1)).unwrap();
        rx.announce(mapping(1, 4, 100), Ssn(1)).unwrap();
        rx.announce(mapping(5, 2, 50), Ssn(1)).unwrap();
        assert_eq!(translate(&mut rx, 1, &[1, 2]).unwrap(), [(100, vec![1, 2])]);
        assert_eq!(
            translate(&mut rx, 3, &[3, 4, 5, 6]).unwrap(),
            [(102, vec![3, 4]), (50, vec![5, 6])]
        );
        assert_eq!(translate(&mut rx, 7, &[7]), Err(MappingError::Unmapped));
    }

    #[test]
    fn a_mapping_never_changes() {
        let mut rx = MappingRx::new(2);
        rx.announce(mapping(1, 10, 100), Ssn(1)).unwrap();
        assert_eq!(rx.announce(mapping(1, 10, 101), Ssn(1)), Err(MappingError::Contradiction));
        assert_eq!(rx.announce(mapping(5, 10, 104), Ssn(1)), Err(MappingError::Contradiction));
        assert_eq!(rx.announce(mapping(4, 3, 103), Ssn(1)), Ok(()));
        rx.announce(mapping(11, 10, 110), Ssn(1)).unwrap();
        assert_eq!(rx.announce(mapping(40, 10, 140), Ssn(1)), Err(MappingError::TooMany));
        assert_eq!(rx.announce(mapping(1, 4, 9), Ssn(5)), Ok(()));
        let mut late = MappingRx::new(2);
        assert_eq!(late.announce(mapping(3, 4, 9), Ssn(5)), Err(MappingError::Contradiction));
    }

    #[test]
    fn a_checksummed_mapping_is_delivered_whole_or_not_at_all() {
        let mut rx = MappingRx::new(8);
        let sum = dss_checksum(100, 1, 4, Checksum::of(&[1, 2, 3, 4]));
        rx.announce(RxMapping { checksum: Some(sum), ..mapping(1, 4, 100) }, Ssn(1)).unwrap();
        assert!(translate(&mut rx, 1, &[1, 2, 3]).unwrap().is_empty());
        assert_eq!(translate(&mut rx, 4, &[4]).unwrap(), [(100, vec![1, 2, 3, 4])]);
        rx.announce(RxMapping { checksum: Some(sum ^ 1), ..mapping(5, 4, 104) }, Ssn(5)).unwrap();
        assert_eq!(translate(&mut rx, 5, &[1, 2, 3, 4]), Err(MappingError::BadChecksum(Dsn(104))));
    }

    #[test]
    fn after_an_infinite_mapping_positions_map_one_to_one() {
        let mut rx = MappingRx::new(8);
        rx.announce(mapping(1, 4, 100), Ssn(1)).unwrap();
        rx.set_infinite(Ssn(7), Dsn(104));
        assert_eq!(
            translate(&mut rx, 1, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap(),
            [(100, vec![1, 2, 3, 4]), (104, vec![7, 8])]
        );
    }
}
