//! Randomness of the operating system.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Fills the seed of a generator.
pub(crate) fn fill(seed: &mut [u8; 32]) -> io::Result<()> {
    // Reads of up to 256 bytes are never partial. A signal can interrupt only the wait for the first entropy after
    // boot.
    rustix::io::retry_on_intr(|| getrandom(&mut seed[..], GetRandomFlags::empty()))?;
    Ok(())
}
