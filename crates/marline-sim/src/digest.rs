//! A stable hash over everything that happened: equal runs have equal digests.
//!
//! Sixteen bytes are folded by one 64 x 64 -> 128 bit multiplication. Not for adversaries.

use marline_time::Instant;

/// A running hash.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Digest(u64);

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd1b5_4a32_d192_ed03;

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

impl Default for Digest {
    fn default() -> Self {
        Digest(K0)
    }
}

impl Digest {
    /// Takes in a number.
    pub fn number(&mut self, value: u64) {
        self.0 = fold(self.0 ^ K1, value ^ K0).wrapping_add(value);
    }

    /// Takes in a time.
    pub fn time(&mut self, at: Instant) {
        self.number(at.as_nanos());
    }

    /// Takes in bytes, and how many they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let mut state = self.0;
        let (pairs, rest) = bytes.as_chunks::<16>();
        for pair in pairs {
            let (low, high) = pair.split_at(8);
            state = fold(word(low) ^ state, word(high) ^ K1);
        }
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        state = fold(word(&last[..8]) ^ state ^ K0, word(&last[8..]) ^ K1);
        self.0 = state;
        self.number(bytes.len() as u64);
    }

    /// The hash so far.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_every_length_matters() {
        let hash = |bytes: &[u8]| {
            let mut digest = Digest::default();
            digest.bytes(bytes);
            digest.value()
        };
        let base = [7u8; 40];
        for bit in 0..320 {
            let mut changed = base;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(hash(&base), hash(&changed), "bit {bit}");
        }
        for length in 0..40 {
            assert_ne!(hash(&base[..length]), hash(&base[..=length]), "{length}");
        }
        assert_eq!(hash(&base), hash(&base));
    }
}
