//! Assembly of a datagram that arrives in pieces, in any order, possibly with duplicates.
//!
//! Used for datagrams that a path carries in pieces (docs/spec/datagrams.md section 2) and for IP fragments. An
//! assembly limits only itself. Its owner limits the number and age of assemblies.

use core::ops::Range;

/// Maximum number of disjoint ranges. A piece that would need more is rejected.
const MAX_RANGE_COUNT: usize = 64;

/// Bytes of a datagram, and the ranges that have arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembly {
    bytes: Vec<u8>,
    /// Total length, once the last piece has arrived.
    len: Option<usize>,
    /// Ranges that have arrived, ascending and disjoint.
    arrived: Vec<Range<usize>>,
}

/// Error for a piece that contradicts earlier ones or exceeds the number of ranges.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BadPiece;

impl core::fmt::Display for BadPiece {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a fragment contradicts the others, or there are too many gaps")
    }
}

impl core::error::Error for BadPiece {}

impl Assembly {
    /// Adds a piece. `ends` means that it is the last one, which determines the length. Where pieces overlap,
    /// the bytes that arrived first are kept.
    ///
    /// # Errors
    /// Fails with [`BadPiece`]; the assembly is then unchanged.
    pub fn add_piece(&mut self, offset: usize, piece: &[u8], ends: bool) -> Result<(), BadPiece> {
        let end = offset.checked_add(piece.len()).ok_or(BadPiece)?;
        let longest = self.arrived.last().map_or(0, |range| range.end);
        let fits = match self.len {
            Some(len) => end <= len && (!ends || end == len),
            None => !ends || end >= longest,
        };
        if !fits || self.arrived.len() >= MAX_RANGE_COUNT {
            return Err(BadPiece);
        }
        if ends {
            self.len = Some(end);
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.copy_missing(offset..end, piece);
        self.record_range(offset..end);
        Ok(())
    }

    /// Copies the bytes of a piece that had not arrived yet.
    fn copy_missing(&mut self, range: Range<usize>, piece: &[u8]) {
        let mut from = range.start;
        let known = self.arrived.iter().filter(|known| known.end > range.start);
        for known in known.take_while(|known| known.start < range.end) {
            let until = known.start.max(from);
            self.bytes[from..until]
                .copy_from_slice(&piece[from - range.start..until - range.start]);
            from = known.end.clamp(from, range.end);
        }
        self.bytes[from..range.end].copy_from_slice(&piece[from - range.start..]);
    }

    fn record_range(&mut self, mut range: Range<usize>) {
        let first = self.arrived.partition_point(|known| known.end < range.start);
        let last = self.arrived.partition_point(|known| known.start <= range.end);
        if first < last {
            range.start = range.start.min(self.arrived[first].start);
            range.end = range.end.max(self.arrived[last - 1].end);
        }
        self.arrived.splice(first..last, [range]);
    }

    /// The complete bytes, once all of them have arrived.
    #[must_use]
    pub fn complete_bytes(&self) -> Option<&[u8]> {
        let len = self.len?;
        let complete = len == 0 || matches!(&self.arrived[..], [all] if *all == (0..len));
        complete.then(|| &self.bytes[..len])
    }

    /// The complete bytes as an owned vector; see [`complete_bytes`](Self::complete_bytes).
    #[must_use]
    pub fn into_whole(self) -> Option<Vec<u8>> {
        self.complete_bytes()?;
        Some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_in_any_order_with_repeats_and_overlaps_give_the_whole(
            whole in proptest::collection::vec(any::<u8>(), 1..2_000),
            cuts in proptest::collection::vec((0usize..2_000, 1usize..700), 0..20),
            order in any::<u64>(),
        ) {
            // Pieces that cover the datagram, and others that overlap them.
            let step = whole.len().div_ceil(7);
            let mut pieces: Vec<(usize, usize)> =
                (0..whole.len()).step_by(step).map(|at| (at, (at + step).min(whole.len()))).collect();
            pieces.extend(cuts.iter().map(|(at, len)| (*at % whole.len(), *len)).map(|(at, len)| {
                (at, (at + len).min(whole.len()))
            }));
            let mut state = order | 1;
            for at in (1..pieces.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                pieces.swap(at, (state >> 33) as usize % (at + 1));
            }
            let mut assembly = Assembly::default();
            let mut covered = vec![false; whole.len()];
            for (start, end) in pieces {
                prop_assert_eq!(assembly.complete_bytes().is_some(), covered.iter().all(|known| *known));
                assembly.add_piece(start, &whole[start..end], end == whole.len()).unwrap();
                covered[start..end].fill(true);
            }
            prop_assert_eq!(assembly.complete_bytes(), Some(&whole[..]));
        }
    }

    #[test]
    fn a_contradictory_piece_is_refused_without_effect() {
        let mut assembly = Assembly::default();
        assembly.add_piece(4, b"efgh", true).unwrap();
        let before = assembly.clone();
        assert_eq!(assembly.add_piece(6, b"ghi", false), Err(BadPiece));
        assert_eq!(assembly.add_piece(0, b"abc", true), Err(BadPiece));
        assert_eq!(assembly.add_piece(usize::MAX, b"ab", false), Err(BadPiece));
        assert_eq!(assembly, before);
        // Bytes that arrived first are kept.
        assembly.add_piece(0, b"abcdXX", false).unwrap();
        assert_eq!(assembly.complete_bytes(), Some(&b"abcdefgh"[..]));
        let mut longer = Assembly::default();
        longer.add_piece(8, b"x", false).unwrap();
        assert_eq!(longer.add_piece(0, b"abc", true), Err(BadPiece));
    }

    #[test]
    fn many_gaps_are_bounded() {
        let mut assembly = Assembly::default();
        let taken = (0..1_000).filter(|at| assembly.add_piece(2 * at, b"x", false).is_ok()).count();
        assert_eq!(taken, MAX_RANGE_COUNT);
        let mut empty = Assembly::default();
        empty.add_piece(0, b"", true).unwrap();
        assert_eq!(empty.complete_bytes(), Some(&b""[..]));
    }
}
