//! Stable hash over all events of a run: equal runs have equal digests.
//!
//! Each sixteen bytes are folded by a 64 x 64 -> 128 bit multiplication. Not for adversaries.

use core::cell::Cell;

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
        // Two chains side by side: one alone would wait for each multiplication.
        let (mut even, mut odd) = (self.0, self.0 ^ K0);
        let step = |state: u64, half: u128| fold(half as u64 ^ state, (half >> 64) as u64 ^ K1);
        let (blocks, rest) = bytes.as_chunks::<32>();
        for block in blocks {
            let (halves, _) = block.as_chunks::<16>();
            even = step(even, u128::from_le_bytes(halves[0]));
            odd = step(odd, u128::from_le_bytes(halves[1]));
        }
        let mut last = [0; 32];
        last[..rest.len()].copy_from_slice(rest);
        let (halves, _) = last.as_chunks::<16>();
        even = step(even ^ K0, u128::from_le_bytes(halves[0]));
        odd = step(odd ^ K1, u128::from_le_bytes(halves[1]));
        self.0 = fold(even, odd ^ K1) ^ even.rotate_left(32) ^ odd;
        self.number(bytes.len() as u64);
    }

    /// The hash so far.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

thread_local! {
    /// What [`of_runs`] of this thread has seen so far; `None` outside of it.
    static RUNS: Cell<Option<Digest>> = const { Cell::new(None) };
}

/// Does `work` and returns the digest of all scenes ([`Paths`](crate::Paths)) that ended meanwhile on
/// this thread, in their order. Work that was done on other threads is told by [`run_ended`].
pub fn of_runs<R>(work: impl FnOnce() -> R) -> (R, Digest) {
    let outer = RUNS.replace(Some(Digest::default()));
    let result = work();
    let seen = RUNS.replace(outer).unwrap_or_default();
    (result, seen)
}

/// Tells [`of_runs`] of this thread, if there is one, of a run that has ended.
pub fn run_ended(digest: u64) {
    RUNS.set(RUNS.get().map(|mut runs| {
        runs.number(digest);
        runs
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_by_the_innermost_and_in_their_order() {
        let two = |first, second| {
            of_runs(|| {
                run_ended(first);
                let (_, inner) = of_runs(|| run_ended(7));
                run_ended(second);
                inner
            })
        };
        let (inner, outer) = two(1, 2);
        assert_eq!((inner, outer), two(1, 2));
        assert_eq!(inner, two(3, 4).0);
        assert_ne!(outer, two(2, 1).1);
        run_ended(5);
        assert_eq!(of_runs(|| ()).1, Digest::default());
    }

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
