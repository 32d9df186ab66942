//! Stable hash over all events of a run: equal runs have equal digests.
//!
//! For a fixed input, a step is a bijection of the state, and for a fixed state, a bijection of the input. So no value
//! hides earlier ones, and two runs that differ in a single number, or in a single word of bytes, always have
//! different digests. The hash is not secure against adversaries.

use core::cell::Cell;

use marline_time::Instant;

/// A running hash.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Digest(u64);

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd1b5_4a32_d192_ed03;
/// Initial values of the lanes of [`Digest::bytes`].
const LANES: [u64; 4] = [K0, K1, !K0, !K1];

/// A bijection of 64-bit numbers (the finalizer of SplitMix64).
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// One step. The addition ensures that a zero changes a state of zero.
const fn step(state: u64, value: u64) -> u64 {
    mix(state ^ value).wrapping_add(K1)
}

impl Default for Digest {
    fn default() -> Self {
        Digest(K0)
    }
}

impl Digest {
    /// Adds a number.
    pub fn number(&mut self, value: u64) {
        self.0 = step(self.0, value);
    }

    /// Adds a time.
    pub fn time(&mut self, at: Instant) {
        self.number(at.as_nanos());
    }

    /// Adds bytes and their number.
    pub fn bytes(&mut self, bytes: &[u8]) {
        // Four parallel chains, because a single one would wait for each multiplication.
        let mut lanes = LANES;
        let mut take = |block: &[u8; 32]| {
            let (words, _) = block.as_chunks::<8>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane = step(*lane, u64::from_le_bytes(*word));
            }
        };
        let (blocks, rest) = bytes.as_chunks::<32>();
        blocks.iter().for_each(&mut take);
        if !rest.is_empty() {
            let mut last = [0; 32];
            last[..rest.len()].copy_from_slice(rest);
            take(&last);
        }
        for lane in lanes {
            self.number(lane);
        }
        self.number(bytes.len() as u64);
    }

    /// The hash so far.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

thread_local! {
    /// Runs that [`digest_of_runs`] has collected on this thread. `None` outside `digest_of_runs`.
    static RUNS: Cell<Option<Digest>> = const { Cell::new(None) };
}

/// Runs `work` and returns the digest of all scenes ([`Paths`](crate::Paths)) that ended during it on this thread, in
/// order. Work on other threads is reported with [`run_ended`].
pub fn digest_of_runs<R>(work: impl FnOnce() -> R) -> (R, Digest) {
    let outer = RUNS.replace(Some(Digest::default()));
    let result = work();
    let seen = RUNS.replace(outer).unwrap_or_default();
    (result, seen)
}

/// Reports a run that ended to this thread's [`digest_of_runs`], if there is one.
pub fn run_ended(digest: u64) {
    RUNS.set(RUNS.get().map(|mut runs| {
        runs.number(digest);
        runs
    }));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn runs_are_counted_by_the_innermost_in_order() {
        let two = |first, second| {
            digest_of_runs(|| {
                run_ended(first);
                let (_, inner) = digest_of_runs(|| run_ended(7));
                run_ended(second);
                inner
            })
        };
        let (inner, outer) = two(1, 2);
        assert_eq!((inner, outer), two(1, 2));
        assert_eq!(inner, two(3, 4).0);
        assert_ne!(outer, two(2, 1).1);
        run_ended(5);
        assert_eq!(digest_of_runs(|| ()).1, Digest::default());
    }

    #[test]
    fn no_number_cancels_earlier_digest_input() {
        let after = |first: u64, value: u64| {
            let mut digest = Digest::default();
            digest.number(first);
            let between = digest.value();
            digest.number(value);
            (between, digest.value())
        };
        let (state, _) = after(1, 0);
        let special = [0, 1, K0, K1, K0 ^ K1, K0 ^ (K1 << 1), state, state ^ K0, state ^ K1];
        for value in special.iter().flat_map(|value| [*value, !*value]) {
            let digests: BTreeSet<u64> = (0..1_000).map(|first| after(first, value).1).collect();
            assert_eq!(digests.len(), 1_000, "{value:#x} makes different histories equal");
        }
        assert_eq!(digest_of_runs(|| (0..9).for_each(|_| run_ended(K0))).1, {
            let mut digest = Digest::default();
            (0..9).for_each(|_| digest.number(K0));
            digest
        });
    }

    #[test]
    fn no_bytes_cancel_earlier_digest_input() {
        let after = |first: u64, bytes: &[u8]| {
            let mut digest = Digest::default();
            digest.number(first);
            digest.bytes(bytes);
            digest.value()
        };
        for word in [0, K0, K1, !K0, !K1, K0 ^ K1, u64::MAX] {
            for words in 1..=9 {
                let bytes = word.to_le_bytes().repeat(words);
                let digests: BTreeSet<u64> = (0..200).map(|first| after(first, &bytes)).collect();
                assert_eq!(digests.len(), 200, "{words} words {word:#x} make histories equal");
                // They do not hide a neighboring word either.
                let beside = |place: usize, changed: u64| {
                    let mut bytes = bytes.clone();
                    bytes[8 * place..][..8].copy_from_slice(&changed.to_le_bytes());
                    after(0, &bytes)
                };
                for place in 0..words {
                    let digests: BTreeSet<u64> = (0..50).map(|word| beside(place, word)).collect();
                    assert_eq!(digests.len(), 50, "word {place} has no effect next to {word:#x}");
                }
            }
        }
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
