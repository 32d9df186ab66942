//! Unpredictable numbers for keys, ids and nonces: ChaCha12, seeded by the operating system.

use core::fmt;
use std::io;

use chacha20::ChaCha12Rng;
use chacha20::rand_core::{Rng as _, SeedableRng as _};
use marline_time::Rng;

use crate::sys;

/// Random number generator for secrets. The state is secret, so `Debug` does not print it.
pub struct SecretRng(ChaCha12Rng);

impl SecretRng {
    /// Creates a generator seeded by the operating system.
    ///
    /// # Errors
    /// Fails if the operating system cannot provide randomness.
    pub fn from_os() -> io::Result<Self> {
        let mut seed = [0; 32];
        sys::random::fill(&mut seed)?;
        Ok(SecretRng(ChaCha12Rng::from_seed(seed)))
    }

    /// Generates a key of 32 bytes.
    pub fn key(&mut self) -> [u8; 32] {
        let mut key = [0; 32];
        for word in key.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next_u64().to_ne_bytes());
        }
        key
    }
}

/// Seed from which a server's RESETs are derived (docs/spec/udp-carrier.md section 6). A server that restarts with the
/// same seed can prove to its clients that it lost their connections. Anyone who knows the seed can end connections, so
/// `Debug` does not print it.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct ResetSeed([u8; 32]);

impl ResetSeed {
    /// Creates a seed from these bytes, which must be unpredictable. To keep the seed across restarts, derive them from
    /// a stored secret.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        ResetSeed(bytes)
    }

    /// Generates a random seed, for this process only.
    ///
    /// # Errors
    /// Fails if the operating system cannot provide randomness.
    pub fn random() -> io::Result<Self> {
        Ok(ResetSeed(SecretRng::from_os()?.key()))
    }

    pub(crate) const fn into_bytes(self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for ResetSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetSeed(..)")
    }
}

impl fmt::Debug for SecretRng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretRng(..)")
    }
}

impl Rng for SecretRng {
    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}
