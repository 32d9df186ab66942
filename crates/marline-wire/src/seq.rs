//! Sequence numbers as they appear in headers: modulo 2^32, without a total order.
//!
//! Inside Marline, positions are unwrapped to 64 bits ([`SeqNum::unwrap_near`]) so that ordinary comparison works.
//! Only code at the boundary of a subflow handles these 32-bit numbers.

/// A 32-bit sequence number of the TCP header. It has no `Ord`: order modulo 2^32 is not transitive.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Returns the number `n` positions later, modulo 2^32.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        SeqNum(self.0.wrapping_add(n))
    }

    /// Distance from `origin` to this number (mod 2^32).
    #[must_use]
    pub const fn offset_from(self, origin: SeqNum) -> u32 {
        self.0.wrapping_sub(origin.0)
    }

    /// The 64-bit position whose low 32 bits equal this number's offset from `origin` and that is nearest to `near`
    /// (ties go forward). Positions count from `origin`. `None` if it would be negative (a very old duplicate).
    #[must_use]
    pub const fn unwrap_near(self, origin: SeqNum, near: u64) -> Option<u64> {
        unwrap32(self.offset_from(origin), near)
    }
}

/// The 64-bit position with these low 32 bits that is nearest to `near`; `None` if it would be below zero.
#[must_use]
pub const fn unwrap32(low: u32, near: u64) -> Option<u64> {
    let delta = low.wrapping_sub(near as u32) as i32;
    near.checked_add_signed(delta as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwrapping_follows_the_neighbor_across_the_wrap() {
        let origin = SeqNum(0xffff_fff0);
        assert_eq!(SeqNum(0x10).unwrap_near(origin, 0), Some(0x20));
        let near = 5 * (1 << 32) + 7;
        assert_eq!(unwrap32(3, near), Some(5 * (1 << 32) + 3));
        assert_eq!(unwrap32(0xffff_fff0, near), Some(5 * (1 << 32) - 16));
        assert_eq!(unwrap32(0xffff_fff0, 4), None);
    }
}
