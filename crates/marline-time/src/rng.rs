//! Deterministic random numbers: named, independent streams derived from one seed.
//!
//! Every component that needs randomness gets its own stream, named by a path ("link/3/loss", "host/client/keys"). So
//! an additional draw by a policy does not change the losses of a link, and two policies can be compared under
//! identical losses.

use core::fmt::Debug;

use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng as _;

/// A source of random numbers. Keys need an unpredictable source, and simulations need a seeded source.
pub trait Rng: Debug + Send {
    /// The next 64 uniformly distributed bits.
    fn next_u64(&mut self) -> u64;

    /// The next 32 uniformly distributed bits.
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Uniformly distributed in `0..bound`; 0 if `bound` is 0. The bias is below 2^-32 for the bounds used here.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniformly distributed in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// True with the given probability.
    fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

impl<R: Rng + ?Sized> Rng for Box<R> {
    fn next_u64(&mut self) -> u64 {
        (**self).next_u64()
    }
}

/// A PCG64 stream: fast, small, identical on every machine, and not suitable for secrets.
#[derive(Clone, Debug)]
pub struct PcgRng(Pcg64);

impl PcgRng {
    /// An independent stream for each `(seed, stream)` pair.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let (a, b) = (mix(seed), mix(seed ^ 0x9e37_79b9_7f4a_7c15));
        let (c, d) = (mix(stream), mix(stream ^ 0xd1b5_4a32_d192_ed03));
        PcgRng(Pcg64::new(to_u128(a, b), to_u128(c, d)))
    }
}

impl Rng for PcgRng {
    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

/// Root or branch from which named streams are derived.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SeedTree {
    seed: u64,
}

impl SeedTree {
    /// Creates the tree of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        SeedTree { seed }
    }

    /// Returns the stream with this name. A name always gives the same stream, regardless of the order of calls.
    #[must_use]
    pub fn stream(&self, name: &str) -> PcgRng {
        PcgRng::new(self.seed, fnv1a(name))
    }

    /// Returns an independent subtree with this name.
    #[must_use]
    pub fn branch(&self, name: &str) -> SeedTree {
        SeedTree { seed: mix(self.seed ^ fnv1a(name)) }
    }
}

const fn to_u128(high: u64, low: u64) -> u128 {
    ((high as u128) << 64) | low as u128
}

/// FNV-1a, 64 bits: short, identical on every machine, and not collision-resistant.
#[must_use]
pub fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Finalizer of splitmix64, which separates similar seeds.
const fn mix(seed: u64) -> u64 {
    let a = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_do_not_depend_on_the_order_of_asking() {
        let tree = SeedTree::new(7);
        let (mut a1, mut b1) = (tree.stream("a"), tree.stream("b"));
        let (mut b2, mut a2) = (tree.stream("b"), tree.stream("a"));
        for _ in 0..100 {
            assert_eq!(a1.next_u64(), a2.next_u64());
            assert_eq!(b1.next_u64(), b2.next_u64());
        }
        assert_ne!(tree.stream("a").next_u64(), tree.stream("b").next_u64());
        assert_ne!(tree.branch("a").stream("x").next_u64(), tree.stream("x").next_u64());
    }

    #[test]
    fn bounds_hold_and_the_mean_is_near_the_middle() {
        let mut rng = PcgRng::new(1, 2);
        let mut sum = 0;
        for _ in 0..10_000 {
            let value = rng.below(10);
            assert!(value < 10);
            sum += value;
            assert!((0.0..1.0).contains(&rng.unit()));
        }
        assert!((43_000..47_000).contains(&sum), "{sum}");
        assert_eq!(rng.below(0), 0);
    }
}
