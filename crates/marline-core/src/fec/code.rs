//! Repair code: a linear combination over a range of the stream.
//!
//! The stream is divided into cells of `symbol` bytes, counted from its first byte: byte p is in cell p / symbol
//! at column p mod symbol. A repair over a range is `symbol` bytes long, and its column c is the sum over all
//! cells of coefficient times the byte in column c; bytes outside the range count as zero:
//!
//! ```text
//! repair[c] = sum over p in range with p mod symbol = c of coefficient(row, p / symbol) * stream[p]
//! ```
//!
//! Every column is a separate system of equations. So segments need not be aligned with cells: a lost segment no
//! longer than a symbol costs each column at most one byte, wherever it begins, and one repair recovers it. Ranges
//! of repairs may overlap freely. Overlapping repairs are solved together (a sliding window), if they have the
//! same symbol size.
//!
//! The coefficients are those of [`marline_wire::repair_code`]: row 0 is the plain XOR of all cells, which is very
//! cheap, and any n rows repair any n lost cells. Random coefficients would fail once in 255 cases, and an XOR of
//! every other packet far more often. `docs/decisions/coding.md` compares them.

use core::ops::RangeInclusive;

use marline_policy::{DataRange, Dsn};
use marline_wire::repair_code::{add_multiple, coefficient};

/// Maximum number of cells in one repair, including partial ones at both ends.
pub(crate) const MAX_CELLS: u64 = 128;
/// Maximum number of bytes that one repair covers: the limit of its option.
pub(crate) const MAX_SPAN_BYTES: u64 = u16::MAX as u64;

/// Definition of a repair.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    /// Bytes that the sum covers.
    pub(crate) range: DataRange,
    /// Size of a cell, and of the sum, in bytes.
    pub(crate) symbol: u16,
    /// Row of coefficients.
    pub(crate) row: u8,
}

impl Repair {
    /// True if the repair is not empty and within the limits.
    pub(crate) const fn is_valid(&self) -> bool {
        self.symbol > 0
            && !self.range.is_empty()
            && self.range.len() <= MAX_SPAN_BYTES
            && self.range.end.0 <= u64::MAX / 2
            && self.last_cell() - self.first_cell() < MAX_CELLS
    }

    const fn first_cell(&self) -> u64 {
        self.range.start.0 / self.symbol as u64
    }

    const fn last_cell(&self) -> u64 {
        (self.range.end.0 - 1) / self.symbol as u64
    }

    /// Cells that overlap the range.
    pub(crate) fn cells(&self) -> RangeInclusive<u64> {
        self.first_cell()..=self.last_cell()
    }

    /// Longest part of `range` from its start that one repair can cover.
    pub(crate) fn cover(range: DataRange, symbol: u16) -> DataRange {
        let symbol = u64::from(symbol.max(1));
        let end = (range.start.0 / symbol + MAX_CELLS) * symbol;
        DataRange::new(range.start, range.end.min(Dsn(end))).prefix(MAX_SPAN_BYTES)
    }

    /// Coefficient of a cell.
    pub(crate) const fn coefficient(&self, cell: u64) -> u8 {
        coefficient(self.row, cell)
    }

    /// Adds the bytes at `at` to the sum. Bytes outside the range are ignored.
    pub(crate) fn add(&self, at: Dsn, bytes: &[u8], sum: &mut [u8]) {
        let whole = DataRange::new(at, at.plus(bytes.len() as u64));
        let part = whole.intersection(&self.range);
        let symbol = u64::from(self.symbol);
        let mut start = part.start.0;
        while start < part.end.0 {
            let (cell, column) = (start / symbol, (start % symbol) as usize);
            let end = part.end.0.min((cell + 1) * symbol);
            let bytes = &bytes[(start - at.0) as usize..(end - at.0) as usize];
            if let Some(sum) = sum.get_mut(column..column + bytes.len()) {
                add_multiple(sum, bytes, self.coefficient(cell));
            }
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repair(start: u64, end: u64, symbol: u16, row: u8) -> Repair {
        Repair { range: DataRange::new(Dsn(start), Dsn(end)), symbol, row }
    }

    #[test]
    fn row_zero_is_the_xor_of_everything() {
        let bytes: Vec<u8> = (0..100).map(|i| (i * 7 + 3) as u8).collect();
        let xor = repair(5, 95, 30, 0);
        let mut sum = vec![0; 30];
        xor.add(Dsn(0), &bytes, &mut sum);
        for (column, byte) in sum.iter().enumerate() {
            let all = (5..95).filter(|p| p % 30 == column).fold(0, |sum, p| sum ^ bytes[p]);
            assert_eq!(*byte, all, "column {column}");
        }
    }

    /// Expected values from docs/spec/experimental.md.
    #[test]
    fn the_sums_of_the_specification() {
        let rows = [
            (0, [0x04, 0x0c, 0x6d, 0x6e]),
            (1, [0xbf, 0xda, 0xd4, 0x47]),
            (5, [0x7b, 0x68, 0xae, 0x74]),
        ];
        for (row, expected) in rows {
            let mut sum = [0; 4];
            repair(1_002, 1_012, 4, row).add(Dsn(1_002), b"abcdefghij", &mut sum);
            assert_eq!(sum, expected, "row {row}");
        }
    }

    #[test]
    fn the_sum_of_parts_is_that_of_the_whole() {
        let bytes: Vec<u8> = (0..700).map(|i| (i * i) as u8).collect();
        let repair = repair(1_003, 1_650, 100, 9);
        let mut whole = vec![0; 100];
        repair.add(Dsn(1_000), &bytes, &mut whole);
        let mut parts = vec![0; 100];
        for (n, part) in bytes.chunks(33).enumerate() {
            repair.add(Dsn(1_000 + 33 * n as u64), part, &mut parts);
        }
        assert_eq!(whole, parts);
    }

    #[test]
    fn impossible_repairs_are_invalid_and_long_ranges_are_cut() {
        assert!(repair(0, 1, 1, 0).is_valid());
        assert!(!repair(0, 0, 1, 0).is_valid());
        assert!(!repair(0, 10, 0, 0).is_valid());
        assert!(!repair(0, 65_536, 2_000, 0).is_valid());
        assert!(repair(0, 65_535, 2_000, 0).is_valid());
        assert!(!repair(0, 129, 1, 0).is_valid());
        assert!(!repair(u64::MAX - 1, u64::MAX, 1, 0).is_valid());
        let long = DataRange::new(Dsn(50), Dsn(1 << 20));
        for symbol in [1, 7, 100, 1_400, u16::MAX] {
            let range = Repair::cover(long, symbol);
            assert!(Repair { range, symbol, row: 0 }.is_valid(), "{symbol}: {range:?}");
        }
        assert_eq!(Repair::cover(long, 1_400).len(), MAX_SPAN_BYTES);
    }
}
