//! Data sequence mappings received on one subflow (RFC 8684 section 3.3.1).
//!
//! Subflow bytes arrive here in order and leave with their DSN. A mapping may cover many segments, may be announced
//! again with each of them, and never changes. Adjacent mappings that are contiguous in both spaces are merged, so that
//! a stream behind a gap needs memory only for its discontinuities. With checksums on, bytes wait until their whole
//! mapping is received and verified. A mapping of one segment (as Marline sends them) is verified in place.
//!
//! When a checksum fails on the only subflow, the data of that mapping and all following data are kept unverified:
//! the subflow has acknowledged them, so the peer will not send them again. The peer's infinite mapping, or its
//! MP_FAIL in answer to ours, confirms that these bytes continue the stream (section 3.7).

use std::collections::VecDeque;

use marline_policy::{DataRange, Dsn, Ssn};
use marline_wire::mptcp::{MpRepair, repair_checksum};
use marline_wire::{Checksum, dss_checksum};

use self::torn_ranges::TornRanges;
use crate::fec::Repair;
use crate::on_demand::OnDemand;

mod torn_ranges;

/// A mapping in unwrapped positions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RxMapping {
    pub(crate) ssn: Ssn,
    pub(crate) len: u64,
    pub(crate) dsn: Dsn,
    /// DSN covered by the checksum: all 64 bits of the wire.
    pub(crate) wire_dsn: u64,
    /// Difference between the position on the subflow and the SSN covered by the checksum, due to data in a SYN.
    pub(crate) unmapped: u16,
    /// Length covered by the checksum, including a DATA_FIN.
    pub(crate) wire_len: u16,
    pub(crate) checksum: Option<u16>,
    /// For a repair: the bytes are a sum over `span` bytes of the stream, starting at `dsn`.
    pub(crate) coded: Option<RepairFields>,
}

/// Additional fields of a repair's mapping.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepairFields {
    pub(crate) span: u16,
    pub(crate) row: u8,
}

impl RxMapping {
    const fn end(&self) -> Ssn {
        self.ssn.plus(self.len)
    }

    /// True if the next mapping can be merged into this one.
    fn is_followed_by(&self, next: &RxMapping) -> bool {
        let plain = |m: &RxMapping| m.checksum.is_none() && m.coded.is_none();
        let touches = self.end() == next.ssn && self.dsn.plus(self.len) == next.dsn;
        touches && plain(self) && plain(next)
    }

    fn verify(&self, payload: &[u8]) -> bool {
        let Some(sum) = self.checksum else { return true };
        let ssn = self.ssn.0 as u32;
        if let Some(RepairFields { span, row }) = self.coded {
            let wire = MpRepair {
                ssn: ssn as u16,
                length: self.wire_len,
                dsn: self.wire_dsn as u32,
                span,
                row,
                data_ack: 0,
                checksum: None,
            };
            return repair_checksum(&wire, self.wire_dsn, ssn, Checksum::of(payload)) == sum;
        }
        let ssn = ssn.wrapping_sub(self.unmapped.into());
        dss_checksum(self.wire_dsn, ssn, self.wire_len, Checksum::of(payload)) == sum
    }
}

/// Reasons to reject a mapping or bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum MappingError {
    /// The mapping contradicts an earlier one.
    Contradiction,
    /// More mappings announced than the limits allow.
    TooMany,
    /// Bytes in order that no mapping covers.
    Unmapped,
    /// The DSS checksum of the mapping that starts here does not match.
    BadChecksum(Dsn),
    /// More bytes follow a failed mapping than any window allowed.
    Overflow,
}

/// Unverified bytes, starting with those of a failed mapping.
#[derive(Debug)]
struct FailedMapping {
    ssn: Ssn,
    dsn: Dsn,
    bytes: Vec<u8>,
}

/// Mappings received on one subflow.
#[derive(Debug)]
pub(crate) struct MappingRx {
    /// Sorted by subflow position, disjoint.
    announced: VecDeque<RxMapping>,
    limit: u32,
    /// Ranges whose mapping was removed on the path.
    torn: TornRanges,
    /// Limit on bytes kept behind a failed mapping.
    max_kept: u32,
    /// Bytes of the front mapping that wait for its checksum to be verified.
    waiting: OnDemand<Vec<u8>>,
    /// Start of an infinite mapping (or of plain TCP). Boxed, because few connections have it.
    infinite: Option<Box<(Ssn, Dsn)>>,
    failed: Option<Box<FailedMapping>>,
    /// Complete repairs.
    repairs: OnDemand<Vec<(Repair, Vec<u8>)>>,
}

impl MappingRx {
    pub(crate) fn new(limit: usize, max_kept: u64) -> Self {
        MappingRx {
            announced: VecDeque::new(),
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            torn: TornRanges::default(),
            max_kept: u32::try_from(max_kept).unwrap_or(u32::MAX),
            waiting: OnDemand::new(),
            infinite: None,
            failed: None,
            repairs: OnDemand::new(),
        }
    }

    /// Sets an infinite mapping: positions before and after this point map one to one, except that mappings that end
    /// before it stay. After a failed checksum, the point is the first kept byte, because a middlebox that changed
    /// lengths has made the peer's positions differ from ours. Returns kept bytes to be delivered.
    pub(crate) fn set_infinite(&mut self, ssn: Ssn, dsn: Dsn) -> Option<(Dsn, Vec<u8>)> {
        if let Some(failed) = self.failed.take() {
            self.infinite = Some(Box::new((failed.ssn, failed.dsn)));
            return Some((failed.dsn, failed.bytes));
        }
        self.infinite = Some(Box::new((ssn, dsn)));
        // The part of a merged mapping before the point stays.
        let whole = |m: &RxMapping| m.checksum.is_some() || m.coded.is_some();
        let spans = |m: &RxMapping| m.ssn < ssn && ssn < m.end() && !whole(m);
        if let Some(mapping) = self.announced.iter_mut().find(|m| spans(m)) {
            mapping.len = ssn.since(mapping.ssn);
        }
        let front = self.announced.front().filter(|m| m.end() > ssn).map(|m| m.dsn);
        self.announced.retain(|m| m.end() <= ssn);
        let waiting = front.map(|dsn| (dsn, self.take_waiting()));
        waiting.filter(|(_, bytes)| !bytes.is_empty())
    }

    /// True if bytes at this position have a stream position, now or later.
    pub(crate) fn covers(&self, ssn: Ssn) -> bool {
        let mapped = self.announced.front().is_some_and(|m| m.ssn <= ssn);
        mapped || self.infinite.is_some() || self.failed.is_some()
    }

    /// Stream positions of this many bytes, starting at this position, as far as mappings are known. A repair has none.
    pub(crate) fn stream_ranges(&self, ssn: Ssn, bytes: u64) -> Vec<DataRange> {
        let part = |first: Ssn, end: Ssn, dsn: Dsn| {
            let (start, end) = (first.max(ssn), end.min(ssn.plus(bytes)));
            let at = dsn.0.checked_add(start.0)?.checked_sub(first.0)?;
            (start < end).then(|| DataRange::new(Dsn(at), Dsn(at).plus(end.since(start))))
        };
        let plain = self.announced.iter().filter(|mapping| mapping.coded.is_none());
        let mut places: Vec<DataRange> =
            plain.filter_map(|mapping| part(mapping.ssn, mapping.end(), mapping.dsn)).collect();
        if let Some(&(from, dsn)) = self.infinite.as_deref().filter(|_| places.is_empty()) {
            places.extend(part(from, ssn.plus(bytes), dsn));
        }
        places
    }

    /// True if the next mapping covers all positions from `start` to `end`.
    pub(crate) fn maps(&self, start: Ssn, end: Ssn) -> bool {
        self.announced.front().is_some_and(|m| m.ssn <= start && end <= m.end())
    }

    /// True if some position from `start` to `end` is neither mapped nor torn nor kept behind a failed mapping.
    pub(crate) fn lacks_mapping(&self, start: Ssn, end: Ssn) -> bool {
        if self.infinite.is_some() || self.failed.is_some() {
            return false;
        }
        let mut at = start;
        let mut mappings = self.announced.iter().skip_while(|m| m.end() <= start).peekable();
        while at < end {
            if let Some(mapping) = mappings.next_if(|m| m.ssn <= at) {
                at = at.max(mapping.end());
                continue;
            }
            match self.torn.len_at(at) {
                0 => return true,
                torn => at = at.plus(torn),
            }
        }
        false
    }

    /// True if the last bytes before `delivered` were discarded or wait for the rest of their mapping.
    pub(crate) fn has_torn_end(&self, delivered: Ssn) -> bool {
        self.torn.len_at(Ssn(delivered.0.saturating_sub(1))) > 0 || !self.waiting.is_empty()
    }

    /// Stream position of this subflow position on plain TCP; `None` without an infinite mapping.
    pub(crate) fn plain_position(&self, at: Ssn) -> Option<Dsn> {
        let (ssn, dsn) = *self.infinite.as_deref()?;
        Some(Dsn((dsn.0 + at.0).saturating_sub(ssn.0)))
    }

    /// Bytes kept since a checksum failed; `None` if none failed.
    pub(crate) fn kept_bytes(&self) -> Option<u64> {
        self.failed.as_ref().map(|failed| failed.bytes.len() as u64)
    }

    /// Position at which the kept bytes will continue the stream.
    pub(crate) fn failed_at(&self) -> Option<Dsn> {
        self.failed.as_ref().map(|failed| failed.dsn)
    }

    /// True if all mappings of bytes that have not arrived match plain TCP.
    pub(crate) fn expects_plain(&self) -> bool {
        let plain = |m: &RxMapping| m.coded.is_none() && m.dsn.0 + 1 == m.ssn.0;
        self.announced.iter().all(plain)
    }

    pub(crate) const fn is_infinite(&self) -> bool {
        self.infinite.is_some()
    }

    /// True if plain TCP applies from the first byte of the subflow.
    pub(crate) fn is_plain_from_start(&self) -> bool {
        self.infinite.as_deref() == Some(&(Ssn(1), Dsn(0)))
    }

    /// Adds a mapping. `delivered` is the first subflow position not delivered yet.
    pub(crate) fn announce(&mut self, new: RxMapping, delivered: Ssn) -> Result<(), MappingError> {
        if new.len == 0 || self.infinite.is_some() || self.failed.is_some() {
            return Ok(());
        }
        if new.end() <= delivered {
            return Ok(());
        }
        let index = self.announced.partition_point(|m| m.end() <= new.ssn);
        match self.announced.get(index).copied() {
            Some(known) if known.ssn < new.end() => {
                let same = known.ssn == new.ssn
                    && known.len == new.len
                    && known.dsn == new.dsn
                    && known.coded == new.coded;
                // A retransmission may be split differently inside its mapping.
                let inside = known.coded.is_none()
                    && new.coded.is_none()
                    && new.ssn >= known.ssn
                    && new.end() <= known.end()
                    && new.dsn.0.wrapping_sub(known.dsn.0) == new.ssn.0 - known.ssn.0;
                if same || inside { Ok(()) } else { Err(MappingError::Contradiction) }
            }
            _ if new.ssn < delivered => self.announce_rest(new, delivered),
            _ if self.try_merge(index, &new) => Ok(()),
            _ if self.announced.len() >= self.limit() => Err(MappingError::TooMany),
            _ => {
                if self.announced.capacity() == 0 {
                    self.make_room_for_one();
                }
                self.announced.insert(index, new);
                Ok(())
            }
        }
    }

    #[cold]
    fn make_room_for_one(&mut self) {
        self.announced.reserve_exact(1);
    }

    /// Adds a mapping whose first bytes were already processed without it. The rest is useful unless the mapping can
    /// be verified only as a whole.
    fn announce_rest(&mut self, new: RxMapping, delivered: Ssn) -> Result<(), MappingError> {
        let begins_torn = self.torn.covers(new.ssn) && self.torn.covers(delivered);
        if !begins_torn {
            return Err(MappingError::Contradiction);
        }
        if new.checksum.is_some() || new.coded.is_some() {
            return Ok(());
        }
        let gone = delivered.since(new.ssn);
        let rest = RxMapping {
            ssn: delivered,
            len: new.len - gone,
            dsn: new.dsn.plus(gone),
            wire_dsn: new.wire_dsn.wrapping_add(gone),
            ..new
        };
        self.announce(rest, delivered)
    }

    /// Records a received segment, after its mapping. `mapped` is true if it had one. Unmapped bytes of a partly
    /// mapped segment are torn. Returns true if there are any.
    pub(crate) fn record_segment_bounds(
        &mut self,
        start: Ssn,
        end: Ssn,
        mapped: bool,
        delivered: Ssn,
    ) -> bool {
        if self.failed.is_some() || self.infinite.is_some() {
            return false;
        }
        let mut from = start.max(delivered);
        let first = self.announced.partition_point(|m| m.end() <= from);
        let known = |m: &RxMapping| m.ssn < end;
        let joined = mapped || start < from || self.torn.covers(from);
        let joined = joined || self.announced.get(first).is_some_and(known);
        if !joined {
            return false;
        }
        let limit = self.limit();
        let mut torn = false;
        for mapping in self.announced.range(first..).take_while(|m| known(m)) {
            if from < mapping.ssn {
                self.torn.insert(from, mapping.ssn, limit);
                torn = true;
            }
            from = from.max(mapping.end());
        }
        if from < end {
            self.torn.insert(from, end, limit);
            torn = true;
        }
        torn
    }

    /// Merges the new mapping, which belongs before the one at `index`, with its neighbors if they are contiguous.
    fn try_merge(&mut self, index: usize, new: &RxMapping) -> bool {
        let after = self.announced.get(index).copied().filter(|after| new.is_followed_by(after));
        let before = index.checked_sub(1).and_then(|before| self.announced.get_mut(before));
        if let Some(before) = before.filter(|before| before.is_followed_by(new)) {
            before.len += new.len;
            if let Some(after) = after {
                before.len += after.len;
                self.announced.remove(index);
            }
            return true;
        }
        match self.announced.get_mut(index) {
            Some(next) if after.is_some() => {
                next.ssn = new.ssn;
                next.dsn = new.dsn;
                next.wire_dsn = new.wire_dsn;
                next.len += new.len;
                true
            }
            _ => false,
        }
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        self.announced.shrink_to_fit();
        self.torn.shrink();
        if self.waiting.is_empty() {
            self.waiting.retire();
        }
        if self.repairs.is_empty() {
            self.repairs.retire();
        }
    }

    /// Memory held, in bytes, excluding data kept after a failed checksum.
    pub(crate) fn memory(&self) -> u64 {
        let mappings = self.announced.capacity() * size_of::<RxMapping>();
        (mappings + self.torn.memory() + self.waiting.capacity()) as u64
    }

    /// Number of mappings kept.
    pub(crate) fn count(&self) -> usize {
        self.announced.len()
    }

    /// Raises the limit on mappings.
    pub(crate) fn raise_limit(&mut self, by: usize) {
        self.limit = self.limit.saturating_add(u32::try_from(by).unwrap_or(u32::MAX));
    }

    const fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Translates in-order bytes. `deliver` gets each run of bytes with its DSN.
    pub(crate) fn translate(
        &mut self,
        ssn: Ssn,
        bytes: &[u8],
        deliver: &mut dyn FnMut(Dsn, &[u8]),
    ) -> Result<(), MappingError> {
        let (mut ssn, mut bytes) = (ssn, bytes);
        if self.failed.is_some() {
            return self.keep_bytes(bytes);
        }
        while !bytes.is_empty() {
            let front = self.announced.front().copied();
            let Some(mapping) = front.filter(|m| m.ssn <= ssn) else {
                let next = front.map_or(u64::MAX, |m| m.ssn.since(ssn));
                let torn = self.torn.len_at(ssn).min(next).min(bytes.len() as u64);
                if torn == 0 {
                    return self.translate_unmapped(ssn, bytes, deliver);
                }
                bytes = &bytes[torn as usize..];
                ssn = ssn.plus(torn);
                self.torn.advance(ssn);
                continue;
            };
            let offset = ssn.since(mapping.ssn);
            let left = mapping.len.saturating_sub(offset);
            let n = left.min(bytes.len() as u64) as usize;
            if let Err(raw) = self.take_bytes(&mapping, offset, &bytes[..n], deliver) {
                let (ssn, dsn) = (mapping.ssn, mapping.dsn);
                self.failed = Some(Box::new(FailedMapping { ssn, dsn, bytes: raw }));
                self.announced.clear();
                self.keep_bytes(&bytes[n..])?;
                return Err(MappingError::BadChecksum(dsn));
            }
            if n as u64 == left {
                self.announced.pop_front();
            }
            bytes = &bytes[n..];
            ssn = ssn.plus(n as u64);
            self.torn.advance(ssn);
        }
        Ok(())
    }

    fn translate_unmapped(
        &mut self,
        ssn: Ssn,
        bytes: &[u8],
        deliver: &mut dyn FnMut(Dsn, &[u8]),
    ) -> Result<(), MappingError> {
        let Some(&(from, dsn)) = self.infinite.as_deref() else {
            return Err(MappingError::Unmapped);
        };
        // Bytes before the start of the stream are dropped.
        let skip = from.since(ssn).saturating_sub(dsn.0).min(bytes.len() as u64);
        let rest = &bytes[skip as usize..];
        if !rest.is_empty() {
            let at = (dsn.0 + ssn.plus(skip).0).saturating_sub(from.0);
            deliver(Dsn(at), rest);
        }
        Ok(())
    }

    fn take_waiting(&mut self) -> Vec<u8> {
        self.waiting.if_used().map(core::mem::take).unwrap_or_default()
    }

    /// Takes in-order bytes of a repair.
    fn take_coded(&mut self, mapping: &RxMapping, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() as u64 >= mapping.len {
            let whole = self.take_waiting();
            self.complete(mapping, &whole);
        }
    }

    /// Completes a repair. With a wrong checksum it is dropped.
    fn complete(&mut self, mapping: &RxMapping, sum: &[u8]) {
        let Some(RepairFields { span, row }) = mapping.coded.filter(|_| mapping.verify(sum)) else {
            return;
        };
        let range = DataRange::new(mapping.dsn, mapping.dsn.plus(u64::from(span)));
        self.repairs.push((Repair { range, symbol: mapping.wire_len, row }, sum.to_vec()));
    }

    /// Takes repairs that have become complete.
    pub(crate) fn take_repairs(&mut self) -> Vec<(Repair, Vec<u8>)> {
        self.repairs.if_used().map(core::mem::take).unwrap_or_default()
    }

    /// Delivers bytes behind a gap in the subflow as far as they are already mapped. They will be processed again in
    /// order. With checksums only whole mappings are delivered.
    pub(crate) fn peek(&mut self, ssn: Ssn, bytes: &[u8], deliver: &mut dyn FnMut(Dsn, &[u8])) {
        if self.failed.is_some() || self.infinite.is_some() {
            return;
        }
        let end = ssn.plus(bytes.len() as u64);
        let mut index = self.announced.partition_point(|m| m.end() <= ssn);
        while let Some(mapping) = self.announced.get(index).copied().filter(|m| m.ssn < end) {
            index += 1;
            let (from, to) = (mapping.ssn.max(ssn), mapping.end().min(end));
            let part = &bytes[from.since(ssn) as usize..to.since(ssn) as usize];
            let whole = part.len() as u64 == mapping.len;
            if mapping.coded.is_some() {
                if whole {
                    self.complete(&mapping, part);
                }
            } else if mapping.checksum.is_none() || whole && mapping.verify(part) {
                deliver(mapping.dsn.plus(from.since(mapping.ssn)), part);
            }
        }
    }

    fn keep_bytes(&mut self, bytes: &[u8]) -> Result<(), MappingError> {
        let Some(failed) = &mut self.failed else { return Err(MappingError::Unmapped) };
        if failed.bytes.len() + bytes.len() > self.max_kept as usize {
            return Err(MappingError::Overflow);
        }
        failed.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Takes bytes of a mapping, starting at `offset`. The error is the mapping whose checksum failed.
    fn take_bytes(
        &mut self,
        mapping: &RxMapping,
        offset: u64,
        bytes: &[u8],
        deliver: &mut dyn FnMut(Dsn, &[u8]),
    ) -> Result<(), Vec<u8>> {
        if mapping.coded.is_some() {
            self.take_coded(mapping, bytes);
            return Ok(());
        }
        if mapping.checksum.is_none() {
            deliver(mapping.dsn.plus(offset), bytes);
            return Ok(());
        }
        if offset == 0 && bytes.len() as u64 == mapping.len {
            if !mapping.verify(bytes) {
                return Err(bytes.to_vec());
            }
            deliver(mapping.dsn, bytes);
            return Ok(());
        }
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() as u64 == mapping.len {
            let whole = self.take_waiting();
            if !mapping.verify(&whole) {
                return Err(whole);
            }
            deliver(mapping.dsn, &whole);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
