//! Positions and ranges in the two sequence spaces, unwrapped to 64 bits.
//!
//! On the wire, both spaces wrap and start at a random number. Inside Marline, every position counts from the start of
//! its stream, so it never wraps and ordinary comparison works. The core converts at the boundary.

use core::fmt;

/// A data sequence number, counted from the connection's first byte of data (on the wire: IDSN + 1 + n).
#[derive(Copy, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dsn(pub u64);

/// A subflow sequence number relative to the subflow's ISN: 0 is the SYN, 1 the first byte.
#[derive(Copy, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ssn(pub u64);

impl Dsn {
    /// The position `n` bytes later.
    #[must_use]
    pub const fn plus(self, n: u64) -> Dsn {
        Dsn(self.0 + n)
    }

    /// Distance from an earlier position; 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Dsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Ssn {
    /// The position `n` octets later.
    #[must_use]
    pub const fn plus(self, n: u64) -> Ssn {
        Ssn(self.0 + n)
    }

    /// Distance from an earlier position; 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Ssn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "d{}", self.0)
    }
}

impl fmt::Debug for Ssn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// A range of data that includes `start` and excludes `end`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DataRange {
    /// First byte.
    pub start: Dsn,
    /// One past the last byte.
    pub end: Dsn,
}

impl DataRange {
    /// The range `start..end`; empty if `end` is not later.
    #[must_use]
    pub const fn new(start: Dsn, end: Dsn) -> Self {
        DataRange { start, end }
    }

    /// Number of bytes in the range.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.since(self.start)
    }

    /// Returns true if the range is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end.0 <= self.start.0
    }

    /// The part that both ranges share; empty if they are disjoint.
    #[must_use]
    pub fn intersection(&self, other: &DataRange) -> DataRange {
        DataRange::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The first `n` bytes of the range.
    #[must_use]
    pub fn prefix(&self, n: u64) -> DataRange {
        DataRange::new(self.start, self.start.plus(n.min(self.len())))
    }

    /// The last `n` bytes of the range.
    #[must_use]
    pub fn suffix(&self, n: u64) -> DataRange {
        DataRange::new(self.start.plus(self.len().saturating_sub(n)), self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_never_longer_than_its_range() {
        let range = DataRange::new(Dsn(5), Dsn(9));
        assert_eq!(range.prefix(3), DataRange::new(Dsn(5), Dsn(8)));
        assert_eq!(range.suffix(3), DataRange::new(Dsn(6), Dsn(9)));
        assert_eq!([range.suffix(4), range.suffix(u64::MAX)], [range; 2]);
        assert_eq!(range.prefix(u64::MAX), range);
    }
}
